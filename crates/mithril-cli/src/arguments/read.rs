//! Arguments of the verbs that only read: `inspect`, `verify`, `extract`, `compare`, `diff`, `estimate`.

use super::{CodingArguments, parse_size};
use clap::{Args, ValueEnum};
use std::ops::Range;
use std::path::PathBuf;

/// Arguments of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads index and headers, and decodes nothing; only `--html` reads the weights, for their entropies.

Examples:
  mithril inspect model.safetensors.mckp
  mithril inspect model.safetensors.mckp --sort ratio
  mithril inspect model.gguf --json
  mithril inspect tuned.safetensors.mckp --html report.html
  mithril inspect weights.bin.mthf")]
pub(crate) struct InspectArguments {
    /// Container, frame or model file to describe; `-` for a frame on stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Order of the tensors: a tree by name, or a list by size, ratio or bits per element
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    pub(crate) sort: Sort,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with pictures, which needs nothing from the network
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
    /// Model that the file was made against, for the change map of `--html`. Can be given again
    #[arg(long, value_name = "BASE", requires = "html")]
    pub(crate) base: Vec<PathBuf>,
    /// Replace an existing page
    #[arg(long)]
    pub(crate) force: bool,
}

/// Order of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// A tree by name
    Name,
    /// Largest stored size first
    Size,
    /// Worst ratio first
    Ratio,
    /// Most bits per element first
    Bits,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Checks the structure, every checksum and every recorded digest, decodes everything, and writes nothing. Tensors that
are stored against a base are decoded only with `--deep`, which finds the base beside the file or takes `--base`.

Exit code 1 when anything is damaged.

Examples:
  mithril verify model.safetensors.mckp
  mithril verify *.mckp && echo intact
  mithril verify tuned.safetensors.mckp --deep --base base.safetensors
  mithril verify model.safetensors.mckp --json")]
pub(crate) struct VerifyArguments {
    /// Containers, frames and model files
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Find the bases, and decode what needs them
    #[arg(long)]
    pub(crate) deep: bool,
    /// Model that the files were made against. Can be given again
    #[arg(long, value_name = "BASE", requires = "deep")]
    pub(crate) base: Vec<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `extract`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads and decodes only what holds the tensor, or its rows. The output is a `.npy` file, or with `--raw`, or when its
name ends in `.bin`, the bytes alone. Types that numpy does not have (BF16, FP8, ...) are written as unsigned integers
of the same width.

Examples:
  mithril extract model.safetensors.mckp encoder.layer.0.attention.self.query.weight -o query.npy
  mithril extract model.safetensors.mckp embeddings.word_embeddings.weight --rows 100:200 -o rows.npy
  mithril extract model.gguf token_embd.weight --raw -o - | sha256sum")]
pub(crate) struct ExtractArguments {
    /// Container or model file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Name of the tensor
    #[arg(value_name = "TENSOR")]
    pub(crate) tensor: String,
    /// Rows along the first dimension, the last one not included: `a:b`, `a:` or `:b`
    #[arg(long, value_name = "A:B", value_parser = parse_rows)]
    pub(crate) rows: Option<Rows>,
    /// Where to write, or `-` for stdout, which is the default
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// The bytes alone, without a header
    #[arg(long)]
    pub(crate) raw: bool,
    /// Model that the file was made against. Can be given again
    #[arg(long, value_name = "BASE")]
    pub(crate) base: Vec<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Refuse a larger tensor: bytes, or with a unit (`500MB`, `2GiB`)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_output: Option<u64>,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
}

/// Rows from one to another, either left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    start: Option<u64>,
    end: Option<u64>,
}

impl Rows {
    /// These rows of a tensor that has so many, if it has them.
    pub(crate) fn within(self, n_rows: u64) -> Option<Range<u64>> {
        let (start, end) = (self.start.unwrap_or(0), self.end.unwrap_or(n_rows));
        (start <= end && end <= n_rows).then_some(start..end)
    }
}

fn parse_rows(text: &str) -> Result<Rows, String> {
    let expected = || "expected two numbers as in `100:200`, of which either may be left out".to_owned();
    let number = |text: &str| match text {
        "" => Ok(None),
        _ => text.parse().map(Some).map_err(|_| expected()),
    };
    let (start, end) = text.split_once(':').ok_or_else(expected)?;
    Ok(Rows { start: number(start)?, end: number(end)? })
}

/// Arguments of `compare` and of `diff`.
#[derive(Debug, Args)]
pub(crate) struct PairArguments {
    /// A model file, a container, or a directory of safetensors files, DFloat11 or not
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// Another one, of any kind
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,
    /// Model that either was made against. Can be given again
    #[arg(long, value_name = "BASE")]
    pub(crate) base: Vec<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `estimate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads at most 2 % of the bytes, spread over all tensors, and compresses only those. `--check` also compresses the
whole file, to nowhere, and prints what it really comes to.

Examples:
  mithril estimate model.safetensors
  mithril estimate *.safetensors --effort max
  mithril estimate model.safetensors --check --json")]
pub(crate) struct EstimateArguments {
    /// Model files
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// How the tensors would be coded.
    #[command(flatten)]
    pub(crate) coding: CodingArguments,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Compress the whole file too, and print both sizes
    #[arg(long)]
    pub(crate) check: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_be_open_at_either_end_but_not_lie_outside() {
        let within = |text, n_rows| parse_rows(text).unwrap().within(n_rows);
        assert_eq!(within("2:5", 10), Some(2..5));
        assert_eq!(within(":", 10), Some(0..10));
        assert_eq!(within("3:", 10), Some(3..10));
        assert_eq!(within(":3", 10), Some(0..3));
        assert_eq!(within("10:10", 10), Some(10..10));
        for outside in ["5:2", "0:11", "11:"] {
            assert_eq!(within(outside, 10), None, "{outside}");
        }
        for wrong in ["", "3", "a:b", "1:2:3", "-1:2"] {
            assert!(parse_rows(wrong).is_err(), "{wrong}");
        }
    }
}
