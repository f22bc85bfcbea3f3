//! Decoding of blocks whose rows and columns are sorted into classes: bucket by bucket, as one stream runs through all of
//! them. Then rows are put back, and symbols, signs, escapes and checksum meet in the first-level cache, some rows at a
//! time.

use super::shared::{Shared, SharedSymbols, SymbolTables};
use super::symbols::{CodedFields, read_escapes, resize_plane};
use super::{Padded, Scratch, signs};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::checksum::Checksummer;
use crate::contexts::Buckets;
use crate::entropy::rans8::{DecodeState, DecodeTable, Frequencies, Window, decode_groups};
use crate::entropy::rans12;
use crate::forever::symbols::{RANS8_CLASSED, RANS8_SHARED, RANS12_SHARED};
use crate::transform::fields::{Finish, Joiner, Order, TILE};
use std::cell::LazyCell;

/// Elements that are joined at a time, whole tiles: with two or four bytes each they fill half of a first-level cache.
const CHUNK: usize = 4096;

/// Elements that are put back into rows at a time, at most, where rows are not longer.
const MAX_PIECE: usize = 4 * CHUNK;

/// Whether symbols of this coder stand in buckets.
pub(super) fn is_classed(coder: u8) -> bool {
    matches!(coder, RANS8_SHARED | RANS8_CLASSED | RANS12_SHARED)
}

/// Decodes symbols, and signs where they are coded, and joins them with the rest into `elements`, which `sum` takes;
/// returns how many bytes they took.
pub(super) fn decode(
    coded: &CodedFields<'_>,
    shared: &Shared,
    rows: &[u32],
    sum: Option<&mut Checksummer>,
    elements: &mut [u8],
    scratch: &mut Scratch,
) -> Result<usize, CodecError> {
    let CodedFields { split, rest, .. } = *coded;
    let mut cursor = Cursor::new(coded.symbols.bytes(), "symbols");
    let n = elements.len() / usize::from(split.layout.width);
    let symbols =
        shared.symbols.as_ref().ok_or(CodecError::corrupt("symbols without their shared tables"))?;
    if split.order == Order::Packed {
        return Err(CodecError::corrupt("packed order of classed symbols"));
    }
    let buckets = symbols.contexts.buckets(rows)?;
    if buckets.len() != n {
        return Err(CodecError::corrupt("block does not hold whole rows"));
    }
    resize_plane(&mut scratch.bucketed, n);
    let used = decode_symbols(coded.symbols, symbols, &buckets, &mut scratch.bucketed)?;
    cursor.take(used)?;
    // Where rows are short, it takes as long to list them as to decode them: only where there are escapes.
    let positions = LazyCell::new(|| buckets.elements());
    read_escapes(&mut cursor, split, n, |position| positions.at(position), &mut scratch.patches)?;
    scratch.patches.sort_unstable();
    let Scratch { plane, bucketed, patches, sign_plane, bucketed_signs, bytes, .. } = scratch;
    let mut sign_buckets = None;
    if split.raw_sign != split.layout.sign {
        let signs = shared.signs.as_ref().ok_or(CodecError::corrupt("coded signs without their tables"))?;
        let (buckets, used) = signs::decode_buckets(cursor.rest(), signs, rows, n, bucketed_signs, bytes)?;
        cursor.take(used)?;
        sign_buckets = Some(buckets);
    }
    let (width, joiner) = (usize::from(split.layout.width), Joiner::new(split));
    // Columns of many classes are put back at once: later, the output would have driven their buckets out of the cache.
    let has_whole_rows =
        buckets.has_whole_rows() && sign_buckets.as_ref().is_none_or(Buckets::has_whole_rows);
    let rows_each = match has_whole_rows {
        true => rows_at_a_time(symbols.contexts.row_len()).min(rows.len()),
        false => rows.len(),
    };
    let piece = rows_each * symbols.contexts.row_len();
    resize_plane(plane, piece);
    if sign_buckets.is_some() {
        resize_plane(sign_plane, piece);
    }
    let mut symbol_rows = buckets.scatter(bucketed);
    let mut sign_rows = sign_buckets.as_ref().map(|buckets| buckets.scatter(bucketed_signs));
    let mut finish = Finish { escapes: patches, sum };
    for (first, out) in (0..).step_by(piece.max(1)).zip(elements.chunks_mut(piece.max(1) * width)) {
        symbol_rows.next_rows(rows_each, plane);
        if let Some(rows) = &mut sign_rows {
            rows.next_rows(rows_each, sign_plane);
        }
        for (at, out) in (0..).step_by(CHUNK).zip(out.chunks_mut(CHUNK * width)) {
            let end = at + out.len() / width;
            let signs = sign_rows.is_some().then(|| &sign_plane[at..end]);
            let rest = &rest[joiner.rest_len(first + at)..joiner.rest_len(first + end)];
            joiner.join(&plane[at..end], signs, rest, out);
            finish.patch(split, first + at, first + end, out);
            if let Some(sum) = &mut finish.sum {
                sum.update(out);
            }
        }
    }
    Ok(coded.symbols.bytes().len() - cursor.rest().len())
}

