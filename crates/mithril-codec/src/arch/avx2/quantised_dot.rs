//! Rows of quantised weights times vectors: codes are made weights in registers, in the order of
//! `quantised::products`.
//!
//! Sixteen numbers in a list are scaled once for a group and then looked up; other codes are converted and scaled one
//! by one. Both round as the definition does, so their weights are the same.

use super::{load, table};
use crate::quantised::products::{CodeRow, PARTIAL_SUMS, join};
use crate::quantised::values::Numbers;
use std::arch::x86_64::*;

/// How codes become numbers, as a parameter of kernels.
pub(in crate::arch) mod kind {
    pub(in crate::arch) const LISTED: u8 = 0;
    pub(in crate::arch) const SIGNED: u8 = 1;
    pub(in crate::arch) const WHOLE: u8 = 2;
}

/// Length of a padded vector.
///
/// # Panics
/// When parts of the row are too short.
pub(in crate::arch) fn padded_len(row: &CodeRow<'_>, columns: usize, x: &[f32], n_vectors: usize) -> usize {
    let padded = x.len() / n_vectors.max(1);
    assert!(columns.is_multiple_of(32) && columns <= padded && row.symbols.len() == padded);
    assert!(padded.is_multiple_of(64) && row.low_bits.len() == padded / 8 * usize::from(row.n_low));
    assert!(row.groups.scales.len() == columns / row.groups.len);
    assert!(row.groups.offsets.len() == row.groups.scales.len());
    padded
}

/// Chooses the kernel of a row, and multiplies it by the largest number of `at_once` vectors that are left: their sums stay in
/// registers.
macro_rules! dot_codes {
    ($features:literal, $($at_once:literal),*) => {
        #[target_feature(enable = $features)]
        pub(super) fn dot_rows(row: &CodeRow<'_>, columns: usize, x: &[f32], out: &mut [f32]) {
            let padded = padded_len(row, columns, x, out.len());
            let mut done = 0;
            while done < out.len() {
                let left = out.len() - done;
                let n = [$($at_once),*].into_iter().find(|n| *n <= left).unwrap_or(1);
                let (x, out) = (&x[done * padded..][..n * padded], &mut out[done..][..n]);
                match (row.numbers, row.groups.len == 16) {
                    (Numbers::Listed(_), true) => dot_kind::<{ kind::LISTED }, true>(row, columns, x, out),
                    (Numbers::Listed(_), false) => dot_kind::<{ kind::LISTED }, false>(row, columns, x, out),
                    (Numbers::Signed { .. }, true) => {
                        dot_kind::<{ kind::SIGNED }, true>(row, columns, x, out)
                    }
                    (Numbers::Signed { .. }, false) => {
                        dot_kind::<{ kind::SIGNED }, false>(row, columns, x, out)
                    }
                    (Numbers::Whole, true) => dot_kind::<{ kind::WHOLE }, true>(row, columns, x, out),
                    (Numbers::Whole, false) => dot_kind::<{ kind::WHOLE }, false>(row, columns, x, out),
                }
                done += n;
            }
        }

        #[target_feature(enable = $features)]
        fn dot_kind<const KIND: u8, const SIXTEENS: bool>(
            row: &CodeRow<'_>,
            columns: usize,
            x: &[f32],
            out: &mut [f32],
        ) {
            match out.len() {
                $($at_once => dot::<KIND, SIXTEENS, $at_once>(row, columns, x, out),)*
                _ => dot::<KIND, SIXTEENS, 1>(row, columns, x, out),
            }
        }
    };
}

pub(in crate::arch) use dot_codes;

dot_codes!("avx2,bmi1,bmi2,popcnt,lzcnt", 2);

/// What is the same for all codes of a row.
pub(in crate::arch) struct Constants {
    pub(in crate::arch) listed: [f32; 16],
    pub(in crate::arch) less: i8,
    /// Groups of `32 << shift` codes.
    pub(in crate::arch) shift: u32,
}

impl Constants {
    pub(in crate::arch) fn of(row: &CodeRow<'_>) -> Self {
        let listed = if let Numbers::Listed(listed) = row.numbers { *listed } else { [0.0; 16] };
        let less = if let Numbers::Signed { less } = row.numbers { less.cast_signed() } else { 0 };
        Self { listed, less, shift: (row.groups.len / 32).max(1).ilog2() }
    }
}

