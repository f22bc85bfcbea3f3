//! Differences of 64 elements at a time with AVX-512, from codes to symbols and kept bits: see `delta::encode_words`.

use super::delta_wide::kernels;
use super::delta_words::{byte, table};
use super::{Avx2, Avx512, load_wide, store_wide};
use crate::delta::Centers32;
use crate::delta::encode_words::{Kept, Windows};
use std::arch::x86_64::*;

impl Avx2 {
    /// Sorts bytes by context, each context in order. `ends` holds contexts with the place of their next byte; whole vectors
    /// are written there. Takes whole words of 64.
    ///
    /// # Panics
    /// When there is no room for 64 bytes at the end of a context.
    pub(crate) fn delta_sort(
        self,
        contexts: &[u8],
        bytes: &[u8],
        ends: &mut [(u8, usize)],
        sorted: &mut [u8],
    ) {
        if let Some(wide) = self.wide {
            wide.delta_sort(contexts, bytes, ends, sorted);
        }
    }

    /// Flags the first `n` codes of a context that have a class in the first of the windows, and collects their symbols, in
    /// whole vectors; returns how many. `codes` are whole words of 64.
    ///
    /// # Panics
    /// When there is no room for whole words of flags, or for 64 symbols more.
    pub(crate) fn delta_flag_classes(
        self,
        window: &Windows,
        codes: &[u8],
        n: usize,
        flags: &mut [u8],
        symbols: &mut [u8],
    ) -> usize {
        self.wide.map_or(0, |wide| wide.delta_flag_classes(window, codes, n, flags, symbols))
    }

    /// Collects the kept bits of elements of two bytes, and the places of those that have no class. Takes whole words of 64.
    ///
    /// # Panics
    /// When there is no room for 64 bits or bytes more.
    pub(crate) fn delta_keep_bits_16(
        self,
        windows: &Windows,
        contexts: &[u8],
        codes: &[u8],
        rests: [&[u8]; 2],
        kept: &mut Kept<'_>,
        escapes: &mut Vec<u32>,
    ) {
        if let Some(wide) = self.wide {
            wide.delta_keep_bits_16(windows, contexts, codes, rests, kept, escapes);
        }
    }

    /// As `delta_keep_bits_16`, for elements of four bytes.
    ///
    /// # Panics
    /// As `delta_keep_bits_16`.
    pub(crate) fn delta_keep_bits_32(
        self,
        windows: &Windows,
        contexts: &[u8],
        codes: &[u8],
        rests: [&[u8]; 4],
        kept: &mut Kept<'_>,
        escapes: &mut Vec<u32>,
    ) {
        if let Some(wide) = self.wide {
            wide.delta_keep_bits_32(windows, contexts, codes, rests, kept, escapes);
        }
    }
}

