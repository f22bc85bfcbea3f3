//! A frame: one buffer or tensor in blocks that decode alone.
//!
//! ```text
//! header    magic, version, flags, dtype, rank, block length, shared length, raw length, shape, shared, checksum
//! block*    coded length, raw length, checksum, coded bytes
//! end       a coded length of zero
//! trailer   coded length of every block, raw length, number of blocks, checksum, end magic
//! ```
//! A writer needs to know nothing in advance, so frames stream; a reader of a whole frame finds any block through
//! the trailer. Specified in `docs/format/frame.md`.

mod header;
mod layout;
mod read;
mod trailer;

pub use header::{BlockHeader, FrameHeader};
pub use layout::FrameLayout;
pub use read::{BlockEntry, FrameBlock, FrameView, Verify};
pub use trailer::Trailer;
