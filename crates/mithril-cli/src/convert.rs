//! `mithril convert` and `mithril merge`: repositories from one format of weights to another.

mod ecq;

use crate::clock::seconds;
use crate::failure::{Failure, print_json, tell};
use crate::output::clean_up_on_signal;
use crate::progress::Metered;
use clap::{Args, ValueEnum};
use mithril::Error;
use mithril::convert::df11::{self, EncodeOptions, EncodeSummary, Files, Geometry, Outcome, PatternDict};
use mithril::convert::ecq::SourceFormat;
use mithril::convert::{OutputDirectory, Repository, components, is_pipeline};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Formats that weights can be converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// DFloat11: what the `dfloat11` package loads
    Df11,
    /// Plain safetensors
    Safetensors,
    /// Entropy-coded weights of a quantised model (MLX, GGUF, common PyTorch packings), without loss
    Ecq,
    /// The MLX or PyTorch repository that an entropy-coded one was made of
    Mlx,
    /// The GGUF file that an entropy-coded one was made of
    Gguf,
}

/// Arguments of `convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
MODEL is a safetensors file, a directory of them (with shards or without), or a diffusers pipeline. Of a pipeline, the
transformer, unet and text encoders are converted, a VAE only if most of it is matrices, and all else is copied, unless
`--component` names one.

DFloat11 holds BF16 matrices: by default every Linear and Embedding, each alone. Weights that it cannot hold (infinities,
NaN, constants) stay BF16 and are named. The files are byte for byte those of the package's own encoder.

Examples:
  mithril convert model --to df11 -o model-df11
  mithril convert model.safetensors --to df11 -o model-df11 --save-single-file
  mithril convert pipeline --to df11 -o transformer-df11 --component transformer --shared-memory 49152
  mithril convert model --to df11 -o model-df11 --pattern 'layers\\.\\d+=attention.q,attention.k,mlp.up'
  mithril convert model --to df11 -o part-1 --blocks 0:100
  mithril convert model-df11 --to safetensors -o model

`--to ecq` codes quantised weights: MLX affine, mxfp4, mxfp8 and nvfp4, GGUF Q4_0 to Q8_0 and Q4_K to Q6_K, and codes of
GPTQ, AWQ and compressed-tensors. `--to mlx` and `--to gguf` give the original files back, byte for byte.

  mithril convert model-4bit --to ecq -o model-4bit-ecq
  mithril convert model-4bit-ecq --to mlx -o model-4bit
  mithril convert model.Q4_K_M.gguf --to ecq -o model-ecq")]
pub(crate) struct ConvertArguments {
    /// Model to convert: a file or a directory
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Format to convert to
    #[arg(long, value_enum)]
    pub(crate) to: Format,
    /// Directory to write
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Component of a pipeline, for instance transformer, text_encoder or vae
    #[arg(long, value_name = "NAME")]
    pub(crate) component: Option<String>,
    /// Modules to code: a regular expression for their names, and after `=` the submodules that are coded together
    #[arg(long = "pattern", value_name = "REGEX[=A,B]")]
    pub(crate) patterns: Vec<String>,
    /// Write one file instead of one for each module
    #[arg(long)]
    pub(crate) save_single_file: bool,
    /// GPU threads of a workgroup, a power of two [default: 512]
    #[arg(long, value_name = "N")]
    pub(crate) threads_per_block: Option<u32>,
    /// Coded bytes of a GPU thread; the package's kernel knows 8 only
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) bytes_per_thread: u32,
    /// Shared memory of the target in bytes: workgroups get as few threads as it takes
    #[arg(long, value_name = "BYTES")]
    pub(crate) shared_memory: Option<u64>,
    /// Only modules behind LO up to HI; `mithril merge` puts the parts together
    #[arg(long, value_name = "LO:HI", value_parser = parse_blocks)]
    pub(crate) blocks: Option<Range<usize>>,
    /// Do not decode every module again to compare its bits
    #[arg(long)]
    pub(crate) no_check_correctness: bool,
    /// Model with the same names, to look up shapes that a DFloat11 directory lacks
    #[arg(long, value_name = "MODEL")]
    pub(crate) shapes_from: Option<PathBuf>,
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

/// Arguments of `merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
The parts are what `mithril convert --blocks` wrote, in any order; the one with the last module brings `config.json` and
the rest of the repository.

Examples:
  mithril merge part-1 part-2 part-3 -o model-df11
  mithril merge part-* -o model-df11 --save-single-file")]
