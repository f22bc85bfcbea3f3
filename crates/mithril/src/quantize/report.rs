//! What a quantised model has lost, and what it takes.

use mithril_codec::quantize::Grid;

/// What came of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QuantizeReport {
    /// All matrices of floats: first those that no step fits, then the others, in the order of their files.
    pub tensors: Vec<TensorReport>,
    /// Bits per quantised weight, everything included.
    pub bits_per_weight: f64,
    /// Weights over error, in decibels. Outliers, which are kept as they are, count as neither.
    pub snr_db: f64,
    /// What formats of MLX make of the same weights.
    pub references: Vec<ReferenceReport>,
    /// Bytes of all tensors before.
    pub raw_len: u64,
    /// Bytes of the file after.
    pub coded_len: u64,
    /// Tensors that are no matrices of floats, or too small.
    pub n_copied: usize,
}

/// What came of a matrix.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Its weights.
    pub n_weights: u64,
    /// What happened.
    pub outcome: TensorOutcome,
}

/// What happened to a matrix.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TensorOutcome {
    /// It is quantised.
    Quantised {
        /// Its levels.
        grid: Grid,
        /// Bits per weight, everything included.
        bits_per_weight: f64,
        /// Weights over error, in decibels.
        snr_db: f64,
        /// Weights that are kept beside the levels.
        n_escapes: u64,
    },
    /// It stays as it was.
    Kept(&'static str),
}

/// What a format of MLX makes of the same weights.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReferenceReport {
    /// Its name.
    pub name: String,
    /// Bits per weight that it stores.
    pub bits_per_weight: f64,
    /// Weights over error, in decibels, measured on a sample.
    pub snr_db: f64,
}

/// Decibels of a mean relative squared error. Weights without error have 200.
pub(super) fn decibels(relative_error: f64) -> f64 {
    -10.0 * relative_error.max(1e-20).log10()
}
