//! From a difference block and its base to the elements.

use super::flags::Source;
use super::header::{self, Context, Flags};
use super::raw::{self, RawCounts};
use super::{Centers32, Elements32, MAX_CONTEXTS, Moved32, Number, Scratch, classes, contexts, flags};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::rans8::{DecodeState, DecodeTable, decode_groups};

/// Symbols are their own values.
const VALUES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Decodes the block in the first `len` bytes of `data`, whose kind has been read, into `out`. `base` is of the same
/// length. Kernels may read, but never use, what stands behind the block.
pub(crate) fn decode(
    data: &[u8],
    len: usize,
    base: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let mut cursor = Cursor::new(&data[1..len], "difference block");
    let (number, rules, tables) = header::read(&mut cursor, out.len())?;
    let n = out.len() / number.width;
    contexts::assign(number, &rules, &base[..n * number.width], &mut scratch.contexts);
    let n_streams = cursor.u8()?;
    let coded_len = cursor.rest().len();
    let after = &data[len - coded_len..];
    let (used, counts) = match n_streams {
        1 => decode_symbols::<1>(after, coded_len, &tables, scratch)?,
        4 => decode_symbols::<4>(after, coded_len, &tables, scratch)?,
        _ => return Err(CodecError::corrupt("number of rANS8 streams")),
    };
    cursor.take(used)?;
    set_raw_lens(&tables, &scratch.moved_contexts, &scratch.symbols, &mut scratch.raw_lens);
    let planes =
        raw::read(&mut cursor, &scratch.raw_lens, &counts, &mut scratch.bucketed, &mut scratch.raw_bits)?;
    apply(number, &tables, &planes, base, out, scratch);
    read_escapes(&mut cursor, number, n, out)?;
    let tail = &mut out[n * number.width..];
    if cursor.rest().len() != tail.len() {
        return Err(CodecError::corrupt("bytes behind the difference block"));
    }
    tail.copy_from_slice(cursor.rest());
    Ok(())
}

/// Decodes flags and classes of all contexts; returns the bytes that they took and how many elements keep how many
/// bits. Flags come first: they say how many classes there are.
fn decode_symbols<const N: usize>(
    data: &[u8],
    len: usize,
    tables: &[Context],
    scratch: &mut Scratch,
) -> Result<(usize, RawCounts), CodecError> {
    let (mut state, end) = DecodeState::<N>::read(&data[..len])?;
    let group_len = 32 * N;
    let bucketed = &mut scratch.bucketed;
    let mut sources = [Source::None; MAX_CONTEXTS];
    scratch.flags.clear();
    let n_in_context = contexts::count(&scratch.contexts);
    let mut n_moved = [0; MAX_CONTEXTS];
    for (((context, source), n), n_moved) in
        tables.iter().zip(&mut sources).zip(n_in_context).zip(&mut n_moved)
    {
        match &context.flags {
            Flags::None => {}
            Flags::All => (*source, *n_moved) = (Source::All, n),
            Flags::Coded(frequencies) => {
                bucketed.resize(n.div_ceil(4).next_multiple_of(group_len), 0);
                decode_groups(&mut state, &DecodeTable::new(frequencies), &VALUES, data, bucketed)?;
                let start = scratch.flags.len();
                *source = Source::Bits(8 * start);
                scratch.flags.resize(start + bucketed.len() / 2, 0);
                flags::pack(bucketed, &mut scratch.flags[start..]);
                *n_moved = flags::count_set(&scratch.flags[start..], n);
            }
        }
    }
    scratch.flags.extend([0; flags::SLACK]);
    flags::merge(&scratch.contexts, sources, &scratch.flags, &mut scratch.moved);
    flags::keep_flagged(&scratch.contexts, &scratch.moved, &mut scratch.moved_contexts);
    let mut starts = [0; MAX_CONTEXTS];
    let mut counts = [0; 64];
    let n_symbols: usize = n_moved.iter().map(|n| n.next_multiple_of(group_len)).sum();
    bucketed.resize(n_symbols + classes::SLACK, 0);
    let mut end_of_last = 0;
    for ((context, start), n) in tables.iter().zip(&mut starts).zip(n_moved) {
        *start = end_of_last;
        let Some(classes) = context.classes.as_ref().filter(|_| n > 0) else { continue };
        end_of_last += n.next_multiple_of(group_len);
        let symbols = &mut bucketed[*start..end_of_last];
        decode_groups(&mut state, &DecodeTable::new(classes), &VALUES, data, symbols)?;
        for (symbol, count) in (0u8..).zip(contexts::count(&bucketed[*start..*start + n])) {
            counts[usize::from(context.raw_len(symbol))] += count;
        }
    }
    classes::merge(&scratch.moved_contexts, starts, bucketed, &mut scratch.symbols);
    state.finish()?;
    Ok((end, counts))
}

/// The number of kept bits of every moved element.
pub(super) fn set_raw_lens(
    tables: &[Context],
    moved_contexts: &[u8],
    symbols: &[u8],
    raw_lens: &mut Vec<u8>,
) {
    let mut lens = [[0; 16]; MAX_CONTEXTS];
    for (lens, context) in lens.iter_mut().zip(tables) {
        for (symbol, len) in (0..).zip(lens) {
            *len = context.raw_len(symbol);
        }
    }
    raw_lens.resize(symbols.len(), 0);
    let done = match crate::arch::avx2() {
        Some(avx2) if tables.iter().all(|context| context.exact.is_none()) => {
            let mut lows = [0; MAX_CONTEXTS];
            lows.iter_mut().zip(tables).for_each(|(low, context)| *low = context.low);
            avx2.delta_raw_lens(&lows, moved_contexts, symbols, raw_lens)
        }
        _ => 0,
    };
    let pairs = moved_contexts[done..].iter().zip(&symbols[done..]);
    for (len, (&context, &symbol)) in raw_lens[done..].iter_mut().zip(pairs) {
        *len = lens[usize::from(context & 15)][usize::from(symbol & 15)];
    }
}