pub(crate) struct MergeArguments {
    /// Directories that hold the parts
    #[arg(required = true, value_name = "PART")]
    pub(crate) parts: Vec<PathBuf>,
    /// Directory to write
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Write one file instead of one for each module
    #[arg(long)]
    pub(crate) save_single_file: bool,
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

/// Runs `mithril convert`.
pub(crate) fn run(arguments: &ConvertArguments) -> Result<(), Failure> {
    let (path, is_whole_pipeline) = locate(arguments)?;
    match arguments.to {
        Format::Df11 => to_df11(arguments, &path, is_whole_pipeline),
        Format::Safetensors if ecq::is_coded(&path) => ecq::dequantize(arguments, &path),
        Format::Safetensors => to_safetensors(arguments, &path, is_whole_pipeline),
        Format::Ecq => ecq::encode(arguments, &path),
        Format::Mlx => ecq::decode(arguments, &path, SourceFormat::Safetensors),
        Format::Gguf => ecq::decode(arguments, &path, SourceFormat::Gguf),
    }
}

/// Runs `mithril merge`.
pub(crate) fn merge(arguments: &MergeArguments) -> Result<(), Failure> {
    let parts =
        arguments.parts.iter().map(|part| Repository::open(part).map_err(|error| refused(part, &error)));
    let parts = parts.collect::<Result<Vec<Repository>, Failure>>()?;
    let (first, others) = arguments.parts.split_first().expect("clap asks for a part");
    let mut output = create(first, &arguments.output, arguments.force)?;
    for part in others {
        output = output.made_of(part).map_err(|error| refused(part, &error))?;
    }
    let meter = Meter::new(None);
    let files = if arguments.save_single_file { Files::Single } else { Files::PerModule };
    let merged = df11::merge(&parts, output, files, arguments.threads, &|len| meter.add(len));
    let summary = merged.map_err(|error| refused(&arguments.output, &error))?;
    meter.finish();
    if arguments.json {
        return print_json(&json!({
            "output": arguments.output,
            "n_modules": summary.n_modules,
            "coded_bytes": summary.coded_len,
            "n_files": summary.n_files,
        }));
    }
    let (n_modules, n_files, len) = (summary.n_modules, summary.n_files, summary.coded_len);
    let output = arguments.output.display();
    tell(&format!("{} parts -> {output}: {n_modules} modules, {len} bytes in {n_files} files", parts.len()));
    Ok(())
}

/// The directory or file to convert, and whether it is a pipeline with all its components.
fn locate(arguments: &ConvertArguments) -> Result<(PathBuf, bool), Failure> {
    let model = &arguments.model;
    let Some(component) = &arguments.component else { return Ok((model.clone(), is_pipeline(model))) };
    let path = model.join(component);
    if path.is_dir() {
        return Ok((path, false));
    }
    let failure = Failure::command(format!("`{}` has no component `{component}`", model.display()));
    match components(model) {
        Ok(names) if !names.is_empty() => Err(failure.with_hint(format!("it has {}", names.join(", ")))),
        _ => Err(failure),
    }
}

fn to_df11(arguments: &ConvertArguments, path: &Path, is_whole_pipeline: bool) -> Result<(), Failure> {
    let options = encode_options(arguments)?;
    let started = seconds(ClockId::Monotonic);
    let failed = |error: &Error| refused(path, error);
    let summaries = if is_whole_pipeline {
        let output = create(path, &arguments.output, arguments.force)?;
        let meter = Meter::new(None);
        let progress = |len| meter.add(len);
        df11::encode_pipeline(path, output, &options, &progress).map_err(|error| failed(&error))?
    } else {
        let repository = Repository::open(path).map_err(|error| failed(&error))?;
        let output = create(path, &arguments.output, arguments.force)?;
        let total: u64 =
            repository.tensors().iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).sum();
        let meter = Meter::new(Some(total).filter(|_| options.blocks.is_none()));
        let progress = |len| meter.add(len);
        let summary =
            df11::encode(&repository, output, &options, &progress).map_err(|error| failed(&error))?;
        vec![(String::new(), summary)]
    };
    let elapsed_seconds = seconds(ClockId::Monotonic) - started;
    if arguments.json {
        let values: Vec<Value> = summaries.iter().map(|(name, summary)| to_json(name, summary)).collect();
        return print_json(&json!({
            "input": path,
            "output": arguments.output,
            "format": "df11",
            "seconds": elapsed_seconds,
            "components": values,
        }));
    }
    for (name, summary) in &summaries {
        let (from, to) = (named(path, name), named(&arguments.output, name));
        tell_encoded(&from, &to, summary);
    }
    let raw_len: u64 = summaries.iter().map(|(_, summary)| summary.raw_len).sum();
    tell(&format!("{:.2} GB/s", raw_len as f64 / 1e9 / elapsed_seconds.max(1e-9)));
    Ok(())
}

