//! Decoding of wide rANS: the 64 states live in eight registers of eight lanes.
//!
//! # Idea
//!
//! Each register goes through the step of [`crate::entropy::rans12`] at once. Two parts are not plain
//! arithmetic:
//!
//! * Cells are read one by one with scalar loads. A gather does the same in one instruction, but measured
//!   slower on Zen 4: 1.63 against 1.90 G symbols/s. Passing the slots through memory instead of general
//!   registers: 1.65.
//! * Words go to the lanes that need one by a byte shuffle whose control depends on the eight-bit mask of
//!   those lanes; the number of bits in the mask is the number of words taken. Words broadcast to both
//!   halves and one shuffle within halves took 4 % less time than widening and one permutation across.
//!
//! The eight steps are written out: as a loop the states went through memory (1.60 G symbols/s).
//!
//! # Invariants
//!
//! The kernel starts a group only if the 128 bytes of words that it can take at most are there, so it
//! reads no byte beyond the slice and can meet no error; what is left is for the scalar code.

use super::{load, store};
use crate::entropy::rans12::{FREQUENCY_SUM, GROUP_WORDS_LEN, LANES};
use std::arch::x86_64::*;

/// For each mask of lanes that read, the shuffle that gives the lowest of them the first word, the next
/// the second and so on, in the low half of the lane, and zero to all other bytes.
static SPREADS: [[u8; 32]; 256] = build_spreads();

const fn build_spreads() -> [[u8; 32]; 256] {
    /// A shuffle control that yields zero.
    const ZERO: u8 = 0x80;
    let mut table = [[ZERO; 32]; 256];
    let mut mask = 0;
    while mask < 256 {
        let mut word_at = 0;
        let mut lane = 0;
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                table[mask][4 * lane] = word_at;
                table[mask][4 * lane + 1] = word_at + 1;
                word_at += 2;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn decode_groups(
    states: &mut [u32; LANES],
    cells: &[u32; FREQUENCY_SUM],
    words: &[u8],
    groups: &mut [[u8; LANES]],
) -> (usize, usize) {
    let lanes = states.as_chunks_mut::<8>().0;
    let mut vectors = [_mm256_setzero_si256(); 8];
    for (vector, lanes) in vectors.iter_mut().zip(&*lanes) {
        *vector = load_lanes(lanes);
    }
    let mut taken = 0;
    let mut n_groups = 0;
    for group in groups {
        let Some(window) = words.get(taken..).and_then(|rest| rest.first_chunk()) else { break };
        let mut offset = 0;
        let [a, b, c, d, e, f, g, h] = &mut vectors;
        let symbols = [
            decode_lanes(a, cells, window, &mut offset),
            decode_lanes(b, cells, window, &mut offset),
            decode_lanes(c, cells, window, &mut offset),
            decode_lanes(d, cells, window, &mut offset),
            decode_lanes(e, cells, window, &mut offset),
            decode_lanes(f, cells, window, &mut offset),
            decode_lanes(g, cells, window, &mut offset),
            decode_lanes(h, cells, window, &mut offset),
        ];
        let [low, high] = group.as_chunks_mut::<32>().0 else { break };
        store(low, pack_symbols([symbols[0], symbols[1], symbols[2], symbols[3]]));
        store(high, pack_symbols([symbols[4], symbols[5], symbols[6], symbols[7]]));
        taken += offset;
        n_groups += 1;
    }
    for (vector, lanes) in vectors.into_iter().zip(lanes) {
        store_lanes(vector, lanes);
    }
    (n_groups, taken)
}

/// One step of eight lanes: updates the states and the offset into the window, returns the symbols.
///
/// The offset must be at most 112; it grows by at most 16.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn decode_lanes(
    states: &mut __m256i,
    cells: &[u32; FREQUENCY_SUM],
    window: &[u8; GROUP_WORDS_LEN],
    offset: &mut usize,
) -> __m256i {
    let cell = read_cells(cells, *states);
    let quotient = _mm256_srli_epi32::<12>(*states);
    let place = _mm256_and_si256(_mm256_srli_epi32::<8>(cell), _mm256_set1_epi32(0xFFF));
    let reduced = _mm256_add_epi32(
        _mm256_mullo_epi32(quotient, _mm256_srli_epi32::<20>(cell)),
        _mm256_add_epi32(quotient, place),
    );
    let reads = _mm256_cmpeq_epi32(_mm256_srli_epi32::<16>(reduced), _mm256_setzero_si256());
    let mask = _mm256_movemask_ps(_mm256_castsi256_ps(reads)).to_le_bytes()[0];
    let next = load_words(window, *offset);
    *offset += 2 * mask.count_ones() as usize;
    let spread = load(&SPREADS[usize::from(mask)]);
    let fill = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(next), spread);
    let refilled = _mm256_or_si256(_mm256_slli_epi32::<16>(reduced), fill);
    *states = _mm256_blendv_epi8(reduced, refilled, reads);
    _mm256_and_si256(cell, _mm256_set1_epi32(0xFF))
}

/// The cell of the slot of each state.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
#[expect(clippy::cast_possible_truncation, reason = "halves of a pair of states, and only their low 12 bits")]
fn read_cells(cells: &[u32; FREQUENCY_SUM], states: __m256i) -> __m256i {
    let low = _mm256_castsi256_si128(states);
    let high = _mm256_extracti128_si256::<1>(states);
    let pairs = [
        _mm_cvtsi128_si64(low).cast_unsigned(),
        _mm_extract_epi64::<1>(low).cast_unsigned(),
        _mm_cvtsi128_si64(high).cast_unsigned(),
        _mm_extract_epi64::<1>(high).cast_unsigned(),
    ];
    let first = |pair: u64| cells[pair as usize % FREQUENCY_SUM].cast_signed();
    let second = |pair: u64| cells[(pair >> 32) as usize % FREQUENCY_SUM].cast_signed();
    _mm256_setr_epi32(
        first(pairs[0]),
        second(pairs[0]),
        first(pairs[1]),
        second(pairs[1]),
        first(pairs[2]),
        second(pairs[2]),
        first(pairs[3]),
        second(pairs[3]),
    )
}

/// Symbols of 32 lanes, each in 32 bits, as 32 bytes in lane order.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn pack_symbols(symbols: [__m256i; 4]) -> __m256i {
    let [a, b, c, d] = symbols;
    // Packing works within halves: four symbols of a, b, c, d each, then the other four of each.
    let halves = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_words(window: &[u8; GROUP_WORDS_LEN], offset: usize) -> __m128i {
    let words: &[u8] = &window[offset..offset + 16];
    // SAFETY: the slice holds the 16 bytes that are read; no alignment is needed.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_lanes(lanes: &[u32; 8]) -> __m256i {
    // SAFETY: the reference is good for the 32 bytes that are read; no alignment is needed.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_lanes(vector: __m256i, lanes: &mut [u32; 8]) {
    // SAFETY: the reference is good for the 32 bytes that are written; no alignment is needed.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), vector) }
}
