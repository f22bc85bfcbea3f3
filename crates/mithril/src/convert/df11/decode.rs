//! A DF11 directory back to plain safetensors.

use super::model::Place;
use super::source_files::SourceFiles;
use super::spread::{byte_len, copy_tensor};
use super::{CONFIG_FILE, MODEL_FILE, Model, SHAPES_FILE, SOURCE_FILE};
use crate::Error;
use crate::convert::output::SafetensorsFile;
use crate::convert::repository::cannot;
use crate::convert::{MEMORY_LEN, OutputDirectory, Progress};
use crate::options::thread_count;
use crate::pipeline::tasks::{self, Budget};
use mithril_format::df11::damaged;
use mithril_format::safetensors_layout::Layout;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// What came of a DF11 directory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DecodeSummary {
    /// Modules that were decoded.
    pub n_modules: usize,
    /// Bytes of all tensors before.
    pub coded_len: u64,
    /// Bytes of all tensors after.
    pub raw_len: u64,
    /// Weights that were written with one dimension, because nobody knows their shape.
    pub flat: Vec<String>,
    /// Files of weights that were written.
    pub n_files: usize,
    /// Other files that were carried along.
    pub n_carried: usize,
}

/// Workgroups that are decoded at a time: about a megabyte of weights.
const WORKGROUPS: usize = 32;

/// Writes the plain weights of a model, with everything else of its directory: to the files that they came from, byte
/// for byte, if our encoder kept their headers; else to one safetensors file.
///
/// # Errors
/// When a module is damaged, or a file cannot be read or written. Nothing is left behind then.
pub fn decode(
    model: &Model,
    output: OutputDirectory,
    threads: usize,
    progress: Progress<'_>,
) -> Result<DecodeSummary, Error> {
    let tensors = model.tensors();
    let source = SourceFiles::read(model.repository().path())?;
    let layouts = match &source {
        Some(source) => source.layouts(model)?,
        None => vec![(MODEL_FILE.to_owned(), single_file(model)?)],
    };
    let raw_len =
        layouts.iter().map(|(_, layout)| layout.file_len() - layout.header.len() as u64).sum::<u64>();
    let files = Files::create(&output, &layouts)?;
    let repository = model.repository();
    let coded_len = (0..repository.tensors().len()).map(|idx| byte_len(repository, idx)).sum();
    let n_modules = model.modules().len();
    let largest = (0..n_modules).map(|module| model.coded_len(module)).max().unwrap_or(0);
    let budget = Budget::new(MEMORY_LEN + largest);
    let plain = || tensors.iter().filter(|tensor| matches!(tensor.place, Place::Plain(_)));
    let plain: Vec<usize> = plain()
        .filter_map(|tensor| if let Place::Plain(idx) = tensor.place { Some(idx) } else { None })
        .collect();
    let n_tasks = n_modules + plain.len();
    let threads = thread_count(threads, n_tasks, usize::try_from(raw_len).unwrap_or(usize::MAX));
    tasks::run(n_tasks, threads, |task| match task.checked_sub(n_modules) {
        None => {
            let share = budget.take(model.coded_len(task));
            decode_module(model, task, &files, progress)?;
            drop(share);
            Ok(())
        }
        Some(idx) => {
            copy_tensor(repository, plain[idx], files.of(&repository.tensors()[plain[idx]].name))?;
            progress(byte_len(repository, plain[idx]));
            Ok(())
        }
    })?;

    let mut summary = DecodeSummary {
        n_modules,
        coded_len,
        raw_len,
        flat: tensors
            .iter()
            .filter(|tensor| source.is_none() && !tensor.has_shape)
            .map(|tensor| tensor.name.clone())
            .collect(),
        n_files: layouts.len(),
        n_carried: 0,
    };
    if let Some(source) = &source {
        summary.n_carried += source.write_indexes(&output)?;
    }
    carry(model, &output, &mut summary)?;
    output.commit()?;
    Ok(summary)
}

