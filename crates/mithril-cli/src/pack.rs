//! `mithril compress` and `mithril decompress`: any number of files, each by the way that suits it.

mod containers;
mod frames;

pub(crate) use frames::refused as refused_frame;

use crate::arguments::{CompressArguments, DecompressArguments, PackTo};
use crate::failure::{Failure, Fault, print_json, tell};
use crate::output::Target;
use crate::rows::Rows;
use crate::source::{Source, is_stdio};
use mithril::Dtype;
use mithril::container::{Bases, SUFFIX as CONTAINER_SUFFIX};
use mithril::pack::{PackSummary, PackedTensor};
use mithril::repository::{FileSummary, RepositorySummary};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Suffix of frames.
const FRAME_SUFFIX: &str = "mthf";

/// Suffix of safetensors files whose tensors are frames.
const FRAMED_SUFFIX: &str = "mithril.safetensors";

/// Suffix of directories of such files.
const FRAMED_DIRECTORY_SUFFIX: &str = "mithril";

/// What became of a file.
struct Done {
    source: String,
    output: String,
    raw_len: u64,
    stored_len: u64,
    seconds: f64,
    /// What else the summary says.
    detail: String,
    facts: Facts,
}

/// What else `--json` says of a file.
enum Facts {
    /// A frame, and the dtype that it was made with.
    Frame(Option<Dtype>),
    Packed(PackSummary),
    /// The format of a restored file, and the name that it had.
    Restored {
        format: String,
        original_name: String,
    },
    Directory(RepositorySummary),
}

impl Serialize for Done {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("file", &self.source)?;
        map.serialize_entry("output", &self.output)?;
        map.serialize_entry("raw_bytes", &self.raw_len)?;
        map.serialize_entry("stored_bytes", &self.stored_len)?;
        map.serialize_entry("ratio", &(self.stored_len as f64 / self.raw_len.max(1) as f64))?;
        map.serialize_entry("seconds", &self.seconds)?;
        match &self.facts {
            Facts::Frame(dtype) => {
                map.serialize_entry("format", "frame")?;
                if let Some(dtype) = dtype {
                    map.serialize_entry("dtype", dtype.name())?;
                }
            }
            Facts::Packed(summary) => {
                map.serialize_entry("format", &summary.format)?;
                map.serialize_entry("digest", &summary.digest.map(|digest| digest.to_string()))?;
                map.serialize_entry("tensors", &Rows(&summary.tensors, tensor_to_json))?;
            }
            Facts::Restored { format, original_name } => {
                map.serialize_entry("format", format)?;
                map.serialize_entry("original_name", original_name)?;
            }
            Facts::Directory(summary) => {
                map.serialize_entry("format", "directory")?;
                map.serialize_entry("files", &Rows(&summary.files, file_to_json))?;
            }
        }
        map.end()
    }
}

fn tensor_to_json(tensor: &PackedTensor) -> Value {
    json!({
        "name": tensor.name,
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape,
        "kind": tensor.kind.name(),
        "raw_bytes": tensor.raw_len,
        "stored_bytes": tensor.stored_len,
    })
}

fn file_to_json(file: &FileSummary) -> Value {
    json!({
        "path": file.path,
        "raw_bytes": file.raw_len,
        "stored_bytes": file.packed_len,
        "resumed": file.resumed,
    })
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    files: &'a [Done],
    raw_bytes: u64,
    stored_bytes: u64,
    n_failed: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Compress,
    Decompress,
}

