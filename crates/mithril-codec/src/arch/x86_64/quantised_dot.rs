//! Rows of quantised weights times vectors: codes are made weights in registers, in the order of
//! `quantised::products`.
//!
//! Sixteen numbers in a list are scaled once for a group and then looked up; other codes are converted and scaled one
//! by one. Both round as the definition does, so their weights are the same.

use super::{Avx2, load, load_wide, table};
use crate::quantised::products::{CodeRow, PARTIAL_SUMS, join};
use crate::quantised::values::Numbers;
use std::arch::x86_64::*;

/// How codes become numbers, as a parameter of kernels.
mod kind {
    pub(super) const LISTED: u8 = 0;
    pub(super) const SIGNED: u8 = 1;
    pub(super) const WHOLE: u8 = 2;
}

impl Avx2 {
    /// Vectors that [`Avx2::dot_codes`] takes, at most: their sums stay in registers.
    pub(crate) fn vectors_at_once(self) -> usize {
        if self.wide.is_some() { crate::quantised::products::MAX_AT_ONCE } else { 2 }
    }

    /// Products of a row of 32 columns or a multiple, whose groups are of 16, or of 32 or a multiple, with some vectors,
    /// each padded to a multiple of 64.
    ///
    /// # Panics
    /// When parts of the row are too short.
    pub(crate) fn dot_codes(self, row: &CodeRow<'_>, columns: usize, x: &[f32], out: &mut [f32]) {
        let padded = x.len() / out.len().max(1);
        assert!(columns.is_multiple_of(32) && columns <= padded && row.symbols.len() == padded);
        assert!(padded.is_multiple_of(64) && row.low_bits.len() == padded / 8 * usize::from(row.n_low));
        assert!(row.groups.scales.len() == columns / row.groups.len);
        assert!(row.groups.offsets.len() == row.groups.scales.len());
        let mut done = 0;
        while done < out.len() {
            let n = match out.len() - done {
                4.. if self.wide.is_some() => 4,
                2.. => 2,
                _ => 1,
            };
            let (x, out) = (&x[done * padded..][..n * padded], &mut out[done..][..n]);
            match (row.numbers, row.groups.len == 16) {
                (Numbers::Listed(_), true) => self.dot_kind::<{ kind::LISTED }, true>(row, columns, x, out),
                (Numbers::Listed(_), false) => self.dot_kind::<{ kind::LISTED }, false>(row, columns, x, out),
                (Numbers::Signed { .. }, true) => {
                    self.dot_kind::<{ kind::SIGNED }, true>(row, columns, x, out)
                }
                (Numbers::Signed { .. }, false) => {
                    self.dot_kind::<{ kind::SIGNED }, false>(row, columns, x, out)
                }
                (Numbers::Whole, true) => self.dot_kind::<{ kind::WHOLE }, true>(row, columns, x, out),
                (Numbers::Whole, false) => self.dot_kind::<{ kind::WHOLE }, false>(row, columns, x, out),
            }
            done += n;
        }
    }

    fn dot_kind<const KIND: u8, const SIXTEENS: bool>(
        self,
        row: &CodeRow<'_>,
        columns: usize,
        x: &[f32],
        out: &mut [f32],
    ) {
        match (self.wide, out.len()) {
            // SAFETY: `self` and `wide` exist only when `detect` saw the features.
            (Some(_), 4) => unsafe { dot_wide::<KIND, SIXTEENS, 4>(row, columns, x, out) },
            // SAFETY: as above.
            (Some(_), 2) => unsafe { dot_wide::<KIND, SIXTEENS, 2>(row, columns, x, out) },
            // SAFETY: as above.
            (Some(_), _) => unsafe { dot_wide::<KIND, SIXTEENS, 1>(row, columns, x, out) },
            // SAFETY: as above.
            (None, 2) => unsafe { dot::<KIND, SIXTEENS, 2>(row, columns, x, out) },
            // SAFETY: as above.
            (None, _) => unsafe { dot::<KIND, SIXTEENS, 1>(row, columns, x, out) },
        }
    }
}

/// What is the same for all codes of a row.
struct Constants {
    listed: [f32; 16],
    less: i8,
    /// Groups of `32 << shift` codes.
    shift: u32,
}

impl Constants {
    fn of(row: &CodeRow<'_>) -> Self {
        let listed = if let Numbers::Listed(listed) = row.numbers { *listed } else { [0.0; 16] };
        let less = if let Numbers::Signed { less } = row.numbers { less.cast_signed() } else { 0 };
        Self { listed, less, shift: (row.groups.len / 32).max(1).ilog2() }
    }
}

