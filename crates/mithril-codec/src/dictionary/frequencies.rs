//! How many samples hold each run of `d` bytes.
//!
//! Runs (d-mers) are counted by a hash, in a table of bounded size: two runs that share a slot are counted together,
//! which a table of a few slots per run makes rare. A run counts once per sample, because within one sample zstd finds
//! repeats without a dictionary.

use super::{Samples, Segment};
use std::ops::Range;

/// Shortest run that is counted.
pub const MIN_D: usize = 4;
/// Longest run that is counted.
pub const MAX_D: usize = 64;

/// Worth of another sample that holds a run, where a run that no other sample holds is worth 1: such a run may still
/// serve a record to come, when there is room.
const OTHER_SAMPLE: u32 = 16;

/// Multiplier of the hash: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Counts by hash of a run.
#[derive(Debug, Clone)]
pub struct Frequencies {
    d: usize,
    shift: u32,
    counts: Vec<u32>,
}

impl Frequencies {
    /// Counts the runs of `d` bytes in some of the samples, in a table of `2^table_log` slots.
    ///
    /// Counts of parts add up: see [`Frequencies::add`].
    ///
    /// # Panics
    /// When `d` is not within [`MIN_D`] to [`MAX_D`], or the table is not of 10 to 28 bits.
    pub fn count(samples: &Samples<'_>, part: &[usize], d: usize, table_log: u32) -> Self {
        assert!((MIN_D..=MAX_D).contains(&d) && (10..=28).contains(&table_log));
        let shift = 64 - table_log;
        // Side by side, so that one look-up brings both: the sample that was counted last, and the count.
        let mut slots = vec![[u32::MAX, 0]; 1 << table_log];
        for &sample_idx in part {
            let sample = u32::try_from(sample_idx).expect("samples are fewer than 2^32");
            each_run(samples, samples.range(sample_idx), d, |_, hash| {
                let slot = &mut slots[slot_of(hash, shift)];
                if slot[0] != sample {
                    *slot = [sample, slot[1].saturating_add(1)];
                }
            });
        }
        Self { d, shift, counts: slots.into_iter().map(|[_, count]| count).collect() }
    }

    /// Adds the counts of another part of the samples.
    ///
    /// # Panics
    /// When the other table has another shape.
    pub fn add(&mut self, other: &Self) {
        assert!(self.d == other.d && self.shift == other.shift);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
    }

    /// Length of a run.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Takes away the worth of all runs in some segments.
    pub fn cover_segments(&mut self, samples: &Samples<'_>, segments: &[Segment]) {
        for segment in segments {
            each_run(samples, segment.range(), self.d, |_, hash| self.counts[slot_of(hash, self.shift)] = 0);
        }
    }

    /// Takes away the worth of all runs in some bytes that are no sample.
    pub fn cover_bytes(&mut self, bytes: &[u8]) {
        let ends = [bytes.len()];
        let all = Samples::new(bytes, &ends).expect("one end at the end");
        each_run(&all, 0..bytes.len(), self.d, |_, hash| self.counts[slot_of(hash, self.shift)] = 0);
    }

    /// The slot of a hash.
    pub(super) fn slot(&self, hash: u64) -> usize {
        slot_of(hash, self.shift)
    }

    /// What a run is worth: mostly the samples that hold it beside the one it is taken from.
    pub(super) fn value(&self, slot: usize) -> u32 {
        match self.counts[slot] {
            0 => 0,
            count => (count - 1).saturating_mul(OTHER_SAMPLE).saturating_add(1),
        }
    }

    /// Takes the worth of a run away, since the dictionary has it now.
    pub(super) fn cover(&mut self, slot: usize) {
        self.counts[slot] = 0;
    }
}

fn slot_of(hash: u64, shift: u32) -> usize {
    usize::try_from(hash >> shift).expect("tables have at most 2^28 slots")
}

/// Calls with the offset and the hash of every run of `d` bytes within a range of the buffer.
#[inline(always)]
pub(super) fn each_run(
    samples: &Samples<'_>,
    range: Range<usize>,
    d: usize,
    mut call: impl FnMut(usize, u64),
) {
    let bytes = samples.bytes();
    let Some(end) = (range.end + 1).checked_sub(d) else { return };
    if d > 8 {
        for offset in range.start..end {
            let high = load(bytes, offset + d - 8);
            call(offset, hash(load(bytes, offset).rotate_left(31) ^ high.wrapping_mul(SPREAD)));
        }
        return;
    }
    let unused_bits = 64 - 8 * d;
    // Reading eight bytes at once needs them to be there; runs at the very end of the buffer are read byte by byte.
    let fast_end = end.min((bytes.len() + 1).saturating_sub(8));
    for (place, window) in bytes
        .get(range.start..)
        .unwrap_or_default()
        .windows(8)
        .take(fast_end.saturating_sub(range.start))
        .enumerate()
    {
        let word = u64::from_le_bytes(window.try_into().expect("windows of eight bytes"));
        call(range.start + place, hash(word << unused_bits));
    }
    for offset in fast_end.max(range.start)..end {
        call(offset, hash(load(bytes, offset) << unused_bits));
    }
}

fn load(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    let here = &bytes[offset..bytes.len().min(offset + 8)];
    word[..here.len()].copy_from_slice(here);
    u64::from_le_bytes(word)
}

fn hash(word: u64) -> u64 {
    word.wrapping_mul(SPREAD)
}