/// Rows that are put back at a time: few that make up whole tiles, or else all.
fn rows_at_a_time(row_len: usize) -> usize {
    let whole_tiles = TILE >> row_len.trailing_zeros().min(TILE.trailing_zeros());
    if whole_tiles * row_len > MAX_PIECE {
        return usize::MAX;
    }
    (CHUNK / (whole_tiles * row_len)).max(1) * whole_tiles
}

/// Decodes the symbols of all buckets from the coder on; returns how many bytes they took.
fn decode_symbols(
    bytes: Padded<'_>,
    symbols: &SharedSymbols,
    buckets: &Buckets<'_>,
    bucketed: &mut [u8],
) -> Result<usize, CodecError> {
    let mut cursor = Cursor::new(bytes.bytes(), "symbols");
    let coder = cursor.u8()?;
    match (&symbols.tables, coder) {
        (SymbolTables::Rans8(_), RANS8_SHARED) | (SymbolTables::Rans8PerBlock, RANS8_CLASSED) => {
            let windows = match &symbols.tables {
                SymbolTables::Rans8(windows) => Some(windows.as_slice()),
                _ => None,
            };
            let decode = match cursor.u8()? {
                1 => decode_rans8::<1>,
                4 => decode_rans8::<4>,
                _ => return Err(CodecError::corrupt("number of rANS8 streams")),
            };
            decode(bytes, &mut cursor, buckets, windows, bucketed)?;
        }
        (SymbolTables::Rans12(_, tables), RANS12_SHARED) => {
            let coded_len = cursor.len32()?;
            let n = buckets.len();
            let runs = run_lens(&buckets.group_runs(rans12::LANES), n);
            rans12::decode_into(cursor.take(coded_len)?, &runs, tables, &mut bucketed[..n])?;
        }
        _ => return Err(CodecError::corrupt("shared tables of another coder")),
    }
    Ok(bytes.bytes().len() - cursor.rest().len())
}

/// Runs in symbols from runs in groups.
fn run_lens(group_runs: &[(usize, usize)], n: usize) -> Vec<rans12::Run> {
    let mut first = 0;
    group_runs
        .iter()
        .map(|&(table_idx, n_groups)| {
            let len = (n_groups * rans12::LANES).min(n - first);
            first += len;
            rans12::Run { len, table_idx }
        })
        .collect()
}

/// As `decode_symbols`, for rANS8 of `N` streams, from behind their number on.
fn decode_rans8<const N: usize>(
    bytes: Padded<'_>,
    cursor: &mut Cursor<'_>,
    buckets: &Buckets<'_>,
    windows: Option<&[Window]>,
    bucketed: &mut [u8],
) -> Result<(), CodecError> {
    let mut runs = buckets.group_runs(32 * N);
    let mut own = Vec::new();
    let windows = match windows {
        Some(windows) => windows,
        None => {
            for (table, (context, _)) in runs.iter_mut().enumerate() {
                let offset = cursor.u8()?;
                own.push(Window { offset, frequencies: Frequencies::parse(cursor.array()?)? });
                *context = table;
            }
            &own
        }
    };
    let streams = bytes.last(cursor.rest().len());
    let (mut state, end) = DecodeState::<N>::read(streams.bytes())?;
    let data = streams.with_padding();
    let mut first = 0;
    for (table, n_groups) in runs {
        let window = &windows[table];
        let groups = &mut bucketed[first..first + n_groups * 32 * N];
        decode_groups(&mut state, &DecodeTable::new(&window.frequencies), &window.values(), data, groups)?;
        first += groups.len();
    }
    state.finish()?;
    cursor.take(end)?;
    Ok(())
}