/// All tensors in one file.
fn single_file(model: &Model) -> Result<Layout, Error> {
    let list = model.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
    // What transformers asks of a file before it loads it.
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    Layout::new(list.collect(), &metadata)
        .ok_or_else(|| Error::invalid("the plain weights are too large for a file"))
}

/// The files of weights, by the tensors in them.
struct Files {
    files: Vec<SafetensorsFile>,
    file_of: HashMap<String, usize>,
}

impl Files {
    fn create(output: &OutputDirectory, layouts: &[(String, Layout)]) -> Result<Self, Error> {
        let create = |(name, layout): &(String, Layout)| output.safetensors(name, layout);
        let files = layouts.iter().map(create).collect::<Result<_, _>>()?;
        let of_file = |(file, (_, layout)): (usize, &'_ (String, Layout))| {
            layout.tensors.iter().map(|tensor| (tensor.name.clone(), file)).collect::<Vec<_>>()
        };
        let file_of = layouts.iter().enumerate().flat_map(of_file).collect();
        Ok(Self { files, file_of })
    }

    /// The file of a tensor, of which every layout has a place.
    fn of(&self, tensor: &str) -> &SafetensorsFile {
        &self.files[self.file_of[tensor]]
    }
}

/// Decodes a module to the places of its weights.
fn decode_module(model: &Model, module: usize, files: &Files, progress: Progress<'_>) -> Result<(), Error> {
    let name = &model.modules()[module].name;
    let bytes = model.read_module(module)?;
    let coded = bytes.coded(name, model.geometry())?;
    let mut weights: Vec<(&str, Range<u64>)> = model
        .tensors()
        .iter()
        .filter_map(|tensor| match &tensor.place {
            Place::Coded { module: own, elements } if *own == module => {
                Some((tensor.name.as_str(), elements.clone()))
            }
            _ => None,
        })
        .collect();
    weights.sort_by_key(|(_, elements)| elements.start);
    let mut decoded = Vec::new();
    for start in (0..coded.n_workgroups()).step_by(WORKGROUPS) {
        let workgroups = start..(start + WORKGROUPS).min(coded.n_workgroups());
        let held = coded.elements(workgroups.clone());
        decoded.resize(2 * held.len(), 0);
        coded
            .decode_workgroups(workgroups, &mut decoded)
            .map_err(|error| damaged(name, error.to_string()))?;
        let held = held.start as u64..held.end as u64;
        for (weight, elements) in &weights {
            let part = elements.start.max(held.start)..elements.end.min(held.end);
            if !part.is_empty() {
                let at = |element: u64| usize::try_from(2 * (element - held.start)).unwrap_or(usize::MAX);
                files.of(weight).write(
                    weight,
                    2 * (part.start - elements.start),
                    &decoded[at(part.start)..at(part.end)],
                )?;
            }
        }
        progress(decoded.len() as u64);
    }
    Ok(())
}

/// Carries the other files along; `config.json` without what says that it is DF11.
fn carry(model: &Model, output: &OutputDirectory, summary: &mut DecodeSummary) -> Result<(), Error> {
    let repository = model.repository();
    let shapes_prefix = SHAPES_FILE.trim_end_matches(".json");
    for other in repository.others() {
        if other.as_path() == Path::new(CONFIG_FILE) {
            let path = repository.path().join(other);
            let text = std::fs::read_to_string(&path).map_err(|error| cannot("read", &path, error))?;
            if let Some(text) = super::config::without(&text) {
                output.write(CONFIG_FILE, text.as_bytes())?;
                summary.n_carried += 1;
            }
        } else if !other.to_string_lossy().starts_with(shapes_prefix)
            && other.as_path() != Path::new(SOURCE_FILE)
        {
            output.copy(repository.path(), other)?;
            summary.n_carried += 1;
        }
    }
    Ok(())
}
