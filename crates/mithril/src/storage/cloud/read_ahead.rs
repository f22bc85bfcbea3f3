//! Reads ahead of small reads that follow each other: behind a network, a request takes longer than what it brings.
//!
//! Tensors of a checkpoint are read about in the order in which they lie, each by a request of its own for every level of its
//! chain, on several threads. A read that starts where the ones before ended, or a little behind, brings some bytes more, the
//! next that finds none left twice as many, and so on. A read far away brings what was asked for; where a second one follows
//! it, a new row starts there. So a look at the end of a frame does not disturb the row of its blocks. The first row starts at
//! the front, so that a small object comes whole with the first read of it.

use mithril_format::ReadAt;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes that are read ahead at first, and at most.
const FIRST_AHEAD: u64 = 256 << 10;
const MAX_AHEAD: u64 = 4 << 20;

/// A read is far away if it skips more than this, or lies further back.
const MAX_SKIPPED: u64 = 1 << 20;
const MAX_BACK: u64 = 2 * MAX_AHEAD;

/// Longer reads are worth a request of their own, and several may be under way at once.
const MAX_SMALL: usize = 1 << 20;

/// What was read is kept until so much more was read: threads overtake each other.
const N_KEPT: usize = 2;

/// A source that is read ahead.
#[derive(Debug)]
pub(super) struct ReadAhead<S> {
    source: S,
    len: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where everything that was read in this row ends.
    end: u64,
    /// Where the last read ended that was far away.
    far_end: u64,
    /// How much the last request read ahead.
    ahead: u64,
    /// What is here, the newest last, each with its place.
    pieces: VecDeque<(u64, Vec<u8>)>,
}

impl<S: ReadAt> ReadAhead<S> {
    pub(super) fn new(source: S, len: u64) -> Self {
        Self { source, len, state: Mutex::default() }
    }
}

impl State {
    /// Whether a read is in the row: neither far behind what was read, nor far back.
    fn is_near(&self, range: &Range<u64>) -> bool {
        range.start <= self.end + MAX_SKIPPED && range.start + MAX_BACK >= self.end
    }

    /// Notes a read that is far away.
    fn note_far(&mut self, range: &Range<u64>) {
        if range.start >= self.far_end && range.start - self.far_end <= MAX_SKIPPED {
            *self = Self { end: range.end, ..Self::default() };
        }
        self.far_end = range.end;
    }

    /// Copies a range, if all of it is here.
    fn copy(&self, offset: u64, mut out: &mut [u8]) -> bool {
        let mut at = offset;
        while !out.is_empty() {
            let found = self.pieces.iter().rev().find_map(|(start, bytes)| {
                let skipped = usize::try_from(at.checked_sub(*start)?).ok()?;
                bytes.get(skipped..).filter(|rest| !rest.is_empty())
            });
            let Some(found) = found else { return false };
            let (front, rest) = out.split_at_mut(found.len().min(out.len()));
            front.copy_from_slice(&found[..front.len()]);
            at += front.len() as u64;
            out = rest;
        }
        true
    }
}

