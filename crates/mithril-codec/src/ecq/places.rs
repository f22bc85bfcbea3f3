//! Where the blocks of a matrix lie, for kernels that decode them elsewhere.

use super::decode::{Coded, Content};
use crate::CodecError;
use std::ops::Range;

/// What a block holds, by its places in the bytes of all blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockPlace {
    /// Symbols of four bits, from this byte on.
    Packed(usize),
    /// This symbol everywhere.
    Constant(u8),
    /// One stream of rANS8.
    Rans8 {
        /// Which table.
        table: usize,
        /// First byte of the states: 32 high bytes, 32 low ones.
        states_at: usize,
        /// Bytes of the stream, and up to three of padding.
        stream: Range<usize>,
    },
}

impl<'a> Coded<'a> {
    /// Where a block lies. Its symbols are not decoded, so they are not checked.
    ///
    /// # Errors
    /// When its header contradicts its length, or a state is below its least.
    pub fn place(&self, block_idx: usize) -> Result<BlockPlace, CodecError> {
        Ok(match self.block(block_idx)?.content {
            Content::Packed(packed) => {
                // Nothing but padding stands behind it: the block is as long as these and what fills its last unit.
                let end = self.bytes_of(block_idx..block_idx + 1).end;
                BlockPlace::Packed(end - packed.len().next_multiple_of(super::OFFSET_UNIT))
            }
            Content::Constant(symbol) => BlockPlace::Constant(symbol),
            Content::Rans8 { table, states, stream } => {
                if states[..states.len() / 2].contains(&0) {
                    return Err(CodecError::corrupt("a state of rANS8 below 256"));
                }
                BlockPlace::Rans8 { table, states_at: stream.start - states.len(), stream }
            }
        })
    }

    /// For every low byte of a state: symbol, rank, frequency; a table after the other.
    pub fn slots(&self) -> Vec<(u8, u8, u8)> {
        let of_table = |table: &crate::entropy::rans8::DecodeTable| {
            let table = *table;
            (0..=u8::MAX).map(move |slot| {
                let (symbol, rank) = table.symbol_and_rank(slot);
                (symbol, rank, table.freq[usize::from(symbol)])
            })
        };
        self.tables().iter().flat_map(of_table).collect()
    }

    /// The plane of low bits.
    pub fn low_plane(&self) -> &'a [u8] {
        self.low_rows(0..self.shape().rows())
    }
}
