//! Differences: flags, classes and kept bits between the order of the coder and that of the elements.
//!
//! All of it is moving single bits or bytes to the places of a mask, which `pdep` and `pext` do 64 at a time: the
//! elements of one context in a word of 64 are such a mask.

use super::{load, store};
use std::arch::x86_64::*;

/// The lowest bit of each byte of a word.
const ONES: u64 = 0x0101_0101_0101_0101;

/// A vector of each number that a string is for: made once, not for every word.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers_of(strings_at: &[(u8, usize)]) -> [__m256i; 16] {
    let mut numbers = [_mm256_setzero_si256(); 16];
    for (number, (context, _)) in numbers.iter_mut().zip(strings_at) {
        *number = _mm256_set1_epi8(context.cast_signed());
    }
    numbers
}

/// Which of 64 bytes are equal to a value.
#[inline]
#[target_feature(enable = "avx2")]
fn equal(low: __m256i, high: __m256i, value: __m256i) -> u64 {
    let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(low, value)).cast_unsigned();
    let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, value)).cast_unsigned();
    u64::from(low) | u64::from(high) << 32
}

/// 64 bits from any bit on.
#[inline(always)]
pub(in crate::arch) fn bits_at(string: &[u8], at: usize) -> u64 {
    let bytes: &[u8; 9] = string[at / 8..].first_chunk().expect("strings have bytes behind them");
    let [low @ .., next] = bytes;
    let shift = at % 8;
    // Two shifts, because one by 64 does not exist.
    u64::from_le_bytes(*low) >> shift | u64::from(*next) << 1 << (63 - shift)
}

