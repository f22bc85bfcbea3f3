//! Entropy-coded matrices as tensors of a safetensors file.
//!
//! The matrix `NAME` is several tensors: `NAME.compressed` with a header of 64 bytes and the blocks,
//! `NAME.stream_offsets`, `NAME.freq`, `NAME.low_bits` where codes have more than four bits, and whatever scales the
//! codes. The header is the authority; `quantization` in the metadata of the file repeats it for people and loaders.
//! Specified in `docs/format/ecq.md`.

mod header;
mod metadata;

pub use header::{MatrixHeader, SideSum};
pub use metadata::{
    METADATA_KEY, QUANTIZATION_KEY, SOURCE_TENSOR, Source, SourceFormat, metadata, read_source,
};

use crate::FormatError;

/// What the blocks of a matrix are called, behind its name.
pub const COMPRESSED: &str = ".compressed";
/// What the offsets of blocks are called.
pub const STREAM_OFFSETS: &str = ".stream_offsets";
/// What the frequencies are called.
pub const FREQ: &str = ".freq";
/// What the plane of low bits is called.
pub const LOW_BITS: &str = ".low_bits";
/// What scales are called, of rows or of groups.
pub const SCALES: &str = ".scales";
/// What the scales of columns are called.
pub const COLUMN_SCALES: &str = ".column_scales";
/// What the biases of groups are called.
pub const BIASES: &str = ".biases";
/// What zero codes are called: biases as multiples of scales.
pub const ZERO_CODES: &str = ".zero_codes";
/// What the rest of biases behind zero codes is called.
pub const BIAS_RESIDUALS: &str = ".bias_residuals";
/// What the values of codes are called.
pub const LEVELS: &str = ".levels";
/// What a tensor is called that is kept as one frame.
pub const FRAME: &str = ".frame";

/// A fault of an entropy-coded file.
pub fn invalid(reason: impl Into<String>) -> FormatError {
    FormatError::Foreign { format: "entropy-coded", reason: reason.into() }
}

/// A fault of a matrix.
pub fn damaged(name: &str, reason: impl std::fmt::Display) -> FormatError {
    invalid(format!("matrix `{}`: {reason}", crate::tensor_info::shown(name)))
}
