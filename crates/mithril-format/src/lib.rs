//! Frames of mithril: coded blocks laid out, and read back safely from untrusted bytes.
//!
//! * [`container`]: many named tensors with an index, of which any can be read alone.
//! * [`frame`]: one buffer or tensor, self-describing, in blocks that decode alone.
//! * [`source`]: the tensors of a foreign file, whatever its layout; [`safetensors`], [`npy`], [`npz`], [`pt`] and
//!   [`gguf`]: one layout each.
//! * [`df11`]: DFloat11 modules as tensors; [`ecq`]: entropy-coded matrices as tensors; [`safetensors_layout`]: new safetensors files.
//! * [`limits`]: what a file may claim.
//! * [`forever`]: numbers that never change.
//!
//! This crate records decisions and takes none: how to compress is decided in `mithril`. The layouts are specified
//! in `docs/format/`.

mod checked_reader;
pub mod container;
pub mod df11;
mod digest;
pub mod ecq;
mod error;
pub mod forever;
pub mod frame;
pub mod framed_safetensors;
pub mod gguf;
pub mod limits;
mod name_table;
pub mod npy;
pub mod npz;
pub mod onnx;
pub mod pt;
mod read_at;
pub mod safetensors;
pub mod safetensors_layout;
pub mod source;
mod tensor_info;
mod zip;

pub use digest::{Digest, Digester};
pub use error::{FormatError, ReadError};
pub use name_table::NameTable;
pub use read_at::{Fetched, ReadAt};
pub use tensor_info::TensorInfo;