kernels! {
    /// See `Avx2::delta_sort`.
    delta_sort = sort(contexts: &[u8], bytes: &[u8], ends: &mut [(u8, usize)], sorted: &mut [u8]) -> ();
    /// See `Avx2::delta_flag_classes`.
    delta_flag_classes = flag_classes(window: &Windows, codes: &[u8], n: usize, flags: &mut [u8], symbols: &mut [u8]) -> usize;
    /// See `Avx2::delta_keep_bits_16`.
    delta_keep_bits_16 = keep_bits::<2>(windows: &Windows, contexts: &[u8], codes: &[u8], rests: [&[u8]; 2], kept: &mut Kept<'_>, escapes: &mut Vec<u32>) -> ();
    /// See `Avx2::delta_keep_bits_32`.
    delta_keep_bits_32 = keep_bits::<4>(windows: &Windows, contexts: &[u8], codes: &[u8], rests: [&[u8]; 4], kept: &mut Kept<'_>, escapes: &mut Vec<u32>) -> ();
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn sort(contexts: &[u8], bytes: &[u8], ends: &mut [(u8, usize)], sorted: &mut [u8]) {
    let mut numbers = [_mm512_setzero_si512(); 16];
    for (number, (context, _)) in numbers.iter_mut().zip(&*ends) {
        *number = byte(*context);
    }
    for (contexts, bytes) in contexts.as_chunks().0.iter().zip(bytes.as_chunks().0) {
        let (contexts, bytes) = (load_wide(contexts), load_wide(bytes));
        for ((_, end), number) in ends.iter_mut().zip(&numbers) {
            let members = _mm512_cmpeq_epi8_mask(contexts, *number);
            let room: &mut [u8; 64] = sorted[*end..].first_chunk_mut().expect("room for 64 more");
            store_wide(room, _mm512_maskz_compress_epi8(members, bytes));
            *end += members.count_ones() as usize;
        }
    }
}

/// Class symbols of codes given what their contexts have, without exact differences, and twice the class.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn symbols_of(codes: __m512i, lows: __m512i) -> (__m512i, __m512i) {
    let one = byte(1);
    let class = _mm512_subs_epu8(_mm512_andnot_si512(one, codes), lows);
    (_mm512_or_si512(class, _mm512_and_si512(codes, one)), class)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn flag_classes(window: &Windows, codes: &[u8], n: usize, flags: &mut [u8], symbols: &mut [u8]) -> usize {
    let (low, limit) = (byte(window.lows[0]), byte(window.limits[0]));
    let has_exact = if window.exact[0] == 0 { 0 } else { u64::MAX };
    let exact_codes = Centers32::EXACT_CODES.map(|code| byte(code));
    let exact_from = Centers32::EXACT_FROM;
    let words = codes.as_chunks::<64>().0;
    let flags = flags[..8 * words.len()].as_chunks_mut::<8>().0;
    let mut at = 0;
    for ((first, codes), flags) in (0..).step_by(64).zip(words).zip(flags) {
        let codes = load_wide(codes);
        let (mut symbol, _) = symbols_of(codes, low);
        let mut flagged = _mm512_cmplt_epu8_mask(symbol, limit);
        for (exact_symbol, code) in (exact_from..).zip(exact_codes) {
            let is_exact = _mm512_cmpeq_epi8_mask(codes, code) & has_exact;
            symbol = _mm512_mask_mov_epi8(symbol, is_exact, byte(exact_symbol));
            flagged |= is_exact;
        }
        // What stands behind the last code means nothing.
        let exist = u32::try_from(n - first).unwrap_or(u32::MAX).min(64);
        let flagged = _bzhi_u64(flagged, exist);
        *flags = flagged.to_le_bytes();
        let room: &mut [u8; 64] = symbols[at..].first_chunk_mut().expect("room for 64 more");
        store_wide(room, _mm512_maskz_compress_epi8(flagged, symbol));
        at += flagged.count_ones() as usize;
    }
    at
}

/// Appends `n` bits to a string, which ends at a bit of this number.
#[inline(always)]
fn append_bits(string: &mut [u8], at: usize, bits: u64, n: u32) {
    let bytes: &mut [u8; 9] = string[at / 8..].first_chunk_mut().expect("room for 64 bits more");
    let shift = at % 8;
    // Only the last byte is read, which the store before has written as a whole.
    let last = u64::from(bytes[0]) & ((1 << shift) - 1);
    let [low @ .., next] = bytes;
    *low = (last | bits << shift).to_le_bytes();
    if n > 56 {
        *next = (bits >> 1 >> (63 - shift)).to_le_bytes()[0];
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn keep_bits<const WIDTH: usize>(
    windows: &Windows,
    contexts: &[u8],
    codes: &[u8],
    rests: [&[u8]; WIDTH],
    kept: &mut Kept<'_>,
    escapes: &mut Vec<u32>,
) {
    let (lows, limits, exact) = (table(&windows.lows), table(&windows.limits), table(&windows.exact));
    let [first_exact, _] = Centers32::EXACT_CODES.map(|code| byte(code));
    let still = byte(Centers32::STILL_CODE);
    let rests = rests.map(|rest| rest.as_chunks::<64>().0);
    let words = contexts.as_chunks().0.iter().zip(codes.as_chunks().0);
    for ((at, first), (contexts, codes)) in (0..).zip((0u32..).step_by(64)).zip(words) {
        let (contexts, codes) = (load_wide(contexts), load_wide(codes));
        let low = _mm512_shuffle_epi8(lows, contexts);
        let (symbol, class) = symbols_of(codes, low);
        let has_class = _mm512_cmplt_epu8_mask(symbol, _mm512_shuffle_epi8(limits, contexts));
        let moved = _mm512_cmpneq_epi8_mask(codes, still);
        let mut left = moved & !has_class;
        if left != 0 {
            let may_be = _mm512_movepi8_mask(_mm512_shuffle_epi8(exact, contexts));
            left &= !(_mm512_cmpge_epu8_mask(codes, first_exact) & may_be);
            while left != 0 {
                escapes.push(first + left.trailing_zeros());
                left &= left - 1;
            }
        }
        // Both are even, so that no bit moves from one byte to the next. The first class has no leading one.
        let twice = _mm512_add_epi8(low, _mm512_subs_epu8(class, byte(2)));
        let lens = _mm512_maskz_mov_epi8(has_class, _mm512_srli_epi16::<1>(twice));
        // The byte that the single bits stand in.
        let bytes: [__m512i; WIDTH] = rests.map(|rest| load_wide(&rest[at]));
        let mut top = bytes[0];
        for (below, byte_above) in bytes[1..].iter().enumerate() {
            let reaches = _mm512_cmpge_epu8_mask(lens, byte(8 * (below.to_le_bytes()[0] + 1)));
            top = _mm512_mask_mov_epi8(top, reaches, *byte_above);
        }
        let n_bits = _mm512_and_si512(lens, byte(7));
        for (plane, at) in (0u8..).zip(&mut kept.bits_at[..kept.n_bit_planes]) {
            let members = _mm512_cmpgt_epi8_mask(n_bits, byte(plane));
            let set = _mm512_test_epi8_mask(top, byte(1 << plane));
            let n = members.count_ones();
            append_bits(kept.bits, *at, _pext_u64(set, members), n);
            *at += n as usize;
        }
        for ((plane, at), rest) in (1u8..).zip(&mut kept.bytes_at[..kept.n_byte_planes]).zip(bytes) {
            let members = _mm512_cmpge_epu8_mask(lens, byte(8 * plane));
            let room: &mut [u8; 64] = kept.bytes[*at..].first_chunk_mut().expect("room for 64 more");
            store_wide(room, _mm512_maskz_compress_epi8(members, rest));
            *at += members.count_ones() as usize;
        }
    }
}