/// Moves every element of the base by its difference.
fn apply(
    number: Number,
    tables: &[Context],
    planes: &[&[u8]; 8],
    base: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) {
    let plain = tables.iter().all(|context| context.center == 0 && context.exact.is_none());
    let (mut done, mut next, mut at) = (0, 0, [0; 8]);
    if let Some(avx2) = crate::arch::avx2().filter(|_| plain && number.width == 2) {
        set_steps(avx2, tables, planes[0], scratch);
        (done, next) = avx2.delta_apply_16(number.sign, base, &scratch.moved, &scratch.steps, out);
    }
    if let Some(avx2) = crate::arch::avx2().filter(|avx2| number.width == 4 && avx2.is_wide()) {
        let centers = Centers32::new(tables.iter().map(|context| (context.center, context.exact)));
        set_steps_32(avx2, tables, &centers, planes, scratch);
        let elements = Elements32 { sign: number.sign, centers: &centers, contexts: &scratch.contexts, base };
        (done, next) = avx2.delta_apply_32(elements, &scratch.moved, &scratch.steps_32, out);
    }
    done *= 64;
    // Elements that a kernel left need to know where their kept bytes start.
    if done > 0 && done < scratch.contexts.len() {
        let lens = &scratch.raw_lens[..next];
        for (at, least) in at.iter_mut().zip([8, 16, 24]) {
            *at = lens.iter().filter(|&&len| len >= least).count();
        }
    }
    let Scratch { contexts, moved, symbols, raw_bits, raw_lens, .. } = scratch;
    number.by_width(|number| {
        for (element, &context) in contexts.iter().enumerate().skip(done) {
            let context = &tables[usize::from(context)];
            let difference = if moved[element / 64] >> (element % 64) & 1 == 1 {
                let n_bytes = usize::from(raw_lens[next] / 8);
                let mut raw = u64::from(raw_bits[next]) << (8 * n_bytes);
                for (byte, (plane, at)) in planes.iter().zip(&mut at).take(n_bytes).enumerate() {
                    raw |= u64::from(plane[*at]) << (8 * byte);
                    *at += 1;
                }
                next += 1;
                context.difference(number, symbols[next - 1], raw)
            } else {
                context.center
            };
            number.write(out, element, number.moved(number.read(base, element), difference));
        }
    });
}

/// The steps of all moved elements of two bytes.
fn set_steps(avx2: crate::arch::Avx2, tables: &[Context], low_bytes: &[u8], scratch: &mut Scratch) {
    let Scratch { moved_contexts, symbols, raw_bits, raw_lens, steps, .. } = scratch;
    let n = symbols.len();
    // A kernel reads up to 32 steps at a time.
    steps.resize(n + 32, 0);
    let (done, taken) = avx2.delta_steps_16(symbols, raw_lens, raw_bits, low_bytes, steps);
    let number = Number { width: 2, sign: true };
    let mut low_bytes = low_bytes[taken..].iter();
    for at in done..n {
        let mut raw = u64::from(raw_bits[at]);
        if raw_lens[at] >= 8 {
            raw = raw << 8 | u64::from(low_bytes.next().copied().unwrap_or(0));
        }
        let step = tables[usize::from(moved_contexts[at])].difference(number, symbols[at], raw);
        steps[at] = u16::try_from(step).unwrap_or(0);
    }
}

/// The steps of all moved elements of four bytes.
fn set_steps_32(
    avx2: crate::arch::Avx2,
    tables: &[Context],
    centers: &Centers32,
    planes: &[&[u8]; 8],
    scratch: &mut Scratch,
) {
    let Scratch { moved_contexts, symbols, raw_bits, raw_lens, steps_32: steps, .. } = scratch;
    let n = symbols.len();
    // A kernel reads up to 16 steps at a time.
    steps.resize(n + 16, 0);
    let planes = [planes[0], planes[1], planes[2]];
    let moved = Moved32 { centers, contexts: moved_contexts, symbols, raw_lens, raw_bits, planes };
    let (done, mut taken) = avx2.delta_steps_32(moved, steps);
    let number = Number { width: 4, sign: true };
    for at in done..n {
        let n_bytes = usize::from(raw_lens[at] / 8);
        let mut raw = u64::from(raw_bits[at]) << (8 * n_bytes);
        for (byte, (plane, taken)) in planes.iter().zip(&mut taken).take(n_bytes).enumerate() {
            raw |= u64::from(plane[*taken]) << (8 * byte);
            *taken += 1;
        }
        let step = tables[usize::from(moved_contexts[at])].difference(number, symbols[at], raw);
        steps[at] = u32::try_from(step).unwrap_or(0);
    }
}

/// Elements that no class can reach are listed with their positions.
fn read_escapes(cursor: &mut Cursor<'_>, number: Number, n: usize, out: &mut [u8]) -> Result<(), CodecError> {
    let count = cursor.len32()?;
    if count > n {
        return Err(CodecError::corrupt("more escapes than elements"));
    }
    let positions = cursor.take(4 * count)?.as_chunks::<4>().0;
    let values = cursor.take(number.width * count)?;
    let mut lowest = 0;
    for (position, value) in positions.iter().zip(values.chunks_exact(number.width)) {
        let position = u32::from_le_bytes(*position) as usize;
        if position < lowest || position >= n {
            return Err(CodecError::corrupt("positions of escapes"));
        }
        lowest = position + 1;
        out[position * number.width..][..number.width].copy_from_slice(value);
    }
    Ok(())
}
