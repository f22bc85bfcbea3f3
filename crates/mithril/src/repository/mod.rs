//! Whole directories of a model: shards, configs, tokenizers, packed file by file and restored exactly.
//!
//! Every model file becomes a container of its own, so that shard boundaries stay and parts can be moved alone. Other
//! large files become frames; small ones lie together in one container, [`MANIFEST`], which also lists the whole tree
//! with names, modes and links. The manifest is written last: a packed directory that has one is complete. Tensors that
//! several shards hold are stored in the first.
//!
//! The other packaging keeps every file under its own name, with frames inside of the safetensors files.
//!
//! When the work is interrupted, starting it again skips what is done.

mod framed;
mod journal;
mod manifest;
mod pack;
mod tree;
mod unpack;

pub use framed::{is_framed_repository, pack_framed_repository, unpack_framed_repository};
pub use pack::{measure_repository, pack_repository};
pub use unpack::{unpack_repository, unpacked_len};

/// The container that lists a packed directory and holds its small files.
pub const MANIFEST: &str = "files.mckp";

/// Files up to this length lie together in the manifest.
const SMALL_LEN: u64 = 4 << 20;

/// What became of the files of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RepositorySummary {
    /// Every file, in the order of their names.
    pub files: Vec<FileSummary>,
    /// Bytes of the plain files.
    pub raw_len: u64,
    /// Bytes of the packed directory.
    pub packed_len: u64,
}

/// What became of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSummary {
    /// Its place below the directory.
    pub path: String,
    /// Its bytes.
    pub raw_len: u64,
    /// Bytes that it takes packed; none when it lies with others.
    pub packed_len: Option<u64>,
    /// Whether it was done before an interruption.
    pub resumed: bool,
}

impl RepositorySummary {
    /// Takes the lengths of what was read for those of what was written, and the other way round.
    fn swap(&mut self) {
        std::mem::swap(&mut self.raw_len, &mut self.packed_len);
        for file in &mut self.files {
            let raw_len = std::mem::replace(&mut file.raw_len, file.packed_len.unwrap_or(0));
            file.packed_len = file.packed_len.map(|_| raw_len);
        }
    }

    fn add(&mut self, path: String, raw_len: u64, packed_len: Option<u64>, resumed: bool) {
        self.raw_len += raw_len;
        self.packed_len += packed_len.unwrap_or(0);
        self.files.push(FileSummary { path, raw_len, packed_len, resumed });
    }
}
