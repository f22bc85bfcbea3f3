//! rANS8 encoding with AVX-512: two streams per register, slots looked up in a table of 256 bytes.
//!
//! What AVX2 lacks is a look-up among 256 bytes and packing by a mask. With both, a step of 64 lanes takes about as
//! many instructions as one of 32 lanes without them.

use super::{Avx512, load_wide};
use crate::entropy::rans8::{EncodeState, EncodeTable, LANES};
use std::arch::x86_64::*;

impl Avx512 {
    /// Encodes whole groups of four streams, and brings `next` into the second-level cache on the way.
    pub(super) fn rans8_encode<const N: usize>(
        self,
        state: &mut EncodeState<'_, N>,
        table: &EncodeTable,
        symbols: &[u8],
        next: &[u8],
    ) {
        assert!(N == 4, "registers hold pairs of four streams");
        let n_steps = symbols.len() / (N * LANES);
        for stream in 0..N {
            // A step writes 32 bytes downwards, of which as many count as lanes are full.
            let floor = if stream == 0 { 0 } else { state.at[stream - 1] };
            assert!(state.at[stream] - floor >= n_steps * LANES + 8 && state.at[stream] <= state.room.len());
        }
        let encode = if table.max_freq > 128 { encode::<N, true> } else { encode::<N, false> };
        // SAFETY: `self` exists only when `detect` saw the features; the room was checked above.
        unsafe { encode(state, table, symbols, next) }
    }
}

/// # Safety
/// Each stream must have room for one byte per symbol of its own.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn encode<const N: usize, const LARGE_FREQ: bool>(
    state: &mut EncodeState<'_, N>,
    table_of: &EncodeTable,
    symbols: &[u8],
    next: &[u8],
) {
    let tables = Tables::new(table_of);
    let mut lanes = load_lanes(state);
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
            unsafe { tables.step::<LARGE_FREQ>(symbols, high, low, state.room, at) };
        }
    }
    save_lanes(state, lanes);
}

/// The states of two streams in each pair of registers: high bytes, low bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) fn load_lanes<const N: usize>(state: &EncodeState<'_, N>) -> [(__m512i, __m512i); 2] {
    std::array::from_fn(|pair| {
        let plane =
            |half: usize, which: usize| load(&state.planes[2 * pair + half].as_chunks::<LANES>().0[which]);
        (both(plane(0, 0), plane(1, 0)), both(plane(0, 1), plane(1, 1)))
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) fn save_lanes<const N: usize>(state: &mut EncodeState<'_, N>, lanes: [(__m512i, __m512i); 2]) {
    for (pair, (high, low)) in lanes.into_iter().enumerate() {
        for half in 0..2 {
            let (planes, _) = state.planes[2 * pair + half].as_chunks_mut::<LANES>();
            for (plane, both) in planes.iter_mut().zip([high, low]) {
                let lanes = if half == 0 {
                    _mm512_castsi512_si256(both)
                } else {
                    _mm512_extracti64x4_epi64::<1>(both)
                };
                super::store(plane, lanes);
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
pub(super) struct Tables {
    freq: __m512i,
    reciprocal_low: __m512i,
    reciprocal_high: __m512i,
    first_slot: __m512i,
    slots: [__m512i; 4],
}

impl Tables {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2")]
    pub(super) fn new(of: &EncodeTable) -> Self {
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
    pub(super) unsafe fn step<const LARGE_FREQ: bool>(
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
pub(super) fn both(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    super::load(bytes)
}

/// A 16-entry table in all quarters of a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn table_wide(entries: &[u8; 16]) -> __m512i {
    // SAFETY: `entries` is 16 readable bytes, and `loadu` has no alignment requirement.
    let quarter = unsafe { _mm_loadu_si128(entries.as_ptr().cast()) };
    _mm512_broadcast_i32x4(quarter)
}
