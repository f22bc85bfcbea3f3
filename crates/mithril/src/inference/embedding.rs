//! An embedding whose table stays coded.

use super::EntropyCodedLinear;
use crate::Error;

/// Rows of a coded matrix, looked up by number.
#[derive(Debug, Clone)]
pub struct EntropyCodedEmbedding(EntropyCodedLinear);

impl EntropyCodedEmbedding {
    /// An embedding over the weights of a layer.
    #[must_use]
    pub fn new(table: EntropyCodedLinear) -> Self {
        Self(table)
    }

    /// The table as a layer: its product with a vector, where an output shares it.
    #[must_use]
    pub fn as_linear(&self) -> &EntropyCodedLinear {
        &self.0
    }

    /// The rows of these numbers, one behind the other. Only the blocks that hold them are decoded.
    ///
    /// # Errors
    /// When a number has no row.
    pub fn look_up(&self, numbers: &[usize]) -> Result<Vec<f32>, Error> {
        let mut rows = Vec::with_capacity(numbers.len() * self.0.columns());
        for &number in numbers {
            if number >= self.0.rows() {
                return Err(Error::invalid(format!("no row {number}: there are {}", self.0.rows())));
            }
            rows.extend(self.0.decode_rows(number..number + 1)?);
        }
        Ok(rows)
    }
}
