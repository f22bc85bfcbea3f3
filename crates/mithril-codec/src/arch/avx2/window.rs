//! Counting and mapping the values of a rANS8 window.

use super::{load, store, table};
use crate::entropy::rans8::{COUNTED, Symbols, Window, sampled_groups};
use std::arch::x86_64::*;

/// Groups after which fields of four bits are full: a group adds at most four to each.
const GROUPS_PER_SPREAD: usize = 3;

/// Such sums after which fields of eight bits are full.
const SPREADS_PER_FLUSH: usize = 21;

/// For every pair of symbols, what each symbol adds: one to the lower field of its pair, or to the upper one.
static PAIRS: [[u8; 16]; 8] = pairs();

const fn pairs() -> [[u8; 16]; 8] {
    let mut pairs = [[0; 16]; 8];
    let mut pair = 0;
    while pair < 8 {
        pairs[pair][2 * pair] = 0x01;
        pairs[pair][2 * pair + 1] = 0x10;
        pair += 1;
    }
    pairs
}

/// Counts sixteen consecutive values in a sample of `plane`.
#[target_feature(enable = "avx2")]
pub(super) fn count_window(plane: &[u8], offset: u8, counts: &mut [u32; 16]) {
    let (groups, _) = plane.as_chunks::<COUNTED>();
    count(groups, sampled_groups(groups.len()), offset, counts);
}

/// Counts sixteen consecutive values in whole groups.
#[target_feature(enable = "avx2")]
pub(super) fn count_values(bytes: &[u8], first: u8, counts: &mut [u32; 16]) -> usize {
    let (groups, _) = bytes.as_chunks::<COUNTED>();
    count(groups, 0..groups.len(), first, counts);
    groups.as_flattened().len()
}

/// One look-up counts two symbols, in fields of four bits, which takes half the instructions of comparing with each.
#[target_feature(enable = "avx2")]
fn count(groups: &[[u8; COUNTED]], which: impl Iterator<Item = usize>, offset: u8, counts: &mut [u32; 16]) {
    let mut counters = Counters::new();
    let first = _mm256_set1_epi8(offset.cast_signed());
    // As in `map_window`: only symbols below 16 are looked up, and all others give zero.
    let beyond = _mm256_set1_epi8(0x70);
    let (mut n_groups, mut n_spreads) = (0, 0);
    for group in which {
        let (vectors, _) = groups[group].as_chunks::<32>();
        let [a, b, c, d]: [__m256i; 4] =
            std::array::from_fn(|i| _mm256_adds_epu8(_mm256_sub_epi8(load(&vectors[i]), first), beyond));
        for (fields, pair) in counters.pairs.iter_mut().zip(&PAIRS) {
            let pair = table(pair);
            let ab = _mm256_add_epi8(_mm256_shuffle_epi8(pair, a), _mm256_shuffle_epi8(pair, b));
            let cd = _mm256_add_epi8(_mm256_shuffle_epi8(pair, c), _mm256_shuffle_epi8(pair, d));
            *fields = _mm256_add_epi8(*fields, _mm256_add_epi8(ab, cd));
        }
        n_groups += 1;
        if n_groups == GROUPS_PER_SPREAD {
            counters.spread();
            (n_groups, n_spreads) = (0, n_spreads + 1);
        }
        if n_spreads == SPREADS_PER_FLUSH {
            counters.flush(counts);
            n_spreads = 0;
        }
    }
    counters.spread();
    counters.flush(counts);
}

/// What was counted of sixteen symbols, by the byte of a vector that it stood in.
struct Counters {
    /// Two symbols each, in four bits.
    pairs: [__m256i; 8],
    /// One symbol each.
    symbols: [__m256i; 16],
}

impl Counters {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        let zero = _mm256_setzero_si256();
        Self { pairs: [zero; 8], symbols: [zero; 16] }
    }

    /// Adds what pairs hold to their symbols.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn spread(&mut self) {
        let lower = _mm256_set1_epi8(0x0f);
        for (fields, symbols) in self.pairs.iter_mut().zip(self.symbols.as_chunks_mut::<2>().0) {
            symbols[0] = _mm256_add_epi8(symbols[0], _mm256_and_si256(*fields, lower));
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(*fields), lower);
            symbols[1] = _mm256_add_epi8(symbols[1], upper);
            *fields = _mm256_setzero_si256();
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn flush(&mut self, counts: &mut [u32; 16]) {
        let zero = _mm256_setzero_si256();
        for (count, symbol) in counts.iter_mut().zip(&mut self.symbols) {
            let sums = _mm256_sad_epu8(*symbol, zero);
            let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi32::<2>(sums);
            *count += sum.cast_unsigned();
            *symbol = zero;
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn map_window(window: &Window, plane: &mut [u8], first: u32, escapes: &mut Vec<u32>) -> usize {
    let valid_symbols = table(&window.valid());
    let offset = _mm256_set1_epi8(window.offset.cast_signed());
    let escape = _mm256_set1_epi8(window.escape_symbol().cast_signed());
    // Adding 0x70 with saturation keeps symbols below 16 in the table and sets bit 7 of all others, for which
    // the shuffle gives zero.
    let beyond = _mm256_set1_epi8(0x70);
    let mut position = first;
    let (pairs, _) = plane.as_chunks_mut::<64>();
    let n_pairs = pairs.len();
    for pair in pairs {
        let mut escaped = 0u64;
        for (half, values) in pair.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let symbols = _mm256_sub_epi8(load(values), offset);
            let valid = _mm256_shuffle_epi8(valid_symbols, _mm256_adds_epu8(symbols, beyond));
            store(values, _mm256_blendv_epi8(escape, symbols, valid));
            let mask = !_mm256_movemask_epi8(valid).cast_unsigned();
            escaped |= u64::from(mask) << (32 * half);
        }
        push_escapes(position, escaped, escapes);
        position = position.wrapping_add(64);
    }
    n_pairs * 64
}

/// Lists the places of 64 values from `first` on that are set in the mask.
#[inline]
#[target_feature(enable = "bmi1")]
pub(in crate::arch) fn push_escapes(first: u32, mut escaped: u64, escapes: &mut Vec<u32>) {
    while escaped != 0 {
        escapes.push(first + escaped.trailing_zeros());
        escaped &= escaped - 1;
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn map_listed(symbols: &Symbols, plane: &mut [u8], escapes: &mut Vec<u32>) -> usize {
    let by_value = symbols.by_value.as_chunks::<16>().0;
    let quarters: [__m256i; 4] = std::array::from_fn(|quarter| table(&by_value[quarter]));
    let (beyond, symbol) = (_mm256_set1_epi8(0x70), _mm256_set1_epi8(0x7f));
    let mut position = 0u32;
    let (pairs, _) = plane.as_chunks_mut::<64>();
    let n_pairs = pairs.len();
    for pair in pairs {
        let mut listed = 0u64;
        for (half, values) in pair.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let mut index = load(values);
            let mut found = _mm256_setzero_si256();
            // As in `map_window`: only the values of its own quarter stay below 16, and all others give zero.
            for quarter in quarters {
                let entry = _mm256_shuffle_epi8(quarter, _mm256_adds_epu8(index, beyond));
                found = _mm256_or_si256(found, entry);
                index = _mm256_sub_epi8(index, _mm256_set1_epi8(16));
            }
            store(values, _mm256_and_si256(found, symbol));
            listed |= u64::from(_mm256_movemask_epi8(found).cast_unsigned()) << (32 * half);
        }
        push_escapes(position, !listed, escapes);
        position = position.wrapping_add(64);
    }
    n_pairs * 64
}
