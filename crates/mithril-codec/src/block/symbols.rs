//! The coded top bits of a block: a constant, or symbols of one of the rANS coders, and the escapes.
//!
//! `[1] coder`, then
//! * constant: `[1] index`;
//! * rANS8: `[1] offset [16] frequencies [1] number of streams`, states, stream lengths, streams;
//! * rANS8 with listed values: `[16] values [16] frequencies [1] number of streams`, then as above;
//! * rANS8 with shared tables: the same from the number of streams on;
//! * rANS8 with shared classes: `[1] number of streams`, then `[1] offset [16] frequencies` for every run of groups,
//!   then as above;
//! * rANS12: its table, `[4] length`, states and words; with shared tables without the table.
//!
//! Then the escapes: for every 65536 positions `[4] count`, then all positions in two bytes each, then all
//! top fields, in one byte each if they have at most eight bits, else in two.

use super::fields::read_element;
use super::output::{DoesNotFit, Output};
use super::shared::{SharedSymbols, SymbolTables};
use super::{Padded, Scratch, SymbolCoder};
use crate::CodecError;
use crate::arch::kernels;
use crate::bytes::Cursor;
use crate::checksum::Checksummer;
use crate::contexts::{Buckets, SLACK};
use crate::entropy::rans8::{
    DecodeState, DecodeTable, EncodeState, EncodeTable, Frequencies, ListedValues, Window, decode_groups,
    encode_groups, values_from,
};
use crate::entropy::rans12;
use crate::entropy::stream::FOUR_STREAMS_FROM;
use crate::forever::symbols::{
    CONSTANT, RANS8, RANS8_CLASSED, RANS8_LISTED, RANS8_SHARED, RANS12, RANS12_SHARED,
};
use crate::transform::fields::{FieldSplit, Finish, TILE, join_tiles};
use std::cell::LazyCell;

/// Symbols of a group of four rANS8 streams: planes are padded to whole groups.
const GROUP: usize = 128;

/// Positions that share a count of escapes.
const SEGMENT: usize = 1 << 16;

/// Makes room for `n` elements, whole groups and the kernels' slack. Planes never shrink: tensors of all sizes take
/// turns, and bytes that come back would have to be cleared.
pub(super) fn resize_plane(plane: &mut Vec<u8>, n: usize) {
    let len = n.next_multiple_of(GROUP) + SLACK;
    if plane.len() < len {
        plane.resize(len, 0);
    }
}

/// A block whose elements were split into fields.
pub(super) struct FieldBlock<'a> {
    pub(super) split: &'a FieldSplit,
    pub(super) elements: &'a [u8],
    /// Its rows in a classed matrix.
    pub(super) rows: &'a [u32],
    /// The bytes that will be encoded next.
    pub(super) next: &'a [u8],
}

/// A plane on its way to symbols.
struct Plane<'a> {
    /// Elements; the rest of the plane is padding.
    n: usize,
    indices: &'a mut [u8],
    /// Positions of those without a symbol.
    escapes: &'a mut Vec<u32>,
}