fn encode_options(arguments: &ConvertArguments) -> Result<EncodeOptions, Failure> {
    let threads = arguments.threads_per_block.unwrap_or(512);
    let geometry = Geometry::new(threads, arguments.bytes_per_thread).ok_or_else(|| {
        Failure::command(format!("no kernel has {threads} threads of {} bytes", arguments.bytes_per_thread))
            .with_hint("threads are a power of two from 8 to 1024, and own a multiple of 8 bytes")
    })?;
    let mut options = EncodeOptions::default();
    options.geometry = geometry;
    options.shared_memory = arguments.shared_memory;
    options.blocks.clone_from(&arguments.blocks);
    options.check = !arguments.no_check_correctness;
    options.threads = arguments.threads;
    options.files = if arguments.save_single_file { Files::Single } else { Files::PerModule };
    if !arguments.patterns.is_empty() {
        options.patterns =
            Some(PatternDict(arguments.patterns.iter().map(|text| parse_pattern(text)).collect()));
    }
    Ok(options)
}

fn to_safetensors(arguments: &ConvertArguments, path: &Path, is_whole_pipeline: bool) -> Result<(), Failure> {
    let started = seconds(ClockId::Monotonic);
    let failed = |error: &Error| refused(path, error);
    let meter = Meter::new(None);
    let progress = |len| meter.add(len);
    let summaries = if is_whole_pipeline {
        let output = create(path, &arguments.output, arguments.force)?;
        df11::decode_pipeline(path, output, arguments.threads, &progress).map_err(|error| failed(&error))?
    } else {
        let shapes = match &arguments.shapes_from {
            Some(from) => Some(Repository::open(from).map_err(|error| refused(from, &error))?),
            None => None,
        };
        let source = df11::ShapeSource { repository: shapes.as_ref(), model: None };
        let model = df11::Model::open_with(path, &source).map_err(|error| failed(&error))?;
        let output = create(path, &arguments.output, arguments.force)?;
        let summary =
            df11::decode(&model, output, arguments.threads, &progress).map_err(|error| failed(&error))?;
        vec![(String::new(), summary)]
    };
    meter.finish();
    let elapsed_seconds = seconds(ClockId::Monotonic) - started;
    if arguments.json {
        let values: Vec<Value> = summaries
            .iter()
            .map(|(name, summary)| {
                json!({
                    "component": name,
                    "n_modules": summary.n_modules,
                    "coded_bytes": summary.coded_len,
                    "raw_bytes": summary.raw_len,
                    "without_shape": summary.flat,
                })
            })
            .collect();
        return print_json(&json!({
            "input": path,
            "output": arguments.output,
            "format": "safetensors",
            "seconds": elapsed_seconds,
            "components": values,
        }));
    }
    for (name, summary) in &summaries {
        let (from, to) = (named(path, name), named(&arguments.output, name));
        let rate = summary.raw_len as f64 / 1e9 / elapsed_seconds.max(1e-9);
        let (coded_len, raw_len, n_modules) = (summary.coded_len, summary.raw_len, summary.n_modules);
        let files =
            if summary.n_files == 1 { String::new() } else { format!(" in {} files", summary.n_files) };
        tell(&format!(
            "{from} -> {to}: {n_modules} modules, {coded_len} -> {raw_len} bytes{files}, {rate:.2} GB/s"
        ));
        for weight in &summary.flat {
            tell(&format!("  `{weight}` has one dimension: its shape is not known"));
        }
        if !summary.flat.is_empty() {
            tell("\nhint: `--shapes-from` takes them from a model with the same names");
        }
    }
    Ok(())
}

