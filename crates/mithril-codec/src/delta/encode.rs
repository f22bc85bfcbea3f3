//! From elements and their base to a difference block.

use super::header::{self, Context, Flags};
use super::model::{self, CodeCounts, NO_SYMBOL, STILL};
use super::raw::{self, RawCounts};
use super::{Centers32, DeltaRecipe, Elements32, MAX_CONTEXTS, Number, Scratch, classes, contexts, flags};
use crate::entropy::rans8::{EncodeState, EncodeTable, Frequencies, encode_groups};
use crate::entropy::stream::FOUR_STREAMS_FROM;
use std::borrow::Cow;

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
    flag_moved(scratch);
    let n_moved = contexts::count(&scratch.moved_contexts);
    let counts = count_codes(&scratch.moved_contexts, &scratch.symbols);
    let mut tables = vec![Context::STILL; n_contexts];
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
    let escapes = set_symbols(&tables, &symbols_of, scratch);
    let streams = if n < FOUR_STREAMS_FROM { encode_symbols::<1> } else { encode_symbols::<4> };
    let counts = streams(number, &rules, &mut tables, &n_in_context, scratch, out);
    write_raw(number, &tables, &counts, scratch, out);
    out.extend(u32::try_from(escapes.len()).expect("fewer than 2^32 elements").to_le_bytes());
    escapes.iter().for_each(|position| out.extend(position.to_le_bytes()));
    for &position in &escapes {
        out.extend(&elements[position as usize * number.width..][..number.width]);
    }
    out.extend(tail);
}

/// Bytes that the tables of a context take.
const TABLES_LEN: usize = 33;

