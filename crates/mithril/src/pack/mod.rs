//! Whole model files to containers, and back byte for byte.
//!
//! A file is a list of tensors; what belongs to none of them, such as its header, is glue. [`pack`] codes each tensor
//! as the cheapest of: a reference to an equal tensor before it, a copy or a delta of a base, the rounding of a wider
//! tensor of the same file, or a frame of its own. [`unpack`] puts tensors and glue together again.
//!
//! Both read, code and write at the same time, with memory that does not grow with the file.

mod assumed;
mod bases;
mod budget;
mod decide;
mod delta_stream;
mod expect;
mod feed;
mod file;
mod framed;
mod layout;
mod moment_finder;
mod moments;
mod options;
mod raw;
mod restore;
mod tensor;
mod twins;
mod unpack;
mod window;
mod write;

pub(crate) use budget::{DeltaBudget, Expected};
pub(crate) use expect::{ExpectedSize, expected_sizes};
pub use file::{Source, pack_file, unpack_file};
pub use framed::{framed_len, is_framed, pack_framed, unpack_framed};
pub(crate) use layout::can_be_an_entry;
pub use options::{PackOptions, PackSummary, PackedTensor};
pub use unpack::{UnpackSummary, check, unpack};
pub use write::pack;

/// Raw bytes that are read, coded and written together: so few that they stay in the cache from one step to the next,
/// and so many that handing them over costs nothing.
const BATCH_LEN: u64 = 512 << 10;

/// Told how many more raw bytes are done.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// How this program signs what it writes.
pub(crate) fn writer_name() -> String {
    concat!("mithril ", env!("CARGO_PKG_VERSION")).to_owned()
}
