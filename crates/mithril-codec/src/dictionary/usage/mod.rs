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

/// Parts of a bit in the prices of a [`MatchModel`].
const PARTS_PER_BIT: u32 = 16;

/// Parts of a bit in [`Usage::saved`]: finer, because the savings of a match are shared out among its bytes.
pub const SAVED_PER_BIT: u64 = 256 * PARTS_PER_BIT as u64;

/// What zstd is assumed to find and to pay. Prices are in sixteenths of a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchModel {
    /// Shortest match into the dictionary that is found, 4 to 8.
    pub min_match: usize,
    /// Candidates that are looked at for each place.
    pub depth: usize,
    /// Price of a literal.
    pub literal: u32,
    /// Price of a sequence, without the bits of its offset.
    pub sequence: u32,
    /// Price of an offset into the dictionary.
    pub offset: u32,
}

impl MatchModel {
    /// The model of a level of zstd.
    pub fn of_level(level: i32) -> Self {
        // Fast levels look up eight bytes, and five at every third place only. Of 4 to 8 bytes, 6 gave the smallest
        // held-out records at level 3, and 5 at level 19.
        let min_match = if level < 6 { 6 } else { 5 };
        Self { min_match, depth: 32, literal: 88, sequence: 100, offset: 240 }
    }
}

/// Savings by byte of a pool, and how often each byte was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// What each byte saved, in parts of a bit ([`SAVED_PER_BIT`]).
    pub saved: Vec<u64>,
    /// Matches that used each byte.
    pub uses: Vec<u32>,
    /// How often the first match of a sample had an offset, counted from the end of the pool; in order of offsets.
    pub first_offsets: Vec<(u32, u32)>,
}

impl Usage {
    /// No use of a pool of this length.
    pub fn none(pool_len: usize) -> Self {
        Self { saved: vec![0; pool_len], uses: vec![0; pool_len], first_offsets: Vec::new() }
    }

    /// Adds what other samples saved with the same pool.
    ///
    /// # Panics
    /// When the pools have different lengths.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.saved.len(), other.saved.len());
        for (sum, more) in self.saved.iter_mut().zip(&other.saved) {
            *sum += more;
        }
        for (sum, more) in self.uses.iter_mut().zip(&other.uses) {
            *sum = sum.saturating_add(*more);
        }
        self.first_offsets.extend_from_slice(&other.first_offsets);
        merge_counts(&mut self.first_offsets);
    }

    /// All that was saved, in bits.
    pub fn saved_bits(&self) -> u64 {
        self.saved.iter().sum::<u64>() / SAVED_PER_BIT
    }
}

/// Collects matches as differences between neighbouring bytes; one sum at the end makes them savings by byte.
struct Credits {
    pool_len: usize,
    saved: Vec<i64>,
    uses: Vec<i32>,
    first_offsets: Vec<(u32, u32)>,
}

impl Credits {
    fn new(pool_len: usize) -> Self {
        Self {
            pool_len,
            saved: vec![0; pool_len + 1],
            uses: vec![0; pool_len + 1],
            first_offsets: Vec::new(),
        }
    }

    /// A match of `len` bytes at a place of the pool saved so many sixteenths of a bit.
    fn add(&mut self, place: usize, len: usize, gain: u32) {
        let share = i64::from(gain) * 256 / i64::try_from(len.max(1)).unwrap_or(i64::MAX);
        self.saved[place] += share;
        self.saved[place + len] -= share;
        self.uses[place] += 1;
        self.uses[place + len] -= 1;
    }

    /// The first match of a sample lies so far back.
    fn add_first_offset(&mut self, offset: usize) {
        if let Ok(offset) = u32::try_from(offset) {
            self.first_offsets.push((offset, 1));
        }
    }

    fn finish(mut self) -> Usage {
        let mut usage = Usage::none(self.pool_len);
        let (mut sum, mut count) = (0i64, 0i32);
        for (place, (step, use_step)) in self.saved.iter().zip(&self.uses).take(self.pool_len).enumerate() {
            sum += step;
            count += use_step;
            usage.saved[place] = u64::try_from(sum).unwrap_or(0);
            usage.uses[place] = u32::try_from(count).unwrap_or(0);
        }
        merge_counts(&mut self.first_offsets);
        usage.first_offsets = self.first_offsets;
        usage
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
