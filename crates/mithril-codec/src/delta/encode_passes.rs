//! The symbols and kept bits of a difference block, one step after the other for all elements: the definition, with kernels
//! for AVX2.

use super::encode::{Centers, Contexts, Split, TABLES_LEN};
use super::header::Context;
use super::model::{self, CodeCounts, NO_SYMBOL, STILL};
use super::raw::{self, RawCounts};
use super::{MAX_CONTEXTS, Number, PassScratch, Scratch, classes, contexts, flags};
use crate::arch::kernels;
use std::borrow::Cow;

/// Chooses the classes of each context and splits the codes of all elements into flags and classes by context. Also returns
/// the positions of elements that have no class.
pub(super) fn split(block: &Contexts<'_>, centers: &Centers, scratch: &mut Scratch) -> (Split, Vec<u32>) {
    let (Contexts { number, n_in_context, .. }, group_len) = (*block, block.group_len());
    flag_moved(scratch);
    let n_moved = contexts::count(&scratch.passes.moved_contexts);
    let counts = count_codes(&scratch.passes.moved_contexts, &scratch.passes.symbols);
    let mut tables = vec![Context::STILL; n_in_context.len()];
    let mut symbols_of = [[NO_SYMBOL; 256]; MAX_CONTEXTS];
    for (at, table) in tables.iter_mut().enumerate() {
        let (center, exact) = centers[at];
        table.center = center;
        // So few that listing them costs less than a table.
        if n_moved[at] * (4 + number.width) > TABLES_LEN {
            let classes = model::classes(number, &counts[at], exact.is_some());
            symbols_of[at] = classes.symbols;
            *table = model::context(center, exact, &classes);
        }
    }
    let escapes = set_symbols(&tables, &symbols_of, &mut scratch.passes);
    let Scratch { contexts, bucketed, flags: strings, passes, .. } = scratch;
    let PassScratch { moved, moved_contexts, symbols, .. } = passes;
    let n_moved = contexts::count(moved_contexts);
    let (mut flags_at, mut starts) = ([0; MAX_CONTEXTS], [0; MAX_CONTEXTS]);
    let mut ends = [None; MAX_CONTEXTS];
    let (mut strings_len, mut n_symbols) = (0, 0);
    for (at, &n) in n_in_context.iter().enumerate() {
        (flags_at[at], starts[at]) = (strings_len, n_symbols);
        n_symbols += n_moved[at].next_multiple_of(group_len);
        // Only contexts that have both kinds need flags.
        if n_moved[at] > 0 && n_moved[at] < n {
            ends[at] = Some(8 * strings_len);
            strings_len += n.div_ceil(4).next_multiple_of(group_len) / 2;
        }
    }
    strings.clear();
    strings.resize(strings_len + flags::SLACK, 0);
    flags::split(contexts, moved, &mut ends, strings);
    bucketed.resize(n_symbols, 0);
    classes::split(moved_contexts, starts, symbols, bucketed);
    (Split { tables, n_moved, flags_at, starts }, escapes)
}

/// How often each code occurs in each context.
fn count_codes(contexts: &[u8], codes: &[u8]) -> Vec<CodeCounts> {
    // Two tables, so that equal neighbours do not wait for each other.
    let mut counts = vec![[0u32; 256]; 2 * MAX_CONTEXTS];
    let (even, odd) = counts.split_at_mut(MAX_CONTEXTS);
    let (pairs_of_contexts, last_context) = contexts.as_chunks::<2>();
    let (pairs, last_code) = codes.as_chunks::<2>();
    for (contexts, codes) in pairs_of_contexts.iter().zip(pairs) {
        even[usize::from(contexts[0] & 15)][usize::from(codes[0])] += 1;
        odd[usize::from(contexts[1] & 15)][usize::from(codes[1])] += 1;
    }
    for (&context, &code) in last_context.iter().zip(last_code) {
        even[usize::from(context & 15)][usize::from(code)] += 1;
    }
    for (even, odd) in even.iter_mut().zip(odd) {
        even.iter_mut().zip(odd).for_each(|(even, odd)| *even += *odd);
    }
    counts.truncate(MAX_CONTEXTS);
    counts
}

