//! What the predictions of a tensor are made of, and its blocks cut into tiles.

use super::tile::{Sums, TILE, Tile};
use super::{Format, LowRank};
use crate::CodecError;

/// Rows whose sums of low rank are made at a time: factors of some columns then serve all of them from the cache.
const ROWS: usize = 8;

/// How the numbers of a tensor are predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct Predictor {
    /// Type of the numbers.
    pub format: Format,
    /// Whether the prediction starts from the base; else from zero.
    pub from_base: bool,
    /// What the base is multiplied by.
    pub decay: Option<f32>,
    /// Scale of the whole tensor, in half octaves of a number's bits.
    pub scale: i16,
    /// The tensor as a matrix, if rows and columns differ.
    pub matrix: Option<Matrix>,
}

/// What is known of the rows and columns of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// Elements of a row.
    pub row_len: usize,
    /// Rows; listed only with scales of rows or a low rank.
    pub n_rows: usize,
    /// Half octaves that each row adds to the scale; empty for none.
    pub row_scales: Vec<u8>,
    /// Half octaves that each column adds to the scale; empty for none.
    pub column_scales: Vec<u8>,
    /// A matrix of low rank that is added to the base.
    pub low_rank: Option<LowRank>,
}

impl Predictor {
    /// Hands out the `n` elements from number `first` on in tiles, each with the number of its first element among them.
    ///
    /// # Errors
    /// When they are not whole rows that there are, or need a base that is missing or shorter.
    pub(super) fn tiles(
        &self,
        first: usize,
        n: usize,
        base: Option<&[u8]>,
        sums: &mut Vec<i32>,
        mut work: impl FnMut(usize, &Tile<'_>),
    ) -> Result<(), CodecError> {
        let width = self.format.width();
        let base = match base {
            _ if !self.from_base => None,
            Some(base) if base.len() >= n * width => Some(base),
            _ => return Err(CodecError::corrupt("block that needs a base without one")),
        };
        let (row_len, first_row) = self.rows(first, n)?;
        let matrix = self.matrix.as_ref();
        let low_rank = matrix.and_then(|matrix| matrix.low_rank.as_ref());
        let column_scales = matrix.map_or(&[][..], |matrix| &matrix.column_scales);
        for start in (0..n).step_by(row_len.saturating_mul(ROWS)) {
            let rows = first_row + start / row_len
                ..first_row + row_len.saturating_mul(ROWS).saturating_add(start).min(n) / row_len;
            if let Some(low_rank) = low_rank {
                low_rank.sum_rows(rows.clone(), sums);
            }
            for (at, row) in (start..).step_by(row_len).zip(rows) {
                let row_scale = matrix.and_then(|matrix| matrix.row_scales.get(row)).copied().unwrap_or(0);
                let sums = sums.get(at - start..).unwrap_or_default();
                for column in (0..row_len).step_by(TILE) {
                    let len = TILE.min(row_len - column);
                    let tile = Tile {
                        format: self.format,
                        len,
                        base: base.map_or(&[], |base| &base[(at + column) * width..][..len * width]),
                        decay: self.decay,
                        low_rank: low_rank.map(|low_rank| Sums {
                            sums: &sums[column..][..len],
                            exponent: low_rank.exponent_of_row(row),
                            column_shifts: &low_rank.column_shifts[column..][..len],
                        }),
                        scale: self.scale + i16::from(row_scale),
                        column_scales: column_scales.get(column..column + len).unwrap_or_default(),
                    };
                    work(at + column, &tile);
                }
            }
        }
        Ok(())
    }

    /// The length of a row, which is not zero, and the number of the first of these elements. Without a matrix, all of
    /// them are one row.
    fn rows(&self, first: usize, n: usize) -> Result<(usize, usize), CodecError> {
        let Some(matrix) = &self.matrix else { return Ok((n.max(1), 0)) };
        let row_len = matrix.row_len;
        let first_row = first / row_len;
        if !first.is_multiple_of(row_len) || !n.is_multiple_of(row_len) {
            return Err(CodecError::corrupt("predicted block that does not hold whole rows"));
        }
        if matrix.is_listed() && first_row + n / row_len > matrix.n_rows {
            return Err(CodecError::corrupt("predicted block with more rows than there are"));
        }
        Ok((row_len, first_row))
    }
}

impl Matrix {
    /// Whether something is known of each row.
    pub(super) fn is_listed(&self) -> bool {
        !self.row_scales.is_empty() || self.low_rank.is_some()
    }
}
