//! Arguments of `mithril store`.

use crate::arguments::{CodingArguments, parse_size};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Arguments of `store`.
#[derive(Debug, Args)]
#[command(after_help = "\
A store is a directory or a prefix in an object store: a path, `local:///path`, `s3://bucket/prefix`,
`gs://bucket/prefix`, `az://container/prefix`, or `https://host/prefix` to read only. Credentials come from the
environment, as for the tools of the provider: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.

Where a key is asked for, `latest` is the newest checkpoint: the one with the highest step, and of those with
the same step the one that was saved last. A step is given by `--step`, or is a number at the end of the key
after `step`, `iter`, `iteration`, `checkpoint`, `ckpt` or `epoch`, or all of the key:

  step_1000  checkpoint-500  iter=7  global_step100  epoch_3  7      a step
  best  final  epoch=4-val_loss=0.20  step_7.pt  retry_9100          none: newer than all saved before

Exit codes: 0 done; 1 the input is at fault: a file, a checkpoint that is damaged or not there, a place that is
no store; 2 the command line or the environment is: a key that exists, no room, no permission, no network.

Examples:
  mithril store run7 save step_100 model.safetensors optimizer.pt
  mithril store run7 save step_200 model.safetensors optimizer.pt --previous step_100
  mithril store run7 list
  mithril store run7 load step_200 -o restored/
  mithril store s3://bucket/run7 verify --deep
  mithril store run7 stats --html run7.html")]
pub(crate) struct StoreArguments {
    /// The store: a path or a URL
    #[arg(value_name = "STORE")]
    pub(crate) url: String,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: StoreCommand,
}

/// What to do with a store.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// List the checkpoints, from the first step to the last
    List(JsonArguments),
    /// List a checkpoint and those it was stored against, newest first
    Log(LogArguments),
    /// Describe a checkpoint and its tensors
    Show(ShowArguments),
    /// Save model files as a checkpoint
    Save(SaveArguments),
    /// Restore the files of a checkpoint, byte for byte
    Load(LoadArguments),
    /// Write one tensor of a checkpoint to a file
    Extract(ExtractArguments),
    /// Say which tensors of two checkpoints differ, without decoding them
    Diff(DiffArguments),
    /// Check that checkpoints can be restored; exit code 1 when one cannot
    Verify(VerifyArguments),
    /// Remove data that no checkpoint needs
    Gc(GcArguments),
    /// Make a checkpoint independent of all others
    Rebase(KeyArguments),
    /// Delete a checkpoint, and the data that no other one needs
    Delete(KeyArguments),
    /// Write the tensors of a checkpoint as a file of another format
    Export(ExportArguments),
    /// Say how large the store is, and where the bytes are
    Stats(StatsArguments),
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct JsonArguments {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `log`.
#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    /// Checkpoint to start from; the newest by default
    pub(crate) key: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// Key of the checkpoint
    pub(crate) key: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `save`.
#[derive(Debug, Args)]
#[command(after_help = "\
When the command ends with exit code 0, nothing can lose the checkpoint, and `--keep-last` has not removed it.
A key that exists is refused, and so are `latest` and a file that changes while it is read.

Examples:
  mithril store run7 save step_100 model.safetensors
  mithril store run7 save step_200 model.safetensors --previous step_100
  mithril store run7 save step_300 model.safetensors --previous latest --keep-last 5 --keep-every 1000")]
pub(crate) struct SaveArguments {
    /// Key of the new checkpoint
    pub(crate) key: String,
    /// Model files: safetensors, npy, npz, pt, gguf, onnx
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Checkpoint to store this one against; `latest` is the newest
    #[arg(long, value_name = "KEY")]
    pub(crate) previous: Option<String>,
    /// Training step; by default the one that the key names, as in step_100
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,
    /// How the tensors are coded.
    #[command(flatten)]
    pub(crate) coding: CodingArguments,
    /// Start the deltas of fp32 weights where the moments of their optimiser say that they went: smaller, but weights are
    /// then not read without their moments
    #[arg(long)]
    pub(crate) from_moments: bool,
    /// Deltas that a tensor may be away from one that is stored in full
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) max_depth: u32,
    /// Bytes that restoring the checkpoint may read, as a multiple of what a full one takes
    #[arg(long, default_value_t = 1.5, value_name = "X")]
    pub(crate) max_restore_cost: f64,
    /// Delete all but the N checkpoints that were saved last afterwards; never the one with the highest step
    #[arg(long, value_name = "N")]
    pub(crate) keep_last: Option<usize>,
    /// Keep those whose step is a multiple of this, too
    #[arg(long, value_name = "STEPS", requires = "keep_last")]
    pub(crate) keep_every: Option<u64>,
    /// Keep this one, too. Can be given again
    #[arg(long, value_name = "KEY", requires = "keep_last")]
    pub(crate) keep: Vec<String>,
    /// Read back and decode all that was written before the checkpoint appears. Without, every tensor is followed through
    /// all that it is stored against, and none is decoded
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArguments {
    /// Key of the checkpoint; `latest` is the newest
    pub(crate) key: String,
    /// File to write; a directory for a checkpoint of several files
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Refuse files that are larger together: bytes, or with a unit (`500MB`, `2GiB`)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_output: Option<u64>,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
}

/// Arguments of `extract`.
#[derive(Debug, Args)]
pub(crate) struct ExtractArguments {
    /// Key of the checkpoint
    pub(crate) key: String,
    /// Name of the tensor
    pub(crate) tensor: String,
    /// File to write, `.npy` or with `--raw` plain bytes; `-` is stdout
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Refuse a larger tensor: bytes, or with a unit (`500MB`, `2GiB`)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_output: Option<u64>,
    /// Write the bytes without a header
    #[arg(long)]
    pub(crate) raw: bool,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// Key of the first checkpoint
    pub(crate) old: String,
    /// Key of the second checkpoint
    pub(crate) new: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// Key of the checkpoint; all of them by default
    pub(crate) key: Option<String>,
    /// Digest every object and restore every tensor, with all that it is stored against
    #[arg(long)]
    pub(crate) deep: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArguments {
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Leave data without a checkpoint that is younger: it may belong to a save that is at work
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub(crate) min_age: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `rebase` and `delete`.
#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    /// Key of the checkpoint
    pub(crate) key: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// Key of the checkpoint; `latest` is the newest
    pub(crate) key: String,
    /// Format of the file
    #[arg(long, value_enum)]
    pub(crate) to: ExportTo,
    /// File to write; by default the key with the suffix of the format
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Refuse tensors that are larger together: bytes, or with a unit (`500MB`, `2GiB`)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_output: Option<u64>,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// Formats that checkpoints are exported to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportTo {
    /// One safetensors file with all tensors
    Safetensors,
}

/// Arguments of `stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with pictures, which needs nothing from the network
    #[arg(long, value_name = "OUT")]
    pub(crate) html: Option<PathBuf>,
    /// Replace an existing page
    #[arg(long)]
    pub(crate) force: bool,
}
