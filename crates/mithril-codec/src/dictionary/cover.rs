//! Which segments of the samples a dictionary should hold: the coverage heuristic of Liao, Petri, Moffat and Wirth.
//!
//! A segment is worth the runs of `d` bytes that it holds, each counted once, weighted by how many samples hold them.
//! ```text
//! 1. cut the samples into epochs; in each, find the window of k bytes that is worth most
//! 2. take the window that is worth most per byte; its runs are covered, and worth nothing from now on
//! 3. repeat 2 until there is enough
//! ```
//! Three departures from the usual form of it. Epochs are looked at once, against the same counts, so that they can be
//! shared out among threads with the same result. Step 2 chooses among all epochs: what an epoch of common records
//! holds may be worth more than the best of an epoch of odd ones. A run is worth the *other* samples that hold it, so
//! that what occurs in one sample only is worth nothing.

use super::Samples;
use super::frequencies::{Frequencies, each_run};
use std::collections::BinaryHeap;
use std::ops::Range;

/// A part of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The sample it is taken from.
    pub sample_idx: u32,
    /// Where it starts in the buffer of all samples.
    pub start: usize,
    /// Its length.
    pub len: usize,
}

impl Segment {
    /// Where it lies in the buffer of all samples.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// Cuts samples into about `n_epochs` parts of whole samples or, where samples are long, of parts of them, and gives
/// the ranges of the buffer.
pub fn epochs(samples: &Samples<'_>, n_epochs: usize) -> Vec<Range<usize>> {
    let total_len = samples.total_len();
    let n_epochs = n_epochs.clamp(1, total_len.max(1));
    let bound = |epoch_idx: usize| {
        usize::try_from(total_len as u128 * epoch_idx as u128 / n_epochs as u128)
            .expect("is at most the length")
    };
    (0..n_epochs).map(|epoch_idx| bound(epoch_idx)..bound(epoch_idx + 1)).collect()
}

/// Room for [`best_segment`], to be used again.
#[derive(Debug)]
pub struct CoverScratch {
    /// How often a run is in the window, by the low bits of its slot.
    in_window: Vec<u16>,
    /// Worth and slot of the runs of the window's sample.
    runs: Vec<(u32, usize)>,
}

/// Bits of a slot that tell runs of one window apart.
const WINDOW_LOG: u32 = 14;

impl CoverScratch {
    /// Fresh room.
    pub fn new() -> Self {
        Self { in_window: vec![0; 1 << WINDOW_LOG], runs: Vec::new() }
    }
}

impl Default for CoverScratch {
    fn default() -> Self {
        Self::new()
    }
}

/// The window of at most `k` bytes that starts in this epoch and is worth most, if any is worth something. Windows do
/// not reach from one sample into the next.
pub fn best_segment(
    samples: &Samples<'_>,
    frequencies: &Frequencies,
    epoch: Range<usize>,
    k: usize,
    scratch: &mut CoverScratch,
) -> Option<Segment> {
    let mut best: Option<(u64, Segment)> = None;
    let mut sample_idx = samples.sample_at(epoch.start);
    while sample_idx < samples.n_samples() {
        let sample = samples.range(sample_idx);
        if sample.start >= epoch.end {
            break;
        }
        let starts = sample.start.max(epoch.start)..sample.end.min(epoch.end);
        let range = starts.start..sample.end.min(starts.end.saturating_add(k));
        if let Some((worth, window)) = best_window(samples, frequencies, range, k, scratch)
            && best.as_ref().is_none_or(|(most, _)| worth > *most)
        {
            let sample_idx = u32::try_from(sample_idx).expect("samples are fewer than 2^32");
            best = Some((worth, Segment { sample_idx, start: window.start, len: window.len() }));
        }
        sample_idx += 1;
    }
    best.map(|(_, segment)| segment)
}

/// The window of at most `k` bytes within a range that is worth most.
fn best_window(
    samples: &Samples<'_>,
    frequencies: &Frequencies,
    range: Range<usize>,
    k: usize,
    scratch: &mut CoverScratch,
) -> Option<(u64, Range<usize>)> {
    let d = frequencies.d();
    let CoverScratch { in_window, runs } = scratch;
    runs.clear();
    each_run(samples, range.clone(), d, |_, hash| {
        let slot = frequencies.slot(hash);
        runs.push((frequencies.value(slot), slot & ((1 << WINDOW_LOG) - 1)));
    });
    let window_runs = (k.max(d) + 1 - d).min(runs.len());
    let (mut worth, mut most, mut best_first) = (0u64, 0u64, 0);
    for (run_idx, &(value, place)) in runs.iter().enumerate() {
        if in_window[place] == 0 {
            worth += u64::from(value);
        }
        in_window[place] += 1;
        if run_idx >= window_runs {
            let (value, place) = runs[run_idx - window_runs];
            in_window[place] -= 1;
            if in_window[place] == 0 {
                // Two runs of one place may have added another worth than is now taken away.
                worth = worth.saturating_sub(u64::from(value));
            }
        }
        if run_idx + 1 >= window_runs && worth > most {
            (most, best_first) = (worth, run_idx + 1 - window_runs);
        }
    }
    for &(_, place) in &runs[runs.len() - window_runs..] {
        in_window[place] = 0;
    }
    let start = range.start + best_first;
    (most > 0).then(|| (most, start..(start + window_runs + d - 1).min(range.end)))
}

/// Takes segments from candidates, those worth most per byte first, until `wanted_len` bytes are taken or nothing is
/// worth anything. Takes the worth of what is covered out of `frequencies`.
pub fn select(
    samples: &Samples<'_>,
    frequencies: &mut Frequencies,
    candidates: &[Segment],
    wanted_len: usize,
) -> Vec<Segment> {
    // What was counted before others were covered is an upper bound, so only the head of the queue is counted again.
    let mut queue: BinaryHeap<(u64, std::cmp::Reverse<usize>, usize)> = BinaryHeap::new();
    let mut segments = candidates.to_vec();
    let mut slots = Vec::new();
    for (idx, segment) in segments.iter_mut().enumerate() {
        if let Some((rate, trimmed)) = worth(samples, frequencies, *segment, &mut slots) {
            *segment = trimmed;
            queue.push((rate, std::cmp::Reverse(idx), idx));
        }
    }
    let mut taken = Vec::new();
    let mut taken_len = 0;
    while taken_len < wanted_len
        && let Some((_, order, idx)) = queue.pop()
    {
        let Some((rate, trimmed)) = worth(samples, frequencies, segments[idx], &mut slots) else { continue };
        segments[idx] = trimmed;
        if queue.peek().is_some_and(|(next, ..)| rate < *next) {
            queue.push((rate, order, idx));
            continue;
        }
        for &slot in &slots {
            frequencies.cover(slot);
        }
        taken_len += trimmed.len;
        taken.push(trimmed);
    }
    taken
}

/// Worth per byte of a segment, and the segment without ends that are worth nothing; leaves the slots of its runs.
fn worth(
    samples: &Samples<'_>,
    frequencies: &Frequencies,
    segment: Segment,
    slots: &mut Vec<usize>,
) -> Option<(u64, Segment)> {
    slots.clear();
    each_run(samples, segment.range(), frequencies.d(), |_, hash| slots.push(frequencies.slot(hash)));
    let is_worth = |slot: &usize| frequencies.value(*slot) > 0;
    let first = slots.iter().position(is_worth)?;
    let last = slots.iter().rposition(is_worth)?;
    let trimmed = Segment {
        sample_idx: segment.sample_idx,
        start: segment.start + first,
        len: last + frequencies.d() - first,
    };
    slots.truncate(last + 1);
    slots.drain(..first);
    let mut distinct = slots.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let sum: u64 = distinct.iter().map(|&slot| u64::from(frequencies.value(slot))).sum();
    // The constant keeps very short segments from winning by their best run alone.
    Some(((sum << 16) / (trimmed.len as u64 + 16), trimmed))
}
