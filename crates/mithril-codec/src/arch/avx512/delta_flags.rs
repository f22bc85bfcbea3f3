//! Differences with AVX-512: 64 elements at a time, whose masks need no way through vector registers.
//!
//! Bytes go to the places of a mask, and back, by one instruction each (`vpexpandb`, `vpcompressb`); their forms that
//! write to memory are slow on Zen 4, so what is packed is stored as a vector.

use super::{load_wide, store_wide};
use crate::arch::avx2::delta_flags::{bits_at, put_bits};
use std::arch::x86_64::*;

/// A vector of each number that a string is for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn numbers_of(strings_at: &[(u8, usize)]) -> [__m512i; 16] {
    let mut numbers = [_mm512_setzero_si512(); 16];
    for (number, (context, _)) in numbers.iter_mut().zip(strings_at) {
        *number = _mm512_set1_epi8(context.cast_signed());
    }
    numbers
}

#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
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
        let contexts = load_wide(contexts);
        let mut word = 0;
        for ((_, at), number) in strings_at.iter_mut().zip(&numbers) {
            let members = _mm512_cmpeq_epi8_mask(contexts, *number);
            word |= _pdep_u64(bits_at(strings, *at), members);
            *at += members.count_ones() as usize;
        }
        let mut left = all;
        while left != 0 {
            let context = left.trailing_zeros().to_le_bytes()[0];
            word |= _mm512_cmpeq_epi8_mask(contexts, _mm512_set1_epi8(context.cast_signed()));
            left &= left - 1;
        }
        *out = word;
    }
    words.len()
}

#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn split_flags(
    contexts: &[u8],
    moved: &[u64],
    strings_at: &mut [(u8, usize)],
    strings: &mut [u8],
) -> usize {
    let numbers = numbers_of(strings_at);
    let words = contexts.as_chunks::<64>().0;
    for (contexts, &word) in words.iter().zip(moved) {
        let contexts = load_wide(contexts);
        for ((_, at), number) in strings_at.iter_mut().zip(&numbers) {
            let members = _mm512_cmpeq_epi8_mask(contexts, *number);
            put_bits(strings, *at, _pext_u64(word, members));
            *at += members.count_ones() as usize;
        }
    }
    words.len()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn keep_flagged(bytes: &[u8], moved: &[u64], out: &mut [u8]) -> (usize, usize) {
    let words = bytes.as_chunks::<64>().0;
    let mut at = 0;
    for (bytes, &word) in words.iter().zip(moved) {
        let room: &mut [u8; 64] = out[at..].first_chunk_mut().expect("room for 64 more");
        store_wide(room, _mm512_maskz_compress_epi8(word, load_wide(bytes)));
        at += word.count_ones() as usize;
    }
    (words.len(), at)
}

/// The contexts that occur, each with a vector of its number and where its symbols go on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn present(moved_contexts: &[u8], starts: &[usize; 16]) -> ([(__m512i, usize); 16], u32, usize) {
    let present = moved_contexts.iter().fold(0u32, |seen, &context| seen | 1 << (context & 15));
    let mut contexts = [(_mm512_setzero_si512(), 0usize); 16];
    let mut n_contexts = 0;
    for context in (0..16u8).filter(|context| present >> context & 1 == 1) {
        contexts[n_contexts] = (_mm512_set1_epi8(context.cast_signed()), starts[usize::from(context)]);
        n_contexts += 1;
    }
    (contexts, present, n_contexts)
}

