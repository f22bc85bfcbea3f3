//! Samples side by side in one buffer.

use std::ops::Range;

/// Records to learn from: one buffer, and where each record ends in it.
#[derive(Debug, Clone, Copy)]
pub struct Samples<'a> {
    bytes: &'a [u8],
    ends: &'a [usize],
}

impl<'a> Samples<'a> {
    /// Samples that lie side by side from the start of `bytes`; `ends` says where each ends. Nothing when the ends
    /// fall back or leave the buffer, or when there are 2^32 or more.
    pub fn new(bytes: &'a [u8], ends: &'a [usize]) -> Option<Self> {
        let ordered = ends.is_sorted() && ends.last().is_none_or(|&end| end <= bytes.len());
        (ordered && u32::try_from(ends.len()).is_ok()).then_some(Self { bytes, ends })
    }

    /// How many there are.
    pub fn n_samples(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all of them.
    pub fn total_len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Where a sample lies in the buffer.
    ///
    /// # Panics
    /// When there is no such sample.
    pub fn range(&self, sample_idx: usize) -> Range<usize> {
        let start = if sample_idx == 0 { 0 } else { self.ends[sample_idx - 1] };
        start..self.ends[sample_idx]
    }

    /// The bytes of a sample.
    ///
    /// # Panics
    /// When there is no such sample.
    pub fn get(&self, sample_idx: usize) -> &'a [u8] {
        &self.bytes[self.range(sample_idx)]
    }

    /// The buffer with all samples.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// All samples in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let samples = *self;
        (0..samples.n_samples()).map(move |sample_idx| samples.get(sample_idx))
    }

    /// The sample that holds a byte of the buffer; for a byte between samples that have no bytes, the last of them.
    pub(crate) fn sample_at(&self, offset: usize) -> usize {
        self.ends.partition_point(|&end| end <= offset)
    }
}
