//! The files that a DF11 directory was made of, so that decoding gives the same ones again.
//!
//! DF11 spreads tensors over files of its own. Our encoder keeps the headers of the original files and the index of their
//! shards in a file beside the package's; with them, every file comes back byte for byte.

use super::{MODEL_FILE, Model, SOURCE_FILE};
use crate::Error;
use crate::convert::repository::{INDEX_SUFFIX, cannot};
use crate::convert::{OutputDirectory, Repository};
use mithril_format::df11::damaged;
use mithril_format::safetensors;
use mithril_format::safetensors_layout::Layout;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Names and headers of files, and the texts of indexes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SourceFiles {
    /// The header of each file: the JSON behind its length, with the blanks that fill it up.
    files: BTreeMap<String, String>,
    /// The text of each index of shards.
    indexes: BTreeMap<String, String>,
}

impl SourceFiles {
    /// The files of a repository.
    pub(super) fn of(repository: &Repository) -> Result<Self, Error> {
        let is_directory = repository.path().is_dir();
        let mut files = BTreeMap::new();
        for (path, head) in repository.weight_files().zip(repository.heads()?) {
            let header = String::from_utf8(head[8..].to_vec())
                .map_err(|_| Error::invalid(format!("`{}` has a header that is no text", path.display())))?;
            // A file alone gets the name under which it is looked for in a directory.
            let name = path.file_name().filter(|_| is_directory).map(|name| name.display().to_string());
            files.insert(name.unwrap_or_else(|| MODEL_FILE.to_owned()), header);
        }
        let indexes = if is_directory { read_indexes(repository.path())? } else { BTreeMap::new() };
        Ok(Self { files, indexes })
    }

    /// The files that a DF11 directory says it was made of, if it does.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, Error> {
        let path = directory.join(SOURCE_FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", &path, error)),
        };
        let files: Self =
            serde_json::from_slice(&text).map_err(|error| damaged(SOURCE_FILE, error.to_string()))?;
        for (name, suffix) in files
            .files
            .keys()
            .map(|name| (name, ".safetensors"))
            .chain(files.indexes.keys().map(|name| (name, INDEX_SUFFIX)))
        {
            if name.contains(['/', '\\', '\0']) || name.starts_with('.') || !name.ends_with(suffix) {
                return Err(damaged(SOURCE_FILE, format!("no file has the name `{name}`")).into());
            }
        }
        Ok(Some(files))
    }

    pub(super) fn write(&self, output: &OutputDirectory) -> Result<(), Error> {
        let text = serde_json::to_string(self)
            .map_err(|error| Error::invalid(format!("cannot write `{SOURCE_FILE}`: {error}")))?;
        output.write(SOURCE_FILE, text.as_bytes())
    }

    pub(super) fn write_indexes(&self, output: &OutputDirectory) -> Result<usize, Error> {
        for (name, text) in &self.indexes {
            output.write(name, text.as_bytes())?;
        }
        Ok(self.indexes.len())
    }

    /// Where the tensors of a model go. Its tensors and those of the files must be the same.
    pub(super) fn layouts(&self, model: &Model) -> Result<Vec<(String, Layout)>, Error> {
        let mut missing: HashMap<&str, _> =
            model.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut layouts = Vec::with_capacity(self.files.len());
        for (name, header) in &self.files {
            let layout = layout(header).map_err(|error| damaged(SOURCE_FILE, error.to_string()))?;
            for tensor in &layout.tensors {
                let len = tensor.bytes.end - tensor.bytes.start;
                let is_same = missing
                    .remove(tensor.name.as_str())
                    .is_some_and(|own| own.dtype == tensor.dtype && model.byte_len(own) == len);
                if !is_same {
                    let reason = format!("`{}` of `{name}` is not in the directory, or another", tensor.name);
                    return Err(damaged(SOURCE_FILE, reason).into());
                }
            }
            layouts.push((name.clone(), layout));
        }
        match missing.keys().min() {
            None => Ok(layouts),
            Some(name) => Err(damaged(SOURCE_FILE, format!("`{name}` is in no file")).into()),
        }
    }
}

/// The layout that a header says.
fn layout(header: &str) -> Result<Layout, Error> {
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header.as_bytes());
    let entries: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(header).map_err(|error| Error::invalid(error.to_string()))?;
    let ends = entries.values().filter_map(|entry| entry.get("data_offsets")?.get(1)?.as_u64());
    let file_len = ends.max().unwrap_or(0).saturating_add(head.len() as u64);
    let mut tensors = safetensors::tensors(&head, file_len)?;
    tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    Ok(Layout { header: head, tensors })
}

fn read_indexes(directory: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut indexes = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(|error| cannot("read", directory, error))? {
        let path = entry.map_err(|error| cannot("read", directory, error))?.path();
        let name = path.file_name().unwrap_or_default().display().to_string();
        if name.ends_with(INDEX_SUFFIX) && !name.starts_with('.') && path.is_file() {
            let text = std::fs::read_to_string(&path).map_err(|error| cannot("read", &path, error))?;
            indexes.insert(name, text);
        }
    }
    Ok(indexes)
}
