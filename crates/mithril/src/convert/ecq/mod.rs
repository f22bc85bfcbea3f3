//! Quantised models with entropy-coded weights: MLX repositories, GGUF files, and common PyTorch packings.
//!
//! Codes, scales and biases are coded apart, and the original files come back byte for byte.
//!
//! * [`encode`] codes the files of a model; [`decode`] gives them back; [`verify`] checks one.
//! * [`EcqFile`] opens a coded file: matrices and rows of them are read alone.
//!
//! ```no_run
//! use mithril::convert::{OutputDirectory, ecq};
//! use std::path::Path;
//! let output = OutputDirectory::create(Path::new("model-4bit-ecq"), false)?;
//! let summary = ecq::encode(Path::new("model-4bit"), output, 0, &|_| ())?;
//! println!("{} -> {} bytes", summary.raw_len, summary.coded_len);
//! # Ok::<(), mithril::Error>(())
//! ```

mod decode;
mod directory;
mod encode;
mod file;
mod find;
pub(crate) mod levels;
pub(crate) mod matrix;
mod originals;
mod restore;
pub(crate) mod spool;
mod verify;

pub use decode::{DecodeSummary, decode};
pub use encode::{EncodeSummary, EncodedTensor, Outcome, encode};
pub use file::{EcqFile, MatrixParts};
pub use matrix::{MatrixPlan, NewPart, matrix_parts};
pub use mithril_codec::ecq::{Coded, Coding, Escape, Parts, Shape, low_bits};
pub use mithril_codec::quantised::{Layout, Side, bit_packing, gguf, zero_codes};
pub use mithril_format::ecq::{MatrixHeader, SideSum, SourceFormat};
pub use originals::Originals;
pub use verify::{Verified, verify};

/// Originals of files that an entropy-coded directory has in another form.
const ORIGINALS: &str = "ecq_source";
