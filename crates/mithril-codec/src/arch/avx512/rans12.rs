//! Decoding of wide rANS with AVX-512: sixteen lanes in each of four registers.
//!
//! One instruction puts words into lanes, and slots leave the vector as 16-bit numbers, four to a register: 2.76 G
//! symbols/s. Gathers gave 2.39, and a search for the symbol among 64 first slots in registers 1.8, because each of its
//! steps waits for the one before. The invariants are those of AVX2's.

use crate::entropy::rans12::{FREQUENCY_SUM, GROUP_WORDS_LEN, LANES};
use std::arch::x86_64::*;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn decode_groups(
    states: &mut [u32; LANES],
    cells: &[u32; FREQUENCY_SUM],
    words: &[u8],
    groups: &mut [[u8; LANES]],
) -> (usize, usize) {
    let lanes = states.as_chunks_mut::<16>().0;
    let mut vectors = [_mm512_setzero_si512(); 4];
    for (vector, lanes) in vectors.iter_mut().zip(&*lanes) {
        // SAFETY: the reference is good for the 64 bytes that are read; no alignment is needed.
        *vector = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
    }
    let mut taken = 0;
    let mut n_groups = 0;
    for group in groups {
        let Some(window) = words.get(taken..).and_then(|rest| rest.first_chunk()) else { break };
        let mut offset = 0;
        let [a, b, c, d] = &mut vectors;
        let [out_a, out_b, out_c, out_d] = group.as_chunks_mut::<16>().0 else { break };
        decode_lanes(a, cells, window, &mut offset, out_a);
        decode_lanes(b, cells, window, &mut offset, out_b);
        decode_lanes(c, cells, window, &mut offset, out_c);
        decode_lanes(d, cells, window, &mut offset, out_d);
        taken += offset;
        n_groups += 1;
    }
    for (vector, lanes) in vectors.into_iter().zip(lanes) {
        // SAFETY: the reference is good for the 64 bytes that are written; no alignment is needed.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), vector) };
    }
    (n_groups, taken)
}

/// One step of sixteen lanes: updates the states and the offset into the window, writes the symbols.
///
/// The offset must be at most 96; it grows by at most 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn decode_lanes(
    states: &mut __m512i,
    cells: &[u32; FREQUENCY_SUM],
    window: &[u8; GROUP_WORDS_LEN],
    offset: &mut usize,
    symbols: &mut [u8; 16],
) {
    let cell = read_cells(cells, *states);
    let quotient = _mm512_srli_epi32::<12>(*states);
    let place = _mm512_and_si512(_mm512_srli_epi32::<8>(cell), _mm512_set1_epi32(0xFFF));
    let reduced = _mm512_add_epi32(
        _mm512_mullo_epi32(quotient, _mm512_srli_epi32::<20>(cell)),
        _mm512_add_epi32(quotient, place),
    );
    let reads = _mm512_cmplt_epu32_mask(reduced, _mm512_set1_epi32(1 << 16));
    let next: &[u8] = &window[*offset..*offset + 32];
    // SAFETY: the slice holds the 32 bytes that are read; no alignment is needed.
    let next = unsafe { _mm256_loadu_si256(next.as_ptr().cast()) };
    *offset += 2 * reads.count_ones() as usize;
    let fill = _mm512_maskz_expand_epi32(reads, _mm512_cvtepu16_epi32(next));
    *states = _mm512_mask_or_epi32(reduced, reads, _mm512_slli_epi32::<16>(reduced), fill);
    let low_bytes = _mm512_cvtepi32_epi8(cell);
    // SAFETY: `symbols` is good for the 16 bytes that are written; no alignment is needed.
    unsafe { _mm_storeu_si128(symbols.as_mut_ptr().cast(), low_bytes) };
}

/// The cell of the slot of each of sixteen states.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn read_cells(cells: &[u32; FREQUENCY_SUM], states: __m512i) -> __m512i {
    let slots = _mm512_cvtepi32_epi16(states);
    let (low, high) = (_mm256_castsi256_si128(slots), _mm256_extracti128_si256::<1>(slots));
    let (a, b) = (_mm_cvtsi128_si64(low).cast_unsigned(), _mm_extract_epi64::<1>(low).cast_unsigned());
    let (c, d) = (_mm_cvtsi128_si64(high).cast_unsigned(), _mm_extract_epi64::<1>(high).cast_unsigned());
    let halves = [
        _mm256_set_m128i(read_four_cells(cells, b), read_four_cells(cells, a)),
        _mm256_set_m128i(read_four_cells(cells, d), read_four_cells(cells, c)),
    ];
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1])
}

/// The cells of four slots, each in the low bits of 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
#[expect(clippy::cast_possible_truncation, reason = "only the low 12 bits count")]
fn read_four_cells(cells: &[u32; FREQUENCY_SUM], slots: u64) -> __m128i {
    let cell = |slot: u64| cells[slot as usize % FREQUENCY_SUM].cast_signed();
    _mm_setr_epi32(cell(slots), cell(slots >> 16), cell(slots >> 32), cell(slots >> 48))
}