/// Runs `mithril compress`.
pub(crate) fn compress(arguments: &CompressArguments) -> Result<(), Failure> {
    let to_one_stream = arguments.output.as_deref().is_some_and(is_stdio);
    if arguments.files.len() > 1 && to_one_stream {
        let message = "several files cannot go to stdout: nothing could tell them apart again";
        return Err(Failure::command(message).with_hint("`-o` may name a directory that exists"));
    }
    check_outputs(&arguments.files, arguments.output.as_deref(), arguments.json)?;
    let bases = open_bases(&arguments.base)?;
    for_each(Direction::Compress, &arguments.files, arguments.json, |path| {
        if is_directory(path) && arguments.dry_run {
            return containers::measure_directory(path, arguments, &bases);
        }
        if is_directory(path) {
            let suffix = match arguments.to {
                PackTo::Container => CONTAINER_SUFFIX,
                PackTo::Safetensors => FRAMED_DIRECTORY_SUFFIX,
            };
            let output = directory_output(path, arguments.output.as_deref(), || {
                append_suffix(&trimmed(path), suffix)
            })?;
            return containers::compress_directory(path, &output, arguments, &bases);
        }
        let source = Source::open(path)?;
        if (source.is_container() || source.is_frame() || source.is_framed()) && !arguments.force {
            return Err(Failure::input(format!("`{}` is packed already", source.name))
                .with_hint("`--force` packs it once more, which makes it no smaller"));
        }
        let is_model = arguments.dtype.is_none() && source.is_model();
        let suffix = match (is_model, arguments.to) {
            (true, PackTo::Container) => CONTAINER_SUFFIX,
            (true, PackTo::Safetensors) => FRAMED_SUFFIX,
            (false, _) => FRAME_SUFFIX,
        };
        let target = match (&arguments.output, arguments.dry_run) {
            (_, true) => Target::Nowhere,
            (Some(output), _) => named_target(output, &append_suffix(path, suffix)),
            (None, _) if is_stdio(path) => Target::Stdout,
            (None, _) => Target::File(append_suffix(path, suffix)),
        };
        if matches!(target, Target::Stdout) && io::stdout().is_terminal() {
            let message = "compressed data is not written to a terminal";
            return Err(Failure::command(message).with_hint("name a file with `-o`, or send stdout to one"));
        }
        match is_model {
            true => containers::compress(source, &target, arguments, &bases),
            false => frames::compress(source, &target, arguments),
        }
    })
}

/// Runs `mithril decompress`.
pub(crate) fn decompress(arguments: &DecompressArguments) -> Result<(), Failure> {
    check_outputs(&arguments.files, arguments.output.as_deref(), arguments.json)?;
    let bases = open_bases(&arguments.base)?;
    for_each(Direction::Decompress, &arguments.files, arguments.json, |path| {
        if is_directory(path) {
            if arguments.dry_run {
                let message =
                    format!("`{}` is a directory, which `--dry-run` does not restore", path.display());
                return Err(Failure::command(message).with_hint("`mithril verify` checks packed directories"));
            }
            let output = directory_output(path, arguments.output.as_deref(), || {
                without_suffix(&trimmed(path)).unwrap_or_else(|| append_suffix(&trimmed(path), "restored"))
            })?;
            return containers::decompress_directory(path, &output, arguments, &bases);
        }
        let source = Source::open(path)?;
        let is_packed = source.is_container() || source.is_frame() || source.is_framed();
        if !is_packed && !source.is_short() {
            return Err(Failure::input(format!("`{}` is not packed: nothing to decompress", source.name))
                .with_hint("only files made by `mithril compress` can be restored"));
        }
        let target = match (&arguments.output, arguments.dry_run) {
            (_, true) => Target::Nowhere,
            (Some(output), _) => named_target(output, &without_suffix(path).unwrap_or(path.to_owned())),
            (None, _) if is_stdio(path) => Target::Stdout,
            (None, _) => Target::File(without_suffix(path).ok_or_else(|| {
                let name = path.display();
                let message = format!(
                    "`{name}` ends neither in `.{CONTAINER_SUFFIX}` nor in `.{FRAME_SUFFIX}`, so the output has no name"
                );
                Failure::command(message).with_hint("name it with `-o`")
            })?),
        };
        if source.is_framed() {
            return containers::decompress_framed(source, &target, arguments);
        }
        match source.is_container() {
            true => containers::decompress(source, &target, arguments, &bases),
            false => frames::decompress(source, &target, arguments),
        }
    })
}

/// What cannot be meant is refused before any work.
fn check_outputs(files: &[PathBuf], output: Option<&Path>, json: bool) -> Result<(), Failure> {
    let to_stdout =
        output.is_some_and(is_stdio) || output.is_none() && files.iter().any(|file| is_stdio(file));
    if json && to_stdout {
        return Err(Failure::command("`--json` and the data cannot both go to stdout")
            .with_hint("name a file with `-o`"));
    }
    let n_directories = files.iter().filter(|file| is_directory(file)).count();
    match output {
        Some(_) if files.len() > 1 && n_directories > 0 => {
            Err(Failure::command("`-o` cannot name the output of a directory and of something else"))
        }
        Some(output) if files.len() > 1 && !is_stdio(output) && !output.is_dir() => {
            let message = format!("several files cannot all become `{}`", output.display());
            Err(Failure::command(message).with_hint("`-o` may name a directory that exists"))
        }
        _ => Ok(()),
    }
}

