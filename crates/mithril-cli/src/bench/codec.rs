//! What can be measured: anything that makes bytes smaller and gives them back.

use crate::input::Piece;
use mithril::{DecodeOptions, Effort, FrameOptions};

/// A compressor under test. It may keep buffers between calls; errors are for the user to read.
pub(crate) trait Codec {
    /// Bytes that a piece can take at most.
    fn bound(&self, piece_idx: usize, source_len: usize) -> usize;

    /// Compresses a piece to the front of `out`; returns the length.
    fn encode(&mut self, piece_idx: usize, source: &[u8], out: &mut [u8]) -> Result<usize, String>;

    /// Restores a piece into exactly `out`.
    fn decode(&mut self, coded: &[u8], out: &mut [u8]) -> Result<(), String>;
}

/// Our own frames: one per tensor.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Options of every piece.
    encode: Vec<FrameOptions>,
    decode: DecodeOptions,
}

impl Frames {
    /// Frames of these pieces.
    pub(crate) fn new(pieces: &[Piece], effort: Effort, threads: usize, checksum: bool) -> Self {
        let options =
            |piece: &Piece| piece.options().with_effort(effort).with_threads(threads).with_checksum(checksum);
        Self {
            encode: pieces.iter().map(options).collect(),
            decode: DecodeOptions::default().with_threads(threads),
        }
    }
}

impl Codec for Frames {
    fn bound(&self, piece_idx: usize, source_len: usize) -> usize {
        mithril::compress_bound(source_len, &self.encode[piece_idx])
    }

    fn encode(&mut self, piece_idx: usize, source: &[u8], out: &mut [u8]) -> Result<usize, String> {
        mithril::compress_into(source, &self.encode[piece_idx], out).map_err(|error| error.to_string())
    }

    fn decode(&mut self, coded: &[u8], out: &mut [u8]) -> Result<(), String> {
        mithril::decompress_into(coded, out, &self.decode).map_err(|error| error.to_string())
    }
}
