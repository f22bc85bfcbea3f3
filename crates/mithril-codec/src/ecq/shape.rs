//! How a matrix is cut into blocks of whole rows.

use super::BLOCK_SYMBOLS;
use crate::CodecError;
use std::ops::Range;

/// Rows, columns and blocks of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    rows: usize,
    columns: usize,
    rows_per_block: usize,
    low_bits: u8,
}

/// Symbols of one block that a file may claim.
const MAX_BLOCK_SYMBOLS: usize = 1 << 24;

/// Symbols of a matrix that a file may claim: a 32-bit offset of four bytes reaches behind them.
const MAX_SYMBOLS: usize = 1 << 34;

impl Shape {
    /// The shape of a matrix with so many bits below each symbol, in blocks of about [`BLOCK_SYMBOLS`].
    ///
    /// # Errors
    /// As [`Shape::of_blocks`].
    pub fn new(rows: usize, columns: usize, low_bits: u8) -> Result<Self, CodecError> {
        let padded = columns.checked_next_multiple_of(64).unwrap_or(usize::MAX).max(1);
        Self::of_blocks(rows, columns, (BLOCK_SYMBOLS / padded).max(1), low_bits)
    }

    /// The shape of a matrix in blocks of so many rows.
    ///
    /// # Errors
    /// `Corrupt` when a dimension is zero or too large, or low bits are not 0, 1, 2, 4 or 8.
    pub fn of_blocks(
        rows: usize,
        columns: usize,
        rows_per_block: usize,
        low_bits: u8,
    ) -> Result<Self, CodecError> {
        let corrupt = CodecError::corrupt("shape of an entropy-coded matrix");
        let padded = columns.checked_next_multiple_of(64).ok_or(corrupt.clone())?;
        let symbols = rows.checked_mul(padded).filter(|&n| n > 0 && n <= MAX_SYMBOLS);
        let of_block =
            rows_per_block.min(rows).checked_mul(padded).filter(|&n| n > 0 && n <= MAX_BLOCK_SYMBOLS);
        if symbols.is_none() || of_block.is_none() || !matches!(low_bits, 0 | 1 | 2 | 4 | 8) {
            return Err(corrupt);
        }
        Ok(Self { rows, columns, rows_per_block, low_bits })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns, without padding.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Rows of every block but the last.
    pub fn rows_per_block(&self) -> usize {
        self.rows_per_block
    }

    /// Bits below every symbol.
    pub fn low_bits(&self) -> u8 {
        self.low_bits
    }

    /// Symbols of a row, padding included.
    pub fn padded_columns(&self) -> usize {
        self.columns.next_multiple_of(64)
    }

    /// Bytes of a row in the plane of low bits.
    pub fn low_row_len(&self) -> usize {
        self.padded_columns() / 8 * usize::from(self.low_bits)
    }

    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.rows.div_ceil(self.rows_per_block)
    }

    /// The rows of a block.
    pub fn rows_of(&self, block_idx: usize) -> Range<usize> {
        let start = block_idx * self.rows_per_block;
        start..(start + self.rows_per_block).min(self.rows)
    }

    /// The blocks that hold some of these rows.
    pub fn blocks_of(&self, rows: Range<usize>) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        rows.start / self.rows_per_block..(rows.end - 1) / self.rows_per_block + 1
    }

    /// Symbols of a block, padding included.
    pub fn n_symbols(&self, block_idx: usize) -> usize {
        self.rows_of(block_idx).len() * self.padded_columns()
    }
}