/// Encodes the plane of a block; the plane is used up.
pub(super) fn encode(
    coder: SymbolCoder,
    shared: Option<&SharedSymbols>,
    block: &FieldBlock<'_>,
    plane: &mut [u8],
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let FieldBlock { split, elements, rows, next } = *block;
    let n = elements.len() / usize::from(split.layout.width);
    let Scratch { bucketed, room, bytes, escapes, .. } = scratch;
    escapes.clear();
    let buckets = shared.map(|shared| shared.contexts.buckets(rows).map_err(|_| DoesNotFit)).transpose()?;
    let bucket_elements = buckets.as_ref().map(|buckets| LazyCell::new(|| buckets.elements()));
    let mut overflows = Vec::new();
    if let (Some(shared), Some(buckets), Some(at)) = (shared, &buckets, &bucket_elements) {
        resize_plane(bucketed, n);
        buckets.gather(&plane[..n], bucketed);
        overflows = overflowing(split, elements, &bucketed[..n], |position| at.at(position));
        let plane = Plane { n, indices: bucketed, escapes };
        match &shared.tables {
            SymbolTables::Rans8(windows) => {
                out.push(&[RANS8_SHARED])?;
                encode_rans8(RunsOf::Buckets(buckets, Some(windows)), plane, &[], room, out)?;
            }
            SymbolTables::Rans8PerBlock => {
                out.push(&[RANS8_CLASSED])?;
                encode_rans8(RunsOf::Buckets(buckets, None), plane, &[], room, out)?;
            }
            SymbolTables::Rans12(tables, _) => {
                out.push(&[RANS12_SHARED])?;
                let runs = buckets.group_runs(rans12::LANES);
                encode_rans12(&runs, tables, plane, bytes, out)?;
            }
        }
    } else if plane[1..n].iter().all(|&index| index == plane[0]) && !plane_overflows(split) {
        out.push(&[CONSTANT, plane[0]])?;
    } else {
        overflows = overflowing(split, elements, &plane[..n], |position| split.element_at(position));
        match coder {
            SymbolCoder::Rans8 => {
                let window = if split.top_bits() <= 4 {
                    Window::of_nibbles(&plane[..n])
                } else {
                    Window::choose(&plane[..n])
                };
                out.push(&[RANS8, window.offset])?;
                out.push(window.frequencies.bytes())?;
                let plane = Plane { n, indices: plane, escapes };
                encode_rans8(RunsOf::One(&window), plane, next, room, out)?;
            }
            SymbolCoder::Rans8Listed => {
                let listed = ListedValues::choose_and_map(&mut plane[..n], escapes);
                out.push(&[RANS8_LISTED])?;
                out.push(&listed.values)?;
                out.push(listed.frequencies.bytes())?;
                let window = Window { offset: 0, frequencies: listed.frequencies };
                let plane = Plane { n, indices: plane, escapes };
                encode_rans8(RunsOf::Mapped(&window), plane, next, room, out)?;
            }
            SymbolCoder::Rans12 => {
                let mut counts = [0; 256];
                plane[..n].iter().for_each(|&index| counts[usize::from(index)] += 1);
                let table = rans12::FrequencyTable::from_counts(&counts).ok_or(DoesNotFit)?;
                bytes.clear();
                table.write(bytes);
                out.push(&[RANS12])?;
                out.push(bytes)?;
                let plane = Plane { n, indices: plane, escapes };
                encode_rans12(&[(0, n.div_ceil(rans12::LANES))], &[table], plane, bytes, out)?;
            }
        }
    }
    let element_at = |position: usize| match &bucket_elements {
        Some(elements) => elements.at(position),
        None => split.element_at(position),
    };
    if !overflows.is_empty() {
        escapes.append(&mut overflows);
        escapes.sort_unstable();
        escapes.dedup();
    }
    write_escapes(split, elements, n, escapes, element_at, out)
}

/// Whether top fields can be too large for the plane.
fn plane_overflows(split: &FieldSplit) -> bool {
    split.top_bits() > 8
}

/// Positions whose field does not fit the plane, which marks them by 255: escapes, whatever their table says.
fn overflowing(
    split: &FieldSplit,
    elements: &[u8],
    plane: &[u8],
    element_at: impl Fn(usize) -> usize,
) -> Vec<u32> {
    if !plane_overflows(split) {
        return Vec::new();
    }
    let width = usize::from(split.layout.width);
    let overflows = |position: usize| {
        let top = split.top(read_element(elements, width, element_at(position)));
        top.wrapping_sub(u64::from(split.base)) != 255
    };
    let mut positions = Vec::new();
    for (first, indices) in (0..).step_by(GROUP).zip(plane.chunks(GROUP)) {
        // Nearly all groups have no such mark, which a vector tells at once.
        if indices.iter().fold(false, |any, &index| any | (index == 255)) {
            let marked = (first..).zip(indices).filter(|&(_, &index)| index == 255);
            positions.extend(marked.map(|(position, _)| position).filter(|&at| overflows(at as usize)));
        }
    }
    positions
}

