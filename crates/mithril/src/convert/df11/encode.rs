//! A repository to a DF11 directory: options, what came of it, and the order of the work.

use super::job::Job;
use super::source_files::SourceFiles;
use super::{CONFIG_FILE, Config, PatternDict, automatic_patterns, patterns};
use crate::Error;
use crate::convert::repository::cannot;
use crate::convert::{OutputDirectory, Progress, Repository};
use mithril_codec::df11::{Geometry, Unencodable};
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

/// How the tensors are spread over files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Files {
    /// All in `model.safetensors`.
    #[default]
    Single,
    /// A file for each module, with everything below it, and the rest in `model.safetensors`.
    PerModule,
}

/// How a repository is encoded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EncodeOptions {
    /// Which modules are coded; by default every Linear and Embedding, each alone.
    pub patterns: Option<PatternDict>,
    /// How tensors are spread over files.
    pub files: Files,
    /// Threads of a workgroup and their bytes. With `shared_memory`, the most threads.
    pub geometry: Geometry,
    /// Bytes of shared memory that the kernel may ask for: workgroups get fewer threads until it suffices.
    pub shared_memory: Option<u64>,
    /// Only modules behind the first of these numbers, up to the second one, counted over all patterns. The part that
    /// goes up to the last module also holds the rest of the repository.
    pub blocks: Option<Range<usize>>,
    /// Whether every module is decoded again and compared bit for bit.
    pub check: bool,
    /// Threads; 0 is one per core. The bytes do not depend on it.
    pub threads: usize,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self {
            patterns: None,
            files: Files::Single,
            geometry: Geometry::default(),
            shared_memory: None,
            blocks: None,
            check: true,
            threads: 0,
        }
    }
}

/// What came of a repository.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EncodeSummary {
    /// The modules that patterns chose, in their order.
    pub modules: Vec<EncodedModule>,
    /// Threads and their bytes.
    pub geometry: Geometry,
    /// Bytes of all tensors that were written, before.
    pub raw_len: u64,
    /// Bytes of all tensors that were written, after.
    pub coded_len: u64,
    /// Files of weights that were written.
    pub n_files: usize,
    /// Other files that were carried along.
    pub n_carried: usize,
}

/// What came of a module.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EncodedModule {
    /// Its name.
    pub name: String,
    /// Elements of its weights.
    pub n_elements: u64,
    /// Whether it was coded.
    pub outcome: Outcome,
}

/// Whether a module was coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Coded.
    Coded {
        /// Bytes of its six tensors.
        coded_len: u64,
        /// Shared memory in bytes that the kernel asks for.
        shared_memory: u64,
    },
    /// Kept as BF16, because DF11 cannot hold it.
    Kept(Unencodable),
}

/// Makes a DF11 directory of a repository.
///
/// # Errors
/// When patterns choose weights that are not there or not BF16, nothing can be coded, or a file cannot be read or
/// written. Nothing is left behind then.
pub fn encode(
    repository: &Repository,
    output: OutputDirectory,
    options: &EncodeOptions,
    progress: Progress<'_>,
) -> Result<EncodeSummary, Error> {
    let model_config = read_model_config(repository)?;
    let model_type = model_config.as_deref().and_then(model_type);
    let is_automatic = options.patterns.is_none();
    let mut patterns = match &options.patterns {
        Some(patterns) => patterns.clone(),
        None => automatic_patterns(repository, model_type.as_deref()),
    };
    let sources = patterns::choose(repository, &patterns)?;
    if sources.is_empty() {
        return Err(nothing_to_code(repository, is_automatic));
    }
    let range = options.blocks.clone().unwrap_or(0..sources.len());
    if options.blocks.is_some() && options.files == Files::Single {
        return Err(Error::invalid("a part of the modules needs a file for each of them, not a single file"));
    }
    if range.start >= range.end.min(sources.len()) {
        let what =
            format!("there are {} modules, none of them in {}:{}", sources.len(), range.start, range.end);
        return Err(Error::invalid(what));
    }
    let is_last_part = range.end >= sources.len();
    let own = range.start..range.end.min(sources.len());

    let job = Job::plan(repository, &output, &sources, own, options)?;
    // A pattern whose modules all stay as they are would have readers look for what is not there. Modules of other parts
    // are theirs to judge.
    let kept: HashSet<&str> = job.kept().map(|source| source.name.as_str()).collect();
    let needed: HashSet<usize> = sources
        .iter()
        .filter(|source| !kept.contains(source.name.as_str()))
        .map(|source| source.pattern)
        .collect();
    let chosen: HashSet<usize> = sources.iter().map(|source| source.pattern).collect();
    let mut idx = 0..;
    patterns.0.retain(|_| idx.next().is_some_and(|idx| needed.contains(&idx) || !chosen.contains(&idx)));
    let mut summary = job.write(&output, options, is_last_part, progress)?;
    if is_last_part {
        let config = Config { geometry: job.geometry, patterns };
        output.write(CONFIG_FILE, config.write(model_config.as_deref())?.as_bytes())?;
        for other in repository.others().iter().filter(|other| other.as_path() != Path::new(CONFIG_FILE)) {
            output.copy(repository.path(), other)?;
            summary.n_carried += 1;
        }
        SourceFiles::of(repository)?.write(&output)?;
    }
    job.write_shapes(&output)?;
    output.commit()?;
    Ok(summary)
}

/// The text of the model's own `config.json`.
fn read_model_config(repository: &Repository) -> Result<Option<String>, Error> {
    if !repository.others().iter().any(|other| other.as_path() == Path::new(CONFIG_FILE)) {
        return Ok(None);
    }
    let path = repository.path().join(CONFIG_FILE);
    std::fs::read_to_string(&path).map(Some).map_err(|error| cannot("read", &path, error))
}

fn model_type(config: &str) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(config).ok()?;
    Some(config.get("model_type")?.as_str()?.to_owned())
}

fn nothing_to_code(repository: &Repository, is_automatic: bool) -> Error {
    let mut dtypes: Vec<&str> = repository.tensors().iter().map(|tensor| tensor.dtype.name()).collect();
    dtypes.sort_unstable();
    dtypes.dedup();
    let what =
        if is_automatic { "no BF16 matrices named `weight`" } else { "nothing that the patterns match" };
    Error::invalid(format!(
        "`{}` has {what}; its tensors are {}",
        repository.path().display(),
        dtypes.join(", ")
    ))
}
