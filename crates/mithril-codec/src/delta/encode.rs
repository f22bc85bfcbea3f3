//! From elements and their base to a difference block.

use super::header::{self, Context, Flags};
use super::model;
use super::raw::RawCounts;
use super::{
    Centers32, DeltaRecipe, Elements32, MAX_CONTEXTS, Number, Scratch, contexts, encode_passes, encode_words,
    flags, words,
};
use crate::arch::kernels;
use crate::entropy::rans8::{EncodeState, EncodeTable, Frequencies, encode_groups};
use crate::entropy::stream::FOUR_STREAMS_FROM;

/// Center and exact differences of each context.
pub(super) type Centers = [(u64, Option<[u64; 2]>); MAX_CONTEXTS];

/// The contexts of a block, and how their symbols are coded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contexts<'a> {
    pub(super) number: Number,
    pub(super) rules: &'a header::Rules,
    /// Elements of each context.
    pub(super) n_in_context: &'a [usize],
    pub(super) n_streams: usize,
}

impl Contexts<'_> {
    /// Symbols of a group of all streams.
    pub(super) fn group_len(&self) -> usize {
        32 * self.n_streams
    }
}

/// The symbols of a block: flags of each context as strings of bits, and classes, both in the scratch.
#[derive(Debug)]
pub(super) struct Split {
    /// What each context is coded with; which flags it has, and their frequencies, is not yet known.
    pub(super) tables: Vec<Context>,
    /// Flagged elements of each context.
    pub(super) n_moved: [usize; MAX_CONTEXTS],
    /// Where the flags of each context start, in bytes.
    pub(super) flags_at: [usize; MAX_CONTEXTS],
    /// Where its classes start, with room for whole groups.
    pub(super) starts: [usize; MAX_CONTEXTS],
}

/// Appends the block without its kind. `base` is of the same length as `source`. Always possible; the caller compares
/// sizes.
pub(crate) fn encode(
    recipe: &DeltaRecipe,
    base: &[u8],
    source: &[u8],
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) {
    let number = Number::of(recipe.layout);
    let n = source.len() / number.width;
    let (elements, tail) = source.split_at(n * number.width);
    let steps = match recipe.row_len {
        Some(_) => model::common_steps(recipe.layout, elements, base),
        None => Vec::new(),
    };
    let rules = model::rules(recipe, &steps, elements, base);
    contexts::assign(number, &rules, &base[..elements.len()], &mut scratch.contexts);
    let n_contexts: usize = rules.rules.iter().map(|rule| usize::from(rule.n_contexts)).sum();
    let n_in_context = contexts::count(&scratch.contexts);
    let first_center = usize::from(rules.rules[0].n_contexts);
    let centers = choose_centers(number, &steps, first_center, elements, base, scratch);
    set_codes(number, &centers, elements, base, scratch);
    let n_streams = if n < FOUR_STREAMS_FROM { 1 } else { 4 };
    let block = Contexts { number, rules: &rules, n_in_context: &n_in_context[..n_contexts], n_streams };
    let escapes = match words::kernels(number) {
        Some(kernels) => {
            let mut split = encode_words::split(kernels, &block, &centers, scratch);
            let lanes = encode_words::Windows::of(&split.tables);
            let counts = encode_symbols(&block, &mut split, scratch, out);
            encode_words::write_raw(kernels, number, &lanes, &counts, scratch, out)
        }
        None => {
            let (mut split, escapes) = encode_passes::split(&block, &centers, scratch);
            let counts = encode_symbols(&block, &mut split, scratch, out);
            encode_passes::write_raw(number, &split.tables, &counts, scratch, out);
            escapes
        }
    };
    out.extend(u32::try_from(escapes.len()).expect("fewer than 2^32 elements").to_le_bytes());
    escapes.iter().for_each(|position| out.extend(position.to_le_bytes()));
    for &position in &escapes {
        out.extend(&elements[position as usize * number.width..][..number.width]);
    }
    out.extend(tail);
}

