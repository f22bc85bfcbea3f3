//! rANS8 encoding, 32 lanes per register pair, backwards.
//!
//! Division is a multiplication by `floor(65536 / freq)`: as `x < 256 freq`, the quotient is right or one too
//! small, and one correction makes it exact. The slot of a rank is found by binary search among at most 15
//! pieces, each level one shuffle and one comparison: the table of 256 slots would need 16 shuffles and a
//! tree of blends (2.9 against 3.9 G symbols/s).

use super::{load, mask_shuffle, store, store_upper, table};
use crate::arch::shared::COMPACT;
use crate::entropy::rans8::{EncodeTable, LANES, Streams, StreamsOf};
use std::arch::x86_64::*;

/// # Panics
/// When a stream has no room for `n_steps` steps: each writes at most 32 bytes downwards, and up to 8 more below them as
/// part of a vector.
pub(in crate::arch) fn assert_room(at: &[usize], room: &[u8], n_steps: usize) {
    let mut floor = 0;
    for &at in at {
        assert!(at - floor >= n_steps * LANES + 8 && at <= room.len());
        floor = at;
    }
}

/// See `Kernels::rans8_encode`.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(in crate::arch) fn encode_groups(
    streams: Streams<'_>,
    room: &mut [u8],
    table: &EncodeTable,
    symbols: &[u8],
    next: &[u8],
) -> bool {
    match streams.at.len() {
        1 => encode_streams::<1>(streams, room, table, symbols, next),
        4 => encode_streams::<4>(streams, room, table, symbols, next),
        _ => false,
    }
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn encode_streams<const N: usize>(
    streams: Streams<'_>,
    room: &mut [u8],
    table: &EncodeTable,
    symbols: &[u8],
    next: &[u8],
) -> bool {
    let Some(streams) = streams.of::<N>() else { return false };
    assert_room(streams.at, room, symbols.len() / (N * LANES));
    // Corrections run on bytes when every remainder stays below 256; pieces are searched in three levels
    // when there are at most eight.
    let encode = match (table.max_freq > 128, table.n_pieces > 8) {
        (false, false) => encode::<N, false, false>,
        (false, true) => encode::<N, false, true>,
        (true, false) => encode::<N, true, false>,
        (true, true) => encode::<N, true, true>,
    };
    // SAFETY: the room was checked above.
    unsafe { encode(streams, room, table, symbols, next) }
    true
}

/// # Safety
/// Each stream must have room for one byte per symbol of its own and 8 more.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn encode<const N: usize, const LARGE_FREQ: bool, const MANY_PIECES: bool>(
    state: StreamsOf<'_, N>,
    room: &mut [u8],
    table_of: &EncodeTable,
    symbols: &[u8],
    next: &[u8],
) {
    let tables = Tables::new::<MANY_PIECES>(table_of);
    let mut lanes: [(__m256i, __m256i); N] = std::array::from_fn(|stream| {
        let (planes, _) = state.planes[stream].as_chunks::<LANES>();
        (load(&planes[0]), load(&planes[1]))
    });
    let (vectors, _) = symbols.as_chunks::<LANES>();
    // The lines of `next` are spread evenly over the steps.
    let lines_per_step = next.len().div_ceil(64 * (vectors.len() / N).max(1));
    let mut line = next.as_ptr();
    for group in vectors.rchunks_exact(N) {
        for _ in 0..lines_per_step {
            _mm_prefetch::<_MM_HINT_T1>(line.cast());
            line = line.wrapping_add(64);
        }
        for (stream, symbols) in group.iter().enumerate() {
            let (high, low) = &mut lanes[stream];
            let symbols = load(symbols);
            // SAFETY: the caller vouches for the room of every step.
            unsafe {
                tables.step::<LARGE_FREQ, MANY_PIECES>(symbols, high, low, room, &mut state.at[stream]);
            }
        }
    }
    for (stream, (high, low)) in lanes.into_iter().enumerate() {
        let (planes, _) = state.planes[stream].as_chunks_mut::<LANES>();
        store(&mut planes[0], high);
        store(&mut planes[1], low);
    }
}

/// An encode table in registers.
struct Tables {
    freq: __m256i,
    reciprocal_low: __m256i,
    reciprocal_high: __m256i,
    divider: __m256i,
    row_start: __m256i,
    piece_start: __m256i,
    piece_step: __m256i,
    /// Start of the piece in the middle, where the search begins.
    middle: __m256i,
}

impl Tables {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new<const MANY_PIECES: bool>(of: &EncodeTable) -> Self {
        Self {
            freq: table(&of.freq),
            reciprocal_low: table(&of.reciprocal_low),
            reciprocal_high: table(&of.reciprocal_high),
            divider: table(&of.divider),
            row_start: table(&of.row_start),
            piece_start: table(&of.piece_start),
            piece_step: table(&of.piece_step),
            middle: _mm256_set1_epi8(of.piece_start[if MANY_PIECES { 8 } else { 4 }].cast_signed()),
        }
    }

