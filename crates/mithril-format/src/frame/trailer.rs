//! The end of a frame: where each block is, and how long everything was.

use super::header::{u32_at, u64_at};
use crate::FormatError;
use crate::forever::FRAME_END;
use mithril_codec::checksum;

/// Coded lengths of all blocks, and the raw length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trailer {
    /// Coded length of every block, without its header.
    pub coded_lens: Vec<u32>,
    /// Raw bytes of all blocks.
    pub raw_len: u64,
}

/// Raw length, number of blocks, checksum, magic.
const FIXED_LEN: usize = 24;

/// The marker that ends the blocks.
pub(super) const END_OF_BLOCKS: [u8; 4] = [0; 4];

impl Trailer {
    /// Bytes of the trailer of so many blocks, with the marker before it.
    pub fn len(n_blocks: usize) -> usize {
        END_OF_BLOCKS.len() + 4 * n_blocks + FIXED_LEN
    }

    /// Appends the marker and the trailer.
    ///
    /// # Panics
    /// When there are 2^32 blocks or more.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(END_OF_BLOCKS);
        let start = out.len();
        for len in &self.coded_lens {
            out.extend(len.to_le_bytes());
        }
        out.extend(self.raw_len.to_le_bytes());
        out.extend(u32::try_from(self.coded_lens.len()).expect("fewer than 2^32 blocks").to_le_bytes());
        let sum = checksum(&out[start..]);
        out.extend(sum.to_le_bytes());
        out.extend(FRAME_END);
    }

    /// Bytes of the trailer that ends with these bytes, with the marker before it.
    ///
    /// # Errors
    /// When they are not the end of a frame.
    pub fn len_at_end(last: &[u8]) -> Result<u64, FormatError> {
        match last.last_chunk::<FIXED_LEN>() {
            Some(fixed) if fixed[20..] == FRAME_END => {
                Ok((END_OF_BLOCKS.len() + FIXED_LEN) as u64 + 4 * u64::from(u32_at(fixed, 8)))
            }
            _ => Err(FormatError::Truncated { what: "frame trailer", offset: last.len() as u64 }),
        }
    }

    /// Reads the trailer at the end of a frame; returns it and where its marker starts.
    ///
    /// # Errors
    /// When it is cut off or damaged.
    pub fn parse_at_end(frame: &[u8]) -> Result<(Self, usize), FormatError> {
        let truncated =
            |offset: usize| FormatError::Truncated { what: "frame trailer", offset: offset as u64 };
        let fixed_at = frame.len().checked_sub(FIXED_LEN).ok_or(truncated(frame.len()))?;
        let fixed = &frame[fixed_at..];
        if fixed[20..] != FRAME_END {
            return Err(truncated(fixed_at));
        }
        let n_blocks = u32_at(fixed, 8) as usize;
        let start =
            n_blocks.checked_mul(4).and_then(|len| fixed_at.checked_sub(len)).ok_or(truncated(fixed_at))?;
        let (expected, actual) = (u64_at(fixed, 12), checksum(&frame[start..fixed_at + 12]));
        if expected != actual {
            return Err(FormatError::Checksum {
                what: "frame trailer",
                offset: start as u64,
                expected,
                actual,
            });
        }
        let marker = start.checked_sub(END_OF_BLOCKS.len()).ok_or(truncated(start))?;
        if frame[marker..start] != END_OF_BLOCKS {
            return Err(FormatError::Corrupt {
                what: "no end of blocks before the trailer",
                offset: marker as u64,
            });
        }
        let coded_lens = frame[start..fixed_at].chunks_exact(4).map(|len| u32_at(len, 0)).collect();
        Ok((Self { coded_lens, raw_len: u64_at(fixed, 0) }, marker))
    }
}
