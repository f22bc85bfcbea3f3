//! The command line of `mithril dictionary`.

use super::records::Split;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum DictionaryCommand {
    /// Train a dictionary on samples
    Train(TrainArguments),
    /// Fit a dictionary to newer samples: what still pays stays, the rest is replaced
    Update(UpdateArguments),
    /// Describe a dictionary
    Inspect(InspectArguments),
    /// Measure what records take with a dictionary and without
    Evaluate(EvaluateArguments),
    /// Say what the parts of a dictionary are good for, and whether it still fits
    Explain(ExplainArguments),
    /// Compress records to zstd frames: one file each, or one packed file
    Compress(CompressArguments),
    /// Restore records
    Decompress(DecompressArguments),
}

/// Where records come from.
#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// How a file is split into records: files, lines, jsonl, length-prefixed or fixed:N
    #[arg(long, default_value = "files", value_parser = Split::parse)]
    pub(crate) split: Split,
    /// Bytes of samples kept in memory at most; of more, an even selection is kept
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = super::parse_size)]
    pub(crate) memory: usize,
}

/// Arguments of `train`.
#[derive(Debug, Args)]
#[command(after_help = "\
A directory stands for all files below it. About 100 times the size of the dictionary is a good amount of samples.
What `--k` and `--d` do not give is searched on samples that are held out. The dictionary does not depend on the number
of threads, and every zstd reads it.

`length-prefixed` files hold a length of 4 bytes, little-endian, before each record.

Examples:
  mithril dictionary train samples/ -o my.dict
  mithril dictionary train events.jsonl --split jsonl -o events.dict --size 64K --level 19
  mithril dictionary train *.log --split lines -o log.dict --size auto --json
  mithril dictionary train users/ orders/ --group-by argument -o shop.mdic --size 32K --group-size 8K
  mithril dictionary train mixed.jsonl --split jsonl --groups 4 -o mixed.mdic

With `--group-by` or `--groups` the output is a file of grouped dictionaries: a base for all records, and for each group what
the base lacks for it. Every record then takes the one that suits it best.")]
pub(crate) struct TrainArguments {
    /// Files or directories of samples
    #[arg(required = true, value_name = "SAMPLES")]
    pub(crate) samples: Vec<PathBuf>,
    /// Where to write the dictionary
    #[arg(short, long, value_name = "DICT")]
    pub(crate) output: PathBuf,
    /// Size in bytes, with K or M, or `auto`: the smallest that serves held-out samples nearly as well as larger ones
    #[arg(long, default_value = "110K", value_parser = Size::parse)]
    pub(crate) size: Size,
    /// Longest segment that is taken from a sample
    #[arg(long, value_name = "BYTES")]
    pub(crate) k: Option<usize>,
    /// Length of the runs that are counted, 4 to 64
    #[arg(long, value_name = "BYTES")]
    pub(crate) d: Option<usize>,
    /// The level that records will be compressed at
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) level: i32,
    /// Share of the samples that is kept out of training and measured at the end
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", value_parser = parse_share)]
    pub(crate) test_fraction: f64,
    /// The dictionary's id; made from its content by default
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<u32>,
    /// Write bare content: no header, no id, no entropy tables
    #[arg(long)]
    pub(crate) raw_content: bool,
    /// Take what serves most data for `k` and `d`, instead of searching
    #[arg(long)]
    pub(crate) no_search: bool,
    /// Make a group of the samples of every argument, or of every directory below them
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["groups", "raw_content"])]
    pub(crate) group_by: Option<GroupBy>,
    /// Find this many groups of samples that are alike
    #[arg(long, value_name = "N", conflicts_with = "raw_content")]
    pub(crate) groups: Option<usize>,
    /// Bytes that every group adds to the base, with K or M
    #[arg(long, default_value = "8K", value_name = "SIZE", value_parser = super::parse_size)]
    pub(crate) group_size: usize,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) records: RecordArguments,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What makes a group of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum GroupBy {
    /// Every argument.
    Argument,
    /// Every directory.
    Directory,
}

/// Arguments of `update`.
#[derive(Debug, Args)]
#[command(after_help = "\
There is no search, so this is several times faster than training. The new dictionary has another id: records that were
compressed with the old one still need the old one.

Examples:
  mithril dictionary update old.dict newer/ -o new.dict
  mithril dictionary update old.dict newer.jsonl --split jsonl -o new.dict --level 19")]
