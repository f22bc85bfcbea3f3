//! The command line: verbs, options, help.

use crate::bench::Rival;
use clap::{Args, Parser, Subcommand};
use mithril::{Dtype, Effort};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Lossless compression of neural-network weights at close to memory speed.
#[derive(Debug, Parser)]
#[command(
    name = "mithril",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  mithril demo                          see it work on a small real model
  mithril bench model.safetensors       size and speed on your own weights
  mithril compress weights.bin --dtype bf16
  mithril decompress weights.bin.mthf

Exit code: 0 done, 1 the input is at fault, 2 the command line or the environment is."
)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure size and speed on your own files; checks that every bit comes back
    Bench(BenchArguments),
    /// Compress, verify and restore a small real model that the program carries
    Demo(DemoArguments),
    /// Compress one buffer to a frame (`.mthf`)
    Compress(CompressArguments),
    /// Restore what `compress` was given, bit for bit
    Decompress(DecompressArguments),
    /// Describe a frame without decoding it
    Inspect(InspectArguments),
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every tensor is compressed alone, into buffers whose pages are in use already; encode, decode and memcpy take turns.
GB/s are 10^9 raw bytes per second, the best of all rounds; with one thread by the CPU time of that thread.

Examples:
  mithril bench model.safetensors
  mithril bench model.safetensors --effort max --against zstd,lz4,brotli
  mithril bench weights.bin --dtype bf16 --against zstd:19 --json
  mithril bench *.safetensors --threads 2 --repeat 5")]
pub(crate) struct BenchArguments {
    /// Files: `.safetensors`, `.npy`, or raw numbers with `--dtype`
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How much work may go into size: fast, balanced or max
    #[arg(long, default_value = "fast", value_parser = parse_effort)]
    pub(crate) effort: Effort,
    /// Threads; 0 is one per core. Only the time on the wall means something with several
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) threads: usize,
    /// General compressors to measure on the same bytes: `zstd`, `lz4`, `brotli`, or `name:level`
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = Rival::parse)]
    pub(crate) against: Vec<Rival>,
    /// Type of the numbers in raw files, for instance bf16
    #[arg(long, value_parser = parse_dtype)]
    pub(crate) dtype: Option<Dtype>,
    /// Measure only without checksums; by default both with and without
    #[arg(long)]
    pub(crate) no_checksum: bool,
    /// Time for each row of the table
    #[arg(long, default_value_t = 2.0, value_name = "S", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Rounds, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: Option<u32>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no file and no network.

Examples:
  mithril demo
  mithril demo --effort max --json")]
pub(crate) struct DemoArguments {
    /// How much work may go into size: fast, balanced or max
    #[arg(long, default_value = "fast", value_parser = parse_effort)]
    pub(crate) effort: Effort,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `compress`.
#[derive(Debug, Args)]
#[command(after_help = "\
Memory stays bounded whatever the size of the file. A `.npy` file comes back whole, with its header; its dtype is read
from there. Other files are compressed as plain bytes unless `--dtype` names the type of their numbers.

Examples:
  mithril compress weights.bin --dtype bf16
  mithril compress array.npy -o array.mthf --effort max
  cat weights.bin | mithril compress - --dtype f32 > weights.mthf")]
pub(crate) struct CompressArguments {
    /// File to compress, or `-` for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write, or `-` for stdout; by default FILE with `.mthf`, or stdout for stdin
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Type of the numbers, for instance bf16
    #[arg(long, value_parser = parse_dtype)]
    pub(crate) dtype: Option<Dtype>,
    /// How much work may go into size: fast, balanced or max
    #[arg(long, default_value = "fast", value_parser = parse_effort)]
    pub(crate) effort: Effort,
    /// Level of zstd and brotli, where data with repeats is handed to them; by default the effort decides
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) level: Option<i32>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `decompress`.
#[derive(Debug, Args)]
#[command(after_help = "\
Checksums are verified; a damaged file leaves no output behind.

Examples:
  mithril decompress weights.bin.mthf
  mithril decompress weights.mthf -o weights.bin --force
  mithril decompress - < weights.mthf | sha256sum")]
pub(crate) struct DecompressArguments {
    /// Frame to restore, or `-` for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write, or `-` for stdout; by default FILE without `.mthf`, or stdout for stdin
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Checks the structure of the frame and decodes nothing.

Examples:
  mithril inspect weights.bin.mthf
  mithril inspect weights.bin.mthf --json")]
pub(crate) struct InspectArguments {
    /// Frame to describe, or `-` for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints help to stdout, or what is wrong with the command line to stderr; gives the exit code.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is no error: the reader has seen enough.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text =
        text.replace("For more information, try '--help'.", "hint: `--help` shows all options and examples");
    let _ = write!(std::io::stderr().lock(), "{text}");
    ExitCode::from(2)
}

fn parse_effort(name: &str) -> Result<Effort, String> {
    Effort::from_name(name).ok_or_else(|| "expected `fast`, `balanced` or `max`".to_owned())
}

fn parse_dtype(name: &str) -> Result<Dtype, String> {
    Dtype::from_name(name).ok_or_else(|| {
        let known: Vec<String> = Dtype::ALL.iter().map(|dtype| dtype.name().to_lowercase()).collect();
        format!("unknown dtype; known are {}", known.join(", "))
    })
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "expected a number of seconds".to_owned())
}
