//! What the codes of our quantiser stand for: levels, and scales of rows and columns.

use crate::Error;
use mithril_codec::quantised::Layout;
use mithril_format::ecq::{MatrixHeader, SideSum, damaged};

/// Levels and scales of a matrix, checked.
#[derive(Debug, Clone)]
pub(crate) struct Levels {
    /// The level of each code.
    pub(crate) values: Vec<i8>,
    /// One for all rows, or one for each.
    pub(crate) scales: Vec<f32>,
    /// One for each column, or nothing if all are 1.
    pub(crate) column_scales: Vec<f32>,
}

impl Levels {
    /// Checks what stands beside the codes of a matrix.
    ///
    /// # Errors
    /// When it is no matrix of levels, or they are damaged.
    pub(crate) fn read(
        name: &str,
        header: &MatrixHeader,
        levels: &[u8],
        scales: &[u8],
        column_scales: &[u8],
    ) -> Result<Self, Error> {
        let wrong = |reason: &str| Err(damaged(name, reason).into());
        if SideSum::of(&[levels, scales, column_scales]) != header.side_sum {
            return wrong("checksum of its levels and scales");
        }
        let (rows, columns) = (header.shape.rows(), header.shape.columns());
        let (scale_len, n_column_scales) = match header.layout {
            Layout::Levels => (4, 0),
            Layout::CrossLevels => (2, columns),
            _ => return wrong("it has no levels"),
        };
        let n_scales = scales.len() / scale_len;
        let fits = levels.len() == 1 << header.bits
            && (n_scales == 1 || n_scales == rows)
            && scales.len() == scale_len * n_scales
            && column_scales.len() == scale_len * n_column_scales;
        if !fits {
            return wrong("number of its levels or scales");
        }
        let values = levels.iter().map(|level| level.cast_signed()).collect();
        let (scales, column_scales) = (floats(scale_len, scales), floats(scale_len, column_scales));
        let is_number = |scale: &f32| scale.is_finite();
        // Products with 8-bit activations divide by those of columns.
        let is_factor = |scale: &f32| scale.is_normal() && *scale > 0.0;
        if !scales.iter().all(is_number) || !column_scales.iter().all(is_factor) {
            return wrong("a scale that is no number");
        }
        Ok(Self { values, scales, column_scales })
    }

    /// The scale of a row.
    pub(crate) fn scale(&self, row: usize) -> f32 {
        self.scales.get(row).or(self.scales.first()).copied().unwrap_or(0.0)
    }

    /// The weights of a row, or of its first columns.
    pub(crate) fn weights(&self, row: usize, codes: &[u8], out: &mut [f32]) {
        let scale = self.scale(row);
        let level = |code: &u8| f32::from(self.values[usize::from(*code)]);
        if self.column_scales.is_empty() {
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = scale * level(code));
        } else {
            for ((out, code), column) in out.iter_mut().zip(codes).zip(&self.column_scales) {
                *out = scale * column * level(code);
            }
        }
    }
}

/// Singles, or bf16 numbers as singles.
fn floats(len: usize, bytes: &[u8]) -> Vec<f32> {
    if len == 2 {
        let one = |&[low, high]: &[u8; 2]| f32::from_le_bytes([0, 0, low, high]);
        return bytes.as_chunks().0.iter().map(one).collect();
    }
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
