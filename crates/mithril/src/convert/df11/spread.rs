//! Which tensor of a repository goes to which file of a DF11 directory.

use super::MODEL_FILE;
use super::encode::Files;
use super::job::Job;
use crate::Error;
use crate::convert::output::SafetensorsFile;
use crate::convert::{OutputDirectory, Repository};
use mithril_format::df11::tensors_of;
use mithril_format::safetensors_layout::{Layout, NewTensor};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Which tensor goes to which file.
pub(super) struct Spread {
    names: Vec<String>,
    /// The file of each module of the part.
    pub(super) file_of_module: Vec<usize>,
    /// Tensors that are copied, and their files.
    pub(super) copied: Vec<(usize, usize)>,
}

impl Spread {
    pub(super) fn new(job: &Job<'_>, files: Files, is_last_part: bool) -> Self {
        let mut names = Vec::new();
        if is_last_part {
            names.push(MODEL_FILE.to_owned());
        }
        // The file of everything below a module, or none if another part writes it.
        let mut file_of_name: HashMap<&str, Option<usize>> = HashMap::new();
        let mut file_of_module = Vec::new();
        if files == Files::PerModule {
            let others = job.sources.iter().map(|source| (source.name.as_str(), None));
            file_of_name.extend(others);
            for (source, plan) in job.planned() {
                let file = names.len();
                file_of_module.push(file);
                // What is kept goes with the rest of the model, which is in the last part; other parts have no such file.
                if plan.is_ok() || !is_last_part {
                    names.push(format!("{}.safetensors", source.name.replace('.', "_")));
                    file_of_name.insert(&source.name, Some(file));
                } else {
                    file_of_name.remove(source.name.as_str());
                }
            }
        } else {
            file_of_module.resize(job.own.len(), 0);
        }
        let coded = job.planned().filter(|(_, plan)| plan.is_ok());
        let coded: HashSet<usize> = coded.flat_map(|(source, _)| source.weights.iter().copied()).collect();
        let mut copied = Vec::new();
        for (idx, tensor) in
            job.repository.tensors().iter().enumerate().filter(|(idx, _)| !coded.contains(idx))
        {
            let mut file = is_last_part.then_some(0);
            let mut name = tensor.name.as_str();
            while let Some((module, _)) = name.rsplit_once('.') {
                if let Some(&own) = file_of_name.get(module) {
                    file = own;
                    break;
                }
                name = module;
            }
            copied.extend(file.map(|file| (idx, file)));
        }
        Self { names, file_of_module, copied }
    }

    /// Lays out and starts all files.
    pub(super) fn create(
        &self,
        job: &Job<'_>,
        output: &OutputDirectory,
    ) -> Result<Vec<SafetensorsFile>, Error> {
        let mut tensors: Vec<Vec<NewTensor>> = vec![Vec::new(); self.names.len()];
        for &(idx, file) in &self.copied {
            let tensor = &job.repository.tensors()[idx];
            tensors[file].push((tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
        }
        for ((source, plan), &file) in job.planned().zip(&self.file_of_module) {
            if let Ok(plan) = plan {
                tensors[file].extend(tensors_of(&source.name, plan, source.weights.len()));
            }
        }
        let create = |(name, tensors): (&String, Vec<NewTensor>)| {
            let layout = Layout::new(tensors, &BTreeMap::new());
            let layout = layout.ok_or_else(|| Error::invalid(format!("`{name}` would be too large")))?;
            output.safetensors(name, &layout)
        };
        self.names.iter().zip(tensors).map(create).collect()
    }
}

/// Bytes of a tensor.
pub(super) fn byte_len(repository: &Repository, tensor: usize) -> u64 {
    let bytes = &repository.tensors()[tensor].bytes;
    bytes.end - bytes.start
}

/// Copies a tensor as it is.
pub(super) fn copy_tensor(
    repository: &Repository,
    tensor: usize,
    file: &SafetensorsFile,
) -> Result<(), Error> {
    let name = &repository.tensors()[tensor].name;
    let mut offset = 0;
    repository.for_each_piece(tensor, |piece| {
        file.write(name, offset, piece)?;
        offset += piece.len() as u64;
        Ok(())
    })
}
