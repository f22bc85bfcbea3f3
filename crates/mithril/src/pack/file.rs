//! Packs and unpacks files by their paths: the output appears whole or not at all.

use super::{PackOptions, PackSummary, Progress, UnpackSummary, pack, unpack};
use crate::container::{Bases, Reader};
use crate::{AtomicFile, Attributes, Error, room};
use mithril_format::ReadAt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Packs a model file to a container. A file that is there is replaced only if `replace`. Mode and time are those of the
/// model file.
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
    let target = create(output, replace, source.attributes())?;
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

/// Unpacks a container to a file. A file that is there is replaced only if `replace`. Mode and time are those of the
/// container.
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
    let original = super::unpack::check(&reader, bases).map_err(|error| error.about(input, output))?;
    room::check(output, original.len).map_err(|error| Error::cannot_write(output, error))?;
    let target = create(output, replace, source.attributes())?;
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
        File::open(path).and_then(Self::of).map_err(|error| Error::cannot_read(path, error))
    }

    /// A file that is open already.
    ///
    /// # Errors
    /// When it cannot be read or is a directory.
    pub fn of(file: File) -> io::Result<Self> {
        let before = file.metadata()?;
        if before.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(Self { file, before }) }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its length when it was opened.
    #[expect(clippy::len_without_is_empty, reason = "an empty file is nothing special")]
    pub fn len(&self) -> u64 {
        self.before.len()
    }

    /// What it was like when it was opened.
    pub fn metadata(&self) -> &Metadata {
        &self.before
    }

    /// Mode and time for a file that is made of it.
    pub fn attributes(&self) -> Attributes {
        Attributes::same_as(&self.before)
    }

    /// All its bytes from the first on, wherever others have read to. A file that has become shorter is an error.
    pub fn reader(&self) -> impl Read {
        SourceReader { source: self, at: 0 }
    }

    /// A file that changed while it was read may have been read as a mixture of old and new.
    ///
    /// # Errors
    /// When it is not as it was at its opening; see [`check_unchanged`](crate::check_unchanged).
    pub fn check_unchanged(&self, path: &Path) -> Result<(), Error> {
        ReadAt::check_unchanged(self).map_err(|error| Error::cannot_read(path, error))
    }
}

impl ReadAt for Source {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(offset, out)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        crate::check_unchanged(&self.before, &self.file)
    }
}

struct SourceReader<'a> {
    source: &'a Source,
    at: u64,
}

impl Read for SourceReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len() - self.at;
        let len = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        ReadAt::read_exact_at(&self.source.file, self.at, &mut out[..len])?;
        self.at += len as u64;
        Ok(len)
    }
}

pub(super) fn create(path: &Path, replace: bool, attributes: Attributes) -> Result<AtomicFile, Error> {
    AtomicFile::create_with(path, replace, attributes).map_err(|error| Error::cannot_write(path, error))
}
