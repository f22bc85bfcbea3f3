//! `mithril quantize`: weights to fewer bits, with loss, and always with its error.

use crate::convert::{Meter, create, refused};
use crate::failure::{Failure, print_json, tell};
use crate::table::Table;
use clap::Args;
use mithril::convert::Repository;
use mithril::quantize::{
    QuantizeOptions, QuantizeReport, Reference, Target, TensorOutcome, TensorReport, quantize,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arguments of `quantize`.
#[derive(Debug, Args)]
#[command(after_help = "\
This is lossy: weights come back changed. The error is printed, and stands in the header of the file. Matrices of floats
are quantised; vectors, small tensors and what `--keep` names stay as they are, and so do matrices with NaN or infinite
weights, which are named. A single weight far beyond all others is kept, and does not count in the error. For a size
(`--bpw`, from 2.5 on) rows and columns of layers have scales of their own, which is better for a model; for an error
(`--snr`, `--like`) a tensor has one, which is better for its weights. All other commands are lossless.

Formats for `--like`: affine2-g64 to affine8-g64 (groups of 32, 64 and 128), mxfp4, nvfp4.

Examples:
  mithril quantize model --bpw 3.75 -o model-ecq
  mithril quantize model --like affine4-g64 -o model-ecq --keep embed
  mithril quantize model --snr 20.5 -o model-ecq --calibration moments.safetensors
  mithril convert model-ecq --to safetensors -o model-back")]
pub(crate) struct QuantizeArguments {
    /// Model to quantise: a safetensors file or a directory
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Directory to write
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) target: TargetArguments,
    /// Leave tensors alone whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) keep: Vec<String>,
    /// JSON object of tensor names and how much their error counts; 1 where none is given
    #[arg(long, value_name = "FILE")]
    pub(crate) sensitivities: Option<PathBuf>,
    /// Safetensors file with the mean squares of a layer's inputs under the name of its weight
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Replace files of an existing directory
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to reach: exactly one of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TargetArguments {
    /// Bits per weight, everything included
    #[arg(long, value_name = "BITS")]
    pub(crate) bpw: Option<f64>,
    /// Weights over error, in decibels
    #[arg(long, value_name = "DB")]
    pub(crate) snr: Option<f64>,
    /// The error of a format, for instance affine4-g64
    #[arg(long, value_name = "FORMAT")]
    pub(crate) like: Option<String>,
}

impl TargetArguments {
    fn target(&self) -> Result<Target, Failure> {
        if let Some(bits) = self.bpw {
            return Ok(Target::BitsPerWeight(bits));
        }
        if let Some(snr_db) = self.snr {
            return Ok(Target::SnrDb(snr_db));
        }
        let name = self.like.as_deref().unwrap_or_default();
        let reference = Reference::from_name(name).ok_or_else(|| {
            Failure::command(format!("no format is named `{name}`")).with_hint(
                "affine2-g64 to affine8-g64 with groups of 32, 64 or 128, mxfp4 and nvfp4 are known",
            )
        })?;
        Ok(Target::Like(reference))
    }
}

/// Runs `mithril quantize`.
pub(crate) fn run(arguments: &QuantizeArguments) -> Result<(), Failure> {
    let model = arguments.model.as_path();
    let mut options = QuantizeOptions::new(arguments.target.target()?);
    options.keep.clone_from(&arguments.keep);
    options.calibration.clone_from(&arguments.calibration);
    options.threads = arguments.threads;
    if let Some(path) = &arguments.sensitivities {
        options.sensitivities = sensitivities(path)?;
    }
    options.check().map_err(|error| Failure::command(error.to_string()))?;
    let repository = Repository::open(model).map_err(|error| refused(model, &error))?;
    let output = create(model, &arguments.output, arguments.force)?;
    let meter = Meter::new(None);
    let report = quantize(&repository, output, &options, &|len| meter.add(len));
    let report = report.map_err(|error| refused(model, &error))?;
    meter.finish();
    if arguments.json {
        return print_json(&to_json(arguments, &report));
    }
    tell_report(arguments, &report);
    Ok(())
}

fn sensitivities(path: &Path) -> Result<BTreeMap<String, f64>, Failure> {
    let failed = |what: String| Failure::command(format!("`{}`: {what}", path.display()));
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| failed(format!("no object of numbers: {error}")))
}

fn quantised(tensor: &TensorReport) -> Option<(f64, f64, u64)> {
    match tensor.outcome {
        TensorOutcome::Quantised { bits_per_weight, snr_db, n_escapes, .. } => {
            Some((bits_per_weight, snr_db, n_escapes))
        }
        _ => None,
    }
}

fn tell_report(arguments: &QuantizeArguments, report: &QuantizeReport) {
    let (raw_len, coded_len) = (report.raw_len, report.coded_len);
    tell(&format!(
        "{} -> {}: {raw_len} -> {coded_len} bytes ({:.4})",
        arguments.model.display(),
        arguments.output.display(),
        coded_len as f64 / raw_len.max(1) as f64
    ));
    let mut worst: Vec<(&TensorReport, (f64, f64, u64))> =
        report.tensors.iter().filter_map(|tensor| Some((tensor, quantised(tensor)?))).collect();
    worst.sort_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
    tell(&format!(
        "lossy: {:.2} dB at {:.3} bits per weight over {} matrices; {} tensors stay as they are",
        report.snr_db,
        report.bits_per_weight,
        worst.len(),
        report.n_copied
    ));
    let mut table = Table::new(1, ["worst tensors", "dB", "bits", "escapes"]);
    for (tensor, (bits, snr_db, n_escapes)) in worst.iter().take(5) {
        table.push([
            tensor.name.clone(),
            format!("{snr_db:.2}"),
            format!("{bits:.3}"),
            n_escapes.to_string(),
        ]);
    }
    tell(table.render().trim_end());
    let mut table = Table::new(1, ["the same weights as", "dB", "bits stored"]);
    for reference in &report.references {
        let (snr_db, bits) = (reference.snr_db, reference.bits_per_weight);
        table.push([reference.name.clone(), format!("{snr_db:.2}"), format!("{bits:.2}")]);
    }
    tell(table.render().trim_end());
    for tensor in &report.tensors {
        if let TensorOutcome::Kept(reason) = tensor.outcome {
            tell(&format!("  kept: `{}`: {reason}", tensor.name));
        }
    }
}

fn to_json(arguments: &QuantizeArguments, report: &QuantizeReport) -> Value {
    let tensors = report.tensors.iter().map(|tensor| match (&tensor.outcome, quantised(tensor)) {
        (TensorOutcome::Kept(reason), _) => json!({"name": tensor.name, "kept": reason}),
        (_, Some((bits_per_weight, snr_db, n_escapes))) => json!({
            "name": tensor.name,
            "n_weights": tensor.n_weights,
            "bits_per_weight": bits_per_weight,
            "snr_db": snr_db,
            "n_escapes": n_escapes,
        }),
        _ => json!({"name": tensor.name}),
    });
    let references = report.references.iter().map(|reference| {
        json!({
            "name": reference.name,
            "bits_per_weight": reference.bits_per_weight,
            "snr_db": reference.snr_db,
        })
    });
    json!({
        "input": arguments.model,
        "output": arguments.output,
        "lossy": true,
        "bits_per_weight": report.bits_per_weight,
        "snr_db": report.snr_db,
        "raw_bytes": report.raw_len,
        "coded_bytes": report.coded_len,
        "n_copied": report.n_copied,
        "references": references.collect::<Vec<_>>(),
        "tensors": tensors.collect::<Vec<_>>(),
    })
}
