//! Quantising a model for entropy coding: lossy, only when asked for, and always with its error.
//!
//! A target for the whole model, a size or an error, is met by one number: the step of every tensor in units of its own
//! standard deviation. Steps in that proportion make all relative errors equal, which is what water-filling gives for the
//! mean relative error. Sensitivities, or second moments of the inputs of each layer, shift it.
//!
//! For a target of error, a tensor has one step: that is best for its weights. For a target of size, from 2.5 bits on, the
//! rows and columns of a layer have steps of their own, at 16 bits each: rows in proportion to their deviation, as an equal
//! relative error of every output is better for the model, and columns to the root of theirs, as inputs of small weights
//! tend to be large. Tables of embeddings and small matrices have one step.
//!
//! What does not fit the rule is told by name. A tensor with NaN or infinite weights, with none but zeros, or of which more
//! than 1 in 32 weights are beyond the levels, stays as it is. A weight more than 128 times as large as 31 in 32 others is
//! an outlier: it is kept as an escape, and counts neither for the step nor in the error that is told.
//!
//! ```no_run
//! use mithril::convert::{OutputDirectory, Repository};
//! use mithril::quantize::{QuantizeOptions, Target, quantize};
//! use std::path::Path;
//! let repository = Repository::open(Path::new("model"))?;
//! let output = OutputDirectory::create(Path::new("model-ecq"), false)?;
//! let report = quantize(&repository, output, &QuantizeOptions::new(Target::BitsPerWeight(3.75)), &|_| ())?;
//! println!("{:.2} dB at {:.3} bits", report.snr_db, report.bits_per_weight);
//! # Ok::<(), mithril::Error>(())
//! ```

mod allocate;
mod dequantize;
mod report;
mod weights;
mod write;

pub use dequantize::{DequantizeSummary, dequantize};
pub use mithril_codec::quantize::Grid;
pub use mithril_codec::quantize::reference::Reference;
pub use report::{QuantizeReport, ReferenceReport, TensorOutcome, TensorReport};
pub use write::quantize;

use crate::Error;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What the whole model shall come to.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Target {
    /// Bits per quantised weight, everything included.
    BitsPerWeight(f64),
    /// Decibels of weights over error: ten times the logarithm of one over the mean relative squared error.
    SnrDb(f64),
    /// The error of a format of MLX on the same weights.
    Like(Reference),
}

/// How a model is quantised.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// What to reach.
    pub target: Target,
    /// Tensors whose name contains one of these stay as they are.
    pub keep: Vec<String>,
    /// How much the error of a tensor counts, by name; 1 where none is given.
    pub sensitivities: BTreeMap<String, f64>,
    /// A safetensors file with the mean square of every input of a layer, under the name of its weight.
    pub calibration: Option<PathBuf>,
    /// Threads; 0 is one per core. The bytes do not depend on it.
    pub threads: usize,
}

impl QuantizeOptions {
    /// The defaults for a target.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self { target, keep: Vec::new(), sensitivities: BTreeMap::new(), calibration: None, threads: 0 }
    }

    /// Looks at what does not depend on a model.
    ///
    /// # Errors
    /// `InvalidArgument` when a number is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        let (value, is_sound) = match self.target {
            Target::BitsPerWeight(bits) => (bits, bits > 0.0 && bits <= 9.0),
            Target::SnrDb(snr_db) => (snr_db, snr_db > 0.0 && snr_db <= 60.0),
            Target::Like(_) => (0.0, true),
        };
        if !is_sound {
            return Err(Error::invalid(format!(
                "a target of {value} is neither up to 9 bits nor up to 60 dB"
            )));
        }
        if let Some((name, value)) =
            self.sensitivities.iter().find(|(_, value)| !(1e-6..=1e6).contains(*value))
        {
            return Err(Error::invalid(format!("sensitivity {value} of `{name}` is not from 1e-6 to 1e6")));
        }
        Ok(())
    }
}