/// The vectors of `x` in pieces of 64.
fn vectors<const N: usize>(x: &[f32]) -> [&[[f32; 64]]; N] {
    let padded = x.len() / N;
    std::array::from_fn(|vector| x[vector * padded..][..padded].as_chunks().0)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn dot_wide<const KIND: u8, const SIXTEENS: bool, const N: usize>(
    row: &CodeRow<'_>,
    columns: usize,
    x: &[f32],
    out: &mut [f32],
) {
    let constants = Constants::of(row);
    let xs = vectors::<N>(x);
    let (symbols, n_low) = (row.symbols.as_chunks::<64>().0, usize::from(row.n_low));
    // SAFETY: `listed` is sixteen readable singles, and `loadu` has no alignment requirement.
    let listed = unsafe { _mm512_loadu_ps(constants.listed.as_ptr()) };
    let less = _mm512_set1_epi8(constants.less);
    let n_steps = columns / 32;
    let (scales, offsets) = (row.groups.scales.as_slice(), row.groups.offsets.as_slice());
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    for (piece, symbols) in symbols.iter().enumerate() {
        let codes = match KIND {
            kind::LISTED => load_wide(symbols),
            _ => with_low_wide(load_wide(symbols), n_low, &row.low_bits[8 * n_low * piece..]),
        };
        let codes = if KIND == kind::SIGNED { _mm512_sub_epi8(codes, less) } else { codes };
        let quarters = [
            _mm512_castsi512_si128(codes),
            _mm512_extracti32x4_epi32::<1>(codes),
            _mm512_extracti32x4_epi32::<2>(codes),
            _mm512_extracti32x4_epi32::<3>(codes),
        ];
        for (quarter, codes) in quarters.into_iter().enumerate() {
            let step = 2 * piece + quarter / 2;
            if step == n_steps {
                break;
            }
            let group = if SIXTEENS { 4 * piece + quarter } else { step >> constants.shift };
            let (scale, offset) = (_mm512_set1_ps(scales[group]), _mm512_set1_ps(offsets[group]));
            let scaled = |numbers: __m512| _mm512_add_ps(_mm512_mul_ps(scale, numbers), offset);
            let weights = match KIND {
                // Twice for a group, of which the compiler makes one.
                kind::LISTED => _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), scaled(listed)),
                kind::SIGNED => scaled(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))),
                _ => scaled(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes))),
            };
            for (sums, x) in sums.iter_mut().zip(&xs) {
                let x: &[f32; 16] = &x[piece].as_chunks().0[quarter];
                // SAFETY: `x` is sixteen readable singles, and `loadu` has no alignment requirement.
                let x = unsafe { _mm512_loadu_ps(x.as_ptr()) };
                let sum = &mut sums[quarter % 2];
                *sum = _mm512_add_ps(*sum, _mm512_mul_ps(weights, x));
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(&sums) {
        let mut partial = [0f32; PARTIAL_SUMS];
        for (partial, sum) in partial.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
            // SAFETY: `partial` is sixteen writable singles, and `storeu` has no alignment requirement.
            unsafe { _mm512_storeu_ps(partial.as_mut_ptr(), *sum) };
        }
        *out = join(partial);
    }
}

/// 64 symbols above their low bits, of which a piece has `8 n_low` bytes: those of symbol `i` stand in byte
/// `i mod 8 n_low`, so the bytes are repeated, and shifted by more for every repetition.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn with_low_wide(symbols: __m512i, n_low: usize, plane: &[u8]) -> __m512i {
    let (low, mask) = match n_low {
        1 => {
            let bytes = plane.first_chunk::<8>().map_or(0, |bytes| i64::from_le_bytes(*bytes));
            (_mm512_srlv_epi64(_mm512_set1_epi64(bytes), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7)), 1)
        }
        2 => {
            let bytes = plane.first_chunk::<16>().map_or(_mm256_setzero_si256(), |bytes| table(bytes));
            let bytes = _mm512_broadcast_i64x4(bytes);
            (_mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6)), 3)
        }
        _ => {
            let bytes = plane.first_chunk::<32>().map_or(_mm256_setzero_si256(), |bytes| load(bytes));
            let bytes = _mm512_broadcast_i64x4(bytes);
            (_mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)), 15)
        }
    };
    // A symbol has four bits and goes up by at most four: nothing leaves its byte.
    let count = _mm_cvtsi64_si128(n_low as i64);
    let low = _mm512_and_si512(low, _mm512_set1_epi8(mask));
    _mm512_or_si512(_mm512_sll_epi16(symbols, count), low)
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

/// As [`with_low_wide`], for one half of the 64 symbols of a piece.
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
