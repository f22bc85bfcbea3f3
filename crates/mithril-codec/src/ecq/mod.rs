//! Entropy-coded matrices: symbols of at most four bits in rANS8, the bits below them as they are.
//!
//! One layout serves quantised codes (affine, mx, nv, GGUF), the levels of our own quantiser, and bf16 weights whose
//! exponents are coded. A matrix is cut into blocks of whole rows; a block decodes by its own bytes, its tensor's
//! tables and nothing else, so any rows can be read alone and any number of threads gives the same bytes. See
//! `docs/format/ecq.md`.
//!
//! ```text
//! symbol i of a block: lane i mod 32 of one rANS8 stream, rows padded to a multiple of 64 symbols
//! low bits:            a plane of its own with a fixed place for every row
//! escapes:             (position, value) of weights that no code stands for
//! ```
//!
//! * [`Shape`]: how a matrix is cut.
//! * [`encode()`] and [`Coded`]: blocks written and read.
//! * [`low_bits`]: the plane below the symbols; [`gemv`]: products with a vector.
//! * [`BlockPlace`]: where blocks lie, for kernels elsewhere.

mod decode;
mod encode;
pub mod gemv;
pub mod low_bits;
mod places;
mod shape;
#[cfg(test)]
mod tests;

pub use decode::{Coded, Parts};
pub use encode::{Coding, Encoded, encode};
pub use places::BlockPlace;
pub use shape::Shape;

/// Bytes in front of the first block of a matrix, which the format layer fills.
pub const HEADER_LEN: usize = 64;

/// Symbols that a block has room for, unless one row has more.
pub const BLOCK_SYMBOLS: usize = 32768;

/// Tables that the blocks of a matrix choose from, at most.
pub const MAX_TABLES: usize = 16;

/// Bytes in front of a block's content: kind, table or symbol, escapes, checksum.
const BLOCK_HEADER_LEN: usize = 8;

/// Offsets of blocks count units of so many bytes.
const OFFSET_UNIT: usize = 4;

/// Bytes of an escape: its position in the block, its value.
const ESCAPE_LEN: usize = 8;

/// Kinds of block.
mod kind {
    pub(super) const PACKED: u8 = 0;
    pub(super) const CONSTANT: u8 = 1;
    pub(super) const RANS8: u8 = 2;
}

/// A weight that no code stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Escape {
    /// Its row.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// What it is.
    pub value: f32,
}

/// The sum of a block: its symbols with their padding, its low bits, its escapes.
fn block_sum(symbols: &[u8], low_bits: &[u8], escapes: &[u8]) -> u32 {
    let mut sum = crate::Checksummer::default();
    sum.update(symbols);
    sum.update(low_bits);
    sum.update(escapes);
    let sum = sum.finish();
    u32::try_from(sum >> 32 ^ sum & 0xffff_ffff).unwrap_or(0)
}