/// Center and exact differences of each context, from a part of the elements where there are many. Only contexts of rows that moved alike have others than zero.
fn choose_centers(
    number: Number,
    steps: &[u64],
    first: usize,
    source: &[u8],
    base: &[u8],
    scratch: &Scratch,
) -> [(u64, Option<[u64; 2]>); MAX_CONTEXTS] {
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
fn set_codes(
    number: Number,
    centers: &[(u64, Option<[u64; 2]>); MAX_CONTEXTS],
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
    let done = match crate::arch::avx2() {
        Some(avx2) if plain && number.width == 2 => {
            avx2.delta_codes_16(number.sign, source, base, &mut scratch.codes, [low, high])
        }
        Some(avx2) if number.width == 4 => {
            let centers = Centers32::new(centers.iter().copied());
            let elements =
                Elements32 { sign: number.sign, centers: &centers, contexts: &scratch.contexts, base };
            avx2.delta_codes_32(elements, source, &mut scratch.codes, [low, high, third, fourth])
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

/// Runs of elements by which centers and classes are chosen, and how many elements there are at least before some runs
/// are left out.
const COUNTED_RUN: usize = 64;
const COUNTED_FROM: usize = 1 << 14;

/// How often each code occurs in each context, in a part of the elements where there are many: it is for choosing the
/// classes only.
fn count_codes(contexts: &[u8], codes: &[u8]) -> Vec<CodeCounts> {
    // Two tables, so that equal neighbours do not wait for each other.
    let mut counts = vec![[0u32; 256]; 2 * MAX_CONTEXTS];
    let (even, odd) = counts.split_at_mut(MAX_CONTEXTS);
    let every = (codes.len() / COUNTED_FROM).clamp(1, 4);
    let runs = contexts.chunks(COUNTED_RUN).zip(codes.chunks(COUNTED_RUN)).step_by(every);
    for (contexts, codes) in runs {
        let (contexts, last_context) = contexts.as_chunks::<2>();
        let (codes, last_code) = codes.as_chunks::<2>();
        for (contexts, codes) in contexts.iter().zip(codes) {
            even[usize::from(contexts[0] & 15)][usize::from(codes[0])] += 1;
            odd[usize::from(contexts[1] & 15)][usize::from(codes[1])] += 1;
        }
        for (&context, &code) in last_context.iter().zip(last_code) {
            even[usize::from(context & 15)][usize::from(code)] += 1;
        }
    }
    for (even, odd) in even.iter_mut().zip(odd) {
        even.iter_mut().zip(odd).for_each(|(even, odd)| *even += *odd);
    }
    counts.truncate(MAX_CONTEXTS);
    counts
}

/// Flags the elements that are away from their centers, and collects their contexts and codes.
fn flag_moved(scratch: &mut Scratch) {
    let Scratch { contexts, codes, moved, moved_contexts, symbols, .. } = scratch;
    moved.resize(codes.len().div_ceil(64), 0);
    let done = match crate::arch::avx2() {
        Some(avx2) => avx2.delta_flag(codes, STILL, moved),
        None => 0,
    };
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
    scratch: &mut Scratch,
) -> Vec<u32> {
    let Scratch { moved, moved_contexts, symbols, .. } = scratch;
    let mut without = Vec::new();
    let done = match crate::arch::avx2() {
        Some(avx2) if tables.iter().all(|table| table.exact.is_none()) => {
            let (mut lows, mut n_symbols) = ([0; MAX_CONTEXTS], [0; MAX_CONTEXTS]);
            for (at, table) in tables.iter().enumerate().filter(|(_, table)| table.classes.is_some()) {
                (lows[at], n_symbols[at]) = (table.low, 16);
            }
            avx2.delta_symbols(&lows, &n_symbols, moved_contexts, symbols, &mut without)
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

/// Writes tables and coded symbols: flags of all contexts, then classes of all contexts. Returns how many elements keep
/// how many bits.
fn encode_symbols<const N: usize>(
    number: Number,
    rules: &header::Rules,
    tables: &mut [Context],
    n_in_context: &[usize; MAX_CONTEXTS],
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> RawCounts {
    let group_len = 32 * N;
    let Scratch { contexts, moved, moved_contexts, symbols, bucketed, flags: strings, room, .. } = scratch;
    let n_moved = contexts::count(moved_contexts);
    // Strings of flags for contexts that have both kinds.
    let mut ends = [None; MAX_CONTEXTS];
    let mut flags_at = [0; MAX_CONTEXTS];
    let mut n_quads = [0; MAX_CONTEXTS];
    let mut strings_len = 0;
    for (at, table) in tables.iter_mut().enumerate() {
        let (n, moved) = (n_in_context[at], n_moved[at]);
        if moved > 0 && moved < n {
            ends[at] = Some(8 * strings_len);
            flags_at[at] = strings_len;
            n_quads[at] = n.div_ceil(4).next_multiple_of(group_len);
            strings_len += n_quads[at] / 2;
        } else if moved > 0 {
            table.flags = Flags::All;
        } else {
            *table = Context { center: table.center, ..Context::STILL };
        }
    }
    strings.clear();
    strings.resize(strings_len + flags::SLACK, 0);
    flags::split(contexts, moved, &mut ends, strings);
    let n_flag_symbols = 2 * strings_len;
    let mut starts = [0; MAX_CONTEXTS];
    let mut n_symbols = n_flag_symbols;
    for (start, n) in starts.iter_mut().zip(n_moved) {
        *start = n_symbols;
        n_symbols += n.next_multiple_of(group_len);
    }
    bucketed.resize(n_symbols, 0);
    flags::unpack(&strings[..strings_len], bucketed);
    classes::split(moved_contexts, starts, symbols, bucketed);
    let mut counts = [0; 64];
    for (at, table) in tables.iter_mut().enumerate() {
        if n_quads[at] > 0 {
            let symbols = &mut bucketed[2 * flags_at[at]..][..n_quads[at]];
            let n = n_in_context[at].div_ceil(4);
            let frequencies = frequencies_from(contexts::count(&symbols[..n]));
            symbols[n..].fill(most_frequent(&frequencies));
            table.flags = Flags::Coded(frequencies);
        }
        if table.classes.is_some() {
            let symbols = &bucketed[starts[at]..][..n_moved[at]];
            let n_of_symbols = contexts::count(symbols);
            for (symbol, count) in (0u8..).zip(n_of_symbols) {
                counts[usize::from(table.raw_len(symbol))] += count;
            }
            let classes = frequencies_from(n_of_symbols);
            let padded = n_moved[at].next_multiple_of(group_len);
            bucketed[starts[at]..][n_moved[at]..padded].fill(most_frequent(&classes));
            table.classes = Some(classes);
        }
    }
    header::write(number, rules, tables, out);
    room.resize(EncodeState::<N>::room_len(n_symbols).max(room.len()), 0);
    let mut state = EncodeState::<N>::new(room, n_symbols);
    for (at, table) in tables.iter().enumerate().rev() {
        if let Some(classes) = &table.classes {
            let symbols = &bucketed[starts[at]..][..n_moved[at].next_multiple_of(group_len)];
            encode_groups(&mut state, &EncodeTable::new(classes), symbols, &[]);
        }
    }
    for (at, table) in tables.iter().enumerate().rev() {
        if let Flags::Coded(frequencies) = &table.flags {
            let symbols = &bucketed[2 * flags_at[at]..][..n_quads[at]];
            encode_groups(&mut state, &EncodeTable::new(frequencies), symbols, &[]);
        }
    }
    out.push(u8::try_from(N).unwrap_or(0));
    let at = out.len();
    out.resize(at + state.coded_len(), 0);
    state.write(&mut out[at..]);
    counts
}

fn frequencies_from(counts: [usize; 16]) -> Frequencies {
    Frequencies::from_counts(&counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
}

/// The symbol that padding costs least with.
fn most_frequent(frequencies: &Frequencies) -> u8 {
    (0..16).rev().max_by_key(|&symbol| frequencies.bytes()[usize::from(symbol)]).unwrap_or(0)
}

/// Writes the kept bits of the moved elements.
fn write_raw(
    number: Number,
    tables: &[Context],
    counts: &RawCounts,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) {
    let Scratch { moved, moved_contexts, symbols, raw_bits, raw_lens, rests, bucketed, .. } = scratch;
    super::decode::set_raw_lens(tables, moved_contexts, symbols, raw_lens);
    for rest in &mut rests[..number.width] {
        flags::keep_flagged(rest, moved, bucketed);
        std::mem::swap(rest, bucketed);
    }
    raw_bits.resize(raw_lens.len(), 0);
    let done = match crate::arch::avx2() {
        Some(avx2) => avx2.delta_top_bits(raw_lens, &rests[..number.width], raw_bits),
        None => 0,
    };
    for (at, (bits, &len)) in raw_bits.iter_mut().zip(&*raw_lens).enumerate().skip(done) {
        *bits = rests[usize::from(len / 8) % number.width][at] & ((1 << (len % 8)) - 1);
    }
    raw::write(raw_lens, counts, raw_bits, |plane| Cow::Borrowed(&rests[plane][..]), out);
}