pub(crate) struct UpdateArguments {
    /// The dictionary to start from
    #[arg(value_name = "DICT")]
    pub(crate) dictionary: PathBuf,
    /// Files or directories of newer samples
    #[arg(required = true, value_name = "SAMPLES")]
    pub(crate) samples: Vec<PathBuf>,
    /// Where to write the new dictionary
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Size in bytes, with K or M; that of the old one by default
    #[arg(long, value_parser = super::parse_size)]
    pub(crate) size: Option<usize>,
    /// The level that records will be compressed at
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) level: i32,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) records: RecordArguments,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mithril dictionary inspect my.dict
  mithril dictionary inspect my.dict --json")]
pub(crate) struct InspectArguments {
    /// The dictionary
    #[arg(value_name = "DICT")]
    pub(crate) dictionary: PathBuf,
    /// Write every member of a file of groups as a dictionary of its own into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) extract: Option<PathBuf>,
    /// Replace existing files there
    #[arg(long, requires = "extract")]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `evaluate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Measure with records that the dictionary was not trained on.

Examples:
  mithril dictionary evaluate my.dict held-out/ --level 19
  mithril dictionary evaluate events.dict today.jsonl --split jsonl --json")]
pub(crate) struct EvaluateArguments {
    /// The dictionary
    #[arg(value_name = "DICT")]
    pub(crate) dictionary: PathBuf,
    /// Files or directories of records
    #[arg(required = true, value_name = "SAMPLES")]
    pub(crate) samples: Vec<PathBuf>,
    /// The level to compress at
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) level: i32,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) records: RecordArguments,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
SAMPLES are those that the dictionary was trained on, or like them. With `--newer`, a dictionary is trained on the newer
samples too, and compared: that tells what retraining would bring.

Examples:
  mithril dictionary explain my.dict samples/
  mithril dictionary explain my.dict samples/ --newer today/ --json")]
pub(crate) struct ExplainArguments {
    /// The dictionary
    #[arg(value_name = "DICT")]
    pub(crate) dictionary: PathBuf,
    /// Files or directories of samples
    #[arg(required = true, value_name = "SAMPLES")]
    pub(crate) samples: Vec<PathBuf>,
    /// Newer samples, to see whether the dictionary still fits
    #[arg(long, value_name = "SAMPLES")]
    pub(crate) newer: Vec<PathBuf>,
    /// The level that records are compressed at
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) level: i32,
    /// Segments that are listed, those that save most first
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) records: RecordArguments,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `compress`.
#[derive(Debug, Args)]
#[command(after_help = "\
With `-o FILE` all records go into one packed file, which gives back any one of them; zstd with the dictionary reads it
as all records one after the other. With `--each`, every input file becomes a frame of its own, `NAME.zst`.

Examples:
  mithril dictionary compress my.dict records/ -o records.mrec
  mithril dictionary compress my.dict events.jsonl --split jsonl -o events.mrec --level 19
  mithril dictionary compress my.dict a.json b.json --each")]
pub(crate) struct CompressArguments {
    /// The dictionary
    #[arg(value_name = "DICT")]
    pub(crate) dictionary: PathBuf,
    /// Files or directories of records
    #[arg(required = true, value_name = "RECORDS")]
    pub(crate) records: Vec<PathBuf>,
    /// The packed file to write, or `-` for stdout
    #[arg(short, long, value_name = "OUT", required_unless_present = "each")]
    pub(crate) output: Option<PathBuf>,
    /// Write one frame beside each file instead
    #[arg(long, conflicts_with = "output")]
    pub(crate) each: bool,
    /// How a file is split into records: files, lines, jsonl, length-prefixed or fixed:N
    #[arg(long, default_value = "files", value_parser = Split::parse, conflicts_with = "each")]
    pub(crate) split: Split,
    /// The level to compress at
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(crate) level: i32,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Replace existing outputs
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `decompress`.
#[derive(Debug, Args)]
#[command(after_help = "\
Records come out as they went in, one after the other; `--record` gives one alone.

Examples:
  mithril dictionary decompress my.dict records.mrec -o records.jsonl
  mithril dictionary decompress my.dict records.mrec --record 17 -o -
  mithril dictionary decompress my.dict a.json.zst -o a.json")]
pub(crate) struct DecompressArguments {
    /// The dictionary
    #[arg(value_name = "DICT")]
    pub(crate) dictionary: PathBuf,
    /// A packed file, or one frame
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write, or `-` for stdout
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// The number of one record, from 0
    #[arg(long, value_name = "N")]
    pub(crate) record: Option<usize>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Replace an existing output
    #[arg(long)]
    pub(crate) force: bool,
}

/// The size of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// So many bytes.
    Bytes(usize),
    /// Where the gain of held-out samples levels off.
    Auto,
}

impl Size {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::Auto) } else { super::parse_size(text).map(Self::Bytes) }
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| (0.0..=0.9).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 0.9".to_owned())
}