/// Which table each group of symbols has.
enum RunsOf<'a> {
    One(&'a Window),
    /// As `One`, of a plane that holds symbols already.
    Mapped(&'a Window),
    /// One table per context, or one made for every run.
    Buckets(&'a Buckets<'a>, Option<&'a [Window]>),
}

fn encode_rans8(
    runs: RunsOf<'_>,
    plane: Plane<'_>,
    next: &[u8],
    room: &mut Vec<u8>,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    if plane.n < FOUR_STREAMS_FROM {
        encode_rans8_streams::<1>(runs, plane, next, room, out)
    } else {
        encode_rans8_streams::<4>(runs, plane, next, room, out)
    }
}

fn encode_rans8_streams<const N: usize>(
    runs_of: RunsOf<'_>,
    plane: Plane<'_>,
    next: &[u8],
    room: &mut Vec<u8>,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let Plane { n, indices: plane, escapes } = plane;
    let group_len = 32 * N;
    let padded = n.next_multiple_of(group_len);
    out.push(&[u8::try_from(N).unwrap_or(0)])?;
    let (mut runs, mut own) = (vec![(0, padded / group_len)], Vec::new());
    let is_mapped = matches!(runs_of, RunsOf::Mapped(_));
    let windows = match runs_of {
        RunsOf::One(window) | RunsOf::Mapped(window) => std::slice::from_ref(window),
        RunsOf::Buckets(buckets, windows) => {
            runs = buckets.group_runs(group_len);
            match windows {
                Some(windows) => windows,
                None => {
                    let mut first = 0;
                    for (table, (context, n_groups)) in runs.iter_mut().enumerate() {
                        let end = (first + *n_groups * group_len).min(n);
                        // What a sample saves in time, its tables cost in size: 0.0015 bits of minilm.
                        let window = Window::choose_exactly(&plane[first..end]);
                        out.push(&[window.offset])?;
                        out.push(window.frequencies.bytes())?;
                        own.push(window);
                        *context = table;
                        first = end;
                    }
                    &own
                }
            }
        }
    };
    let mut first = 0;
    for &(table, n_groups) in &runs {
        let end = (first + n_groups * group_len).min(n);
        let window = &windows[table];
        if !is_mapped {
            window.map(&mut plane[first..end], u32::try_from(first).map_err(|_| DoesNotFit)?, escapes);
        }
        if end == n {
            plane[n..padded].fill(window.escape_symbol());
        }
        first = end;
    }
    let room_len = EncodeState::<N>::room_len(padded);
    if room.len() < room_len {
        room.resize(room_len, 0);
    }
    let mut state = EncodeState::<N>::new(room, padded);
    let mut end = padded;
    for &(table, n_groups) in runs.iter().rev() {
        let start = end - n_groups * group_len;
        encode_groups(&mut state, &EncodeTable::new(&windows[table].frequencies), &plane[start..end], next);
        end = start;
    }
    state.write(out.reserve(state.coded_len())?);
    Ok(())
}

fn encode_rans12(
    group_runs: &[(usize, usize)],
    tables: &[rans12::FrequencyTable],
    plane: Plane<'_>,
    bytes: &mut Vec<u8>,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let Plane { n, indices: plane, escapes } = plane;
    let mut runs = Vec::with_capacity(group_runs.len());
    let mut first = 0;
    for &(table_idx, n_groups) in group_runs {
        let end = (first + n_groups * rans12::LANES).min(n);
        let (frequencies, escape) = (tables[table_idx].frequencies(), tables[table_idx].most_probable());
        for (position, index) in (u32::try_from(first).map_err(|_| DoesNotFit)?..).zip(&mut plane[first..end])
        {
            if frequencies[usize::from(*index)] == 0 {
                escapes.push(position);
                *index = escape;
            }
        }
        runs.push(rans12::Run { len: end - first, table_idx });
        first = end;
    }
    bytes.clear();
    rans12::encode(&plane[..n], &runs, tables, bytes);
    out.push_u32(bytes.len())?;
    out.push(bytes)
}

fn write_escapes(
    split: &FieldSplit,
    elements: &[u8],
    n: usize,
    escapes: &[u32],
    element_at: impl Fn(usize) -> usize,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let mut first = 0;
    for segment in 0..n.div_ceil(SEGMENT) {
        let end = escapes.partition_point(|&position| position as usize / SEGMENT <= segment);
        out.push_u32(end - first)?;
        first = end;
    }
    let positions = out.reserve(2 * escapes.len())?.as_chunks_mut::<2>().0;
    for (low_bytes, position) in positions.iter_mut().zip(escapes) {
        let [a, b, ..] = position.to_le_bytes();
        *low_bytes = [a, b];
    }
    let (width, top_len) = (usize::from(split.layout.width), escape_len(split));
    let tops = out.reserve(top_len * escapes.len())?.chunks_exact_mut(top_len);
    for (bytes, &position) in tops.zip(escapes) {
        let top = split.top(read_element(elements, width, element_at(position as usize)));
        bytes.copy_from_slice(&top.to_le_bytes()[..top_len]);
    }
    Ok(())
}

/// Bytes of an escaped top field.
fn escape_len(split: &FieldSplit) -> usize {
    if split.top_bits() <= 8 { 1 } else { 2 }
}

/// The coded parts of a block of bit fields.
pub(super) struct CodedFields<'a> {
    /// Its symbols, and what follows them.
    pub(super) symbols: Padded<'a>,
    pub(super) split: &'a FieldSplit,
    /// The packed rest of its elements.
    pub(super) rest: &'a [u8],
}

/// Decodes top fields and joins them with the rest into `elements`; returns how many bytes they took, and whether `sum` has
/// taken the elements.
pub(super) fn decode(
    coded: &CodedFields<'_>,
    sum: Option<&mut Checksummer>,
    elements: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(usize, bool), CodecError> {
    let CodedFields { symbols, split, rest } = *coded;
    let len = symbols.bytes().len();
    let mut cursor = Cursor::new(symbols.bytes(), "symbols");
    let n = elements.len() / usize::from(split.layout.width);
    let plane = &mut scratch.plane;
    resize_plane(plane, n);
    match cursor.u8()? {
        CONSTANT => {
            plane[..n].fill(cursor.u8()?);
            join_tiles(split, &plane[..n], rest, elements);
        }
        coder @ (RANS8 | RANS8_LISTED) => {
            let values = if coder == RANS8_LISTED { cursor.array()? } else { values_from(cursor.u8()?) };
            let frequencies = Frequencies::parse(cursor.array()?)?;
            let decode = match cursor.u8()? {
                1 => decode_one_table::<1>,
                4 => decode_one_table::<4>,
                _ => return Err(CodecError::corrupt("number of rANS8 streams")),
            };
            let table = DecodeTable::new(&frequencies);
            let patches = &mut scratch.patches;
            let is_summed = sum.is_some();
            let block = OneTable { coded, values: &values, table: &table };
            decode(&block, &mut cursor, sum, elements, plane, patches)?;
            return Ok((len - cursor.rest().len(), is_summed));
        }
        RANS12 => {
            let table = rans12::DecodeTable::new(&rans12::FrequencyTable::read(&mut cursor)?);
            let coded_len = cursor.len32()?;
            let runs = [rans12::Run { len: n, table_idx: 0 }];
            let tables = std::slice::from_ref(&table);
            rans12::decode_into(cursor.take(coded_len)?, &runs, tables, &mut plane[..n])?;
            join_tiles(split, &plane[..n], rest, elements);
        }
        id => return Err(CodecError::Unsupported { what: "symbol coder", id: u32::from(id) }),
    }
    let element_at = |position: usize| split.element_at(position);
    read_escapes(&mut cursor, split, n, element_at, &mut scratch.patches)?;
    let mut finish = Finish { escapes: &scratch.patches, sum: None };
    finish.last(split, 0, elements);
    Ok((len - cursor.rest().len(), false))
}

/// Symbols of one table and what they are joined with, as kernels take them.
pub(crate) struct FieldSymbols<'a> {
    pub(crate) split: &'a FieldSplit,
    /// Coded field of every symbol.
    pub(crate) values: &'a [u8; 16],
    pub(crate) table: &'a DecodeTable,
    /// The streams, and what kernels may read after them.
    pub(crate) data: &'a [u8],
    pub(crate) rest: &'a [u8],
}

/// The coded parts of a block whose symbols have one table.
struct OneTable<'a> {
    coded: &'a CodedFields<'a>,
    values: &'a [u8; 16],
    table: &'a DecodeTable,
}

