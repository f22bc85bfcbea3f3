//! Predictions, scales and contexts of the elements of a block.

use super::low_rank::scaled;
use super::{Format, LOWEST, LowRank, N_CONTEXTS, Scratch};
use crate::CodecError;

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
    /// Sets predictions, scales and contexts of the `n` elements from number `first` on.
    pub(super) fn predict(
        &self,
        first: usize,
        n: usize,
        base: Option<&[u8]>,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        let base = match base {
            _ if !self.from_base => None,
            Some(base) if base.len() >= n * self.format.width() => Some(base),
            _ => return Err(CodecError::corrupt("block that needs a base without one")),
        };
        scratch.predicted.clear();
        scratch.predicted.resize(n, 0);
        scratch.scales.resize(n, 0);
        scratch.contexts.resize(n, 0);
        if let Some(base) = base {
            match self.format {
                Format::F32 => {
                    let words = base.as_chunks::<4>().0.iter().map(|x| u32::from_le_bytes(*x));
                    scratch.predicted.iter_mut().zip(words).for_each(|(p, x)| *p = x);
                }
                Format::Bf16 | Format::F16 => {
                    let words = base.as_chunks::<2>().0.iter().map(|x| u32::from(u16::from_le_bytes(*x)));
                    scratch.predicted.iter_mut().zip(words).for_each(|(p, x)| *p = x);
                }
            }
        }
        let Some(matrix) = &self.matrix else {
            self.adjust(&mut scratch.predicted, None);
            scratch.scales.fill(self.scale);
            self.set_contexts(scratch);
            return Ok(());
        };
        let row_len = matrix.row_len;
        let first_row = first / row_len;
        if !first.is_multiple_of(row_len) || !n.is_multiple_of(row_len) {
            return Err(CodecError::corrupt("predicted block that does not hold whole rows"));
        }
        if matrix.is_listed() && first_row + n / row_len > matrix.n_rows {
            return Err(CodecError::corrupt("predicted block with more rows than there are"));
        }
        scratch.sums.resize(row_len, 0);
        let rows = scratch.predicted.chunks_mut(row_len).zip(scratch.scales.chunks_mut(row_len));
        for (row, (predicted, scales)) in (first_row..).zip(rows) {
            if let Some(low_rank) = &matrix.low_rank {
                low_rank.sum_row(row, &mut scratch.sums);
                self.adjust(predicted, Some((low_rank, row, &scratch.sums)));
            } else {
                self.adjust(predicted, None);
            }
            let of_row = self.scale + matrix.row_scales.get(row).map_or(0, |&scale| i16::from(scale));
            if matrix.column_scales.is_empty() {
                scales.fill(of_row);
            } else {
                for (scale, &column) in scales.iter_mut().zip(&matrix.column_scales) {
                    *scale = of_row + i16::from(column);
                }
            }
        }
        self.set_contexts(scratch);
        Ok(())
    }

    /// Multiplies the base by its decay and adds a row of the matrix of low rank.
    fn adjust(&self, predicted: &mut [u32], low_rank: Option<(&LowRank, usize, &[i32])>) {
        if self.decay.is_none() && low_rank.is_none() {
            return;
        }
        let (shift, infinite) = match self.format {
            Format::Bf16 => (16, 0x7f80),
            Format::F16 => return,
            Format::F32 => (0, 0x7f80_0000),
        };
        let adjust = |bits: u32, added: f32| {
            let mut x = flushed(f32::from_bits(bits << shift));
            if let Some(decay) = self.decay {
                x = flushed(x * decay);
            }
            x = flushed(x + added);
            let sum = if shift == 0 { x.to_bits() } else { nearest_bf16(x) };
            if bits & infinite == infinite { bits } else { sum }
        };
        match low_rank {
            None => predicted.iter_mut().for_each(|p| *p = adjust(*p, 0.0)),
            Some((low_rank, row, sums)) => {
                let of_row = low_rank.exponent_of_row(row);
                let columns = sums.iter().zip(&low_rank.column_shifts);
                for (p, (&sum, &column)) in predicted.iter_mut().zip(columns) {
                    *p = adjust(*p, scaled(sum, of_row + i32::from(column)));
                }
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to 52")]
    fn set_contexts(&self, scratch: &mut Scratch) {
        const LAST: i32 = N_CONTEXTS as i32 - 1;
        let elements = scratch.predicted.iter().zip(&scratch.scales);
        for (context, (&p, &scale)) in scratch.contexts.iter_mut().zip(elements) {
            *context = (self.format.size(p) - i32::from(scale) + LOWEST).clamp(0, LAST) as u8;
        }
    }
}

impl Matrix {
    /// Whether something is known of each row.
    pub(super) fn is_listed(&self) -> bool {
        !self.row_scales.is_empty() || self.low_rank.is_some()
    }
}

/// Zero in place of a number below the normal ones: some processors are set to do so on their own.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

/// The nearest bf16, the even one of two.
#[inline(always)]
fn nearest_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7f80_0000 == 0x7f80_0000 { bits >> 16 } else { rounded }
}
