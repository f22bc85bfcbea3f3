//! Some elements of a coded run, decoded on several threads.

use crate::Error;
use crate::options::thread_count;
use crate::pipeline::tasks;
use mithril_codec::df11::{Coded, Geometry, Parts};
use mithril_format::df11::damaged;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Workgroups that one task decodes.
const WORKGROUPS: usize = 64;

/// The run of these parts, checked to fit together. `name` is for the error.
///
/// # Errors
/// When they do not fit together.
pub fn coded<'a>(name: &str, parts: Parts<'a>, geometry: Geometry) -> Result<Coded<'a>, Error> {
    Coded::new(parts, geometry).map_err(|error| damaged(name, error.to_string()).into())
}

/// Decodes all elements of a run into `out`, on several threads; 0 is one per core. `name` is for the error.
///
/// # Errors
/// When the codes are damaged; `InvalidArgument` when `out` has another length.
pub fn decode_into(coded: &Coded<'_>, name: &str, out: &mut [u8], threads: usize) -> Result<(), Error> {
    check_room(out, coded.n_elements())?;
    decode_elements(coded, name, 0..coded.n_elements(), out, threads)
}

/// Decodes rows of `row_len` elements into `out`, one after the other; only workgroups that hold some of them are
/// decoded. `rows` must rise.
///
/// # Errors
/// When the codes are damaged; `InvalidArgument` when there is no such row, rows do not rise, or `out` has another length.
pub fn decode_rows_into(
    coded: &Coded<'_>,
    name: &str,
    (rows, row_len): (&[u64], usize),
    out: &mut [u8],
    threads: usize,
) -> Result<(), Error> {
    let starts = |&row: &u64| usize::try_from(row).ok()?.checked_mul(row_len);
    let starts: Option<Vec<usize>> = rows.iter().map(starts).collect();
    let fits = |starts: &Vec<usize>| {
        let last = starts.last().map_or(Some(0), |&last| last.checked_add(row_len));
        row_len > 0 && last.is_some_and(|end| end <= coded.n_elements()) && starts.is_sorted_by(|a, b| a < b)
    };
    let starts = starts
        .filter(fits)
        .ok_or_else(|| Error::invalid(format!("rows of `{name}` that do not rise, or are not there")))?;
    check_room(out, rows.len() * row_len)?;
    if rows.is_empty() {
        return Ok(());
    }
    let n_tasks = thread_count(threads, rows.len(), out.len());
    let per_task = rows.len().div_ceil(n_tasks);
    let pieces: Vec<(&[usize], Mutex<&mut [u8]>)> =
        starts.chunks(per_task).zip(out.chunks_mut(2 * row_len * per_task).map(Mutex::new)).collect();
    tasks::run(pieces.len(), pieces.len(), |idx| {
        let (starts, room) = &pieces[idx];
        let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
        decode_runs(coded, starts, row_len, &mut room)
            .map_err(|error| damaged(name, error.to_string()).into())
    })
}

/// Decodes the rows that start with these elements, which rise.
fn decode_runs(
    coded: &Coded<'_>,
    starts: &[usize],
    row_len: usize,
    out: &mut [u8],
) -> Result<(), mithril_codec::CodecError> {
    let decoder = coded.decoder();
    let mut decoded = Vec::new();
    let mut held = 0..0;
    let mut next_workgroup = 0;
    for (&start, row) in starts.iter().zip(out.chunks_mut(2 * row_len)) {
        let mut at = start;
        while at < start + row_len {
            if !held.contains(&at) {
                // Workgroups from the one with this element on, up to the one where the row ends.
                let first = find_workgroup(coded, next_workgroup, at);
                let end = find_workgroup(coded, first, start + row_len - 1) + 1;
                let end = end.min(first + WORKGROUPS);
                held = coded.elements(first..end);
                decoded.resize(2 * held.len(), 0);
                decoder.decode_workgroups(first..end, &mut decoded)?;
                next_workgroup = first;
            }
            let end = (start + row_len).min(held.end);
            row[2 * (at - start)..2 * (end - start)]
                .copy_from_slice(&decoded[2 * (at - held.start)..2 * (end - held.start)]);
            at = end;
        }
    }
    Ok(())
}

/// The workgroup that holds an element, which is none of those before `from`.
fn find_workgroup(coded: &Coded<'_>, from: usize, element: usize) -> usize {
    let (mut low, mut high) = (from, coded.n_workgroups());
    while high - low > 1 {
        let middle = low.midpoint(high);
        if coded.elements(middle..middle).start <= element {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn check_room(out: &[u8], n_elements: usize) -> Result<(), Error> {
    if out.len() == 2 * n_elements {
        return Ok(());
    }
    Err(Error::invalid(format!("{n_elements} elements do not fill {} bytes", out.len())))
}

/// Decodes elements of a module to `out`, which has room for exactly them.
pub(in crate::convert) fn decode_elements(
    coded: &Coded<'_>,
    name: &str,
    elements: Range<usize>,
    out: &mut [u8],
    threads: usize,
) -> Result<(), Error> {
    // Pieces of workgroups that hold some of the elements, each with its own room.
    let mut pieces = Vec::new();
    let mut rest = out;
    let n_workgroups = coded.n_workgroups();
    let first = find_workgroup(coded, 0, elements.start);
    for start in (first..n_workgroups).step_by(WORKGROUPS) {
        let workgroups = start..(start + WORKGROUPS).min(n_workgroups);
        let held = coded.elements(workgroups.clone());
        let wanted = held.start.max(elements.start)..held.end.min(elements.end);
        if !wanted.is_empty() {
            let (room, behind) = std::mem::take(&mut rest).split_at_mut(2 * wanted.len());
            rest = behind;
            pieces.push((workgroups, held, wanted, Mutex::new(room)));
        }
    }
    let threads = thread_count(threads, pieces.len(), 2 * elements.len());
    let decoder = coded.decoder();
    tasks::run(pieces.len(), threads, |idx| {
        let (workgroups, held, wanted, room) = &pieces[idx];
        let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
        let decoded = if held == wanted {
            decoder.decode_workgroups(workgroups.clone(), &mut room)
        } else {
            let mut all = vec![0; 2 * held.len()];
            decoder.decode_workgroups(workgroups.clone(), &mut all).map(|()| {
                room.copy_from_slice(&all[2 * (wanted.start - held.start)..2 * (wanted.end - held.start)]);
            })
        };
        decoded.map_err(|error| damaged(name, error.to_string()).into())
    })
}