/// Decodes symbols and escapes; `cursor` stands behind the number of streams.
fn decode_one_table<const N: usize>(
    block: &OneTable<'_>,
    cursor: &mut Cursor<'_>,
    sum: Option<&mut Checksummer>,
    elements: &mut [u8],
    plane: &mut [u8],
    patches: &mut Vec<(u32, u16)>,
) -> Result<(), CodecError> {
    let OneTable { coded, values, table } = *block;
    let CodedFields { symbols, split, rest } = *coded;
    let streams = symbols.last(cursor.rest().len());
    let (mut state, end) = DecodeState::<N>::read(streams.bytes())?;
    let data = streams.with_padding();
    cursor.take(end)?;
    let width = usize::from(split.layout.width);
    let n = elements.len() / width;
    // Escapes stand behind the symbols and are read first, so that a tile is finished at once.
    read_escapes(cursor, split, n, |position| split.element_at(position), patches)?;
    let mut finish = Finish { escapes: patches, sum };
    let mut done = 0;
    if split.base == 0 {
        let fields = FieldSymbols { split, values, table, data, rest };
        done = kernels().rans8_decode_join(state.streams(), &fields, elements, &mut finish);
    }
    debug_assert!(done.is_multiple_of(TILE));
    let plane = &mut plane[..(n - done).next_multiple_of(32 * N)];
    decode_groups(&mut state, table, values, data, plane)?;
    let elements = &mut elements[done * width..];
    join_tiles(split, &plane[..n - done], &rest[split.rest_len(done)..], elements);
    finish.last(split, done, elements);
    state.finish()
}

