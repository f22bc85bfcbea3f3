//! Frames of mithril: coded blocks laid out, and read back safely from untrusted bytes.
//!
//! * [`frame`]: one buffer or tensor, self-describing, in blocks that decode alone.
//! * [`safetensors`] and [`npy`]: the headers of foreign files.
//! * [`limits`]: what a file may claim.
//! * [`forever`]: numbers that never change.
//!
//! This crate records decisions and takes none: how to compress is decided in `mithril`. The layouts are specified
//! in `docs/format/`.

mod error;
pub mod forever;
pub mod frame;
pub mod limits;
pub mod npy;
pub mod safetensors;

pub use error::FormatError;
