//! A container (`.mckp`): many named tensors, what is known about them, and where each one is.
//!
//! ```text
//! prologue  magic, version, alignment, flags, lengths, checksum
//! header    JSON, compressed: what the file was, how it was compressed, its bases, the user's metadata
//! entry*    record (number, kind, name, checksum), zeros up to the alignment, frame
//! index     compressed: name, dtype, shape and content of every entry
//! footer    where the index is, digest, checksum, magic
//! ```
//! A writer needs to know nothing in advance, so containers stream. A reader starts at the end: footer, index, then
//! the frames it wants. Frames lie one behind the other with nothing but their records between them, so positions
//! follow from the lengths in the index and cannot overlap. The records repeat what salvage needs when the index is
//! lost. Specified in `docs/format/container.md`.

mod entry;
mod footer;
mod header;
mod number;
mod prologue;
mod read;
mod record;
mod scan;
pub mod section;
mod write;

pub use entry::{Content, Entry, EntryKind, Rounding, Step, is_tensor_name};
pub use footer::Footer;
pub use header::{BaseHint, Compression, Header, Original, PackedFile};
pub use prologue::Prologue;
pub use read::{Directory, StoredFrame};
pub use record::Record;
pub use scan::{Found, read_front, scan};
pub use write::{ContainerWriter, Finished, FrameWriter};