/// Reads escapes as elements and their top fields, in the order of their positions.
pub(super) fn read_escapes(
    cursor: &mut Cursor<'_>,
    split: &FieldSplit,
    n: usize,
    element_at: impl Fn(usize) -> usize,
    escapes: &mut Vec<(u32, u16)>,
) -> Result<(), CodecError> {
    escapes.clear();
    let mut counts = Vec::with_capacity(n.div_ceil(SEGMENT));
    for _ in 0..n.div_ceil(SEGMENT) {
        counts.push(cursor.len32()?);
    }
    let total =
        counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)).filter(|&total| total <= n);
    let total = total.ok_or(CodecError::corrupt("more escapes than elements"))?;
    let positions = cursor.take(2 * total)?.as_chunks::<2>().0;
    let tops = cursor.take(escape_len(split) * total)?;
    escapes.reserve(total);
    let mut listed = positions.iter().zip(tops.chunks_exact(escape_len(split)));
    for (first, &count) in (0..).step_by(SEGMENT).zip(&counts) {
        let mut lowest = first;
        for (position, top) in listed.by_ref().take(count) {
            let position = first + usize::from(u16::from_le_bytes(*position));
            let element = if position < n { element_at(position) } else { n };
            if element >= n {
                return Err(CodecError::corrupt("escape behind the last element"));
            }
            if position < lowest {
                return Err(CodecError::corrupt("positions of escapes do not ascend"));
            }
            lowest = position + 1;
            let top = u16::from_le_bytes([top[0], top.get(1).copied().unwrap_or(0)]);
            if u32::from(top) >> split.top_bits() != 0 {
                return Err(CodecError::corrupt("escape of more bits than the top field"));
            }
            let element =
                u32::try_from(element).map_err(|_| CodecError::corrupt("escape behind the last element"))?;
            escapes.push((element, top));
        }
    }
    Ok(())
}
