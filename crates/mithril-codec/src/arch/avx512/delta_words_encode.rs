//! Differences of 64 elements at a time with AVX-512, from codes to symbols and kept bits: see `delta::encode_words`.

use super::delta_words::{DIAGONAL, byte, more_than, most, with};
use super::{load_wide, store_wide, table_wide};
use crate::arch::avx2::delta_elements::nibble_lens;
use crate::delta::Centers32;
use crate::delta::encode_words::{Kept, Windows};
use crate::delta::words::TILE_WORDS;
use std::arch::x86_64::*;

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn codes_16(
    sign: bool,
    source: &[u8],
    base: &[u8],
    codes: &mut [u8],
    rests: [&mut [u8]; 2],
) -> usize {
    let signs = _mm512_set1_epi16(if sign { i16::MAX } else { 0 });
    let sign_of_base = if sign { u32::MAX } else { 0 };
    let ordered = |x: __m512i| _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi16::<15>(x), signs));
    let (zero, all, nibble) = (_mm512_setzero_si512(), _mm512_set1_epi16(-1), byte(15));
    let lens_of = [0, 4, 8, 12].map(|above| table_wide(&nibble_lens(above)));
    let places: [[u8; 64]; 2] =
        std::array::from_fn(|odd| std::array::from_fn(|lane| (2 * lane + odd).to_le_bytes()[0]));
    let (even, odd) = (load_wide(&places[0]), load_wide(&places[1]));
    let [low_rests, high_rests] = rests;
    let words = source.as_chunks::<128>().0.iter().zip(base.as_chunks::<128>().0);
    let outputs = codes.as_chunks_mut::<64>().0.iter_mut();
    let outputs = outputs.zip(low_rests.as_chunks_mut::<64>().0).zip(high_rests.as_chunks_mut::<64>().0);
    let mut done = 0;
    for ((source, base), ((codes, low_rest), high_rest)) in words.zip(outputs) {
        let (mut rest, mut negative, mut still) = ([zero; 2], 0, 0);
        for (half, (x, base)) in source.as_chunks().0.iter().zip(base.as_chunks().0).enumerate() {
            let (x, base) = (load_wide(x), load_wide(base));
            let steps = _mm512_sub_epi16(ordered(x), ordered(base));
            let turned = _mm512_movepi16_mask(base) & sign_of_base;
            let steps = _mm512_mask_sub_epi16(steps, turned, zero, steps);
            let back = _mm512_movepi16_mask(steps);
            // One less where the step is up, all bits turned where it is down.
            let less = _mm512_add_epi16(steps, all);
            rest[half] = _mm512_mask_sub_epi16(less, back, all, steps);
            negative |= u64::from(back) << (32 * half);
            still |= u64::from(_mm512_testn_epi16_mask(steps, steps)) << (32 * half);
        }
        let low = _mm512_permutex2var_epi8(rest[0], even, rest[1]);
        let high = _mm512_permutex2var_epi8(rest[0], odd, rest[1]);
        let upper_low = _mm512_and_si512(_mm512_srli_epi16::<4>(low), nibble);
        let upper_high = _mm512_and_si512(_mm512_srli_epi16::<4>(high), nibble);
        let len = _mm512_max_epu8(
            _mm512_max_epu8(
                _mm512_shuffle_epi8(lens_of[0], _mm512_and_si512(low, nibble)),
                _mm512_shuffle_epi8(lens_of[1], upper_low),
            ),
            _mm512_max_epu8(
                _mm512_shuffle_epi8(lens_of[2], _mm512_and_si512(high, nibble)),
                _mm512_shuffle_epi8(lens_of[3], upper_high),
            ),
        );
        let code = _mm512_add_epi8(len, len);
        let code = _mm512_mask_add_epi8(code, negative, code, byte(1));
        store_wide(codes, _mm512_mask_mov_epi8(code, still, byte(Centers32::STILL_CODE)));
        store_wide(low_rest, low);
        store_wide(high_rest, high);
        done += 64;
    }
    done
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn sort(contexts: &[u8], bytes: &[u8], ends: &mut [(u8, usize)], sorted: &mut [u8]) {
    match ends.len() {
        0..=4 => sort_by::<1>(contexts, bytes, ends, sorted),
        5..=8 => sort_by::<2>(contexts, bytes, ends, sorted),
        9..=12 => sort_by::<3>(contexts, bytes, ends, sorted),
        _ => sort_by::<4>(contexts, bytes, ends, sorted),
    }
}

