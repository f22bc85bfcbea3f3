//! Pieces of samples that compete for a place in a dictionary.

use super::{Samples, Segment};
use std::ops::Range;

/// Pieces side by side in one buffer; each knows the sample it was taken from.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

/// One piece of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The sample it was taken from, or [`NO_SAMPLE`].
    pub sample_idx: u32,
    /// Where it starts in the pool.
    pub start: usize,
    /// Where it ends in the pool.
    pub end: usize,
}

/// Stands for the sample of a piece that comes from somewhere else, such as an older dictionary.
pub const NO_SAMPLE: u32 = u32::MAX;

impl Piece {
    /// Where it lies in the pool.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

impl Pool {
    /// The pieces of these segments, in this order; a segment of several samples is a piece of each.
    pub fn from_segments(samples: &Samples<'_>, segments: &[Segment]) -> Self {
        let mut pool = Self::default();
        for segment in segments {
            let end = segment.range().end;
            let mut start = segment.start;
            while start < end {
                let sample_idx = samples.sample_at(start);
                let piece = start..samples.range(sample_idx).end.min(end);
                start = piece.end;
                pool.push(
                    u32::try_from(sample_idx).expect("samples are fewer than 2^32"),
                    &samples.bytes()[piece],
                );
            }
        }
        pool
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, sample_idx: u32, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.pieces.push(Piece { sample_idx, start, end: self.bytes.len() });
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The first pieces, as many bytes as fit; the last of them may be cut.
    #[must_use]
    pub fn front(&self, max_len: usize) -> Self {
        let mut pool = Self::default();
        for piece in &self.pieces {
            let len = piece.range().len().min(max_len - pool.len());
            if len > 0 {
                pool.push(piece.sample_idx, &self.bytes[piece.start..piece.start + len]);
            }
        }
        pool
    }

    /// A pool of parts of the pieces of this one: a piece's number and the part's range in this pool.
    pub fn parts(&self, parts: &[(usize, Range<usize>)]) -> Self {
        let mut pool = Self::default();
        for (piece_idx, range) in parts {
            pool.push(self.pieces[*piece_idx].sample_idx, &self.bytes[range.clone()]);
        }
        pool
    }
}
