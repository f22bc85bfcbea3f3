//! Files and directories that Python fills, and that appear whole or not at all.

use crate::buffer::Buffer;
use crate::error::to_python;
use crate::work;
use mithril::convert;
use mithril::{AtomicFile, Error};
use pyo3::prelude::*;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file that is there, on disk, when its block has ended without an exception.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct OutputFile {
    path: PathBuf,
    /// Nothing before the block, and once it has ended.
    file: Mutex<Option<AtomicFile>>,
    replace: bool,
    source: Option<PathBuf>,
    /// The mode that it has once it is whole. Until then only its owner can read it.
    mode: Mutex<u32>,
}

#[pymethods]
impl OutputFile {
    /// A file that will appear at `path`. One that is there is replaced if `replace` says so. Those may read it who may read
    /// `source`, or else the file that is replaced, as far as the umask leaves it.
    #[new]
    #[pyo3(signature = (path, replace, source = None, /))]
    fn new(path: PathBuf, replace: bool, source: Option<PathBuf>) -> Self {
        Self { path, file: Mutex::new(None), replace, source, mode: Mutex::new(0) }
    }

    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        let this = slf.get();
        work::detached(py, || this.start())?.map_err(|error| this.failed(error))?;
        Ok(slf)
    }

    /// Adds bytes at the end; returns their number.
    #[pyo3(signature = (content, /))]
    fn write(&self, py: Python<'_>, content: &Bound<'_, PyAny>) -> PyResult<usize> {
        let content = Buffer::read(content)?;
        let write = || match locked(&self.file).as_mut() {
            Some(file) => file.write_all(content.bytes()).map(|()| content.bytes().len()),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is not being written")),
        };
        work::detached(py, write)?.map_err(|error| self.failed(error))
    }

    /// Nothing: no bytes are held back. `torch.save` asks for it.
    fn flush(&self) {}

    #[pyo3(signature = (kind, _value, _trace, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let is_whole = kind.is_none();
        work::detached(py, || self.finish(is_whole))?.map_err(|error| self.failed(error))
    }
}

impl OutputFile {
    fn start(&self) -> io::Result<()> {
        let file = AtomicFile::create(&self.path, self.replace)?;
        let made = fs::metadata(file.temporary())?.mode() & 0o777;
        fs::set_permissions(file.temporary(), Permissions::from_mode(0o600))?;
        let widest = match &self.source {
            Some(source) => fs::metadata(source)?.mode(),
            None => fs::metadata(file.path()).map_or(0o777, |replaced| replaced.mode()),
        };
        *locked(&self.mode) = made & (widest | 0o600);
        *locked(&self.file) = Some(file);
        Ok(())
    }

    fn finish(&self, is_whole: bool) -> io::Result<()> {
        let Some(file) = locked(&self.file).take().filter(|_| is_whole) else { return Ok(()) };
        fs::set_permissions(file.temporary(), Permissions::from_mode(*locked(&self.mode)))?;
        file.commit()
    }

    fn failed(&self, error: io::Error) -> PyErr {
        to_python(Error::io_at("cannot write", &self.path, error))
    }
}

/// A directory that is there, on disk, when its block has ended without an exception. In the block `path` is where it is
/// filled: only its owner can look into that.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct OutputDirectory {
    target: PathBuf,
    source: Option<PathBuf>,
    directory: Mutex<Option<convert::OutputDirectory>>,
}

#[pymethods]
impl OutputDirectory {
    /// A directory that will appear at `path`, where none but an empty one may be. Those may read its files who may read all
    /// files of `source`.
    #[new]
    #[pyo3(signature = (path, source = None, /))]
    fn new(path: PathBuf, source: Option<PathBuf>) -> Self {
        Self { target: path, source, directory: Mutex::new(None) }
    }

    /// Where it is filled.
    fn __enter__(&self, py: Python<'_>) -> PyResult<PathBuf> {
        work::detached(py, || {
            let mut directory = convert::OutputDirectory::create(&self.target, false)?;
            if let Some(source) = &self.source {
                directory = directory.made_of(source)?;
            }
            let temporary = directory.temporary().to_owned();
            *locked(&self.directory) = Some(directory);
            Ok(temporary)
        })?
        .map_err(to_python)
    }

    #[pyo3(signature = (kind, _value, _trace, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let is_whole = kind.is_none();
        let finish = || match locked(&self.directory).take() {
            Some(directory) if is_whole => directory.commit(),
            _ => Ok(()),
        };
        work::detached(py, finish)?.map_err(to_python)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
