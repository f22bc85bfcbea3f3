//! Splitting bit fields in the packed orders: pack instructions leave the elements where the format wants them.
//!
//! Every function takes whole tiles of 256 elements.

use super::{load, store};
use crate::transform::fields::{FieldSplit, VECTOR};
use std::arch::x86_64::*;

/// Low and high bytes of 32 two-byte elements.
#[inline]
#[target_feature(enable = "avx2")]
fn byte_halves(a: __m256i, b: __m256i) -> (__m256i, __m256i) {
    let low = _mm256_set1_epi16(0x00ff);
    (
        _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)),
        _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b)),
    )
}

/// Exponent and `sign | mantissa` from the two bytes of a bf16, or of the upper half of an f32.
#[inline]
#[target_feature(enable = "avx2")]
fn exponent_and_rest(low: __m256i, high: __m256i) -> (__m256i, __m256i) {
    let mantissa = _mm256_set1_epi8(0x7f);
    let rest = _mm256_or_si256(_mm256_and_si256(low, mantissa), _mm256_andnot_si256(mantissa, high));
    let lowest_exponent_bit = _mm256_cmpgt_epi8(_mm256_setzero_si256(), low);
    (_mm256_sub_epi8(_mm256_add_epi8(high, high), lowest_exponent_bit), rest)
}

#[target_feature(enable = "avx2")]
pub(super) fn split_bf16(source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    let pairs = source.as_chunks::<VECTOR>().0.as_chunks::<2>().0;
    let (planes, rests) = (plane.as_chunks_mut::<VECTOR>().0, rest.as_chunks_mut::<VECTOR>().0);
    for ((pair, plane), rest_out) in pairs.iter().zip(planes).zip(rests) {
        let (low, high) = byte_halves(load(&pair[0]), load(&pair[1]));
        let (exponent, rest) = exponent_and_rest(low, high);
        store(plane, exponent);
        store(rest_out, rest);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn split_f32(source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    let low16 = _mm256_set1_epi32(0xffff);
    let tiles = source.as_chunks::<VECTOR>().0.as_chunks::<32>().0;
    let planes = plane.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<8>().0;
    let rests = rest.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<24>().0;
    for ((tile, planes), rests) in tiles.iter().zip(planes).zip(rests) {
        for vector in 0..8 {
            let [a, b, c, d] = std::array::from_fn(|i| load(&tile[4 * vector + i]));
            let upper = |x, y| _mm256_packus_epi32(_mm256_srli_epi32::<16>(x), _mm256_srli_epi32::<16>(y));
            let lower = |x, y| _mm256_packus_epi32(_mm256_and_si256(x, low16), _mm256_and_si256(y, low16));
            store(&mut rests[2 * vector], lower(a, b));
            store(&mut rests[2 * vector + 1], lower(c, d));
            let (low, high) = byte_halves(upper(a, b), upper(c, d));
            let (exponent, rest) = exponent_and_rest(low, high);
            store(&mut planes[vector], exponent);
            store(&mut rests[16 + vector], rest);
        }
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn split_f16(source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    let (exponent, two_bits, sign) = (_mm256_set1_epi8(31), _mm256_set1_epi8(3), _mm256_set1_epi8(-128));
    let tiles = source.as_chunks::<VECTOR>().0.as_chunks::<16>().0;
    let planes = plane.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<8>().0;
    let rests = rest.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<11>().0;
    for ((tile, planes), rests) in tiles.iter().zip(planes).zip(rests) {
        let mut mantissas = [_mm256_setzero_si256(); 2];
        let mut signs = _mm256_setzero_si256();
        macro_rules! vectors {
            ($($vector:literal),*) => {$(
                let (low, high) = byte_halves(load(&tile[2 * $vector]), load(&tile[2 * $vector + 1]));
                store(&mut rests[$vector], low);
                store(&mut planes[$vector], _mm256_and_si256(_mm256_srli_epi16::<2>(high), exponent));
                let top_two = _mm256_slli_epi16::<{ 2 * ($vector % 4) }>(_mm256_and_si256(high, two_bits));
                mantissas[$vector / 4] = _mm256_or_si256(mantissas[$vector / 4], top_two);
                signs = _mm256_or_si256(signs, _mm256_srli_epi16::<{ 7 - $vector }>(_mm256_and_si256(high, sign)));
            )*};
        }
        vectors!(0, 1, 2, 3, 4, 5, 6, 7);
        store(&mut rests[8], mantissas[0]);
        store(&mut rests[9], mantissas[1]);
        store(&mut rests[10], signs);
    }
}

/// One-byte elements with a rest of four bits: `SIGNED` ones have a sign and three mantissa bits in it, the
/// others their low four bits.
#[target_feature(enable = "avx2")]
pub(super) fn split_bytes<const SIGNED: bool>(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    let nibble = _mm256_set1_epi8(15);
    let flip = _mm256_set1_epi8(if split.layout.flip { -128 } else { 0 });
    let pairs = source.as_chunks::<VECTOR>().0.as_chunks::<2>().0;
    let planes = plane.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<2>().0;
    for ((pair, planes), rest_out) in pairs.iter().zip(planes).zip(rest.as_chunks_mut::<VECTOR>().0) {
        let split = |bytes: &[u8; VECTOR]| {
            let value = _mm256_xor_si256(load(bytes), flip);
            if SIGNED {
                let sign = _mm256_and_si256(_mm256_srli_epi16::<4>(value), _mm256_set1_epi8(8));
                let rest = _mm256_or_si256(_mm256_and_si256(value, _mm256_set1_epi8(7)), sign);
                (_mm256_and_si256(_mm256_srli_epi16::<3>(value), nibble), rest)
            } else {
                (_mm256_and_si256(_mm256_srli_epi16::<4>(value), nibble), _mm256_and_si256(value, nibble))
            }
        };
        let ((top_a, rest_a), (top_b, rest_b)) = (split(&pair[0]), split(&pair[1]));
        store(&mut planes[0], top_a);
        store(&mut planes[1], top_b);
        store(rest_out, _mm256_or_si256(rest_a, _mm256_slli_epi16::<4>(rest_b)));
    }
}
