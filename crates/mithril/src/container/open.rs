//! Models and bases by their paths.

use super::{Bases, Model};
use crate::Error;
use mithril_format::ReadAt;
use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Suffix of containers.
pub const SUFFIX: &str = "mckp";

/// Bases of bases of bases: longer chains are refused, however they came about.
const MAX_DEPTH: usize = 64;

impl Model {
    /// Opens a model file. The bases of a packed one are looked for where its header says, beside the file.
    ///
    /// # Errors
    /// When it cannot be read, is of no known kind, breaks the rules of its kind, or its bases lead back to it.
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        open(path, &mut Vec::new())
    }
}

impl Bases {
    /// Opens base models: files, or directories whose model files all count.
    ///
    /// # Errors
    /// As [`Model::open_path`]; when a directory holds no model file.
    pub fn open_paths<P: AsRef<Path>>(paths: &[P]) -> Result<Self, Error> {
        let mut models = Vec::new();
        for path in paths.iter().map(AsRef::as_ref) {
            if !path.is_dir() {
                models.push(Model::open_path(path).map_err(|error| in_file(error, path))?);
                continue;
            }
            let before = models.len();
            for file in model_files(path)? {
                models.push(Model::open_path(&file).map_err(|error| in_file(error, &file))?);
            }
            if models.len() == before {
                let what = format!("there is no model file in `{}`", path.display());
                return Err(Error::NotFound { what });
            }
        }
        Ok(Self::new(models))
    }
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

/// `on_the_way` are the files whose bases are being opened.
fn open(path: &Path, on_the_way: &mut Vec<PathBuf>) -> Result<Model, Error> {
    let failed = |error| Error::cannot_read(path, error);
    let canonical = fs::canonicalize(path).map_err(failed)?;
    if on_the_way.contains(&canonical) || on_the_way.len() == MAX_DEPTH {
        let what = format!("the bases of `{}` lead back to it, or are too many", path.display());
        return Err(Error::invalid(what));
    }
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.display().to_string());
    let model = Model::open(name.as_str(), Box::new(file), Bases::none())?;
    let Some(container) = model.container() else { return Ok(model) };
    if container.entries().iter().all(|entry| entry.base().is_none()) {
        return Ok(model);
    }
    on_the_way.push(canonical);
    let mut models = Vec::new();
    let mut found = HashSet::new();
    for hint in container.header()?.bases {
        if let Some(base) = beside(path, &hint.name).filter(|base| found.insert(base.clone())) {
            models.push(open(&base, on_the_way).map_err(|error| in_file(error, &base))?);
        }
    }
    on_the_way.pop();
    Ok(model.with_bases(Bases::new(models)))
}

/// The file beside `path` that a hint means: of that name, or that name packed. A hint is a name, not a path.
fn beside(path: &Path, hint: &str) -> Option<PathBuf> {
    let is_name = Path::new(hint).file_name().is_some_and(|name| name == hint);
    let candidates = [hint.to_owned(), format!("{hint}.{SUFFIX}")];
    let candidates = candidates.iter().map(|name| path.with_file_name(name));
    candidates.filter(|candidate| is_name && candidate != path).find(|candidate| candidate.is_file())
}
