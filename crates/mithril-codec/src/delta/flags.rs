//! One flag per element: whether it is away from the center of its context.
//!
//! The flags of a context stand together, in the order of its elements, four to a symbol. On the way from one order
//! to the other they are strings of bits, so that many move at once.

use super::MAX_CONTEXTS;
use crate::arch::kernels;

/// Bytes behind the strings that kernels may touch.
pub(super) const SLACK: usize = 16;

/// Where the flags of each context come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    None,
    All,
    /// A string of bits that starts at this bit.
    Bits(usize),
}

/// Packs symbols of four flags into bytes, the first in the lowest bits. There is an even number of them.
pub(super) fn pack(symbols: &[u8], out: &mut [u8]) {
    let done = kernels().delta_pack_flags(symbols, out);
    let (symbols, out) = (&symbols[done..], &mut out[done / 2..]);
    let (words, rest) = symbols.as_chunks::<8>();
    let (bytes, last) = out.split_at_mut(4 * words.len());
    for (word, bytes) in words.iter().zip(bytes.as_chunks_mut::<4>().0) {
        // Halves of a byte move together, then bytes, then pairs of them.
        let halves = u64::from_le_bytes(*word) & 0x0f0f_0f0f_0f0f_0f0f;
        let bytes_apart = (halves | halves >> 4) & 0x00ff_00ff_00ff_00ff;
        let pairs_apart = (bytes_apart | bytes_apart >> 8) & 0x0000_ffff_0000_ffff;
        let [a, b, _, _, c, d, ..] = pairs_apart.to_le_bytes();
        *bytes = [a, b, c, d];
    }
    for (pair, out) in rest.as_chunks::<2>().0.iter().zip(last) {
        *out = pair[0] & 15 | pair[1] << 4;
    }
}

/// Symbols of four flags from a string of bits.
pub(super) fn unpack(bits: &[u8], symbols: &mut [u8]) {
    for (byte, pair) in bits.iter().zip(symbols.as_chunks_mut::<2>().0) {
        *pair = [byte & 15, byte >> 4];
    }
}

/// Puts the flags of all contexts into the order of the elements. `strings` has `SLACK` bytes behind its last.
pub(super) fn merge(
    contexts: &[u8],
    mut sources: [Source; MAX_CONTEXTS],
    strings: &[u8],
    moved: &mut Vec<u64>,
) {
    moved.resize(contexts.len().div_ceil(64), 0);
    let done = merge_words(contexts, &mut sources, strings, moved);
    for (word, contexts) in moved[done..].iter_mut().zip(contexts[64 * done..].chunks(64)) {
        *word = 0;
        for (bit, &context) in contexts.iter().enumerate() {
            let flag = match &mut sources[usize::from(context)] {
                Source::None => 0,
                Source::All => 1,
                Source::Bits(at) => {
                    *at += 1;
                    u64::from(strings[(*at - 1) / 8] >> ((*at - 1) % 8) & 1)
                }
            };
            *word |= flag << bit;
        }
    }
}

/// Whole words by a kernel; returns how many.
fn merge_words(
    contexts: &[u8],
    sources: &mut [Source; MAX_CONTEXTS],
    strings: &[u8],
    moved: &mut [u64],
) -> usize {
    let mut strings_at = [(0u8, 0usize); MAX_CONTEXTS];
    let (mut n_strings, mut all) = (0, 0u16);
    for (context, source) in (0u8..).zip(&*sources) {
        match *source {
            Source::None => {}
            Source::All => all |= 1 << context,
            Source::Bits(at) => {
                strings_at[n_strings] = (context, at);
                n_strings += 1;
            }
        }
    }
    let done = kernels().delta_merge_flags(contexts, all, &mut strings_at[..n_strings], strings, moved);
    for &(context, at) in &strings_at[..n_strings] {
        sources[usize::from(context)] = Source::Bits(at);
    }
    done
}

/// The other way: the flags of each context that has a string, from those of the elements. `ends[c]` is the bit where
/// string `c` starts, and afterwards where it ends. The strings are zero before, and have `SLACK` bytes behind them.
pub(super) fn split(
    contexts: &[u8],
    moved: &[u64],
    ends: &mut [Option<usize>; MAX_CONTEXTS],
    strings: &mut [u8],
) {
    let mut strings_at = [(0u8, 0usize); MAX_CONTEXTS];
    let mut n_strings = 0;
    for (context, end) in (0u8..).zip(&*ends) {
        if let Some(end) = end {
            strings_at[n_strings] = (context, *end);
            n_strings += 1;
        }
    }
    let strings_at = &mut strings_at[..n_strings];
    let done = kernels().delta_split_flags(contexts, moved, strings_at, strings);
    for &mut (context, at) in strings_at {
        ends[usize::from(context)] = Some(at);
    }
    for (word, contexts) in moved[done..].iter().zip(contexts[64 * done..].chunks(64)) {
        for (bit, &context) in contexts.iter().enumerate() {
            if let Some(at) = &mut ends[usize::from(context)] {
                strings[*at / 8] |= u8::try_from(word >> bit & 1).unwrap_or(0) << (*at % 8);
                *at += 1;
            }
        }
    }
}

/// Contexts (or any bytes) of the elements that are flagged, in order.
pub(crate) fn keep_flagged(bytes: &[u8], moved: &[u64], out: &mut Vec<u8>) {
    let n_moved: usize = moved.iter().map(|word| word.count_ones() as usize).sum();
    // Kernels write up to 64 bytes at a time.
    out.resize(n_moved + 64, 0);
    let (done, mut at) = kernels().delta_keep_flagged(bytes, moved, out);
    for (word, bytes) in moved[done..].iter().zip(bytes[64 * done..].chunks(64)) {
        let mut left = *word;
        while left != 0 {
            out[at] = bytes[left.trailing_zeros() as usize];
            at += 1;
            left &= left - 1;
        }
    }
    out.truncate(n_moved);
}

/// How many of the `n` bits from a byte on are set.
pub(super) fn count_set(bytes: &[u8], n: usize) -> usize {
    if let Some(n_set) = kernels().delta_count_set(bytes, n) {
        return n_set;
    }
    let (words, rest) = bytes[..n / 8].as_chunks::<8>();
    let whole: u32 = words.iter().map(|word| u64::from_le_bytes(*word).count_ones()).sum();
    let rest: u32 = rest.iter().map(|byte| byte.count_ones()).sum();
    let last = if n.is_multiple_of(8) { 0 } else { (bytes[n / 8] & ((1 << (n % 8)) - 1)).count_ones() };
    (whole + rest + last) as usize
}
