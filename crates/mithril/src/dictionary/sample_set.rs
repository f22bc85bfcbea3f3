//! Samples in memory, with a bound: from more than fits, an even selection is kept.

use mithril_codec::dictionary::Samples;

/// Samples side by side in one buffer.
///
/// With a bound, it is a reservoir: when more bytes come than it may hold, every sample so far and to come stays with
/// the same probability. The choice depends on the order of the samples and on nothing else.
#[derive(Debug, Clone)]
pub struct SampleSet {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    max_len: usize,
    /// A sample is kept when its random number is below 2^64 shifted down by this.
    halvings: u32,
    random: Vec<u64>,
    n_seen: u64,
    seen_len: u64,
}

impl SampleSet {
    /// An empty set without a bound.
    pub fn new() -> Self {
        Self::with_max_len(usize::MAX)
    }

    /// An empty set that holds at most about so many bytes.
    pub fn with_max_len(max_len: usize) -> Self {
        Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            max_len,
            halvings: 0,
            random: Vec::new(),
            n_seen: 0,
            seen_len: 0,
        }
    }

    /// Adds a sample. Empty ones are counted and not kept.
    pub fn push(&mut self, sample: &[u8]) {
        self.n_seen += 1;
        self.seen_len += sample.len() as u64;
        let number = random(self.n_seen);
        if sample.is_empty() || !keeps(number, self.halvings) || sample.len() > self.max_len {
            return;
        }
        self.bytes.extend_from_slice(sample);
        self.ends.push(self.bytes.len());
        self.random.push(number);
        while self.bytes.len() > self.max_len {
            self.halve();
        }
    }

    /// The samples that are kept.
    pub fn samples(&self) -> Samples<'_> {
        Samples::new(&self.bytes, &self.ends).expect("ends rise and stay within the buffer")
    }

    /// The samples without a share of them, and that share. Which ones is chosen at random, the same each time: samples
    /// may take turns in kind, and then every other one is of one kind.
    pub fn set_apart(self, share: f64) -> (Self, Self) {
        let samples = self.samples();
        let mut order: Vec<usize> = (0..samples.n_samples()).collect();
        order.sort_by_key(|&sample_idx| random(sample_idx as u64));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most as many as there are"
        )]
        let n_apart = (order.len() as f64 * share.clamp(0.0, 1.0)).round() as usize;
        if n_apart == 0 {
            return (self, Self::new());
        }
        let mut is_apart = vec![false; order.len()];
        for &sample_idx in &order[..n_apart] {
            is_apart[sample_idx] = true;
        }
        let (mut rest, mut apart) = (Self::new(), Self::new());
        for (sample, is_apart) in samples.iter().zip(is_apart) {
            if is_apart { apart.push(sample) } else { rest.push(sample) }
        }
        (rest, apart)
    }

    /// How many samples were pushed, kept or not.
    pub fn n_seen(&self) -> u64 {
        self.n_seen
    }

    /// Bytes of all samples that were pushed.
    pub fn seen_len(&self) -> u64 {
        self.seen_len
    }

    /// Drops about half of the samples, in place.
    fn halve(&mut self) {
        self.halvings += 1;
        let (mut len, mut n_kept, mut start) = (0, 0, 0);
        for sample_idx in 0..self.ends.len() {
            let end = self.ends[sample_idx];
            if keeps(self.random[sample_idx], self.halvings) {
                self.bytes.copy_within(start..end, len);
                len += end - start;
                self.ends[n_kept] = len;
                self.random[n_kept] = self.random[sample_idx];
                n_kept += 1;
            }
            start = end;
        }
        self.bytes.truncate(len);
        self.ends.truncate(n_kept);
        self.random.truncate(n_kept);
    }
}

impl Default for SampleSet {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for SampleSet {
    fn from_iter<I: IntoIterator<Item = T>>(samples: I) -> Self {
        let mut set = Self::new();
        for sample in samples {
            set.push(sample.as_ref());
        }
        set
    }
}

fn keeps(number: u64, halvings: u32) -> bool {
    number.checked_shr(64 - halvings).unwrap_or(0) == 0 || halvings == 0
}

/// The random number of a sample: a hash of its place.
pub(super) fn random(place: u64) -> u64 {
    let mixed = place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_take_turns_are_on_both_sides() {
        let set: SampleSet = (0..6000u32).map(|number| number.to_le_bytes()).collect();
        for share in [0.0, 0.1, 0.2, 0.25, 0.5, 1.0] {
            let (rest, apart) = set.clone().set_apart(share);
            let n_apart = apart.samples().n_samples();
            assert_eq!(n_apart as f64, 6000.0 * share);
            assert_eq!(rest.samples().n_samples() + n_apart, 6000);
            for n_kinds in [2, 3, 4, 5, 10] {
                for kind in 0..n_kinds {
                    let is_kind =
                        |sample: &&[u8]| u32::from_le_bytes((*sample).try_into().unwrap()) % n_kinds == kind;
                    let n_chosen = apart.samples().iter().filter(is_kind).count();
                    let even = n_apart / n_kinds as usize;
                    assert!(n_chosen.abs_diff(even) <= even / 4, "{n_chosen} of {even}, {n_kinds} kinds");
                }
            }
        }
    }
}