impl<S: ReadAt> ReadAt for ReadAhead<S> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= self.len);
        let range: Range<u64> = offset..end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.copy(offset, out) {
            return Ok(());
        }
        let is_near = state.is_near(&range);
        if !is_near {
            state.note_far(&range);
        }
        if !is_near || out.len() > MAX_SMALL {
            if is_near {
                state.end = state.end.max(range.end);
            }
            drop(state);
            return self.source.read_exact_at(offset, out);
        }
        if range.end > state.end {
            let ahead = (2 * state.ahead).clamp(FIRST_AHEAD, MAX_AHEAD);
            let start = state.end;
            let bytes = self.source.read_range(start..(range.end + ahead).min(self.len))?;
            (state.end, state.ahead) = (start + bytes.len() as u64, ahead);
            state.pieces.push_back((start, bytes));
            if state.pieces.len() > N_KEPT {
                state.pieces.pop_front();
            }
        }
        if state.copy(offset, out) {
            return Ok(());
        }
        // Something that was read before, and is no longer here or never was.
        drop(state);
        self.source.read_exact_at(offset, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that tell their place, and the reads of them.
    #[derive(Debug)]
    struct Counted {
        bytes: Vec<u8>,
        reads: Mutex<Vec<Range<u64>>>,
    }

    impl ReadAt for &Counted {
        fn size(&self) -> io::Result<u64> {
            self.bytes.size()
        }

        fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.reads.lock().unwrap().push(offset..offset + out.len() as u64);
            self.bytes.read_exact_at(offset, out)
        }
    }

    fn counted(len: usize) -> Counted {
        let bytes = (0..len).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
        Counted { bytes, reads: Mutex::default() }
    }

    /// Reads ranges, compares them, and returns what was read for them.
    fn check(source: &Counted, ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<u64>> {
        let ahead = ReadAhead::new(source, source.bytes.len() as u64);
        for range in ranges {
            let mut out = vec![0; range.len()];
            ahead.read_exact_at(range.start as u64, &mut out).unwrap();
            assert!(out == source.bytes[range.clone()], "{range:?}");
        }
        std::mem::take(&mut source.reads.lock().unwrap())
    }

    #[test]
    fn reads_in_a_row_take_few_requests_and_bring_every_byte_once() {
        let source = counted(20 << 20);
        let len = 10_000;
        let rows = (0..source.bytes.len() / len).map(|row| row * len..(row + 1) * len);
        let reads = check(&source, rows);
        assert!(reads.len() < 12, "{} requests for {} reads", reads.len(), source.bytes.len() / len);
        assert!(reads.is_sorted_by(|a, b| a.end == b.start), "{reads:?}");
    }

    #[test]
    fn reads_that_skip_a_little_are_in_a_row_too() {
        let source = counted(6 << 20);
        let reads = check(&source, (0..90).map(|row| row * 60_000..row * 60_000 + 20_000));
        assert!(reads.len() < 8, "{} requests", reads.len());
    }

    #[test]
    fn reads_that_overtake_each_other_are_in_a_row_too() {
        let source = counted(20 << 20);
        let len = 300_000;
        let rows = (0..60).map(|row| row ^ 1).map(|row| row * len..(row + 1) * len);
        let reads = check(&source, rows);
        assert!(reads.len() < 14, "{} requests", reads.len());
    }

    #[test]
    fn a_look_at_the_end_of_each_frame_does_not_end_the_row() {
        let source = counted(40 << 20);
        let frame = |start: usize| {
            let end = start + (5 << 20);
            let batches =
                (start + 100..end - 400).step_by(500_000).map(move |at| at..(at + 500_000).min(end - 400));
            [start..start + 100, end - 400..end].into_iter().chain(batches)
        };
        let reads = check(&source, (0..8).flat_map(|idx| frame(idx * (5 << 20))));
        assert!(reads.len() < 30, "{} requests for 88 reads", reads.len());
    }

    #[test]
    fn reads_here_and_there_bring_what_was_asked_for() {
        let source = counted(40 << 20);
        let ranges = [30, 1, 20, 10, 35].map(|start| (start << 20) + 100..(start << 20) + 5_000);
        let reads = check(&source, ranges.clone());
        assert_eq!(reads, ranges.map(|range| range.start as u64..range.end as u64));
    }

    #[test]
    fn long_reads_are_requests_of_their_own() {
        let source = counted(8 << 20);
        let ranges = [0..3 << 20, 3 << 20..6 << 20, 6 << 20..8 << 20];
        assert_eq!(check(&source, ranges.clone()), ranges.map(|range| range.start as u64..range.end as u64));
    }

    #[test]
    fn nothing_behind_the_end_is_read() {
        let source = counted(100_000);
        let reads = check(&source, [10..20, 20..30, 30..100_000, 0..0, 100_000..100_000, 99_999..100_000]);
        assert!(reads.iter().all(|read| read.end <= 100_000), "{reads:?}");
        let ahead = ReadAhead::new(&source, 100_000);
        let error = ahead.read_exact_at(99_999, &mut [0; 2]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
