//! Whole model files to containers, and back byte for byte.
//!
//! A file is a list of tensors; what belongs to none of them, such as its header, is glue. [`pack`] codes each tensor
//! as the cheapest of: a reference to an equal tensor before it, a copy or a delta of a base, the rounding of a wider
//! tensor of the same file, or a frame of its own. [`unpack`] puts tensors and glue together again.
//!
//! Both read, code and write at the same time, with memory that does not grow with the file.

mod bases;
mod delta_stream;
mod file;
mod framed;
mod layout;
mod options;
mod raw;
mod tensor;
mod twins;
mod unpack;
mod write;

pub use file::{Source, pack_file, unpack_file};
pub use framed::{is_framed, pack_framed, unpack_framed};
pub use options::{PackOptions, PackSummary, PackedTensor};
pub use unpack::{UnpackSummary, check, unpack};
pub use write::pack;

/// Raw bytes of the tensors that are coded in memory as a whole. Larger ones are coded as streams.
const IN_MEMORY_LEN: u64 = 64 << 20;

/// The same at `fast` without a base, where nothing is gained by having a tensor as a whole, and fresh pages for it
/// cost more than coding it. A stream of this length gives the same frame as the whole.
const FAST_IN_MEMORY_LEN: u64 = 8 << 20;

/// Tensors and frames up to this length are read ahead. Fresh pages cost as much as coding them, so buffers are few and
/// small enough to be used again and again.
const READ_AHEAD_LEN: u64 = 4 << 20;

/// Buffers that may wait between two stages.
const QUEUE_LEN: usize = 2;

/// Told how many more raw bytes are done.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// How this program signs what it writes.
pub(crate) fn writer_name() -> String {
    concat!("mithril ", env!("CARGO_PKG_VERSION")).to_owned()
}
