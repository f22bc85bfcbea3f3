//! Whole repositories from one format of weights to another.
//!
//! [`Repository`] is a model as it lies on disk: a safetensors file, or a directory of them with everything that
//! belongs to it. [`df11`] makes a DFloat11 directory of one and gives the plain weights back;
//! [`ecq`] codes the weights of quantised models without loss, and gives the original files back.

pub mod df11;
mod directory;
pub mod ecq;
mod output;
pub(crate) mod repository;

pub use directory::open_directory;
pub use output::OutputDirectory;
pub use repository::{Repository, components, is_pipeline};

/// Told how many more bytes of weights are done.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// Bytes of a tensor that are read or written at a time.
pub(crate) const PIECE_LEN: usize = 1 << 18;

/// Bytes of coded modules that are in memory at the same time, besides the largest of them.
pub(crate) const MEMORY_LEN: u64 = 384 << 20;
