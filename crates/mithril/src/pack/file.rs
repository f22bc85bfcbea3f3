//! Packs and unpacks files by their paths: the output appears whole or not at all.

use super::{PackOptions, PackSummary, Progress, UnpackSummary, pack, unpack};
use crate::container::{Bases, Reader};
use crate::{AtomicFile, Error};
use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// Packs a model file to a container. A file that is there is replaced only if `replace`.
///
/// # Errors
/// As [`pack`]; when the output exists already; when the input changed while it was read.
pub fn pack_file(
    input: &Path,
    output: &Path,
    options: &PackOptions,
    replace: bool,
    progress: Progress<'_>,
) -> Result<PackSummary, Error> {
    let source = Source::open(input)?;
    // Before the output is made: a file that is no model must not cost more than its first bytes.
    if mithril_format::source::detect(&source.file).is_none() {
        let what = "no model file of a known kind (safetensors, npy, npz, pt, gguf, onnx)";
        return Err(Error::invalid(format!("`{}`: {what}", input.display())));
    }
    let target = create(output, replace)?;
    let mut options = options.clone();
    if options.name.is_empty() {
        options.name = input.file_name().map_or_else(String::new, |name| name.display().to_string());
    }
    let (target, summary) =
        pack(&source.file, target, &options, progress).map_err(|error| error.about(input, output))?;
    source.check_unchanged(input)?;
    target.commit().map_err(|error| Error::cannot_write(output, error))?;
    Ok(summary)
}

/// Unpacks a container to a file. A file that is there is replaced only if `replace`.
///
/// # Errors
/// As [`unpack`]; when the output exists already.
pub fn unpack_file(
    input: &Path,
    output: &Path,
    bases: &Bases,
    threads: usize,
    replace: bool,
    progress: Progress<'_>,
) -> Result<UnpackSummary, Error> {
    let source = Source::open(input)?;
    let reader = Reader::open(&source.file).map_err(|error| error.about(input, output))?;
    // Header, index and bases are checked before the output is made.
    super::unpack::check(&reader, bases).map_err(|error| error.about(input, output))?;
    let target = create(output, replace)?;
    let (target, summary) =
        unpack(&reader, target, bases, threads, progress).map_err(|error| error.about(input, output))?;
    source.check_unchanged(input)?;
    target.commit().map_err(|error| Error::cannot_write(output, error))?;
    Ok(summary)
}

/// An input file, and what it was like when it was opened.
#[derive(Debug)]
pub struct Source {
    pub(super) file: File,
    before: Metadata,
}

impl Source {
    /// Opens a file that is read from beginning to end.
    ///
    /// # Errors
    /// When it cannot be read or is a directory.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::cannot_read(path, error);
        let file = File::open(path).map_err(failed)?;
        let before = file.metadata().map_err(failed)?;
        if before.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        Ok(Self { file, before })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn len(&self) -> u64 {
        self.before.len()
    }

    /// A file that changed while it was read may have been read as a mixture of old and new.
    ///
    /// # Errors
    /// When it has another length or time than at its opening.
    pub fn check_unchanged(&self, path: &Path) -> Result<(), Error> {
        let failed = |error| Error::cannot_read(path, error);
        let now = self.file.metadata().map_err(failed)?;
        let changed = now.len() != self.before.len() || now.modified().ok() != self.before.modified().ok();
        if changed { Err(failed(io::Error::other("it changed while it was read"))) } else { Ok(()) }
    }
}

pub(super) fn create(path: &Path, replace: bool) -> Result<AtomicFile, Error> {
    AtomicFile::create(path, replace).map_err(|error| Error::cannot_write(path, error))
}
