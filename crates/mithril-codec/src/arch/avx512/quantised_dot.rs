//! Rows of quantised weights times vectors with AVX-512.

use super::load_wide;
use crate::arch::avx2::quantised_dot::{Constants, dot_codes, kind, padded_len, vectors};
use crate::arch::avx2::{load, table};
use crate::quantised::products::{CodeRow, PARTIAL_SUMS, join};
use crate::quantised::values::Numbers;
use std::arch::x86_64::*;

dot_codes!("avx512f,avx512bw,avx512vl,avx2", 4, 2);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn dot<const KIND: u8, const SIXTEENS: bool, const N: usize>(
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
            _ => with_low(load_wide(symbols), n_low, &row.low_bits[8 * n_low * piece..]),
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
                // Two calls in the source; the compiler computes it once for a group.
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

/// 64 symbols above their low bits. A piece has `8 n_low` bytes of low bits, and those of symbol `i` are in byte
/// `i mod 8 n_low`, so the bytes are repeated, and shifted by more for every repetition.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn with_low(symbols: __m512i, n_low: usize, plane: &[u8]) -> __m512i {
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
