//! Containers: whole models with an index, of which any tensor or part of one is read alone.
//!
//! [`Reader`] opens one from a file, a buffer, or anything that implements [`ReadAt`](crate::ReadAt). Tensors that are
//! stored against a base model need that model: [`Bases`] holds those that are at hand, and each tensor is found in
//! them by the digest of its bytes, never by trust.
//!
//! ```no_run
//! use mithril::container::{Bases, Reader};
//! let file = std::fs::File::open("model.safetensors.mckp").unwrap();
//! let reader = Reader::open(file)?;
//! let tensor = reader.find("encoder.layer.0.weight")?;
//! let bytes = reader.read(tensor, &Bases::none())?; // reads this tensor's frame, and nothing else
//! # Ok::<(), mithril::Error>(())
//! ```

mod bases;
mod export;
mod frame_source;
mod lineage;
mod model;
mod needs;
mod open;
mod read_many;
mod reader;
mod round;
mod running_sum;
mod safetensors_head;
mod salvage;
pub(crate) mod step;
mod verify;

pub use bases::Bases;
pub(crate) use lineage::{Lineage, SharedReader};
pub use mithril_format::container::{
    BaseHint, Compression, Content, Entry, EntryKind, Header, Original, PackedFile, Rounding, Step,
    is_tensor_name,
};
pub use model::{Model, ModelTensor};
pub(crate) use needs::digest_of;
pub use open::SUFFIX;
pub(crate) use open::is_model;
pub(crate) use read_many::{Follower, Wanted, read_many};
pub use reader::{OpenTensor, Reader};
pub(crate) use round::{is_rounding_of, round_to};
pub(crate) use running_sum::{RunningSum, check_sum};
pub use salvage::{Damage, Lost, Salvage};
pub use verify::{Depth, Verification};