fn hand_back(contexts: &[(__m512i, usize)], present: u32, starts: &mut [usize; 16]) {
    for (context, at) in (0..16u8).filter(|context| present >> context & 1 == 1).zip(contexts) {
        starts[usize::from(context)] = at.1;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn merge_classes(
    moved_contexts: &[u8],
    starts: &mut [usize; 16],
    bucketed: &[u8],
    symbols: &mut [u8],
) -> usize {
    let (mut contexts, present, n_contexts) = present(moved_contexts, starts);
    let vectors = moved_contexts.as_chunks::<64>().0;
    for (members_of, out) in vectors.iter().zip(symbols.as_chunks_mut::<64>().0) {
        let members_of = load_wide(members_of);
        // Two halves of the contexts, so that an expansion does not wait for all before it.
        let mut merged = [_mm512_setzero_si512(); 2];
        for (which, (context, at)) in contexts[..n_contexts].iter_mut().enumerate() {
            let members = _mm512_cmpeq_epi8_mask(members_of, *context);
            let next: &[u8; 64] = bucketed[*at..].first_chunk().expect("buckets have bytes behind them");
            merged[which % 2] = _mm512_mask_expand_epi8(merged[which % 2], members, load_wide(next));
            *at += members.count_ones() as usize;
        }
        store_wide(out, _mm512_or_si512(merged[0], merged[1]));
    }
    hand_back(&contexts[..n_contexts], present, starts);
    64 * vectors.len()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn split_classes(
    moved_contexts: &[u8],
    starts: &mut [usize; 16],
    symbols: &[u8],
    bucketed: &mut [u8],
) -> usize {
    let (mut contexts, present, n_contexts) = present(moved_contexts, starts);
    let vectors = moved_contexts.as_chunks::<64>().0;
    for (members_of, symbols) in vectors.iter().zip(symbols.as_chunks::<64>().0) {
        let (members_of, symbols) = (load_wide(members_of), load_wide(symbols));
        for (context, at) in &mut contexts[..n_contexts] {
            let members = _mm512_cmpeq_epi8_mask(members_of, *context);
            let n = members.count_ones();
            let room = &mut bucketed[*at..][..n as usize];
            let packed = _mm512_maskz_compress_epi8(members, symbols);
            let lanes = _bzhi_u64(u64::MAX, n);
            // SAFETY: the mask leaves all but the `n` bytes of `room` alone, so that other buckets are not touched.
            unsafe { _mm512_mask_storeu_epi8(room.as_mut_ptr().cast(), lanes, packed) };
            *at += n as usize;
        }
    }
    hand_back(&contexts[..n_contexts], present, starts);
    64 * vectors.len()
}

/// Which of 64 elements keep more than so many bits above their bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn reaching(plane: u8, raw_lens: &[u8; 64]) -> u64 {
    let above = _mm512_and_si512(load_wide(raw_lens), _mm512_set1_epi8(7));
    _mm512_cmpgt_epi8_mask(above, _mm512_set1_epi8(plane.cast_signed()))
}

#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn add_bits(plane: u8, string: &[u8], raw_lens: &[u8], bits: &mut [u8]) -> (usize, usize) {
    let value = _mm512_set1_epi8((1u8 << plane).cast_signed());
    let vectors = raw_lens.as_chunks::<64>().0;
    let mut at = 0;
    for (lens, bits) in vectors.iter().zip(bits.as_chunks_mut::<64>().0) {
        let members = reaching(plane, lens);
        let placed = _pdep_u64(bits_at(string, at), members);
        at += members.count_ones() as usize;
        let with_bit = _mm512_or_si512(load_wide(bits), _mm512_maskz_mov_epi8(placed, value));
        store_wide(bits, with_bit);
    }
    (64 * vectors.len(), at)
}

#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn take_bits(plane: u8, raw_lens: &[u8], bits: &[u8], string: &mut [u8]) -> (usize, usize) {
    let value = _mm512_set1_epi8((1u8 << plane).cast_signed());
    let vectors = raw_lens.as_chunks::<64>().0;
    let mut at = 0;
    for (lens, bits) in vectors.iter().zip(bits.as_chunks::<64>().0) {
        let members = reaching(plane, lens);
        put_bits(string, at, _pext_u64(_mm512_test_epi8_mask(load_wide(bits), value), members));
        at += members.count_ones() as usize;
    }
    (64 * vectors.len(), at)
}
