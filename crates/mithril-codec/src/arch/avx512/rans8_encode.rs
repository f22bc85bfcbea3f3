//! rANS8 encoding with AVX-512: two streams per register, slots looked up in a table of 256 bytes.
//!
//! What AVX2 lacks is a look-up among 256 bytes and packing by a mask. With both, a step of 64 lanes takes about as
//! many instructions as one of 32 lanes without them.

use super::{load_wide, table_wide};
use crate::arch::avx2::rans8_encode::assert_room;
use crate::arch::avx2::{self, load, store};
use crate::entropy::rans8::{EncodeTable, LANES, Streams, StreamsOf};
use std::arch::x86_64::*;

/// See `Kernels::rans8_encode`. Registers hold pairs of four streams; one stream is left to AVX2.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn encode_groups(
    streams: Streams<'_>,
    room: &mut [u8],
    table: &EncodeTable,
    symbols: &[u8],
    next: &[u8],
) -> bool {
    if streams.at.len() != 4 {
        return avx2::rans8_encode::encode_groups(streams, room, table, symbols, next);
    }
    let Some(streams) = streams.of::<4>() else { return false };
    assert_room(streams.at, room, symbols.len() / (4 * LANES));
    let encode = if table.max_freq > 128 { encode::<true> } else { encode::<false> };
    // SAFETY: the room was checked above.
    unsafe { encode(streams, room, table, symbols, next) }
    true
}

/// # Safety
/// Each stream must have room for one byte per symbol of its own.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn encode<const LARGE_FREQ: bool>(
    mut state: StreamsOf<'_, 4>,
    room: &mut [u8],
    table_of: &EncodeTable,
    symbols: &[u8],
    next: &[u8],
) {
    let tables = Tables::new(table_of);
    let mut lanes = load_lanes(&state);
    let (groups, _) = symbols.as_chunks::<{ 4 * LANES }>();
    // The lines of `next` are spread evenly over the steps.
    let lines_per_step = next.len().div_ceil(64 * groups.len().max(1));
    let mut line = next.as_ptr();
    for group in groups.iter().rev() {
        for _ in 0..lines_per_step {
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
            line = line.wrapping_add(64);
        }
        for (pair, symbols) in group.as_chunks::<{ 2 * LANES }>().0.iter().enumerate() {
            let (high, low) = &mut lanes[pair];
            let at = &mut state.at.as_chunks_mut::<2>().0[pair];
            let symbols = load_wide(symbols);
            // SAFETY: the caller vouches for the room of every step.
            unsafe { tables.step::<LARGE_FREQ>(symbols, high, low, room, at) };
        }
    }
    save_lanes(&mut state, lanes);
}

/// Four blocks of a matrix at once, each from its own place: without a pass that weaves their symbols.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn encode_apart(
    streams: Streams<'_>,
    room: &mut [u8],
    table: &EncodeTable,
    blocks: [&[u8]; 4],
) -> bool {
    let Some(streams) = streams.of::<4>() else { return false };
    let blocks = blocks.map(|block| block.as_chunks::<LANES>().0);
    let n_steps = blocks[0].len();
    assert!(blocks.iter().all(|block| block.len() == n_steps), "blocks of equal length");
    assert_room(streams.at, room, n_steps);
    let encode = if table.max_freq > 128 { encode_blocks::<true> } else { encode_blocks::<false> };
    // SAFETY: the room was checked above.
    unsafe { encode(streams, room, table, blocks) }
    true
}

/// # Safety
/// Each stream must have room for one byte per symbol of its own.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn encode_blocks<const LARGE_FREQ: bool>(
    mut state: StreamsOf<'_, 4>,
    room: &mut [u8],
    table_of: &EncodeTable,
    blocks: [&[[u8; LANES]]; 4],
) {
    let tables = Tables::new(table_of);
    let mut lanes = load_lanes(&state);
    let n_steps = blocks[0].len();
    let blocks = blocks.map(|block| &block[..n_steps]);
    for step in (0..n_steps).rev() {
        for (pair, (high, low)) in lanes.iter_mut().enumerate() {
            let at = &mut state.at.as_chunks_mut::<2>().0[pair];
            let symbols = both(load(&blocks[2 * pair][step]), load(&blocks[2 * pair + 1][step]));
            // SAFETY: the caller vouches for the room of every step.
            unsafe { tables.step::<LARGE_FREQ>(symbols, high, low, room, at) };
        }
    }
    save_lanes(&mut state, lanes);
}

