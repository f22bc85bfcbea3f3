//! Contexts of a difference block with AVX-512.

use super::load_wide;
use crate::arch::avx2::store;
use crate::delta::ContextRule;
use std::arch::x86_64::*;

/// Of elements of two and four bytes.
#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn contexts(width: usize, rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize {
    match width {
        2 => contexts_16(rule, base, contexts),
        4 => contexts_32(rule, base, contexts),
        _ => 0,
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
#[expect(clippy::cast_possible_truncation, reason = "the bits of an element")]
fn contexts_16(rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize {
    let magnitude = _mm512_set1_epi16(rule.magnitude as i16);
    let shift = _mm_cvtsi32_si128(i32::from(rule.shift));
    let low = _mm512_set1_epi16(rule.low.cast_signed());
    let last = _mm512_set1_epi16(i16::from(rule.last));
    let first = _mm512_set1_epi16(i16::from(rule.first));
    let vectors = base.as_chunks().0;
    for (base, out) in vectors.iter().zip(contexts.as_chunks_mut::<32>().0) {
        let size = _mm512_srl_epi16(_mm512_and_si512(load_wide(base), magnitude), shift);
        let context = match rule.cyclic {
            true => _mm512_and_si512(size, last),
            false => _mm512_min_epu16(_mm512_subs_epu16(size, low), last),
        };
        store(out, _mm512_cvtepi16_epi8(_mm512_add_epi16(context, first)));
    }
    32 * vectors.len()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
#[expect(clippy::cast_possible_truncation, reason = "the bits of an element")]
fn contexts_32(rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize {
    let magnitude = _mm512_set1_epi32(rule.magnitude as i32);
    let shift = _mm_cvtsi32_si128(i32::from(rule.shift));
    let low = _mm512_set1_epi32(i32::from(rule.low));
    let last = _mm512_set1_epi32(i32::from(rule.last));
    let first = _mm512_set1_epi32(i32::from(rule.first));
    let vectors = base.as_chunks().0;
    for (base, out) in vectors.iter().zip(contexts.as_chunks_mut::<16>().0) {
        let size = _mm512_srl_epi32(_mm512_and_si512(load_wide(base), magnitude), shift);
        let context = match rule.cyclic {
            true => _mm512_and_si512(size, last),
            false => _mm512_min_epu32(_mm512_sub_epi32(_mm512_max_epu32(size, low), low), last),
        };
        let packed = _mm512_cvtepi32_epi8(_mm512_add_epi32(context, first));
        // SAFETY: `out` is 16 writable bytes, and `storeu` has no alignment requirement.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), packed) };
    }
    16 * vectors.len()
}
