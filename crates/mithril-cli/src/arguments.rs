//! The command line: verbs, options, help.

mod coding;
mod pack;
mod read;

pub(crate) use coding::{CodingArguments, EffortArgument};
pub(crate) use pack::{CompressArguments, DecompressArguments, PackTo, RepairArguments, RepairTo};
pub(crate) use read::{
    EstimateArguments, ExtractArguments, InspectArguments, PairArguments, Sort, VerifyArguments,
};

use crate::bench::Rival;
use crate::convert::{ConvertArguments, MergeArguments};
use crate::diagnose::DiagnoseArguments;
use crate::quantize::QuantizeArguments;
use crate::store::StoreArguments;
use clap::{Args, Parser, Subcommand};
use mithril::Dtype;
use mithril::storage::without_secrets_of_urls;
use std::io::Write;
use std::path::PathBuf;

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
  mithril compress model.safetensors    gives model.safetensors.mckp
  mithril inspect model.safetensors.mckp
  mithril decompress model.safetensors.mckp

Exit code: 0 done; 1 the input is at fault: damaged, different, missing, of another kind; 2 the command line or the
environment is: an output that exists, a full disk; 141 the reader of the output has gone."
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
    /// Compress model files to containers (`.mckp`), other files to frames (`.mthf`)
    Compress(CompressArguments),
    /// Restore what `compress` was given, bit for bit
    Decompress(DecompressArguments),
    /// Describe a container, frame or model file without decoding it
    Inspect(InspectArguments),
    /// Check every sum, and write nothing
    Verify(VerifyArguments),
    /// Write one tensor, or some of its rows, to a file
    Extract(ExtractArguments),
    /// Say whether two models hold the same bits, tensor by tensor
    #[command(after_help = "\
Tensors are matched by name; files of different kinds, packed or not, can be compared, and directories of safetensors
files. A DFloat11 directory is compared as the plain weights that it stands for.

Exit code 0 when all are equal, 1 when anything differs.

Examples:
  mithril compare model.safetensors model.safetensors.mckp
  mithril compare old.safetensors new.safetensors --json
  mithril compare model model-df11")]
    Compare(PairArguments),
    /// Say how much two models differ, tensor by tensor
    #[command(after_help = "\
Counts changed elements, and measures the largest change as a number and in steps between neighbouring numbers (ulp).

Exit code 0 whether they differ or not; `compare` is for scripts.

Examples:
  mithril diff base.safetensors tuned.safetensors
  mithril diff base.safetensors.mckp tuned.safetensors --json")]
    Diff(PairArguments),
    /// Predict size and time from a sample of at most 2 % of the bytes
    Estimate(EstimateArguments),
    /// Save every intact tensor of a damaged container
    Repair(RepairArguments),
    /// Keep the checkpoints of a training run, as deltas that no crash can lose
    Store(StoreArguments),
    /// Print completions for a shell
    #[command(after_help = "\
Examples:
  mithril completions bash > ~/.local/share/bash-completion/completions/mithril
  mithril completions zsh > ~/.zfunc/_mithril
  mithril completions fish > ~/.config/fish/completions/mithril.fish")]
    Completions {
        /// Which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = "\
Examples:
  mithril man > mithril.1
  mithril man | man -l -")]
    Man,
    /// Convert a repository to DFloat11 or to entropy-coded quantised weights, or back
    Convert(ConvertArguments),
    /// Quantise a model for entropy coding: lossy, for a size or an error
    Quantize(QuantizeArguments),
    /// Put together what `convert --blocks` made on several machines
    Merge(MergeArguments),
    /// Tell whether a DFloat11 model fits a GPU, without one
    Diagnose(DiagnoseArguments),
    /// Decode on a GPU: what there is, whether it decodes exactly, how fast
    #[cfg(feature = "gpu")]
    #[command(after_help = "\
Examples:
  mithril gpu info
  mithril gpu verify model.safetensors.mckp
  mithril gpu verify model-df11
  mithril gpu verify model-ecq
  mithril gpu bench model.safetensors.mckp --json")]
    Gpu {
        /// What to do.
        #[command(subcommand)]
        command: crate::gpu::GpuCommand,
    },
    /// Train zstd dictionaries on small records, and use them
    #[command(after_help = "\
Examples:
  mithril dictionary train samples/ -o my.dict
  mithril dictionary evaluate my.dict held-out/
  mithril dictionary compress my.dict records/ -o records.mrec")]
    Dictionary {
        /// What to do.
        #[command(subcommand)]
        command: crate::dictionary::DictionaryCommand,
    },
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
  mithril bench *.safetensors --threads 2 --repeat 5
  mithril bench model.safetensors --file --scratch /fast-disk")]
pub(crate) struct BenchArguments {
    /// Model files (safetensors, npy, npz, pt, gguf, onnx), or raw numbers with `--dtype`
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How much work may go into size.
    #[command(flatten)]
    pub(crate) effort: EffortArgument,
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
    /// Also from file to file, on the wall, beside plain reading and writing; nothing is synced to disk
    #[arg(long)]
    pub(crate) file: bool,
    /// Where `--file` writes; the system's directory for temporary files by default
    #[arg(long, value_name = "DIR", requires = "file")]
    pub(crate) scratch: Option<PathBuf>,
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
    /// How much work may go into size.
    #[command(flatten)]
    pub(crate) effort: EffortArgument,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints help to stdout, or what is wrong with the command line to stderr; gives the exit code.
pub(crate) fn report(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        let printed = crate::failure::print(error.render().to_string());
        return printed.map_or_else(|failure| failure.report(), |()| 0);
    }
    let text = without_secrets_of_urls(&error.render().to_string());
    let text =
        text.replace("For more information, try '--help'.", "hint: `--help` shows all options and examples");
    let _ = write!(std::io::stderr().lock(), "{text}");
    2
}

fn parse_dtype(name: &str) -> Result<Dtype, String> {
    Dtype::from_name(name).ok_or_else(|| {
        let known: Vec<String> = Dtype::ALL.iter().map(|dtype| dtype.name().to_lowercase()).collect();
        format!("unknown dtype; known are {}", known.join(", "))
    })
}

/// A number of bytes, with a unit of powers of 1000 or of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || "expected a number of bytes, as in `1000000`, `500MB` or `2GiB`".to_owned();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1000u64.pow(2),
        "g" | "gb" => 1000u64.pow(3),
        "t" | "tb" => 1000u64.pow(4),
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(expected()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(expected)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "expected a number of seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("3kB", 3000),
            ("2 MiB", 2 << 20),
            ("1G", 1_000_000_000),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "MB", "-1", "1.5GB", "1 byte", "99999999999TB", "0x10"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
