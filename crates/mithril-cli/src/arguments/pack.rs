//! Arguments of the verbs that write: `compress`, `decompress`, `repair`.

use super::{CodingArguments, parse_dtype, parse_size};
use clap::{Args, ValueEnum};
use mithril::Dtype;
use std::path::PathBuf;

/// Arguments of `compress`.
#[derive(Debug, Args)]
#[command(after_help = "\
Model files (safetensors, npy, npz, pt, gguf, onnx; told by their bytes, not by their names) become containers (`.mckp`):
every tensor is coded by its dtype, equal ones are stored once, and each can be read alone. Other files become frames
(`.mthf`): plain bytes, or numbers of the type that `--dtype` names. A directory becomes one of packed files, by default
DIR.mckp, or with `--to safetensors` DIR.mithril with every file under its own name; when that is interrupted, the same
command goes on. Memory stays bounded whatever the size.

Examples:
  mithril compress model.safetensors
  mithril compress model-*.safetensors --effort max -o packed/
  mithril compress tuned.safetensors --base base.safetensors
  mithril compress model-directory/
  mithril compress model-directory/ --to safetensors -o smaller-directory/
  mithril compress weights.bin --dtype bf16
  mithril compress model.safetensors --dry-run --json
  cat weights.bin | mithril compress - --dtype f32 > weights.mthf")]
pub(crate) struct CompressArguments {
    /// Files and directories to compress, or `-` for stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Where to write: a file, a directory, or `-` for stdout; by default FILE with `.mckp` or `.mthf`, or stdout for
    /// stdin
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Model that tensors may be stored against: a file, packed or not, or a directory. Can be given again
    #[arg(long, value_name = "BASE")]
    pub(crate) base: Vec<PathBuf>,
    /// Type of the numbers in a file that does not say so itself, for instance bf16
    #[arg(long, value_parser = parse_dtype, conflicts_with = "base")]
    pub(crate) dtype: Option<Dtype>,
    /// How the tensors are coded.
    #[command(flatten)]
    pub(crate) coding: CodingArguments,
    /// Frames of a container start on multiples of so many bytes
    #[arg(long, value_enum, default_value_t = Alignment::Line, value_name = "BYTES")]
    pub(crate) alignment: Alignment,
    /// Record a digest of every tensor, so that the container can serve as a base without being decoded
    #[arg(long)]
    pub(crate) digests: bool,
    /// What model files become
    #[arg(long, value_enum, default_value_t = PackTo::Container, value_name = "KIND")]
    pub(crate) to: PackTo,
    /// Replace an existing output; pack what is packed already
    #[arg(long)]
    pub(crate) force: bool,
    /// Do all the work, and write nothing
    #[arg(long, conflicts_with = "output")]
    pub(crate) dry_run: bool,
    /// Print one JSON object about all files and their tensors
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `compress` makes of model files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PackTo {
    /// Containers (`.mckp`)
    Container,
    /// Safetensors files whose tensors are frames: other programs can open them, and see bytes
    Safetensors,
}

/// Where frames of a container may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Alignment {
    /// Lines of the processor's cache.
    #[value(name = "64")]
    Line,
    /// Pages of memory.
    #[value(name = "4096")]
    Page,
}

impl Alignment {
    /// The power of two.
    pub(crate) fn log2(self) -> u8 {
        match self {
            Self::Line => 6,
            Self::Page => 12,
        }
    }
}

/// Arguments of `decompress`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every checksum is verified; a damaged file leaves no output behind. The base of a delta is looked for beside the file,
under the name that it had when the delta was made; `--base` names it otherwise.

Examples:
  mithril decompress model.safetensors.mckp
  mithril decompress tuned.safetensors.mckp --base base.safetensors
  mithril decompress weights.mthf -o weights.bin --force
  mithril decompress *.mckp -o restored/
  mithril decompress - < weights.mthf | sha256sum")]
pub(crate) struct DecompressArguments {
    /// Containers, frames and packed directories to restore, or `-` for stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Where to write: a file, a directory, or `-` for stdout; by default FILE without `.mckp` or `.mthf`, or stdout for
    /// stdin
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Model that the files were made against: a file, packed or not, or a directory. Can be given again
    #[arg(long, value_name = "BASE")]
    pub(crate) base: Vec<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Refuse what would be larger restored: bytes, or with a unit (`500MB`, `2GiB`)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_output: Option<u64>,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
    /// Do all the work, and write nothing
    #[arg(long, conflicts_with = "output")]
    pub(crate) dry_run: bool,
    /// Print one JSON object about all files
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `repair`.
#[derive(Debug, Args)]
#[command(after_help = "\
Copies every tensor that is intact to a new container, byte for byte, and names those that are lost. When the index is
lost, frames are found by scanning. When nothing is lost, the new container restores the original file.

Exit code 1 when something was lost.

Examples:
  mithril repair damaged.mckp -o saved.mckp
  mithril repair damaged.mckp -o saved.safetensors --to safetensors
  mithril repair damaged.mckp -o saved.mckp --json")]
pub(crate) struct RepairArguments {
    /// The damaged container
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write what is intact
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value_t = RepairTo::Container, value_name = "KIND")]
    pub(crate) to: RepairTo,
    /// Model that the file was made against, for `--to safetensors`. Can be given again
    #[arg(long, value_name = "BASE")]
    pub(crate) base: Vec<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `repair` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RepairTo {
    /// A container of the intact tensors
    Container,
    /// A safetensors file of the intact tensors
    Safetensors,
}