/// Bytes that the tables of a context take.
pub(super) const TABLES_LEN: usize = 33;

/// Runs of elements by which centers are chosen, and how many elements there are at least before some runs are left out.
const COUNTED_RUN: usize = 64;
const COUNTED_FROM: usize = 1 << 14;

/// Center and exact differences of each context, from a part of the elements where there are many. Only contexts of rows
/// that moved alike have others than zero.
fn choose_centers(
    number: Number,
    steps: &[u64],
    first: usize,
    source: &[u8],
    base: &[u8],
    scratch: &Scratch,
) -> Centers {
    let mut centers = [(0, None); MAX_CONTEXTS];
    if steps.is_empty() {
        return centers;
    }
    let (mut counts, mut n_counted) = ([[0u32; 4]; MAX_CONTEXTS], [0; MAX_CONTEXTS]);
    let every = (scratch.contexts.len() / COUNTED_FROM).clamp(1, 8);
    number.by_width(|number| {
        for (run, contexts) in scratch.contexts.chunks(COUNTED_RUN).enumerate().step_by(every) {
            for (at, &context) in (run * COUNTED_RUN..).zip(contexts) {
                let context = usize::from(context & 15);
                if context < first {
                    continue;
                }
                n_counted[context] += 1;
                let difference = number.difference(number.read(source, at), number.read(base, at));
                let step = steps.iter().position(|&step| step == difference);
                if let Some(step) = step.or((difference == 0).then_some(steps.len())) {
                    counts[context][step] += 1;
                }
            }
        }
    });
    for (at, center) in centers.iter_mut().enumerate().skip(first) {
        *center = model::center(steps, &counts[at][..=steps.len()], n_counted[at]);
    }
    centers
}

/// The code of every element, and what is left below its sign.
pub(super) fn set_codes(
    number: Number,
    centers: &Centers,
    source: &[u8],
    base: &[u8],
    scratch: &mut Scratch,
) {
    let n = scratch.contexts.len();
    scratch.codes.resize(n, 0);
    for rest in &mut scratch.rests[..number.width] {
        rest.resize(n, 0);
    }
    let [low, high, third, fourth, ..] = &mut scratch.rests;
    let plain = centers.iter().all(|&center| center == (0, None));
    let kernels = kernels();
    let done = match number.width {
        2 if plain => kernels.delta_codes_16(number.sign, source, base, &mut scratch.codes, [low, high]),
        4 => {
            let centers = Centers32::new(centers.iter().copied());
            let elements =
                Elements32 { sign: number.sign, centers: &centers, contexts: &scratch.contexts, base };
            kernels.delta_codes_32(elements, source, &mut scratch.codes, [low, high, third, fourth])
        }
        _ => 0,
    };
    number.by_width(|number| {
        for at in done..n {
            let (center, exact) = centers[usize::from(scratch.contexts[at] & 15)];
            let difference = number.difference(number.read(source, at), number.read(base, at));
            let from_center = difference.wrapping_sub(center) & number.mask();
            let found = exact.and_then(|exact| exact.iter().position(|&exact| exact == difference));
            scratch.codes[at] = match found {
                Some(symbol) if from_center != 0 => model::EXACT[symbol],
                _ => model::code(number, from_center),
            };
            let (_, rest) = number.sign_and_rest(from_center);
            for (plane, byte) in scratch.rests[..number.width].iter_mut().zip(rest.to_le_bytes()) {
                plane[at] = byte;
            }
        }
    });
}