/// Sorts by so many times four contexts.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn sort_by<const FOURS: usize>(contexts: &[u8], bytes: &[u8], ends: &mut [(u8, usize)], sorted: &mut [u8]) {
    // A word moves the place of a context by at most 64.
    let room = sorted.len().checked_sub(64 * (TILE_WORDS + 1)).expect("room behind the last context");
    // Contexts behind the last have no members, and write behind all others.
    let mut numbers = [[_mm512_set1_epi8(i8::MIN); 4]; FOURS];
    let mut places = [[room; 4]; FOURS];
    for (at, (context, end)) in ends.iter().enumerate() {
        (numbers[at / 4][at % 4], places[at / 4][at % 4]) = (byte(*context), *end);
    }
    let words = contexts.as_chunks().0.chunks(TILE_WORDS).zip(bytes.as_chunks().0.chunks(TILE_WORDS));
    for (contexts, bytes) in words {
        assert!(places.iter().flatten().all(|place| *place <= room), "room behind each context");
        for (contexts, bytes) in contexts.iter().zip(bytes) {
            let (contexts, bytes) = (load_wide(contexts), load_wide(bytes));
            for (places, numbers) in places.iter_mut().zip(&numbers) {
                for (place, number) in places.iter_mut().zip(numbers) {
                    let members = _mm512_cmpeq_epi8_mask(contexts, *number);
                    let packed = _mm512_maskz_compress_epi8(members, bytes);
                    let n = members.count_ones();
                    let to = sorted.as_mut_ptr().wrapping_add(*place);
                    // Half a vector, which is nearly always enough, ends within one line more often.
                    let lower = _mm512_castsi512_si256(packed);
                    // SAFETY: there are 64 bytes for each word of the tile behind where it started, and 64 more.
                    unsafe { _mm256_storeu_si256(to.cast(), lower) };
                    if n > 32 {
                        let upper = _mm512_extracti64x4_epi64::<1>(packed);
                        // SAFETY: as above.
                        unsafe { _mm256_storeu_si256(to.wrapping_add(32).cast(), upper) };
                    }
                    *place += n as usize;
                }
            }
        }
    }
    for (at, (_, end)) in ends.iter_mut().enumerate() {
        *end = places[at / 4][at % 4];
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
pub(super) fn flag_classes(
    window: &Windows,
    codes: &[u8],
    n: usize,
    flags: &mut [u8],
    symbols: &mut [u8],
) -> usize {
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

/// Single kept bits of some words of 64 elements.
struct Tile {
    /// The byte that the single bits of each element stand in, as a word of bits for each bit.
    tops: [[u64; 8]; TILE_WORDS],
    /// How many single bits each element keeps, likewise.
    lens: [[u64; 3]; TILE_WORDS],
    /// Elements that have moved and have no class.
    without: [u64; TILE_WORDS],
}

impl Tile {
    /// Appends the places of elements of the first `n` words that have no class. They are rare, and a list that may grow within
    /// the loop over all elements would keep its vectors from staying in registers.
    #[cold]
    fn list_escapes(&self, n: usize, first_word: usize, escapes: &mut Vec<u32>) {
        for (word, &without) in (first_word..).zip(&self.without[..n]) {
            let mut left = without;
            while left != 0 {
                escapes.push(u32::try_from(64 * word).unwrap_or(u32::MAX) + left.trailing_zeros());
                left &= left - 1;
            }
        }
    }

    /// Appends what the first `n` words keep to so many planes.
    #[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt")]
    fn append<const PLANES: usize>(&self, n: usize, kept: &mut Kept<'_>) {
        let ends: &mut [usize; PLANES] = kept.bits_at.first_chunk_mut().expect("seven planes");
        let mut places = *ends;
        // A word moves the end of a plane by at most 64 bits.
        let room = kept.bits.len().checked_sub(8 * (TILE_WORDS + 2)).expect("room behind the last plane");
        assert!(n <= TILE_WORDS && places.iter().all(|at| at / 8 <= room), "room behind each plane");
        for (tops, [ones, twos, fours]) in self.tops[..n].iter().zip(&self.lens) {
            for ((at, members), top) in places.iter_mut().zip(more_than(*ones, *twos, *fours)).zip(tops) {
                let (bits, n) = (_pext_u64(*top, members), members.count_ones());
                let shift = *at % 8;
                let to = kept.bits.as_mut_ptr().wrapping_add(*at / 8);
                // Only the last byte is read, which the store before has written as a whole.
                // SAFETY: there are eight bytes for each word of the tile behind where it started, and sixteen more.
                let last = u64::from(unsafe { to.read() }) & ((1 << shift) - 1);
                // SAFETY: as above.
                unsafe { to.cast::<u64>().write_unaligned(last | bits << shift) };
                if n > 56 {
                    // SAFETY: as above, one byte behind the eight.
                    unsafe { to.wrapping_add(8).write((bits >> 1 >> (63 - shift)).to_le_bytes()[0]) };
                }
                *at += n as usize;
            }
        }
        *ends = places;
    }
}

/// Turns each eight bytes around.
static TURNED: [u8; 64] = turned();

/// Byte `p` of each eight, in the `p`-th eight lanes.
static BY_PLANES: [u8; 64] = by_planes();

const fn turned() -> [u8; 64] {
    let mut places = [0; 64];
    let mut lane: u8 = 0;
    while lane < 64 {
        places[lane as usize] = lane ^ 7;
        lane += 1;
    }
    places
}

const fn by_planes() -> [u8; 64] {
    let mut places = [0; 64];
    let mut lane: u8 = 0;
    while lane < 64 {
        places[lane as usize] = 8 * (lane % 8) + lane / 8;
        lane += 1;
    }
    places
}

/// Bit `p` of all bytes as the `p`-th word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
fn planes_of(bytes: __m512i) -> __m512i {
    let rows = _mm512_shuffle_epi8(bytes, load_wide(&TURNED));
    let columns = _mm512_gf2p8affine_epi64_epi8::<0>(_mm512_set1_epi64(DIAGONAL), rows);
    _mm512_permutexvar_epi8(load_wide(&BY_PLANES), columns)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,gfni,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn keep_bits<const WIDTH: usize>(
    windows: &Windows,
    contexts: &[u8],
    codes: &[u8],
    rests: [&[u8]; WIDTH],
    kept: &mut Kept<'_>,
) {
    let (lows, limits, exact) =
        (table_wide(&windows.lows), table_wide(&windows.limits), table_wide(&windows.exact));
    let [first_exact, _] = Centers32::EXACT_CODES.map(|code| byte(code));
    let still = byte(Centers32::STILL_CODE);
    let rests = rests.map(|rest| rest.as_chunks::<64>().0);
    let mut tile = Tile { tops: [[0; 8]; TILE_WORDS], lens: [[0; 3]; TILE_WORDS], without: [0; TILE_WORDS] };
    let words = contexts.as_chunks().0.chunks(TILE_WORDS).zip(codes.as_chunks().0.chunks(TILE_WORDS));
    for (first_word, (contexts, codes)) in (0..).step_by(TILE_WORDS).zip(words) {
        let n_words = contexts.len();
        let mut n_planes = _mm512_setzero_si512();
        let mut any_without = 0;
        let outputs = tile.tops.iter_mut().zip(&mut tile.lens).zip(&mut tile.without);
        for ((at, (contexts, codes)), ((tops, lens_of_word), without)) in
            (first_word..).zip(contexts.iter().zip(codes)).zip(outputs)
        {
            let (contexts, codes) = (load_wide(contexts), load_wide(codes));
            let low = _mm512_shuffle_epi8(lows, contexts);
            let (symbol, class) = symbols_of(codes, low);
            let has_class = _mm512_cmplt_epu8_mask(symbol, _mm512_shuffle_epi8(limits, contexts));
            let moved = _mm512_cmpneq_epi8_mask(codes, still);
            let may_be_exact = _mm512_movepi8_mask(_mm512_shuffle_epi8(exact, contexts));
            let is_exact = _mm512_cmpge_epu8_mask(codes, first_exact) & may_be_exact;
            *without = moved & !has_class & !is_exact;
            any_without |= *without;
            // Both are even, so that no bit moves from one byte to the next. The first class has no leading one.
            let twice = _mm512_add_epi8(low, _mm512_subs_epu8(class, byte(2)));
            let lens = _mm512_maskz_mov_epi8(has_class, _mm512_srli_epi16::<1>(twice));
            // The byte that the single bits stand in.
            let mut bytes = [_mm512_setzero_si512(); WIDTH];
            for (byte, rest) in bytes.iter_mut().zip(&rests) {
                *byte = load_wide(&rest[at]);
            }
            let mut top = bytes[0];
            for (below, byte_above) in bytes[1..].iter().enumerate() {
                let reaches = _mm512_cmpge_epu8_mask(lens, byte(8 * (below.to_le_bytes()[0] + 1)));
                top = _mm512_mask_mov_epi8(top, reaches, *byte_above);
            }
            n_planes = _mm512_max_epu8(n_planes, _mm512_and_si512(lens, byte(7)));
            *lens_of_word = [with(lens, 1), with(lens, 2), with(lens, 4)];
            let planes = planes_of(top);
            // SAFETY: eight words are 64 writable bytes, and `storeu` has no alignment requirement.
            unsafe { _mm512_storeu_si512(tops.as_mut_ptr().cast(), planes) };
            for ((plane, at), rest) in (1u8..).zip(&mut kept.bytes_at[..kept.n_byte_planes]).zip(bytes) {
                let members = _mm512_cmpge_epu8_mask(lens, byte(8 * plane));
                let room: &mut [u8; 64] = kept.bytes[*at..].first_chunk_mut().expect("room for 64 more");
                store_wide(room, _mm512_maskz_compress_epi8(members, rest));
                *at += members.count_ones() as usize;
            }
        }
        if any_without != 0 {
            tile.list_escapes(n_words, first_word, &mut kept.escapes);
        }
        match most(n_planes) {
            0 => {}
            1 => tile.append::<1>(n_words, kept),
            2 => tile.append::<2>(n_words, kept),
            3 => tile.append::<3>(n_words, kept),
            4 => tile.append::<4>(n_words, kept),
            5 => tile.append::<5>(n_words, kept),
            6 => tile.append::<6>(n_words, kept),
            _ => tile.append::<7>(n_words, kept),
        }
    }
}
