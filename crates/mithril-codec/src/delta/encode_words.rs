//! The symbols and kept bits of a difference block, 64 elements at a time where the CPU has AVX-512; `encode_passes` is the
//! definition.
//!
//! Codes are sorted by context first. Within a context everything is then one after the other: counting codes, choosing
//! classes, flags as they are written. Kept bits stand in the order of the elements, and are collected from these.

use super::encode::{Centers, Contexts, Split, TABLES_LEN};
use super::header::Context;
use super::model::{self, CodeCounts, STILL};
use super::raw::{self, RawCounts};
use super::words::TILE_WORDS;
use super::{MAX_CONTEXTS, Number, Scratch, WordScratch, contexts};
use crate::arch::WordKernels;

/// Bytes behind what kernels write that they may touch, and behind the last of it, where they take some words together.
const SLACK: usize = 64;
const TILE_SLACK: usize = 64 * (TILE_WORDS + 1);

/// Which codes have a class in each context.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Windows {
    /// Twice the number of bits that the first class keeps, as codes are twice a length.
    pub(crate) lows: [u8; MAX_CONTEXTS],
    /// The first symbol that is no class.
    pub(crate) limits: [u8; MAX_CONTEXTS],
    /// All bits for contexts with exact differences.
    pub(crate) exact: [u8; MAX_CONTEXTS],
}

/// Where kept bits and bytes go on.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    /// Strings of bits, each with room behind it, and the bit where each goes on.
    pub(crate) bits: &'a mut [u8],
    pub(crate) bits_at: [usize; 7],
    /// The same for bytes.
    pub(crate) bytes: &'a mut [u8],
    pub(crate) bytes_at: [usize; 3],
    pub(crate) n_byte_planes: usize,
    /// Places of elements that have no class.
    pub(crate) escapes: Vec<u32>,
}

impl Windows {
    pub(super) fn of(tables: &[Context]) -> Self {
        let mut windows = Self::default();
        for (at, table) in tables.iter().enumerate().filter(|(_, table)| table.classes.is_some()) {
            windows.lows[at] = 2 * table.low;
            (windows.limits[at], windows.exact[at]) = match table.exact {
                Some(_) => (super::header::EXACT_FROM, u8::MAX),
                None => (16, 0),
            };
        }
        windows
    }
}

/// Chooses the classes of each context and splits the codes of all elements into flags and classes by context.
pub(super) fn split(
    kernels: &dyn WordKernels,
    block: &Contexts<'_>,
    centers: &Centers,
    scratch: &mut Scratch,
) -> Split {
    let (Contexts { number, n_in_context, .. }, group_len) = (*block, block.group_len());
    let Scratch { contexts, codes, bucketed, flags: strings, rests, words, .. } = scratch;
    let sorted = &mut words.codes;
    // Whole words: elements that do not exist are in no context and have not moved.
    let n = codes.len();
    contexts.resize(n.next_multiple_of(64), u8::MAX);
    codes.resize(n.next_multiple_of(64), STILL);
    rests[..number.width].iter_mut().for_each(|rest| rest.resize(n.next_multiple_of(64), 0));
    // Kernels write whole vectors behind every context.
    let mut ends = [(0, 0); MAX_CONTEXTS];
    let (mut codes_at, mut flags_at) = ([0; MAX_CONTEXTS], [0; MAX_CONTEXTS]);
    let (mut sorted_len, mut strings_len, mut n_contexts) = (0, 0, 0);
    for (at, &n) in n_in_context.iter().enumerate() {
        (codes_at[at], flags_at[at]) = (sorted_len, strings_len);
        if n > 0 {
            ends[n_contexts] = (at.to_le_bytes()[0], sorted_len);
            n_contexts += 1;
        }
        sorted_len += n + SLACK;
        strings_len += n.div_ceil(4).next_multiple_of(group_len) / 2;
    }
    sorted.resize(sorted_len + TILE_SLACK, 0);
    strings.resize(strings_len, 0);
    bucketed.resize(n + MAX_CONTEXTS * group_len + SLACK, 0);
    kernels.sort(contexts, codes, &mut ends[..n_contexts], sorted);

    let mut split = Split {
        tables: vec![Context::STILL; n_in_context.len()],
        n_moved: [0; MAX_CONTEXTS],
        flags_at,
        starts: [0; MAX_CONTEXTS],
    };
    let mut end = 0;
    for (at, table) in split.tables.iter_mut().enumerate() {
        let (center, exact) = centers[at];
        let codes = &sorted[codes_at[at]..][..n_in_context[at]];
        let counts = count_codes(number, codes);
        let n_away = codes.len() - counts[usize::from(STILL)] as usize;
        table.center = center;
        split.starts[at] = end;
        // So few that listing them costs less than a table.
        if n_away * (4 + number.width) > TABLES_LEN {
            let classes = model::classes(number, &counts, exact.is_some());
            *table = model::context(center, exact, &classes);
            let padded = &sorted[codes_at[at]..][..codes.len().next_multiple_of(64)];
            let window = Windows::of(std::slice::from_ref(table));
            let strings = &mut strings[flags_at[at]..];
            split.n_moved[at] =
                kernels.flag_classes(&window, padded, codes.len(), strings, &mut bucketed[end..]);
            end += split.n_moved[at].next_multiple_of(group_len);
        }
    }
    split
}