fn tell_encoded(from: &str, to: &str, summary: &EncodeSummary) {
    let coded = |outcome: &Outcome| matches!(outcome, Outcome::Coded { .. });
    let n_coded = summary.modules.iter().filter(|module| coded(&module.outcome)).count();
    let (raw_len, coded_len) = (summary.raw_len, summary.coded_len);
    let ratio = coded_len as f64 / raw_len.max(1) as f64;
    let threads = summary.geometry.threads_per_block();
    let worst = worst_module(summary);
    tell(&format!(
        "{from} -> {to}: {n_coded} modules, {raw_len} -> {coded_len} bytes ({ratio:.4}), {threads} threads per block"
    ));
    if let Some((name, shared_memory)) = worst {
        tell(&format!("  shared memory: at most {shared_memory} bytes, for `{name}`"));
    }
    for module in &summary.modules {
        if let Outcome::Kept(reason) = module.outcome {
            tell(&format!("  kept as BF16: `{}`: {reason}", module.name));
        }
    }
}

fn worst_module(summary: &EncodeSummary) -> Option<(&str, u64)> {
    let demand = |module: &'_ df11::EncodedModule| match module.outcome {
        Outcome::Coded { shared_memory, .. } => Some(shared_memory),
        _ => None,
    };
    let modules = summary.modules.iter().filter_map(|module| Some((module.name.as_str(), demand(module)?)));
    modules.max_by_key(|&(_, shared_memory)| shared_memory)
}

fn to_json(component: &str, summary: &EncodeSummary) -> Value {
    let modules = summary.modules.iter().map(|module| match module.outcome {
        Outcome::Coded { coded_len, shared_memory } => json!({
            "name": module.name,
            "n_elements": module.n_elements,
            "coded_bytes": coded_len,
            "shared_memory": shared_memory,
        }),
        Outcome::Kept(reason) => {
            json!({"name": module.name, "n_elements": module.n_elements, "kept": reason.to_string()})
        }
        _ => json!({"name": module.name}),
    });
    json!({
        "component": component,
        "raw_bytes": summary.raw_len,
        "coded_bytes": summary.coded_len,
        "ratio": summary.coded_len as f64 / summary.raw_len.max(1) as f64,
        "threads_per_block": summary.geometry.threads_per_block(),
        "bytes_per_thread": summary.geometry.bytes_per_thread(),
        "n_files": summary.n_files,
        "n_carried": summary.n_carried,
        "modules": modules.collect::<Vec<_>>(),
    })
}

/// How far several threads have come together.
pub(crate) struct Meter(Mutex<Metered<()>>);

impl Meter {
    pub(crate) fn new(total_len: Option<u64>) -> Self {
        Self(Mutex::new(Metered::new((), total_len)))
    }

    pub(crate) fn add(&self, len: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(len);
    }

    pub(crate) fn finish(self) {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    }
}

/// Starts the directory that an input is converted to: only those may read it who may read the input, and it does not appear
/// when the input changes.
pub(crate) fn create(input: &Path, path: &Path, replace: bool) -> Result<OutputDirectory, Failure> {
    clean_up_on_signal();
    let output = OutputDirectory::create(path, replace).map_err(|error| match &error {
        Error::InvalidArgument { .. } => {
            Failure::command(error.to_string()).with_hint("`--force` replaces its files, `-o` names another")
        }
        _ => Failure::model(path.display(), &error),
    })?;
    output.made_of(input).map_err(|error| refused(input, &error))
}

pub(crate) fn refused(path: &Path, error: &Error) -> Failure {
    match error {
        // What was typed, not what was found.
        Error::InvalidArgument { what } if what.starts_with("pattern `") => Failure::command(what),
        _ => Failure::model(path.display(), error),
    }
}

/// A path, or a component of it.
fn named(path: &Path, component: &str) -> String {
    if component.is_empty() { path.display().to_string() } else { path.join(component).display().to_string() }
}

/// `REGEX` or `REGEX=A,B`: the last `=` parts them, as names of modules have none.
fn parse_pattern(text: &str) -> (String, Vec<String>) {
    match text.rsplit_once('=') {
        Some((pattern, attributes)) => {
            (pattern.to_owned(), attributes.split(',').map(|attribute| attribute.trim().to_owned()).collect())
        }
        None => (text.to_owned(), Vec::new()),
    }
}

fn parse_blocks(text: &str) -> Result<Range<usize>, String> {
    let range = text.split_once(':').and_then(|(low, high)| Some(low.parse().ok()?..high.parse().ok()?));
    range
        .filter(|range: &Range<usize>| range.start < range.end)
        .ok_or_else(|| "expected LO:HI, for instance 0:100".to_owned())
}