/// Flags the elements that are away from their centers, and collects their contexts and codes.
fn flag_moved(scratch: &mut Scratch) {
    let Scratch { contexts, codes, passes, .. } = scratch;
    let PassScratch { moved, moved_contexts, symbols, .. } = passes;
    moved.resize(codes.len().div_ceil(64), 0);
    let done = kernels().delta_flag(codes, STILL, moved);
    for (word, codes) in moved[done..].iter_mut().zip(codes[64 * done..].chunks(64)) {
        *word = codes.iter().rev().fold(0, |word, &code| word << 1 | u64::from(code != STILL));
    }
    flags::keep_flagged(contexts, moved, moved_contexts);
    flags::keep_flagged(codes, moved, symbols);
}

/// Turns the codes of moved elements into symbols. Elements that have none are not flagged any more; returns their
/// positions.
fn set_symbols(
    tables: &[Context],
    symbols_of: &[[u8; 256]; MAX_CONTEXTS],
    scratch: &mut PassScratch,
) -> Vec<u32> {
    let PassScratch { moved, moved_contexts, symbols, .. } = scratch;
    let mut without = Vec::new();
    let done = match kernels() {
        kernels if tables.iter().all(|table| table.exact.is_none()) => {
            let (mut lows, mut n_symbols) = ([0; MAX_CONTEXTS], [0; MAX_CONTEXTS]);
            for (at, table) in tables.iter().enumerate().filter(|(_, table)| table.classes.is_some()) {
                (lows[at], n_symbols[at]) = (table.low, 16);
            }
            kernels.delta_symbols(&lows, &n_symbols, moved_contexts, symbols, &mut without)
        }
        _ => 0,
    };
    for (at, symbol) in symbols.iter_mut().enumerate().skip(done) {
        *symbol = symbols_of[usize::from(moved_contexts[at] & 15)][usize::from(*symbol)];
        if *symbol == NO_SYMBOL {
            without.push(at);
        }
    }
    let escapes = unflag(moved, &without);
    remove(moved_contexts, &without);
    remove(symbols, &without);
    escapes
}

/// Takes the flags off the moved elements of these numbers, ascending; returns their positions.
fn unflag(moved: &mut [u64], numbers: &[usize]) -> Vec<u32> {
    let mut positions = Vec::with_capacity(numbers.len());
    let mut numbers = numbers.iter().copied().peekable();
    let mut n_before = 0;
    for (first, word) in (0u32..).step_by(64).zip(moved) {
        let (of_word, mut left) = (word.count_ones() as usize, *word);
        let mut skipped = 0;
        while let Some(number) = numbers.next_if(|number| *number < n_before + of_word) {
            // The flags of the word up to this one.
            while skipped < number - n_before {
                left &= left - 1;
                skipped += 1;
            }
            positions.push(first + left.trailing_zeros());
            *word &= !(left & left.wrapping_neg());
        }
        n_before += of_word;
    }
    positions
}

/// Removes the bytes at these places, ascending.
fn remove(bytes: &mut Vec<u8>, places: &[usize]) {
    let Some(&first) = places.first() else { return };
    let mut kept = first;
    let ends = places[1..].iter().copied().chain([bytes.len()]);
    for (&place, end) in places.iter().zip(ends) {
        bytes.copy_within(place + 1..end, kept);
        kept += end - place - 1;
    }
    bytes.truncate(kept);
}

/// Writes the kept bits of the moved elements.
pub(super) fn write_raw(
    number: Number,
    tables: &[Context],
    counts: &RawCounts,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) {
    let Scratch { rests, passes, .. } = scratch;
    let PassScratch { moved, moved_contexts, symbols, raw_bits, raw_lens, plane, .. } = passes;
    super::passes::set_raw_lens(tables, moved_contexts, symbols, raw_lens);
    for rest in &mut rests[..number.width] {
        flags::keep_flagged(rest, moved, plane);
        std::mem::swap(rest, plane);
    }
    raw_bits.resize(raw_lens.len(), 0);
    let done = kernels().delta_top_bits(raw_lens, &rests[..number.width], raw_bits);
    for (at, (bits, &len)) in raw_bits.iter_mut().zip(&*raw_lens).enumerate().skip(done) {
        *bits = rests[usize::from(len / 8) % number.width][at] & ((1 << (len % 8)) - 1);
    }
    raw::write(raw_lens, counts, raw_bits, |plane| Cow::Borrowed(&rests[plane][..]), out);
}