    /// One step of 32 lanes.
    ///
    /// # Safety
    /// At least 40 bytes of `room` must lie below `at`, and be free to overwrite.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    unsafe fn step<const LARGE_FREQ: bool, const MANY_PIECES: bool>(
        &self,
        symbols: __m256i,
        high: &mut __m256i,
        low: &mut __m256i,
        room: &mut [u8],
        at: &mut usize,
    ) {
        let zero = _mm256_setzero_si256();
        let freq = _mm256_shuffle_epi8(self.freq, symbols);

        // Lanes with x >= 256 freq hand their low byte to the stream.
        let full = _mm256_cmpeq_epi8(_mm256_max_epu8(*high, freq), *high);
        let mask = _mm256_movemask_epi8(full).cast_unsigned();
        let packed = _mm256_shuffle_epi8(*low, mask_shuffle(&COMPACT, mask));
        let (packed_low, packed_high) =
            (_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed));
        let end = room.as_mut_ptr().wrapping_add(*at);
        // Each group of eight lanes stands at the right end of its eight bytes: what lies left of it is
        // overwritten by the next group.
        let below = |lanes_above: u32| end.wrapping_sub((mask >> lanes_above).count_ones() as usize + 8);
        // SAFETY: within the 40 bytes below `at` that the caller vouches for.
        unsafe { store_upper(end.wrapping_sub(8), packed_high) };
        // SAFETY: as above.
        unsafe { _mm_storel_epi64(below(24).cast(), packed_high) };
        // SAFETY: as above.
        unsafe { store_upper(below(16), packed_low) };
        // SAFETY: as above.
        unsafe { _mm_storel_epi64(below(8).cast(), packed_low) };
        *at -= mask.count_ones() as usize;
        let x_high = _mm256_andnot_si256(full, *high);
        let x_low = _mm256_blendv_epi8(*low, *high, full);

        // Quotient and remainder on 16-bit numbers.
        let reciprocal_low = _mm256_shuffle_epi8(self.reciprocal_low, symbols);
        let reciprocal_high = _mm256_shuffle_epi8(self.reciprocal_high, symbols);
        let x = [_mm256_unpacklo_epi8(x_low, x_high), _mm256_unpackhi_epi8(x_low, x_high)];
        let reciprocal = [
            _mm256_unpacklo_epi8(reciprocal_low, reciprocal_high),
            _mm256_unpackhi_epi8(reciprocal_low, reciprocal_high),
        ];
        let freq16 = [_mm256_unpacklo_epi8(freq, zero), _mm256_unpackhi_epi8(freq, zero)];
        let divide = |half: usize| {
            let quotient = _mm256_mulhi_epu16(x[half], reciprocal[half]);
            let remainder = _mm256_sub_epi16(x[half], _mm256_mullo_epi16(quotient, freq16[half]));
            if !LARGE_FREQ {
                return (quotient, remainder);
            }
            let corrected = _mm256_min_epu16(remainder, _mm256_sub_epi16(remainder, freq16[half]));
            let unchanged = _mm256_cmpeq_epi16(corrected, remainder);
            (_mm256_add_epi16(_mm256_add_epi16(quotient, _mm256_set1_epi16(1)), unchanged), corrected)
        };
        let ((quotient_a, remainder_a), (quotient_b, remainder_b)) = (divide(0), divide(1));
        let mut quotient = _mm256_packus_epi16(quotient_a, quotient_b);
        let mut rank = _mm256_packus_epi16(remainder_a, remainder_b);
        if !LARGE_FREQ {
            let reduced = _mm256_sub_epi8(rank, freq);
            rank = _mm256_min_epu8(rank, reduced);
            quotient = _mm256_sub_epi8(quotient, _mm256_cmpeq_epi8(rank, reduced));
        }
        *high = quotient;

        // The slot: the symbol's own bucket below its divider, else the piece that holds the row position.
        let row_start = _mm256_shuffle_epi8(self.row_start, symbols);
        let row = _mm256_add_epi8(rank, row_start);
        let level = |piece: __m256i, step: i8| {
            let step = _mm256_set1_epi8(step);
            let start = _mm256_shuffle_epi8(self.piece_start, _mm256_or_si256(piece, step));
            _mm256_or_si256(piece, _mm256_and_si256(_mm256_cmpgt_epi8(row, start), step))
        };
        let beyond_middle = _mm256_cmpgt_epi8(row, self.middle);
        let piece = if MANY_PIECES {
            level(_mm256_and_si256(beyond_middle, _mm256_set1_epi8(8)), 4)
        } else {
            _mm256_and_si256(beyond_middle, _mm256_set1_epi8(4))
        };
        let piece = level(level(piece, 2), 1);
        let alias = _mm256_add_epi8(row_start, _mm256_shuffle_epi8(self.piece_step, piece));
        let divider = _mm256_shuffle_epi8(self.divider, symbols);
        let own = _mm256_cmpgt_epi8(divider, _mm256_min_epu8(rank, _mm256_set1_epi8(127)));
        *low = _mm256_add_epi8(rank, _mm256_blendv_epi8(alias, _mm256_slli_epi16::<4>(symbols), own));
    }
}
