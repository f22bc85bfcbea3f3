//! Differences of elements of four bytes with AVX-512: what the encoder codes. What each context says
//! fits a register, so that centers and exact differences cost one permutation.

use super::load_wide;
use crate::delta::{Centers32, Elements32};
use std::arch::x86_64::*;

/// Sixteen bytes, each in a lane of four.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn spread(bytes: &[u8; 16]) -> __m512i {
    // SAFETY: `bytes` is 16 readable bytes, and `loadu` has no alignment requirement.
    _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// The low byte of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_bytes(bytes: &mut [u8; 16], lanes: __m512i) {
    let packed = _mm512_cvtepi32_epi8(lanes);
    // SAFETY: `bytes` is 16 writable bytes, and `storeu` has no alignment requirement.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(numbers: &[u32; 16]) -> __m512i {
    // SAFETY: `numbers` is 64 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
}

/// What contexts say, ready to be looked up.
struct Tables {
    centers: __m512i,
    exact: [__m512i; 2],
    has_exact: __m512i,
}

impl Tables {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(centers: &Centers32) -> Self {
        Self {
            centers: lanes(&centers.centers),
            exact: centers.exact.each_ref().map(|exact| lanes(exact)),
            has_exact: lanes(&centers.has_exact),
        }
    }
}

/// Numbers in their order and back, where they have a sign.
#[inline]
#[target_feature(enable = "avx512f")]
fn ordered(x: __m512i, signs: __m512i) -> __m512i {
    _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi32::<31>(x), signs))
}

/// Steps turned around where the base is negative; this undoes itself.
#[inline]
#[target_feature(enable = "avx512f")]
fn away_from_zero(steps: __m512i, base: __m512i, sign_of_base: __m512i) -> __m512i {
    let negative = _mm512_and_si512(_mm512_srai_epi32::<31>(base), sign_of_base);
    _mm512_sub_epi32(_mm512_xor_si512(steps, negative), negative)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sign_masks(sign: bool) -> (__m512i, __m512i) {
    (_mm512_set1_epi32(if sign { i32::MAX } else { 0 }), _mm512_set1_epi32(if sign { -1 } else { 0 }))
}

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn codes_32(
    elements: Elements32<'_>,
    source: &[u8],
    codes: &mut [u8],
    rests: [&mut [u8]; 4],
) -> usize {
    let Elements32 { sign, centers, contexts, base } = elements;
    let (signs, sign_of_base) = sign_masks(sign);
    let tables = Tables::new(centers);
    let (zero, one) = (_mm512_setzero_si512(), _mm512_set1_epi32(1));
    let exact_codes = Centers32::EXACT_CODES.map(|code| _mm512_set1_epi32(i32::from(code)));
    let still_code = _mm512_set1_epi32(i32::from(Centers32::STILL_CODE));
    let [rest_0, rest_1, rest_2, rest_3] = rests.map(|rest| rest.as_chunks_mut::<16>().0.iter_mut());
    let inputs = source.as_chunks::<64>().0.iter().zip(base.as_chunks::<64>().0).zip(contexts.as_chunks().0);
    let outputs = codes.as_chunks_mut().0.iter_mut().zip(rest_0.zip(rest_1)).zip(rest_2.zip(rest_3));
    let mut done = 0;
    for (((x, p), contexts), ((codes, (rest_0, rest_1)), (rest_2, rest_3))) in inputs.zip(outputs) {
        let (x, p, contexts) = (load_wide(x), load_wide(p), spread(contexts));
        let steps = _mm512_sub_epi32(ordered(x, signs), ordered(p, signs));
        let difference = away_from_zero(steps, p, sign_of_base);
        let from_center = _mm512_sub_epi32(difference, _mm512_permutexvar_epi32(contexts, tables.centers));
        let negative = _mm512_srai_epi32::<31>(from_center);
        // Its magnitude less one.
        let rest = _mm512_add_epi32(
            _mm512_xor_si512(from_center, negative),
            _mm512_xor_si512(negative, _mm512_set1_epi32(-1)),
        );
        let len = _mm512_sub_epi32(_mm512_set1_epi32(32), _mm512_lzcnt_epi32(rest));
        let mut code = _mm512_or_si512(_mm512_add_epi32(len, len), _mm512_and_si512(negative, one));
        let has_exact = _mm512_test_epi32_mask(_mm512_permutexvar_epi32(contexts, tables.has_exact), one);
        for which in [1, 0] {
            let exact = _mm512_permutexvar_epi32(contexts, tables.exact[which]);
            let is_exact = _mm512_mask_cmpeq_epi32_mask(has_exact, difference, exact);
            code = _mm512_mask_mov_epi32(code, is_exact, exact_codes[which]);
        }
        let still = _mm512_cmpeq_epi32_mask(from_center, zero);
        store_bytes(codes, _mm512_mask_mov_epi32(code, still, still_code));
        store_bytes(rest_0, rest);
        store_bytes(rest_1, _mm512_srli_epi32::<8>(rest));
        store_bytes(rest_2, _mm512_srli_epi32::<16>(rest));
        store_bytes(rest_3, _mm512_srli_epi32::<24>(rest));
        done += 16;
    }
    done
}

/// Bytes of a plane for the lanes of a mask, and zero for the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,popcnt")]
pub(super) fn next_of(plane: &[u8], taken: &mut usize, members: u16) -> __m512i {
    let n = members.count_ones();
    let next = &plane[*taken..][..n as usize];
    *taken += n as usize;
    let first_lanes = _bzhi_u32(u32::MAX, n).to_le_bytes();
    let first_lanes = u16::from_le_bytes([first_lanes[0], first_lanes[1]]);
    // SAFETY: the mask reads only the `n` bytes of `next`.
    let next = unsafe { _mm_maskz_loadu_epi8(first_lanes, next.as_ptr().cast()) };
    _mm512_cvtepu8_epi32(_mm_maskz_expand_epi8(members, next))
}
