//! Stores of training checkpoints: chains of deltas that no crash can lose, on disk or in any object store.
//!
//! [`CheckpointCompressor`] is async, [`blocking::CheckpointCompressor`] the same for callers that block. A checkpoint is
//! saved under a key, against an earlier one if a key is given for it: tensors that did not change cost nothing, those
//! that did are stored as deltas where that is smaller. A store is a prefix with two kinds of objects:
//!
//! ```text
//! data/GENERATION.mckp   a container per save, never changed
//! manifests/KEY.json     what commits it: written last, only if there is none of this key
//! ```
//!
//! So a save that is killed leaves the store as it was; of two writers of a key one wins, and the other is told; what a
//! caller was told is safe, is safe. Layout and rules are specified in `docs/format/store.md`.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use mithril::checkpoint::{Checkpoint, CheckpointCompressor, CompressorConfig};
//! let storage = mithril::storage::open("local:///checkpoints/run7")?;
//! let compressor = CheckpointCompressor::new(CompressorConfig::default(), storage);
//! # let checkpoint = Checkpoint::new();
//! let meta = compressor.save(&checkpoint, "step_1000", Some("step_900")).await?;
//! println!("{} bytes, {:.1} times smaller", meta.compressed_size, meta.ratio);
//! let loaded = compressor.load("step_1000").await?;
//! # Ok(())
//! # }
//! ```

mod background;
pub mod blocking;
mod chain;
mod compressed;
mod compressor;
mod config;
mod error;
#[cfg(test)]
mod faults;
mod key;
mod let_go;
mod load;
mod manifest;
mod meta;
mod order;
mod original;
mod proof;
mod rebase;
mod remove;
mod save;
mod saved;
mod signature;
mod sources;
mod store;
mod tensors;
mod verify;

pub use background::{SaveHandle, SaveStatus};
pub use blocking::{Listing, SaveOptions};
pub use compressed::CompressedCheckpoint;
pub use compressor::CheckpointCompressor;
pub use config::{CompressorConfig, QuantizationConfig, Retention};
pub use error::CheckpointError;
pub use manifest::{DataObject, Manifest, Previous, StoredTensor};
pub use meta::{CheckpointMeta, KindTotal};
pub use proof::SaveCheck;
pub use remove::{GcOptions, GcReport};
pub use signature::CheckpointSignature;
pub use tensors::{Checkpoint, CheckpointView, Metadata, TensorData, TensorView};
pub use verify::{VerifyOptions, VerifyReport};
