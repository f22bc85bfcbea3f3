//! Which segments of the samples a dictionary should hold: the coverage heuristic of Liao, Petri, Moffat and Wirth.
//!
//! A segment is worth the runs of `d` bytes that it holds, each counted once, weighted by how many samples hold them.
//! ```text
//! 1. cut the samples into epochs
//! 2. for each epoch, find the window of k bytes that is worth most, and take it; its runs are covered, and worth
//!    nothing from now on
//! 3. repeat 2 until there is enough
//! ```
//! Some epochs at a time are looked at against the same counts, so that they can be shared out among threads; a window
//! that is worth much less when its turn comes is looked for again. A run is worth the *other* samples that hold it, so
//! that what occurs in one sample only is worth next to nothing.

use super::Samples;
use super::frequencies::{Frequencies, each_run};
use std::ops::Range;

/// A part of the buffer of all samples: of one sample, or of neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Where it starts.
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

/// Cuts the buffer of all samples into `n_epochs` ranges, or fewer when it is short.
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

/// The window of at most `k` bytes of this epoch that is worth most, if any is worth something, and its worth. It may
/// reach from one sample into the next: what lies between them is worth nothing, as no sample holds it, and windows
/// that end with their sample were worse where records are shorter than `k`.
pub fn best_segment(
    samples: &Samples<'_>,
    frequencies: &Frequencies,
    epoch: Range<usize>,
    k: usize,
    scratch: &mut CoverScratch,
) -> Option<(u64, Segment)> {
    let d = frequencies.d();
    let CoverScratch { in_window, runs } = scratch;
    runs.clear();
    each_run(samples, epoch.clone(), d, |_, hash| {
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
    let start = epoch.start + best_first;
    let segment = Segment { start, len: (window_runs + d - 1).min(epoch.end - start) };
    (most > 0).then_some((most, segment))
}

/// Takes a segment: covers its runs, and gives it without ends that are worth nothing, and its worth for each 2^16
/// bytes. Nothing when it is worth less than `least`, because segments taken since it was found cover the same.
pub fn take_segment(
    samples: &Samples<'_>,
    frequencies: &mut Frequencies,
    segment: Segment,
    least: u64,
) -> Option<(u64, Segment)> {
    let mut slots = Vec::with_capacity(segment.len);
    each_run(samples, segment.range(), frequencies.d(), |_, hash| slots.push(frequencies.slot(hash)));
    let is_worth = |slot: &usize| frequencies.value(*slot) > 0;
    let first = slots.iter().position(is_worth)?;
    let last = slots.iter().rposition(is_worth)?;
    let trimmed = Segment { start: segment.start + first, len: last + frequencies.d() - first };
    let mut distinct = slots[first..=last].to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let worth: u64 = distinct.iter().map(|&slot| u64::from(frequencies.value(slot))).sum();
    if worth < least {
        return None;
    }
    for slot in distinct {
        frequencies.cover(slot);
    }
    Some(((worth << 16) / trimmed.len as u64, trimmed))
}
