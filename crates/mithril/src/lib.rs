//! Lossless compression of neural-network weights at close to memory speed.
//!
//! # One buffer or tensor
//! [`compress`] makes a self-describing frame of a buffer, [`decompress`] gives it back bit for bit;
//! [`compress_into`] and [`decompress_into`] use the caller's buffers, [`decompress_range`] decodes only the blocks
//! that hold a range, [`inspect`] decodes nothing.
//!
//! ```
//! use mithril::{Dtype, Effort, FrameOptions};
//! # let bytes = vec![0u8; 1000];
//! let options = FrameOptions::default().with_dtype(Dtype::Bf16).with_effort(Effort::Balanced);
//! let frame = mithril::compress(&bytes, &options)?;
//! let back = mithril::decompress(&frame)?; // nothing else to know
//! # assert_eq!(back, bytes);
//! # Ok::<(), mithril::Error>(())
//! ```
//!
//! # A tensor and its base
//! [`compress_delta`] stores a tensor as what changed since its [`Base`], an earlier checkpoint or the model it was tuned
//! from; [`decompress_delta`] gives it back, [`apply_into`] patches a buffer that holds the base.
//!
//! # Data that does not fit in memory
//! [`Encoder`] and [`Decoder`] work over `Write` and `Read` with bounded memory.
//!
//! # Training checkpoints
//! [`checkpoint`] keeps the checkpoints of a run as chains of deltas that no crash can lose, on disk or in any object
//! store that [`storage`] reaches by URL.
//!
//! # Many small records
//! [`dictionary`] trains zstd dictionaries, and compresses records with them to standard zstd frames.
//!
//! # Quantised models
//! [`convert::ecq`] codes the weights of quantised models without loss; [`quantize`] quantises, with loss, for a size or an
//! error; [`inference`] multiplies with weights that stay coded in memory.
//!
//! # Inside
//! [`plan`] decides, as data, what happens to a tensor; a pipeline runs the plan on several threads. The bytes do not
//! depend on the number of threads or on the CPU.

mod atomic_file;
mod attributes;
pub mod checkpoint;
pub mod compare;
pub mod container;
pub mod convert;
mod delta;
mod describe;
pub mod dictionary;
mod error;
pub mod estimate;
mod files;
mod frame;
mod frame_writer;
pub mod inference;
mod options;
pub mod pack;
mod pipeline;
pub mod plan;
pub mod quantize;
pub mod repository;
pub mod room;
mod statistics;
pub mod storage;
mod stream;
mod temporary;
mod unchanged;

pub use atomic_file::AtomicFile;
pub use attributes::Attributes;
pub use delta::{
    Base, Stored, apply_into, apply_known_into, compress_delta, compress_delta_into, decompress_delta,
    decompress_delta_into,
};
pub use describe::{inspect_at, raw_len_at};
pub use error::{Error, ErrorKind};
pub use frame::{
    FrameInfo, compress, compress_bound, compress_into, decompress, decompress_into, decompress_range,
    decompress_with, inspect,
};
pub use mithril_codec::{CodecError, Dtype, block, checksum, entropy};
pub use mithril_format::forever::{CONTAINER_MAGIC, FRAME_MAGIC};
pub use mithril_format::frame::FrameHeader;
pub use mithril_format::{
    Digest, FormatError, ReadAt, framed_safetensors, npy, safetensors, safetensors_layout, source,
};
pub use options::{Coding, DecodeOptions, Effort, FrameOptions};
pub use statistics::{FieldEntropies, field_entropies};
pub use stream::{Decoder, Encoder};
pub use temporary::anonymous_file;
pub use unchanged::check_unchanged;