/// The bases that the user named.
pub(crate) fn open_bases(paths: &[PathBuf]) -> Result<Bases, Failure> {
    Bases::open_paths(paths).map_err(|error| {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        Failure::model(names.join("`, `"), &error)
    })
}

/// Does every file, and sums up. One that fails does not keep the others from being done.
fn for_each(
    direction: Direction,
    files: &[PathBuf],
    json: bool,
    mut one: impl FnMut(&Path) -> Result<Done, Failure>,
) -> Result<(), Failure> {
    let mut done = Vec::new();
    let mut worst: Option<Fault> = None;
    for file in files {
        match one(file) {
            Ok(file) => {
                if !json {
                    tell(&summary(direction, &file));
                }
                done.push(file);
            }
            // Who reads the output does not want that of the next file either.
            Err(failure @ Failure::ClosedPipe) => return Err(failure),
            Err(failure) if files.len() == 1 => return Err(failure),
            Err(failure) => worst = worst.max(failure.tell()),
        }
    }
    let sum = |len: fn(&Done) -> u64| done.iter().map(len).sum::<u64>();
    let (raw_len, stored_len) = (sum(|file| file.raw_len), sum(|file| file.stored_len));
    let seconds = done.iter().map(|file| file.seconds).sum();
    if json {
        let n_failed = files.len() - done.len();
        print_json(&Report { files: &done, raw_bytes: raw_len, stored_bytes: stored_len, n_failed })?;
    } else if files.len() > 1 {
        let sizes = sizes(direction, raw_len, stored_len, seconds);
        tell(&format!("{} of {} files: {sizes}", done.len(), files.len()));
    }
    worst.map_or(Ok(()), |fault| Err(Failure::Reported(fault)))
}

fn summary(direction: Direction, file: &Done) -> String {
    let sizes = sizes(direction, file.raw_len, file.stored_len, file.seconds);
    let detail = if file.detail.is_empty() { String::new() } else { format!(", {}", file.detail) };
    format!("{} -> {}: {sizes}{detail}", file.source, file.output)
}

fn sizes(direction: Direction, raw_len: u64, stored_len: u64, seconds: f64) -> String {
    let rate = raw_len as f64 / 1e9 / seconds.max(1e-9);
    match direction {
        Direction::Compress => {
            let ratio = stored_len as f64 / raw_len.max(1) as f64;
            format!("{raw_len} -> {stored_len} bytes ({ratio:.4}), {rate:.2} GB/s")
        }
        Direction::Decompress => format!("{stored_len} -> {raw_len} bytes, {rate:.2} GB/s"),
    }
}

/// Whether a path means a directory. One of the name `-` is called `./-`.
fn is_directory(path: &Path) -> bool {
    !is_stdio(path) && path.is_dir()
}

/// What `-o` means for an output that would have this name: the file, or a place in the directory.
fn named_target(output: &Path, default: &Path) -> Target {
    match default.file_name() {
        Some(name) if is_directory(output) => Target::File(output.join(name)),
        _ => Target::named(output),
    }
}

/// The name of a file once it is compressed: its own, with our suffix behind it.
fn append_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Where the files of a directory go.
fn directory_output(
    path: &Path,
    output: Option<&Path>,
    default: impl FnOnce() -> PathBuf,
) -> Result<PathBuf, Failure> {
    match output {
        Some(output) if is_stdio(output) => {
            Err(Failure::command(format!("`{}` is a directory, which cannot go to stdout", path.display())))
        }
        Some(output) => Ok(output.to_owned()),
        None => Ok(default()),
    }
}

/// A path without a slash at its end.
fn trimmed(path: &Path) -> PathBuf {
    path.components().collect()
}

/// The name of a compressed file once it is restored.
fn without_suffix(path: &Path) -> Option<PathBuf> {
    if let Some(name) =
        path.file_name().and_then(|name| name.to_str()?.strip_suffix(FRAMED_SUFFIX)?.strip_suffix('.'))
    {
        return Some(path.with_file_name(name));
    }
    let is_ours = |suffix: &str| crate::input::has_suffix(path, suffix);
    let ours = [CONTAINER_SUFFIX, FRAME_SUFFIX, FRAMED_DIRECTORY_SUFFIX];
    ours.into_iter().any(is_ours).then(|| path.with_extension(""))
}