/// The vectors of `x` in pieces of 64.
pub(in crate::arch) fn vectors<const N: usize>(x: &[f32]) -> [&[[f32; 64]]; N] {
    let padded = x.len() / N;
    std::array::from_fn(|vector| x[vector * padded..][..padded].as_chunks().0)
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn dot<const KIND: u8, const SIXTEENS: bool, const N: usize>(
    row: &CodeRow<'_>,
    columns: usize,
    x: &[f32],
    out: &mut [f32],
) {
    let constants = Constants::of(row);
    let xs = vectors::<N>(x);
    let (symbols, n_low) = (row.symbols.as_chunks::<32>().0, usize::from(row.n_low));
    let listed = constants.listed.as_chunks::<8>().0;
    // SAFETY: each is eight readable singles, and `loadu` has no alignment requirement.
    let listed: [__m256; 2] = std::array::from_fn(|half| unsafe { _mm256_loadu_ps(listed[half].as_ptr()) });
    let less = _mm256_set1_epi8(constants.less);
    let (scales, offsets) = (row.groups.scales.as_slice(), row.groups.offsets.as_slice());
    let mut sums = [[_mm256_setzero_ps(); 4]; N];
    for (step, symbols) in symbols.iter().enumerate().take(columns / 32) {
        let codes = match KIND {
            kind::LISTED => load(symbols),
            _ => {
                let half = i64::from(step % 2 == 1);
                with_low(load(symbols), n_low, &row.low_bits[8 * n_low * (step / 2)..], half)
            }
        };
        let codes = if KIND == kind::SIGNED { _mm256_sub_epi8(codes, less) } else { codes };
        let halves = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
        for (eight, codes) in (0..4).map(|eight: usize| (eight, halves[eight / 2])) {
            let codes = if eight % 2 == 1 { _mm_srli_si128::<8>(codes) } else { codes };
            let group = if SIXTEENS { 2 * step + eight / 2 } else { step >> constants.shift };
            let (scale, offset) = (_mm256_set1_ps(scales[group]), _mm256_set1_ps(offsets[group]));
            let scaled = |numbers: __m256| _mm256_add_ps(_mm256_mul_ps(scale, numbers), offset);
            let weights = match KIND {
                kind::LISTED => {
                    // Bit 3 of a code chooses the half of the list: moved to the top, it blends.
                    let codes = _mm256_cvtepu8_epi32(codes);
                    let pick = |half: usize| _mm256_permutevar8x32_ps(scaled(listed[half]), codes);
                    let is_upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
                    _mm256_blendv_ps(pick(0), pick(1), is_upper)
                }
                kind::SIGNED => scaled(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))),
                _ => scaled(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes))),
            };
            for (sums, x) in sums.iter_mut().zip(&xs) {
                let x: &[f32; 8] = &x[step / 2].as_chunks().0[step % 2 * 4 + eight];
                // SAFETY: `x` is eight readable singles, and `loadu` has no alignment requirement.
                let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
                sums[eight] = _mm256_add_ps(sums[eight], _mm256_mul_ps(weights, x));
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(&sums) {
        let mut partial = [0f32; PARTIAL_SUMS];
        for (partial, sum) in partial.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
            // SAFETY: `partial` is eight writable singles, and `storeu` has no alignment requirement.
            unsafe { _mm256_storeu_ps(partial.as_mut_ptr(), *sum) };
        }
        *out = join(partial);
    }
}

/// As AVX-512's `with_low`, for one half of the 64 symbols of a piece.
#[inline]
#[target_feature(enable = "avx2")]
fn with_low(symbols: __m256i, n_low: usize, plane: &[u8], half: i64) -> __m256i {
    let (low, mask) = match n_low {
        1 => {
            let bytes = plane.first_chunk::<8>().map_or(0, |bytes| i64::from_le_bytes(*bytes));
            let first = 4 * half;
            let counts = _mm256_setr_epi64x(first, first + 1, first + 2, first + 3);
            (_mm256_srlv_epi64(_mm256_set1_epi64x(bytes), counts), 1)
        }
        2 => {
            let pieces = plane.first_chunk::<16>().map_or(_mm256_setzero_si256(), |bytes| table(bytes));
            let first = 4 * half;
            (_mm256_srlv_epi64(pieces, _mm256_setr_epi64x(first, first, first + 2, first + 2)), 3)
        }
        _ => {
            let bytes = plane.first_chunk::<32>().map_or(_mm256_setzero_si256(), |bytes| load(bytes));
            (_mm256_srl_epi64(bytes, _mm_cvtsi64_si128(4 * half)), 15)
        }
    };
    let low = _mm256_and_si256(low, _mm256_set1_epi8(mask));
    _mm256_or_si256(_mm256_sll_epi16(symbols, _mm_cvtsi64_si128(n_low as i64)), low)
}
