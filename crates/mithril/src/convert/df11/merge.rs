//! Parts of a model that were encoded apart, put together.

use super::config::without;
use super::encode::Files;
use super::patterns;
use super::spread::{byte_len, copy_tensor};
use super::{CONFIG_FILE, Config, MODEL_FILE};
use crate::Error;
use crate::convert::repository::cannot;
use crate::convert::{OutputDirectory, Progress, Repository};
use crate::options::thread_count;
use crate::pipeline::tasks;
use mithril_codec::df11::Geometry;
use mithril_format::df11::{Module, Part, modules};
use mithril_format::safetensors_layout::Layout;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

/// What came of the parts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MergeSummary {
    /// Coded modules of all parts.
    pub n_modules: usize,
    /// Bytes of all tensors.
    pub coded_len: u64,
    /// Files that were written.
    pub n_files: usize,
}

/// Puts directories that [`super::encode`] made of parts of a model into one.
///
/// # Errors
/// When two parts hold the same tensor, no part or several have the configuration, a module that the configuration names
/// is in none, or was coded for another number of threads.
pub fn merge(
    parts: &[Repository],
    output: OutputDirectory,
    files: Files,
    threads: usize,
    progress: Progress<'_>,
) -> Result<MergeSummary, Error> {
    let (text, config) = find_config(parts)?;
    check_tensors(parts, &config)?;
    check_threads(parts, config.geometry)?;
    let mut summary = MergeSummary { n_modules: 0, coded_len: 0, n_files: 0 };
    let all: Vec<(usize, usize)> = (0..parts.len())
        .flat_map(|part| (0..parts[part].tensors().len()).map(move |idx| (part, idx)))
        .collect();
    let lens = all.iter().map(|&(part, idx)| byte_len(&parts[part], idx));
    summary.coded_len = lens.sum();
    for part in parts {
        summary.n_modules += modules(part.tensors())?.0.len();
    }
    match files {
        Files::Single => {
            let list = all.iter().map(|&(part, idx)| {
                let tensor = &parts[part].tensors()[idx];
                (tensor.name.clone(), tensor.dtype, tensor.shape.clone())
            });
            let layout = Layout::new(list.collect(), &BTreeMap::new());
            let layout = layout.ok_or_else(|| Error::invalid("the parts are too large for one file"))?;
            let file = output.safetensors(MODEL_FILE, &layout)?;
            let len = usize::try_from(summary.coded_len).unwrap_or(usize::MAX);
            tasks::run(all.len(), thread_count(threads, all.len(), len), |task| {
                let (part, idx) = all[task];
                copy_tensor(&parts[part], idx, &file)?;
                progress(byte_len(&parts[part], idx));
                Ok(())
            })?;
            summary.n_files = 1;
        }
        Files::PerModule => {
            for part in parts {
                for path in part.weight_files() {
                    let name = Path::new(path.file_name().unwrap_or_default());
                    progress(output.copy(part.path(), name)?);
                    summary.n_files += 1;
                }
            }
        }
    }
    let mut carried = BTreeSet::new();
    for part in parts {
        for other in part.others().iter().filter(|other| other.as_path() != Path::new(CONFIG_FILE)) {
            if !carried.insert(other) {
                return Err(Error::invalid(format!("two parts hold a file `{}`", other.display())));
            }
            output.copy(part.path(), other)?;
            summary.n_files += 1;
        }
    }
    output.write(CONFIG_FILE, without_kept(parts, text, config)?.as_bytes())?;
    summary.n_files += 1;
    output.commit()?;
    Ok(summary)
}

/// The text of `config.json` without the patterns of modules that another part kept as they are.
fn without_kept(parts: &[Repository], text: String, mut config: Config) -> Result<String, Error> {
    let coded: Vec<String> = coded_modules(parts)?.into_iter().map(|(_, module)| module.name).collect();
    let before = config.patterns.0.len();
    let mut is_coded = Vec::with_capacity(before);
    for (pattern, _) in &config.patterns.0 {
        let regex = patterns::compile(pattern)?;
        is_coded.push(coded.iter().any(|name| regex.is_match(name)));
    }
    let mut keep = is_coded.into_iter();
    config.patterns.0.retain(|_| keep.next().unwrap_or(true));
    if config.patterns.0.len() == before {
        return Ok(text);
    }
    config.write(without(&text).as_deref())
}

/// The coded modules of all parts, with the number of their part.
fn coded_modules(parts: &[Repository]) -> Result<Vec<(usize, Module)>, Error> {
    let mut all = Vec::new();
    for (part, repository) in parts.iter().enumerate() {
        all.extend(modules(repository.tensors())?.0.into_iter().map(|module| (part, module)));
    }
    Ok(all)
}

/// Checks that every module was coded for the threads that the configuration names: their number is in the lengths.
fn check_threads(parts: &[Repository], geometry: Geometry) -> Result<(), Error> {
    let (threads, bytes) = (u64::from(geometry.threads_per_block()), u64::from(geometry.bytes_per_thread()));
    for (part, module) in coded_modules(parts)? {
        let len = |of: Part| byte_len(&parts[part], module.tensor(of));
        let n_workgroups = len(Part::EncodedExponent).div_ceil(threads * bytes);
        if len(Part::Gaps) != (5 * threads * n_workgroups).div_ceil(8) {
            return Err(Error::invalid(format!(
                "`{}` was coded for another number of threads than {threads}, which `config.json` names",
                module.name
            )));
        }
    }
    Ok(())
}

/// The configuration of the one part that has it.
fn find_config(parts: &[Repository]) -> Result<(String, Config), Error> {
    let mut found = None;
    for part in parts {
        let path = part.path().join(CONFIG_FILE);
        if path.is_file() {
            let text = std::fs::read_to_string(&path).map_err(|error| cannot("read", &path, error))?;
            let config = Config::read(text.as_bytes())?;
            if found.replace((text, config)).is_some() {
                return Err(Error::invalid(
                    "two parts hold a `config.json`: each of them is a whole model's last part",
                ));
            }
        }
    }
    found.ok_or_else(|| {
        Error::invalid("no part holds a `config.json`: the part with the last module is missing")
    })
}

/// Checks that no tensor is there twice, and that every module that a pattern names alone is there.
fn check_tensors(parts: &[Repository], config: &Config) -> Result<(), Error> {
    let mut names = HashSet::new();
    for tensor in parts.iter().flat_map(Repository::tensors) {
        if !names.insert(tensor.name.as_str()) {
            return Err(Error::invalid(format!("two parts hold `{}`", tensor.name)));
        }
    }
    let coded = format!(".{}", Part::EncodedExponent.name());
    let present: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_suffix(&coded).or_else(|| name.strip_suffix(".weight")))
        .collect();
    for (pattern, _) in &config.patterns.0 {
        let regex = patterns::compile(pattern)?;
        if !present.iter().any(|name| regex.is_match(name)) {
            return Err(Error::invalid(format!("no part holds what the pattern `{pattern}` names")));
        }
    }
    Ok(())
}
