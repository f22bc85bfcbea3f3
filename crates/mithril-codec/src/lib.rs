//! Dtypes, transforms, entropy coders and SIMD kernels of mithril: an array of bytes in, fewer bytes out.
//!
//! This crate does no I/O, starts no thread and reads no clock: what comes out depends on what goes in. It is the
//! inner part of `mithril`, which most programs use instead.
//!
//! In reading order:
//! * [`Dtype`]: the number types and their bit fields.
//! * [`transform`]: reversible rearrangements.
//! * [`entropy`]: coders, from symbols to fewer bytes.
//! * [`Contexts`]: rows and columns in classes, a table for each.
//! * [`delta`]: elements as differences from those of a base.
//! * [`prediction`]: elements given a prediction and how far off it is likely to be.
//! * [`block`]: a [`block::Recipe`] applied to some elements, and undone.
//! * [`df11`]: DFloat11, weights for GPUs to decode.
//! * `dictionary`: zstd dictionaries for small records (feature `zstd`).
//! * [`ecq`]: entropy-coded matrices, decoded row by row; [`quantised`]: the codes and scales of quantised formats.
//! * [`checksum()`]: finds damage.

#![cfg_attr(
    not(all(target_arch = "x86_64", not(feature = "scalar-only"))),
    allow(dead_code, unused_imports, reason = "what only kernels of other instruction sets read")
)]

mod arch;
pub mod block;
mod bytes;
mod checksum;
mod contexts;
pub mod delta;
pub mod df11;
#[cfg(feature = "zstd")]
pub mod dictionary;
mod dtype;
pub mod ecq;
pub mod entropy;
mod error;
mod forever;
pub mod narrow;
pub mod prediction;
pub mod quantised;
pub mod quantize;
pub mod transform;

#[doc(hidden)]
pub use arch::KernelSet;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use arch::without_kernels;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use arch::{kernel_sets, with_kernels};
pub use checksum::{Checksummer, checksum};
pub use contexts::{Contexts, MAX_CLASSES, MAX_LISTED};
pub use dtype::Dtype;
pub use error::CodecError;

/// How much a test does: less in Miri, which takes a thousand times as long (`scripts/sanitize.sh`).
#[cfg(test)]
fn sizes<T>(everywhere: T, in_miri: T) -> T {
    if cfg!(miri) { in_miri } else { everywhere }
}
