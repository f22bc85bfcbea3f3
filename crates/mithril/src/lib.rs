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
//! # Data that does not fit in memory
//! [`Encoder`] and [`Decoder`] work over `Write` and `Read` with bounded memory.
//!
//! # Inside
//! [`plan`] decides, as data, what happens to a tensor; a pipeline runs the plan on several threads. The bytes do not
//! depend on the number of threads or on the CPU.

mod error;
mod frame;
mod options;
mod pipeline;
pub mod plan;
mod stream;

pub use error::{Error, ErrorKind};
pub use frame::{
    FrameInfo, compress, compress_bound, compress_into, decompress, decompress_into, decompress_range,
    decompress_with, inspect,
};
pub use mithril_codec::{CodecError, Dtype, block, checksum, entropy};
pub use mithril_format::frame::FrameHeader;
pub use mithril_format::{FormatError, npy, safetensors};
pub use options::{DecodeOptions, Effort, FrameOptions};
pub use stream::{Decoder, Encoder};
