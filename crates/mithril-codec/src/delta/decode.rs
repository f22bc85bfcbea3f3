//! From a difference block and its base to the elements.

use super::flags::Source;
use super::header::{self, Context, Flags};
use super::raw::{self, Planes, RawCounts};
use super::{MAX_CONTEXTS, Number, Scratch, classes, contexts, flags, passes, words};
use crate::CodecError;
use crate::bytes::{Cursor, Padded};
use crate::entropy::rans8::{DecodeState, DecodeTable, decode_groups};

/// Symbols are their own values.
const VALUES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Where the decoded symbols of each context are: flags as strings of bits, classes as bytes.
#[derive(Debug)]
pub(super) struct Symbols {
    /// Elements of each context.
    pub(super) n_in_context: [usize; MAX_CONTEXTS],
    /// Where its flags come from.
    pub(super) sources: [Source; MAX_CONTEXTS],
    /// Where its classes start.
    pub(super) starts: [usize; MAX_CONTEXTS],
    /// How many elements keep how many bits.
    counts: RawCounts,
}

/// What a block says of its elements, decoded as far as their contexts.
pub(super) struct Differences<'a> {
    pub(super) number: Number,
    pub(super) tables: Vec<Context>,
    pub(super) symbols: Symbols,
    pub(super) planes: Planes<'a>,
    /// The bytes of the planes, and what follows them.
    pub(super) kept: Padded<'a>,
}

/// Decodes a block into `out`. `base` is of the same length.
pub(crate) fn decode(
    block: Padded<'_>,
    base: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let mut cursor = Cursor::new(&block.bytes()[1..], "difference block");
    let (number, rules, tables) = header::read(&mut cursor, out.len())?;
    let n = out.len() / number.width;
    contexts::assign(number, &rules, &base[..n * number.width], &mut scratch.contexts);
    let n_streams = cursor.u8()?;
    let coded = block.last(cursor.rest().len());
    let (used, symbols) = match n_streams {
        1 => decode_symbols::<1>(coded, &tables, scratch)?,
        4 => decode_symbols::<4>(coded, &tables, scratch)?,
        _ => return Err(CodecError::corrupt("number of rANS8 streams")),
    };
    cursor.take(used)?;
    let kept = block.last(cursor.rest().len());
    let planes = raw::planes(&mut cursor, &symbols.counts)?;
    let differences = Differences { number, tables, symbols, planes, kept };
    if !words::apply(&differences, base, out, scratch) {
        passes::apply(&differences, base, out, scratch);
    }
    read_escapes(&mut cursor, number, n, out)?;
    let tail = &mut out[n * number.width..];
    if cursor.rest().len() != tail.len() {
        return Err(CodecError::corrupt("bytes behind the difference block"));
    }
    tail.copy_from_slice(cursor.rest());
    Ok(())
}

/// Decodes flags and classes of all contexts; returns the bytes that they took. Flags come first: they say how many
/// classes there are.
fn decode_symbols<const N: usize>(
    coded: Padded<'_>,
    tables: &[Context],
    scratch: &mut Scratch,
) -> Result<(usize, Symbols), CodecError> {
    let (mut state, end) = DecodeState::<N>::read(coded.bytes())?;
    let data = coded.with_padding();
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
                let quads = room(bucketed, n.div_ceil(4).next_multiple_of(group_len));
                decode_groups(&mut state, &DecodeTable::new(frequencies), &VALUES, data, quads)?;
                let start = scratch.flags.len();
                *source = Source::Bits(8 * start);
                scratch.flags.resize(start + quads.len() / 2, 0);
                flags::pack(quads, &mut scratch.flags[start..]);
                *n_moved = flags::count_set(&scratch.flags[start..], n);
            }
        }
    }
    scratch.flags.extend([0; flags::SLACK]);
    let mut starts = [0; MAX_CONTEXTS];
    let mut counts = [0; 64];
    let n_symbols: usize = n_moved.iter().map(|n| n.next_multiple_of(group_len)).sum();
    let bucketed = room(bucketed, n_symbols + classes::SLACK);
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
    state.finish()?;
    Ok((end, Symbols { n_in_context, sources, starts, counts }))
}

/// So many bytes of a buffer that is not cleared: all of them are written.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
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