/// Writes tables and coded symbols: flags of all contexts, then classes of all contexts. Returns how many elements keep
/// how many bits.
fn encode_symbols(
    block: &Contexts<'_>,
    split: &mut Split,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> RawCounts {
    let Contexts { number, rules, n_in_context, n_streams } = *block;
    let group_len = block.group_len();
    let Scratch { bucketed, flags: strings, quads, .. } = scratch;
    let Split { tables, n_moved, flags_at, starts } = split;
    // Symbols of four flags for contexts that have both kinds.
    let (mut quads_at, mut n_quads) = ([0; MAX_CONTEXTS], [0; MAX_CONTEXTS]);
    let mut quads_len = 0;
    for (at, table) in tables.iter_mut().enumerate() {
        let (n, moved) = (n_in_context[at], n_moved[at]);
        if moved > 0 && moved < n {
            quads_at[at] = quads_len;
            n_quads[at] = n.div_ceil(4).next_multiple_of(group_len);
            quads_len += n_quads[at];
        } else if moved > 0 {
            table.flags = Flags::All;
        } else {
            *table = Context { center: table.center, ..Context::STILL };
        }
    }
    quads.resize(quads_len, 0);
    let mut counts = [0; 64];
    for (at, table) in tables.iter_mut().enumerate() {
        if n_quads[at] > 0 {
            let quads = &mut quads[quads_at[at]..][..n_quads[at]];
            flags::unpack(&strings[flags_at[at]..][..n_quads[at] / 2], quads);
            let n = n_in_context[at].div_ceil(4);
            let frequencies = frequencies_from(contexts::count(&quads[..n]));
            quads[n..].fill(most_frequent(&frequencies));
            table.flags = Flags::Coded(frequencies);
        }
        if table.classes.is_some() {
            let symbols = &mut bucketed[starts[at]..][..n_moved[at].next_multiple_of(group_len)];
            let n_of_symbols = contexts::count(&symbols[..n_moved[at]]);
            for (symbol, count) in (0u8..).zip(n_of_symbols) {
                counts[usize::from(table.raw_len(symbol))] += count;
            }
            let classes = frequencies_from(n_of_symbols);
            symbols[n_moved[at]..].fill(most_frequent(&classes));
            table.classes = Some(classes);
        }
    }
    header::write(number, rules, tables, out);
    // The coder goes backwards: what is decoded first stands last here.
    let mut parts = Vec::with_capacity(2 * MAX_CONTEXTS);
    for (at, table) in tables.iter().enumerate().rev() {
        if let Some(classes) = &table.classes {
            let len = n_moved[at].next_multiple_of(group_len);
            parts.push((EncodeTable::new(classes), &bucketed[starts[at]..][..len]));
        }
    }
    for (at, table) in tables.iter().enumerate().rev() {
        if let Flags::Coded(frequencies) = &table.flags {
            parts.push((EncodeTable::new(frequencies), &quads[quads_at[at]..][..n_quads[at]]));
        }
    }
    match n_streams {
        1 => encode_parts::<1>(&parts, &mut scratch.room, out),
        _ => encode_parts::<4>(&parts, &mut scratch.room, out),
    }
    counts
}

/// Writes the number of streams and the coded symbols, of the last part first.
fn encode_parts<const N: usize>(parts: &[(EncodeTable, &[u8])], room: &mut Vec<u8>, out: &mut Vec<u8>) {
    let n_symbols = parts.iter().map(|(_, symbols)| symbols.len()).sum();
    room.resize(EncodeState::<N>::room_len(n_symbols).max(room.len()), 0);
    let mut state = EncodeState::<N>::new(room, n_symbols);
    for (table, symbols) in parts {
        encode_groups(&mut state, table, symbols, &[]);
    }
    out.push(u8::try_from(N).unwrap_or(0));
    let at = out.len();
    out.resize(at + state.coded_len(), 0);
    state.write(&mut out[at..]);
}

fn frequencies_from(counts: [usize; 16]) -> Frequencies {
    Frequencies::from_counts(&counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
}

/// The symbol that padding costs least with.
fn most_frequent(frequencies: &Frequencies) -> u8 {
    (0..16).rev().max_by_key(|&symbol| frequencies.bytes()[usize::from(symbol)]).unwrap_or(0)
}