/// The states of two streams in each pair of registers: high bytes, low bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn load_lanes(state: &StreamsOf<'_, 4>) -> [(__m512i, __m512i); 2] {
    std::array::from_fn(|pair| {
        let plane =
            |half: usize, which: usize| load(&state.planes[2 * pair + half].as_chunks::<LANES>().0[which]);
        (both(plane(0, 0), plane(1, 0)), both(plane(0, 1), plane(1, 1)))
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn save_lanes(state: &mut StreamsOf<'_, 4>, lanes: [(__m512i, __m512i); 2]) {
    for (pair, (high, low)) in lanes.into_iter().enumerate() {
        for half in 0..2 {
            let (planes, _) = state.planes[2 * pair + half].as_chunks_mut::<LANES>();
            for (plane, both) in planes.iter_mut().zip([high, low]) {
                let lanes = if half == 0 {
                    _mm512_castsi512_si256(both)
                } else {
                    _mm512_extracti64x4_epi64::<1>(both)
                };
                store(plane, lanes);
            }
        }
    }
}

/// Moves the first `n` bytes of a register to its end: the indices are the 32 bytes from `n` on.
static TO_END: [u8; 64] = to_end();

const fn to_end() -> [u8; 64] {
    let mut indices = [0; 64];
    let mut at = 32;
    while at < 64 {
        #[expect(clippy::cast_possible_truncation, reason = "below 32")]
        let index = (at - 32) as u8;
        indices[at] = index;
        at += 1;
    }
    indices
}

/// An encode table in registers.
struct Tables {
    freq: __m512i,
    reciprocal_low: __m512i,
    reciprocal_high: __m512i,
    first_slot: __m512i,
    slots: [__m512i; 4],
}

impl Tables {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2")]
    fn new(of: &EncodeTable) -> Self {
        let (slots, _) = of.slots.as_chunks::<64>();
        Self {
            freq: table_wide(&of.freq),
            reciprocal_low: table_wide(&of.reciprocal_low),
            reciprocal_high: table_wide(&of.reciprocal_high),
            first_slot: table_wide(&of.first_slot),
            slots: std::array::from_fn(|quarter| load_wide(&slots[quarter])),
        }
    }

    /// One step of 64 lanes of two streams.
    ///
    /// # Safety
    /// At least 32 bytes of `room` must lie below each of `at`, and be free to overwrite.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
    unsafe fn step<const LARGE_FREQ: bool>(
        &self,
        symbols: __m512i,
        high: &mut __m512i,
        low: &mut __m512i,
        room: &mut [u8],
        at: &mut [usize; 2],
    ) {
        let zero = _mm512_setzero_si512();
        let freq = _mm512_shuffle_epi8(self.freq, symbols);

        // Lanes with x >= 256 freq hand their low byte to the stream.
        let full = _mm512_cmpge_epu8_mask(*high, freq);
        #[expect(clippy::cast_possible_truncation, reason = "one half of the mask each")]
        let masks = [full as u32, (full >> 32) as u32];
        let halves = [_mm512_castsi512_si256(*low), _mm512_extracti64x4_epi64::<1>(*low)];
        for ((mask, bytes), at) in masks.into_iter().zip(halves).zip(at) {
            let n_bytes = mask.count_ones() as usize;
            let packed = _mm256_maskz_compress_epi8(mask, bytes);
            // SAFETY: 32 of the table's 64 bytes, from at most 32 on.
            let to_end = unsafe { _mm256_loadu_si256(TO_END.as_ptr().wrapping_add(n_bytes).cast()) };
            let packed = _mm256_permutexvar_epi8(to_end, packed);
            // What lies left of the packed bytes is overwritten by the next step.
            let end = room.as_mut_ptr().wrapping_add(*at).wrapping_sub(32);
            // SAFETY: the 32 bytes below `at` that the caller vouches for.
            unsafe { _mm256_storeu_si256(end.cast(), packed) };
            *at -= n_bytes;
        }
        let x_high = _mm512_maskz_mov_epi8(!full, *high);
        let x_low = _mm512_mask_mov_epi8(*low, full, *high);

        // Quotient and remainder on 16-bit numbers.
        let reciprocal_low = _mm512_shuffle_epi8(self.reciprocal_low, symbols);
        let reciprocal_high = _mm512_shuffle_epi8(self.reciprocal_high, symbols);
        let x = [_mm512_unpacklo_epi8(x_low, x_high), _mm512_unpackhi_epi8(x_low, x_high)];
        let reciprocal = [
            _mm512_unpacklo_epi8(reciprocal_low, reciprocal_high),
            _mm512_unpackhi_epi8(reciprocal_low, reciprocal_high),
        ];
        let freq16 = [_mm512_unpacklo_epi8(freq, zero), _mm512_unpackhi_epi8(freq, zero)];
        let divide = |half: usize| {
            let quotient = _mm512_mulhi_epu16(x[half], reciprocal[half]);
            let remainder = _mm512_sub_epi16(x[half], _mm512_mullo_epi16(quotient, freq16[half]));
            if !LARGE_FREQ {
                return (quotient, remainder);
            }
            let small = _mm512_cmpge_epu16_mask(remainder, freq16[half]);
            (
                _mm512_mask_add_epi16(quotient, small, quotient, _mm512_set1_epi16(1)),
                _mm512_mask_sub_epi16(remainder, small, remainder, freq16[half]),
            )
        };
        let ((quotient_a, remainder_a), (quotient_b, remainder_b)) = (divide(0), divide(1));
        let mut quotient = _mm512_packus_epi16(quotient_a, quotient_b);
        let mut rank = _mm512_packus_epi16(remainder_a, remainder_b);
        if !LARGE_FREQ {
            // The quotient was one too small where the remainder reaches the frequency.
            let small = _mm512_cmpge_epu8_mask(rank, freq);
            rank = _mm512_mask_sub_epi8(rank, small, rank, freq);
            quotient = _mm512_mask_add_epi8(quotient, small, quotient, _mm512_set1_epi8(1));
        }
        *high = quotient;

        let slot = _mm512_add_epi8(rank, _mm512_shuffle_epi8(self.first_slot, symbols));
        let lower = _mm512_permutex2var_epi8(self.slots[0], slot, self.slots[1]);
        let upper = _mm512_permutex2var_epi8(self.slots[2], slot, self.slots[3]);
        *low = _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(slot), upper);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn both(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}
