//! Opens the models that reading verbs look at.

use crate::failure::Failure;
use crate::pack::open_bases;
use mithril::container::{Bases, Model};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Opens a model file or container. Its bases are those that the user named, or what its header says, beside it.
pub(crate) fn model(path: &Path, bases: &[PathBuf]) -> Result<Model, Failure> {
    let name = path.display();
    let opened = match open_bases(bases)? {
        bases if bases.is_empty() => Model::open_path(path),
        bases => return with_bases(path, bases),
    };
    opened.map_err(|error| Failure::model(name, &error))
}

/// As [`model`]; a directory of safetensors files is one model, a DFloat11 directory the one that it stands for. Shapes
/// that it lacks may be looked up in `other`.
pub(crate) fn model_or_directory(path: &Path, bases: &[PathBuf], other: &Path) -> Result<Model, Failure> {
    if !path.is_dir() {
        return model(path, bases);
    }
    mithril::convert::open_directory(path, Some(other))
        .map_err(|error| Failure::model(path.display(), &error))
}

/// Opens a model file or container without looking for its bases.
pub(crate) fn model_alone(path: &Path) -> Result<Model, Failure> {
    with_bases(path, Bases::none())
}

fn with_bases(path: &Path, bases: Bases) -> Result<Model, Failure> {
    let name = path.display();
    let file = File::open(path).map_err(|error| Failure::read(&name, &error))?;
    if path.is_dir() {
        return Err(Failure::read(&name, &std::io::ErrorKind::IsADirectory.into()));
    }
    let file_name = path.file_name().map_or_else(|| name.to_string(), |name| name.display().to_string());
    Model::open(file_name, Box::new(file), bases).map_err(|error| Failure::model(&name, &error))
}
