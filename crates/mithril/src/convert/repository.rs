//! A model on disk: its tensors, wherever their files are, and the files beside them.

use super::PIECE_LEN;
use crate::Error;
use mithril_format::safetensors::{self, TensorInfo};
use mithril_format::source::Kind;
use mithril_format::{NameTable, ReadAt};
use std::fs::File;
use std::path::{Path, PathBuf};

/// How the name of an index of shards ends.
pub(super) const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// A model as safetensors files, opened. Only headers are in memory; tensors are read when they are asked for.
#[derive(Debug)]
pub struct Repository {
    path: PathBuf,
    files: Vec<WeightFile>,
    tensors: Vec<TensorInfo>,
    /// The file of each tensor.
    file_of: Vec<usize>,
    names: NameTable,
    others: Vec<PathBuf>,
}

#[derive(Debug)]
struct WeightFile {
    path: PathBuf,
    file: File,
}

impl Repository {
    /// Opens a safetensors file, or a directory that holds some.
    ///
    /// # Errors
    /// When there are no safetensors files, one of them is damaged, or a tensor is in two of them.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let metadata = std::fs::metadata(path).map_err(|error| cannot("read", path, error))?;
        let (weights, others) =
            if metadata.is_dir() { list(path)? } else { (vec![path.to_owned()], Vec::new()) };
        let mut repository = Self {
            path: path.to_owned(),
            files: Vec::with_capacity(weights.len()),
            tensors: Vec::new(),
            file_of: Vec::new(),
            names: NameTable::default(),
            others,
        };
        for weights in weights {
            repository.add(weights)?;
        }
        if repository.files.is_empty() {
            let what = format!("`{}` holds no safetensors files", path.display());
            return Err(Error::InvalidArgument { what });
        }
        Ok(repository)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), Error> {
        let file = File::open(&path).map_err(|error| cannot("read", &path, error))?;
        match mithril_format::source::detect(&file) {
            Some(kind) if kind != Kind::Safetensors => {
                let what = format!(
                    "`{}` is a {} file, and a safetensors file is wanted",
                    path.display(),
                    kind.name()
                );
                return Err(Error::invalid(what));
            }
            _ => {}
        }
        for tensor in read_tensors(&file).map_err(|error| in_file(error, &path))? {
            let idx = self.tensors.len();
            self.file_of.push(self.files.len());
            self.tensors.push(tensor);
            if let Some(other) = self.names.insert(idx, |idx| &self.tensors[idx].name) {
                let other = self.files.get(self.file_of[other]).map_or(&path, |file| &file.path);
                let what = format!(
                    "tensor `{}` is in `{}` and in `{}`",
                    self.tensors[idx].name,
                    other.display(),
                    path.display()
                );
                return Err(Error::InvalidArgument { what });
            }
        }
        self.files.push(WeightFile { path, file });
        Ok(())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, file by file.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The number of the tensor of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.find(name, |idx| &self.tensors[idx].name)
    }

    /// The files that are no weights, by their path from the directory on. None for a single file.
    #[must_use]
    pub fn others(&self) -> &[PathBuf] {
        &self.others
    }

    /// The path of the files of weights.
    pub fn weight_files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// The first bytes of the files of weights, up to their tensors.
    pub(super) fn heads(&self) -> Result<Vec<Vec<u8>>, Error> {
        let head =
            |file: &WeightFile| Ok(read_head(&file.file).map_err(|error| in_file(error, &file.path))?.0);
        self.files.iter().map(head).collect()
    }

    /// Reads bytes of a tensor, from an offset in it on.
    ///
    /// # Errors
    /// When the file cannot be read.
    ///
    /// # Panics
    /// If there is no tensor of this number, or the bytes go past its end.
    pub fn read_into(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let bytes = &self.tensors[tensor].bytes;
        assert!(offset + out.len() as u64 <= bytes.end - bytes.start, "bytes behind the end of a tensor");
        let file = &self.files[self.file_of[tensor]];
        file.file.read_exact_at(bytes.start + offset, out).map_err(|error| cannot("read", &file.path, error))
    }

    /// All bytes of a tensor, which the file has been checked to hold.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, tensor: usize) -> Result<Vec<u8>, Error> {
        let bytes = &self.tensors[tensor].bytes;
        let len = usize::try_from(bytes.end - bytes.start)
            .map_err(|_| Error::invalid(format!("`{}` is larger than memory", self.tensors[tensor].name)))?;
        let mut out = vec![0; len];
        self.read_into(tensor, 0, &mut out)?;
        Ok(out)
    }

    /// Reads a tensor in pieces, through one buffer.
    pub(super) fn for_each_piece(
        &self,
        tensor: usize,
        mut work: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let bytes = &self.tensors[tensor].bytes;
        let mut buffer =
            vec![0; PIECE_LEN.min(usize::try_from(bytes.end - bytes.start).unwrap_or(PIECE_LEN))];
        let mut offset = 0;
        while offset < bytes.end - bytes.start {
            let len = (bytes.end - bytes.start - offset).min(buffer.len() as u64);
            let piece = &mut buffer[..usize::try_from(len).unwrap_or(PIECE_LEN)];
            self.read_into(tensor, offset, piece)?;
            work(piece)?;
            offset += len;
        }
        Ok(())
    }
}

