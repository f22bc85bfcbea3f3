//! What the bytes of a pool save when samples are compressed with it.
//!
//! Coverage counts runs; it does not see that a long match is worth more than its runs apart, that a repeat inside of
//! the record is cheaper than the dictionary, or that two pieces serve the same place. So samples are parsed with the
//! pool, and each match credits the bytes it used with the bits that it saved: first by a model of zstd, which works for
//! a pool of any size ([`PoolIndex`]), in the end by zstd itself ([`measure_with_zstd`]).

mod model;
mod zstd;

pub use self::zstd::measure_with_zstd;
pub use model::PoolIndex;

use std::ops::Range;

/// Parts of a bit in prices and savings.
pub const PARTS_PER_BIT: u32 = 16;

/// Price of a literal: what each byte of a match saves.
pub(super) const LITERAL: u32 = 88;
/// Price of a sequence, without the bits of its offset.
pub(super) const SEQUENCE: u32 = 100;
/// Price of an offset into the dictionary.
pub(super) const OFFSET: u32 = 240;

/// What zstd is assumed to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchModel {
    /// Shortest match into the dictionary that is found, 4 to 8.
    pub min_match: usize,
    /// Candidates that are looked at for each place.
    pub depth: usize,
}

impl MatchModel {
    /// The model of a level of zstd.
    pub fn of_level(level: i32) -> Self {
        // Fast levels look up eight bytes, and five at every third place only. Of 4 to 8 bytes, 6 gave the smallest
        // held-out records at level 3, and 5 at level 19.
        let min_match = if level < 6 { 6 } else { 5 };
        Self { min_match, depth: 32 }
    }
}

/// How the bytes of a pool were used, and what was paid for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Matches that used each byte.
    pub uses: Vec<u32>,
    /// Matches that start at each byte.
    pub starts: Vec<u32>,
    /// What the matches that start at each byte cost, in parts of a bit.
    pub paid: Vec<u64>,
    /// How often the first match of a sample had an offset, counted from the end of the pool; in order of offsets.
    pub first_offsets: Vec<(u32, u32)>,
}

impl Usage {
    /// No use of a pool of this length.
    pub fn none(pool_len: usize) -> Self {
        Self {
            uses: vec![0; pool_len],
            starts: vec![0; pool_len],
            paid: vec![0; pool_len],
            first_offsets: Vec::new(),
        }
    }

    /// Adds how other samples used the same pool.
    ///
    /// # Panics
    /// When the pools have different lengths.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.uses.len(), other.uses.len());
        for (sum, more) in self.uses.iter_mut().zip(&other.uses) {
            *sum = sum.saturating_add(*more);
        }
        for (sum, more) in self.starts.iter_mut().zip(&other.starts) {
            *sum = sum.saturating_add(*more);
        }
        for (sum, more) in self.paid.iter_mut().zip(&other.paid) {
            *sum += more;
        }
        self.first_offsets.extend_from_slice(&other.first_offsets);
        merge_counts(&mut self.first_offsets);
    }

    /// The use of what stands behind the first bytes of a pool. First offsets are left out.
    #[must_use]
    pub fn behind(mut self, len: usize) -> Self {
        Self {
            uses: self.uses.split_off(len),
            starts: self.starts.split_off(len),
            paid: self.paid.split_off(len),
            first_offsets: Vec::new(),
        }
    }

    /// What a part of the pool saved, in bits: its bytes need not be literals, and its matches must be paid for.
    pub fn saved_bits(&self, part: Range<usize>) -> u64 {
        let uses: u64 = self.uses[part.clone()].iter().map(|&uses| u64::from(uses)).sum();
        let paid: u64 = self.paid[part].iter().sum();
        (uses * u64::from(LITERAL)).saturating_sub(paid) / u64::from(PARTS_PER_BIT)
    }
}

/// Collects matches: uses as differences between neighbouring bytes, which one sum at the end makes uses by byte.
struct Credits {
    usage: Usage,
    uses: Vec<i32>,
}

impl Credits {
    fn new(pool_len: usize) -> Self {
        Self { usage: Usage::none(pool_len), uses: vec![0; pool_len + 1] }
    }

    /// A match of `len` bytes at a place of the pool cost so much.
    fn add(&mut self, place: usize, len: usize, cost: u32) {
        self.uses[place] += 1;
        self.uses[place + len] -= 1;
        self.usage.starts[place] += 1;
        self.usage.paid[place] += u64::from(cost);
    }

    /// The first match of a sample lies so far back.
    fn add_first_offset(&mut self, offset: usize) {
        if let Ok(offset) = u32::try_from(offset) {
            self.usage.first_offsets.push((offset, 1));
        }
    }

    fn finish(mut self) -> Usage {
        let mut count = 0i32;
        for (uses, step) in self.usage.uses.iter_mut().zip(&self.uses) {
            count += step;
            *uses = u32::try_from(count).unwrap_or(0);
        }
        merge_counts(&mut self.usage.first_offsets);
        self.usage
    }
}

/// Sorts by offset and adds up equal ones.
fn merge_counts(counts: &mut Vec<(u32, u32)>) {
    counts.sort_unstable();
    counts.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = kept.1.saturating_add(later.1);
        }
        same
    });
}
