//! `mithril convert --to ecq` and back.

use super::{ConvertArguments, Meter, create, refused};
use crate::clock::seconds;
use crate::failure::{Failure, print_json, tell};
use mithril::convert::ecq::{self, EcqFile, EncodeSummary, Outcome, SourceFormat};
use rustix::time::ClockId;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn encode(arguments: &ConvertArguments, path: &Path) -> Result<(), Failure> {
    let started = seconds(ClockId::Monotonic);
    let output = create(path, &arguments.output, arguments.force)?;
    let meter = Meter::new(None);
    let encoded = ecq::encode(path, output, arguments.threads, &|len| meter.add(len));
    let summary = encoded.map_err(|error| refused(path, &error))?;
    meter.finish();
    let elapsed_seconds = seconds(ClockId::Monotonic) - started;
    let kinds = by_kind(&summary);
    let (raw_len, coded_len) = (summary.raw_len, summary.coded_len);
    let ratio = |raw_len: u64, coded_len: u64| coded_len as f64 / raw_len.max(1) as f64;
    if arguments.json {
        let kinds: Vec<_> = kinds
            .iter()
            .map(|(kind, sizes)| {
                json!({
                    "kind": kind,
                    "n_matrices": sizes.n,
                    "raw_bytes": sizes.raw_len,
                    "coded_bytes": sizes.coded_len,
                    "ratio": ratio(sizes.raw_len, sizes.coded_len),
                })
            })
            .collect();
        return print_json(&json!({
            "input": path,
            "output": arguments.output,
            "format": "ecq",
            "seconds": elapsed_seconds,
            "raw_bytes": raw_len,
            "coded_bytes": coded_len,
            "ratio": ratio(raw_len, coded_len),
            "n_files": summary.n_files,
            "n_carried": summary.n_carried,
            "kinds": kinds,
        }));
    }
    let rate = raw_len as f64 / 1e9 / elapsed_seconds.max(1e-9);
    tell(&format!(
        "{} -> {}: {raw_len} -> {coded_len} bytes ({:.4}), {rate:.2} GB/s",
        path.display(),
        arguments.output.display(),
        ratio(raw_len, coded_len)
    ));
    for (kind, sizes) in kinds {
        let share = ratio(sizes.raw_len, sizes.coded_len);
        let (n, raw_len, coded_len) = (sizes.n, sizes.raw_len, sizes.coded_len);
        tell(&format!("  {kind}: {n} matrices, {raw_len} -> {coded_len} bytes ({share:.4})"));
    }
    Ok(())
}

#[derive(Default)]
struct Sizes {
    n: usize,
    raw_len: u64,
    coded_len: u64,
}

/// Sizes of all matrices of the same layout and width.
fn by_kind(summary: &EncodeSummary) -> BTreeMap<String, Sizes> {
    let mut kinds: BTreeMap<String, Sizes> = BTreeMap::new();
    for tensor in &summary.tensors {
        let name = tensor.layout.name();
        let (kind, coded_len) = match tensor.outcome {
            Outcome::Coded { bits, group_size: 0, coded_len } => (format!("{name}, {bits} bits"), coded_len),
            Outcome::Coded { bits, group_size, coded_len } => {
                (format!("{name}, {bits} bits, groups of {group_size}"), coded_len)
            }
            _ => (format!("{name}, kept as it was"), tensor.raw_len),
        };
        let sizes = kinds.entry(kind).or_default();
        sizes.n += 1;
        sizes.raw_len += tensor.raw_len;
        sizes.coded_len += coded_len;
    }
    kinds
}

pub(super) fn decode(arguments: &ConvertArguments, path: &Path, format: SourceFormat) -> Result<(), Failure> {
    let started = seconds(ClockId::Monotonic);
    let output = create(path, &arguments.output, arguments.force)?;
    let meter = Meter::new(None);
    let decoded = ecq::decode(path, format, output, arguments.threads, &|len| meter.add(len));
    let summary = decoded.map_err(|error| refused(path, &error))?;
    meter.finish();
    let elapsed_seconds = seconds(ClockId::Monotonic) - started;
    let (coded_len, raw_len) = (summary.coded_len, summary.raw_len);
    if arguments.json {
        return print_json(&json!({
            "input": path,
            "output": arguments.output,
            "seconds": elapsed_seconds,
            "n_matrices": summary.n_matrices,
            "coded_bytes": coded_len,
            "raw_bytes": raw_len,
            "n_files": summary.n_files,
            "n_carried": summary.n_carried,
        }));
    }
    let rate = raw_len as f64 / 1e9 / elapsed_seconds.max(1e-9);
    let (n, from, to) = (summary.n_matrices, path.display(), arguments.output.display());
    tell(&format!("{from} -> {to}: {n} matrices, {coded_len} -> {raw_len} bytes, {rate:.2} GB/s"));
    Ok(())
}

/// Whether a file, or the first of a directory, has entropy-coded matrices.
pub(super) fn is_coded(path: &Path) -> bool {
    let file = if path.is_dir() {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).min()
    } else {
        Some(path.to_owned())
    };
    file.is_some_and(|file| matches!(EcqFile::open(&file), Ok(Some(_))))
}

/// The weights that a quantised model stands for.
pub(super) fn dequantize(arguments: &ConvertArguments, path: &Path) -> Result<(), Failure> {
    let output = create(path, &arguments.output, arguments.force)?;
    let meter = Meter::new(None);
    let done = mithril::quantize::dequantize(path, output, &|len| meter.add(len));
    let summary = done.map_err(|error| refused(path, &error))?;
    meter.finish();
    if arguments.json {
        return print_json(&json!({
            "input": path,
            "output": arguments.output,
            "format": "safetensors",
            "n_matrices": summary.n_matrices,
            "raw_bytes": summary.raw_len,
        }));
    }
    let (n, from, to) = (summary.n_matrices, path.display(), arguments.output.display());
    tell(&format!("{from} -> {to}: {n} matrices, {} bytes, as their codes say", summary.raw_len));
    Ok(())
}