/// Adds bits to a string that is zero from there on.
#[inline(always)]
pub(in crate::arch) fn put_bits(string: &mut [u8], at: usize, bits: u64) {
    let bytes: &mut [u8; 9] = string[at / 8..].first_chunk_mut().expect("strings have bytes behind them");
    let shift = at % 8;
    let [low @ .., next] = bytes;
    *low = (u64::from_le_bytes(*low) | bits << shift).to_le_bytes();
    *next |= (bits >> 1 >> (63 - shift)).to_le_bytes()[0];
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn merge_flags(
    contexts: &[u8],
    all: u16,
    strings_at: &mut [(u8, usize)],
    strings: &[u8],
    moved: &mut [u64],
) -> usize {
    let numbers = numbers_of(strings_at);
    let words = contexts.as_chunks::<64>().0;
    for (contexts, out) in words.iter().zip(moved) {
        let [low, high] = contexts.as_chunks::<32>().0 else { break };
        let (low, high) = (load(low), load(high));
        let mut word = 0;
        for ((_, at), number) in strings_at.iter_mut().zip(&numbers) {
            let members = equal(low, high, *number);
            word |= _pdep_u64(bits_at(strings, *at), members);
            *at += members.count_ones() as usize;
        }
        let mut left = all;
        while left != 0 {
            let context = left.trailing_zeros().to_le_bytes()[0];
            word |= equal(low, high, _mm256_set1_epi8(context.cast_signed()));
            left &= left - 1;
        }
        *out = word;
    }
    words.len()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn pack_flags(symbols: &[u8], out: &mut [u8]) -> usize {
    // The second of two symbols counts sixteen times.
    let weights = _mm256_set1_epi16(0x1001);
    let words = symbols.as_chunks::<64>().0;
    for (symbols, out) in words.iter().zip(out.as_chunks_mut::<32>().0) {
        let [low, high] = symbols.as_chunks::<32>().0 else { break };
        let low = _mm256_maddubs_epi16(load(low), weights);
        let high = _mm256_maddubs_epi16(load(high), weights);
        // Packing takes turns between the halves of both.
        store(out, _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(low, high)));
    }
    64 * words.len()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn count_set(bytes: &[u8], n: usize) -> Option<usize> {
    let (words, rest) = bytes[..n.div_ceil(8)].as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let whole: usize = words.iter().map(|word| u64::from_le_bytes(*word).count_ones() as usize).sum();
    let of_last = u64::from_le_bytes(last).count_ones() as usize;
    // Bits behind the last mean nothing.
    let above = match bytes.get(n / 8) {
        Some(byte) if !n.is_multiple_of(8) => (byte >> (n % 8)).count_ones() as usize,
        _ => 0,
    };
    Some(whole + of_last - above)
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn split_flags(
    contexts: &[u8],
    moved: &[u64],
    strings_at: &mut [(u8, usize)],
    strings: &mut [u8],
) -> usize {
    let numbers = numbers_of(strings_at);
    let words = contexts.as_chunks::<64>().0;
    for (contexts, &word) in words.iter().zip(moved) {
        let [low, high] = contexts.as_chunks::<32>().0 else { break };
        let (low, high) = (load(low), load(high));
        for ((_, at), number) in strings_at.iter_mut().zip(&numbers) {
            let members = equal(low, high, *number);
            put_bits(strings, *at, _pext_u64(word, members));
            *at += members.count_ones() as usize;
        }
    }
    words.len()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn keep_flagged(bytes: &[u8], moved: &[u64], out: &mut [u8]) -> (usize, usize) {
    let words = bytes.as_chunks::<64>().0;
    let mut at = 0;
    for (bytes, word) in words.iter().zip(moved) {
        for (eight, flags) in bytes.as_chunks::<8>().0.iter().zip(word.to_le_bytes()) {
            let places = _pdep_u64(u64::from(flags), ONES) * 255;
            let kept = _pext_u64(u64::from_le_bytes(*eight), places);
            let room: &mut [u8; 8] = out[at..].first_chunk_mut().expect("room for eight more");
            *room = kept.to_le_bytes();
            at += flags.count_ones() as usize;
        }
    }
    (words.len(), at)
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn merge_classes(
    moved_contexts: &[u8],
    starts: &mut [usize; 16],
    bucketed: &[u8],
    symbols: &mut [u8],
) -> usize {
    // Contexts that occur at all, each with a vector of its number and where its symbols go on.
    let present = moved_contexts.iter().fold(0u32, |seen, &context| seen | 1 << (context & 15));
    let mut contexts = [(_mm256_setzero_si256(), 0usize); 16];
    let mut n_contexts = 0;
    for context in (0..16u8).filter(|context| present >> context & 1 == 1) {
        contexts[n_contexts] = (_mm256_set1_epi8(context.cast_signed()), starts[usize::from(context)]);
        n_contexts += 1;
    }
    let contexts = &mut contexts[..n_contexts];
    let vectors = moved_contexts.as_chunks::<32>().0;
    for (members_of, out) in vectors.iter().zip(symbols.as_chunks_mut::<32>().0) {
        let members_of = load(members_of);
        let mut merged = [0; 4];
        for (context, at) in &mut *contexts {
            let members = _mm256_cmpeq_epi8(members_of, *context);
            let (low, high) = (_mm256_castsi256_si128(members), _mm256_extracti128_si256::<1>(members));
            let members = [
                _mm_cvtsi128_si64(low).cast_unsigned(),
                _mm_extract_epi64::<1>(low).cast_unsigned(),
                _mm_cvtsi128_si64(high).cast_unsigned(),
                _mm_extract_epi64::<1>(high).cast_unsigned(),
            ];
            let next: &[u8; 32] = bucketed[*at..].first_chunk().expect("buckets have bytes behind them");
            let mut taken = 0;
            for (merged, members) in merged.iter_mut().zip(members) {
                // SAFETY: at most eight bytes were taken for each of the lanes before this one, so that the eight
                // bytes from here lie within the 32 of `next`; the read needs no alignment.
                let symbols = unsafe { next.as_ptr().wrapping_add(taken).cast::<u64>().read_unaligned() };
                *merged |= _pdep_u64(u64::from_le(symbols), members);
                taken += (members.count_ones() / 8) as usize;
            }
            *at += taken;
        }
        for (out, merged) in out.as_chunks_mut::<8>().0.iter_mut().zip(merged) {
            *out = merged.to_le_bytes();
        }
    }
    for (context, at) in (0..16u8).filter(|context| present >> context & 1 == 1).zip(&*contexts) {
        starts[usize::from(context)] = at.1;
    }
    32 * vectors.len()
}

/// Which of 32 elements keep more than so many bits above their bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn reaching(plane: u8, raw_lens: &[u8; 32]) -> u32 {
    let above = _mm256_and_si256(load(raw_lens), _mm256_set1_epi8(7));
    _mm256_movemask_epi8(_mm256_cmpgt_epi8(above, _mm256_set1_epi8(plane.cast_signed()))).cast_unsigned()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn add_bits(plane: u8, string: &[u8], raw_lens: &[u8], bits: &mut [u8]) -> (usize, usize) {
    let byte_of_lane =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bit_of_lane = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
    let value = _mm256_set1_epi8((1u8 << plane).cast_signed());
    let vectors = raw_lens.as_chunks::<32>().0;
    let mut at = 0;
    for (lens, bits) in vectors.iter().zip(bits.as_chunks_mut::<32>().0) {
        let members = reaching(plane, lens);
        let placed = _pdep_u64(bits_at(string, at), u64::from(members));
        at += members.count_ones() as usize;
        let [a, b, c, d, ..] = placed.to_le_bytes();
        let placed = _mm256_set1_epi32(i32::from_le_bytes([a, b, c, d]));
        let lanes = _mm256_and_si256(_mm256_shuffle_epi8(placed, byte_of_lane), bit_of_lane);
        let set = _mm256_and_si256(_mm256_cmpeq_epi8(lanes, bit_of_lane), value);
        store(bits, _mm256_or_si256(load(bits), set));
    }
    (32 * vectors.len(), at)
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn take_bits(plane: u8, raw_lens: &[u8], bits: &[u8], string: &mut [u8]) -> (usize, usize) {
    let value = _mm256_set1_epi8((1u8 << plane).cast_signed());
    let vectors = raw_lens.as_chunks::<32>().0;
    let mut at = 0;
    for (lens, bits) in vectors.iter().zip(bits.as_chunks::<32>().0) {
        let members = reaching(plane, lens);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(load(bits), value), value);
        let set = _mm256_movemask_epi8(set).cast_unsigned();
        put_bits(string, at, _pext_u64(u64::from(set), u64::from(members)));
        at += members.count_ones() as usize;
    }
    (32 * vectors.len(), at)
}