/// Whether a directory is a diffusers pipeline: several models, each in a directory of its own.
#[must_use]
pub fn is_pipeline(path: &Path) -> bool {
    path.join("model_index.json").is_file()
}

/// The components of a diffusers pipeline that hold weights, in the order of their names; none for other directories.
///
/// # Errors
/// When the directory cannot be read.
pub fn components(path: &Path) -> Result<Vec<String>, Error> {
    if !is_pipeline(path) {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| cannot("read", path, error))? {
        let entry = entry.map_err(|error| cannot("read", path, error))?;
        if entry.path().is_dir() && !list(&entry.path())?.0.is_empty() {
            if entry.path().is_symlink() {
                check_link(path, path, &entry.path())?;
            }
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The tensors of a safetensors file.
fn read_tensors(file: &File) -> Result<Vec<TensorInfo>, Error> {
    let (head, file_len) = read_head(file)?;
    Ok(safetensors::tensors(&head, file_len)?)
}

/// The first bytes of a safetensors file, up to its tensors, and its length.
fn read_head(file: &File) -> Result<(Vec<u8>, u64), Error> {
    let failed = |error| Error::io("cannot read", error);
    let file_len = file.metadata().map_err(failed)?.len();
    let cut_off = || mithril_format::FormatError::Truncated { what: "safetensors header", offset: 0 };
    let mut first = [0; 8];
    if file_len < 8 {
        return Err(cut_off().into());
    }
    file.read_exact_at(0, &mut first).map_err(failed)?;
    let end = safetensors::header_end(first)?;
    if end > file_len {
        return Err(cut_off().into());
    }
    let mut head = vec![0; usize::try_from(end).unwrap_or(usize::MAX)];
    file.read_exact_at(0, &mut head).map_err(failed)?;
    Ok((head, file_len))
}

/// The safetensors files of a directory, and all other files in it and below, by their path from it on.
///
/// An index of shards counts as neither: what is written has other files. Hidden directories, which are those of version
/// control and caches, and unfinished files stay where they are.
pub(crate) fn list(directory: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
    let mut weights = Vec::new();
    let mut others = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        let path = directory.join(&relative);
        for entry in std::fs::read_dir(&path).map_err(|error| cannot("read", &path, error))? {
            let entry = entry.map_err(|error| cannot("read", &path, error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let relative = relative.join(entry.file_name());
            let is_top = relative.components().count() == 1;
            // Links of a download cache are files like others.
            let is_directory = entry.path().is_dir();
            let is_unfinished = name.ends_with(".tmp") || name.ends_with(".safetensors");
            if name.starts_with('.') && (is_directory || is_unfinished) {
                continue;
            }
            if is_directory {
                if entry.path().is_symlink() {
                    check_link(directory, &path, &entry.path())?;
                }
                open.push(relative);
            } else if is_top && name.ends_with(".safetensors") {
                weights.push(entry.path());
            } else if !(is_top && name.ends_with(INDEX_SUFFIX)) {
                others.push(relative);
            }
        }
    }
    weights.sort();
    others.sort();
    Ok((weights, others))
}

/// Refuses a link to a directory that lies outside, or that holds the link: what is outside was not asked for, and there is
/// no end of what holds itself.
fn check_link(root: &Path, parent: &Path, link: &Path) -> Result<(), Error> {
    let canonical = |path: &Path| path.canonicalize().map_err(|error| cannot("read", path, error));
    let target = canonical(link)?;
    let reason = if canonical(parent)?.starts_with(&target) {
        "is a link to a directory that holds it"
    } else if !target.starts_with(canonical(root)?) {
        "is a link to a directory outside"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("`{}` {reason}", link.display())))
}

/// Reading or writing a file failed.
pub(super) fn cannot(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::io_at(&format!("cannot {what}"), path, error)
}

/// Says which file an error is about.
pub(super) fn in_file(error: Error, path: &Path) -> Error {
    match error {
        Error::Io { what, path: None, source } => Error::io_at(&what, path, source),
        Error::Format(mithril_format::FormatError::Foreign { format, reason }) => {
            mithril_format::FormatError::Foreign { format, reason: format!("`{}`: {reason}", path.display()) }
                .into()
        }
        error => error,
    }
}
