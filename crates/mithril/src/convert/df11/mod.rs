//! DFloat11 directories: written, read, and checked against a GPU, without one.
//!
//! * [`encode`] makes a directory that the `dfloat11` package loads, byte for byte what its own encoder would write.
//! * [`Model`] opens such a directory as named tensors; [`decode`] gives the plain weights back.
//! * [`diagnose()`] tells whether the decode kernel can run on a device.
//! * [`merge()`] puts together what several machines encoded.
//! * [`encode_pipeline`] and [`decode_pipeline`] do a diffusers pipeline, component by component.
//!
//! ```no_run
//! use mithril::convert::{OutputDirectory, Repository, df11};
//! use std::path::Path;
//! let repository = Repository::open(Path::new("model"))?;
//! let output = OutputDirectory::create(Path::new("model-df11"), false)?;
//! let summary = df11::encode(&repository, output, &df11::EncodeOptions::default(), &|_| ())?;
//! println!("{} -> {} bytes", summary.raw_len, summary.coded_len);
//! # Ok::<(), mithril::Error>(())
//! ```

mod config;
mod decode;
mod diagnose;
mod elements;
mod encode;
mod job;
mod merge;
mod model;
mod patterns;
mod pipelines;
mod shapes;
mod source_files;
mod spread;

pub use config::{Config, PatternDict};
pub use decode::{DecodeSummary, decode};
pub use diagnose::{Diagnosis, ModuleDemand, diagnose, diagnose_pipeline};
pub use elements::{coded, decode_into, decode_rows_into};
pub use encode::{EncodeOptions, EncodeSummary, EncodedModule, Files, Outcome, encode};
pub use merge::{MergeSummary, merge};
pub use mithril_codec::df11::{
    Coded, Decoder, Encoder, EntryPoints, Geometry, Parts, Plan, Profile, Unencodable, two_phase,
};
pub use model::{Model, ModelTensor};
pub use patterns::{automatic_patterns, escape};
pub use pipelines::{decode_pipeline, encode_pipeline};
pub use shapes::ShapeSource;

pub(super) use elements::decode_elements;

/// Shapes of the coded weights, which DF11 itself does not keep; our own file beside the package's.
const SHAPES_FILE: &str = "df11_shapes.json";

/// Headers of the files that were coded; our own file as well.
const SOURCE_FILE: &str = "df11_source.json";

/// The file of all tensors, or of those that belong to no coded module.
const MODEL_FILE: &str = "model.safetensors";

/// The file of the configuration.
const CONFIG_FILE: &str = "config.json";
