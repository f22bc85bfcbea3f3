//! Models and bases by their paths.

use super::{Bases, Model};
use crate::Error;
use mithril_format::ReadAt;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Suffix of containers.
pub const SUFFIX: &str = "mckp";

/// Bases of bases of bases: longer chains are refused, however they came about.
const MAX_DEPTH: usize = 64;

impl Model {
    /// Opens a model file. The bases of a packed one are looked for where its header says, beside the file.
    ///
    /// # Errors
    /// When it cannot be read, is of no known kind, breaks the rules of its kind, or has too many bases of bases.
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        let model = open_alone(path)?;
        Opener::default().add_bases(model, path)
    }
}

impl Bases {
    /// Opens base models: files, or directories whose model files all count. Bases of packed ones are looked for beside them,
    /// then among those of `paths` that come before them or need no base.
    ///
    /// # Errors
    /// As [`Model::open_path`]; when a directory holds no model file.
    pub fn open_paths<P: AsRef<Path>>(paths: &[P]) -> Result<Self, Error> {
        let mut files = Vec::new();
        for path in paths.iter().map(AsRef::as_ref) {
            if !path.is_dir() {
                files.push(path.to_owned());
                continue;
            }
            let of_directory = model_files(path)?;
            if of_directory.is_empty() {
                let what = format!("there is no model file in `{}`", path.display());
                return Err(Error::NotFound { what });
            }
            files.extend(of_directory);
        }
        let mut opener = Opener::default();
        for file in &files {
            let model = open_alone(file).map_err(|error| in_file(error, file))?;
            if !needs_bases(&model) {
                let model = opener.keep(model, file)?;
                opener.given.push(model);
            }
        }
        let mut models = Vec::with_capacity(files.len());
        for file in &files {
            // A file that was just opened is not on the way.
            let Some(model) = opener.open(file).map_err(|error| in_file(error, file))? else { continue };
            if needs_bases(&model) {
                opener.given.push(model.clone());
            }
            models.push(model);
        }
        Ok(Self::shared(models))
    }
}

/// Opens models with their bases, each file once however many of them name it.
#[derive(Default)]
struct Opener {
    /// What is open, by canonical path.
    opened: HashMap<PathBuf, Arc<Model>>,
    /// The files whose bases are being opened.
    on_the_way: Vec<PathBuf>,
    /// Models that may be a base of any other, wherever they are.
    given: Vec<Arc<Model>>,
}

impl Opener {
    /// Opens a model with its bases. Nothing if its own bases are being opened: no file is a base of its bases. Shards of a
    /// fine-tune seem to be where they have the names of the shards that they were made against, which are elsewhere.
    fn open(&mut self, path: &Path) -> Result<Option<Arc<Model>>, Error> {
        let canonical = canonical(path)?;
        if self.on_the_way.contains(&canonical) {
            return Ok(None);
        }
        if let Some(model) = self.opened.get(&canonical) {
            return Ok(Some(model.clone()));
        }
        let model = self.add_bases(open_alone(path)?, path)?;
        self.keep(model, path).map(Some)
    }

    fn keep(&mut self, model: Model, path: &Path) -> Result<Arc<Model>, Error> {
        let model = Arc::new(model);
        self.opened.insert(canonical(path)?, model.clone());
        Ok(model)
    }

    /// The model with the bases that its header names and the given ones.
    fn add_bases(&mut self, model: Model, path: &Path) -> Result<Model, Error> {
        let Some(container) = model.container().filter(|_| needs_bases(&model)) else { return Ok(model) };
        if self.on_the_way.len() == MAX_DEPTH {
            let what = format!("`{}` has more than {MAX_DEPTH} bases of bases", path.display());
            return Err(Error::invalid(what));
        }
        let hints = container.header()?.bases;
        self.on_the_way.push(canonical(path)?);
        let mut models = Vec::new();
        for base in hints.iter().filter_map(|hint| beside(path, &hint.name)) {
            models.extend(self.open(&base).map_err(|error| in_file(error, &base))?);
        }
        self.on_the_way.pop();
        models.extend(self.given.iter().cloned());
        let mut seen = HashSet::new();
        models.retain(|model| seen.insert(Arc::as_ptr(model)));
        Ok(model.with_bases(Bases::shared(models)))
    }
}

fn canonical(path: &Path) -> Result<PathBuf, Error> {
    fs::canonicalize(path).map_err(|error| Error::cannot_read(path, error))
}

/// Whether tensors of a model are stored against others.
fn needs_bases(model: &Model) -> bool {
    model.container().is_some_and(|container| container.entries().iter().any(|entry| entry.base().is_some()))
}

/// Says which of several files cannot be opened.
fn in_file(error: Error, path: &Path) -> Error {
    match error {
        // The system's reasons name the file already.
        Error::Io { .. } => error,
        error => Error::Model { name: path.display().to_string(), source: Box::new(error) },
    }
}

/// The model files of a directory and those below it, in order of their names.
fn model_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::cannot_read(directory, error);
    let mut entries =
        fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            files.extend(model_files(&path)?);
        } else if path.is_file() && holds_model(&path).map_err(|error| Error::cannot_read(&path, error))? {
            files.push(path);
        }
    }
    Ok(files)
}

/// Whether a file can be opened as a model: a container that holds tensors, or a file of a known kind.
pub(crate) fn is_model(path: &Path) -> bool {
    holds_model(path).unwrap_or(false)
}

fn holds_model(path: &Path) -> std::io::Result<bool> {
    let file = File::open(path)?;
    let mut magic = [0; 4];
    let is_container =
        file.read_exact_at(0, &mut magic).is_ok() && magic == mithril_format::forever::CONTAINER_MAGIC;
    Ok(is_container || mithril_format::source::detect(&file).is_some())
}

/// Opens a model without bases.
fn open_alone(path: &Path) -> Result<Model, Error> {
    let failed = |error| Error::cannot_read(path, error);
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.display().to_string());
    Model::open(name, Box::new(file), Bases::none())
}

/// The file beside `path` that a hint means: of that name, or that name packed. A hint is a name, not a path.
fn beside(path: &Path, hint: &str) -> Option<PathBuf> {
    let is_name = Path::new(hint).file_name().is_some_and(|name| name == hint);
    let candidates = [hint.to_owned(), format!("{hint}.{SUFFIX}")];
    let candidates = candidates.iter().map(|name| path.with_file_name(name));
    candidates.filter(|candidate| is_name && candidate != path).find(|candidate| candidate.is_file())
}