/// How often each code occurs.
fn count_codes(number: Number, codes: &[u8]) -> CodeCounts {
    let mut counts = [0; 256];
    let mut left = codes.len();
    // Codes without a length are the last; those with a length start at zero, and long ones are rare.
    let lens = (0..=u8::try_from(2 * number.bits() + 1).unwrap_or(u8::MAX)).step_by(16);
    for first in [240].into_iter().chain(lens) {
        if left == 0 {
            break;
        }
        for (count, found) in counts[usize::from(first)..].iter_mut().zip(contexts::count_16(codes, first)) {
            *count = u32::try_from(found).unwrap_or(u32::MAX);
            left -= found;
        }
    }
    counts
}

/// Appends the kept bits of the moved elements; returns the positions of elements that have no class.
pub(super) fn write_raw(
    kernels: &dyn WordKernels,
    number: Number,
    windows: &Windows,
    counts: &RawCounts,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> Vec<u32> {
    let Scratch { contexts, codes, rests, words: WordScratch { bits, bytes, .. }, .. } = scratch;
    let (bit_lens, byte_lens) = raw::plane_lens(counts);
    let mut end = 0;
    let bits_starts = bit_lens.map(|n| {
        let start = end;
        end += n.div_ceil(8) + SLACK;
        start
    });
    bits.resize(end + TILE_SLACK, 0);
    end = 0;
    let bytes_starts = [byte_lens[0], byte_lens[1], byte_lens[2]].map(|n| {
        let start = end;
        end += n + SLACK;
        start
    });
    bytes.resize(end.max(bytes.len()), 0);
    let mut kept = Kept {
        bits,
        bits_at: bits_starts.map(|start| 8 * start),
        bytes,
        bytes_at: bytes_starts,
        n_byte_planes: byte_lens.iter().filter(|n| **n > 0).count(),
        escapes: Vec::new(),
    };
    let [low, high, third, fourth, ..] = &*rests;
    match number.width {
        2 => kernels.keep_bits_16(windows, contexts, codes, [low, high], &mut kept),
        _ => {
            let rests = [&low[..], high, third, fourth];
            kernels.keep_bits_32(windows, contexts, codes, rests, &mut kept);
        }
    }
    let escapes = kept.escapes;
    for (start, n) in bits_starts.into_iter().zip(bit_lens) {
        out.extend_from_slice(&bits[start..][..n.div_ceil(8)]);
    }
    for (start, n) in bytes_starts.into_iter().zip(byte_lens) {
        out.extend_from_slice(&bytes[start..][..n]);
    }
    escapes
}
