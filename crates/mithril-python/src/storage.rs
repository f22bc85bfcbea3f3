//! Objects by URL, as checkpoints of several processes are made of: small ones, and containers.

use crate::error::{CorruptError, of_file, of_storage, to_python};
use crate::model::Model;
use crate::options::Coding;
use crate::pack::{Given, Stoppable, TensorFile};
use crate::work::{self, Signals};
use mithril::Error;
use mithril::container::{self, Bases};
use mithril::storage::{StorageBackend, StorageError, StorageErrorKind};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// A directory, or a prefix of an object store.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct Storage {
    backend: Arc<dyn StorageBackend>,
    /// Set once it is known that of two writers of an object one is refused.
    is_exclusive: OnceLock<()>,
}

/// Key, bytes, and seconds since it was written, as far as they are known.
type Listed = (String, u64, Option<f64>);

#[pymethods]
impl Storage {
    /// Opens what a URL or path names. Nothing is made before the first object is written.
    #[new]
    fn new(py: Python<'_>, url: &str) -> PyResult<Self> {
        let backend = work::detached(py, || mithril::storage::open(url))?.map_err(raise)?;
        Ok(Self { backend, is_exclusive: OnceLock::new() })
    }

    /// A small object.
    #[pyo3(signature = (key, max_len, /))]
    fn get(&self, py: Python<'_>, key: &str, max_len: u64) -> PyResult<Py<PyBytes>> {
        let bytes = work::detached(py, || self.backend.get(key, max_len))?.map_err(raise)?;
        Ok(PyBytes::new(py, &bytes).unbind())
    }

    /// Makes a small object, unless there is one of this key.
    #[pyo3(signature = (key, content, /))]
    fn put_new(&self, py: Python<'_>, key: &str, content: &[u8]) -> PyResult<()> {
        self.check_put_new(py)?;
        work::detached(py, || self.backend.put_new(key, content))?.map_err(raise)
    }

    /// Refuses a storage where `put_new` may replace what another writer has made. It is asked once.
    fn check_put_new(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_exclusive.get().is_none() {
            work::detached(py, || self.backend.check_put_new())?.map_err(raise)?;
            let _ = self.is_exclusive.set(());
        }
        Ok(())
    }

    /// Makes or replaces a small object.
    #[pyo3(signature = (key, content, /))]
    fn replace(&self, py: Python<'_>, key: &str, content: &[u8]) -> PyResult<()> {
        work::detached(py, || self.backend.replace(key, content))?.map_err(raise)
    }

    /// The objects below a directory; all for an empty one.
    #[pyo3(signature = (directory, /))]
    fn list(&self, py: Python<'_>, directory: &str) -> PyResult<Vec<Listed>> {
        let listed = work::detached(py, || self.backend.list(directory))?.map_err(raise)?;
        let describe = |object: mithril::storage::ObjectInfo| {
            let age = object.age().map(|age| age.as_secs_f64());
            (object.key, object.len, age)
        };
        Ok(listed.into_iter().map(describe).collect())
    }

    /// Removes an object, if there is one.
    #[pyo3(signature = (key, /))]
    fn delete(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        work::detached(py, || self.backend.delete(key))?.map_err(raise)
    }

    /// Packs tensors to a new container, which appears whole or not at all; returns its bytes.
    #[pyo3(signature = (key, tensors, bases, coding, /))]
    fn pack_tensors(
        &self,
        py: Python<'_>,
        key: &str,
        tensors: Vec<Given<'_>>,
        bases: Vec<PyRef<'_, Model>>,
        coding: Coding,
    ) -> PyResult<u64> {
        let file = TensorFile::new(tensors, &Default::default())?;
        let mut options = coding.pack_options()?.with_changing(file.is_changing());
        options.name = key.to_owned();
        options.bases = shared(&bases)?;
        let (backend, key) = (self.backend.clone(), key.to_owned());
        let work = move |file: &mut TensorFile, signals: &Signals| {
            let io = |error: StorageError| Error::io("cannot write", error.into_io());
            let target = Stoppable::new(backend.create(&key).map_err(io)?, signals);
            let (target, summary) = mithril::pack::pack(file, target, &options, &|_| ())?;
            target.inner.finish().map_err(io)?;
            Ok(summary.packed_len)
        };
        let (_, packed_len) = work::run_watched(py, file, work, |_, _| Ok(()))?;
        packed_len.map_err(to_python)
    }

    /// Bytes of an object, or none if there is no such object; nothing of it is read.
    #[pyo3(signature = (key, /))]
    fn size(&self, py: Python<'_>, key: &str) -> PyResult<Option<u64>> {
        match work::detached(py, || self.backend.open(key))? {
            Ok(source) => work::detached(py, || source.size())?
                .map(Some)
                .map_err(|error| to_python(self.unread(key, error))),
            Err(error) if error.kind() == StorageErrorKind::NotFound => Ok(None),
            Err(error) => Err(raise(error)),
        }
    }

    /// Opens a model file, packed or plain, which must have `expected` bytes if that is known. `find_bases` gives the models
    /// that have the tensors of these names, where its own are stored against some.
    #[pyo3(signature = (key, expected, find_bases, /))]
    fn open_model(
        &self,
        py: Python<'_>,
        key: &str,
        expected: Option<u64>,
        find_bases: &Bound<'_, PyAny>,
    ) -> PyResult<Model> {
        let source = work::detached(py, || self.backend.open(key))?.map_err(raise)?;
        let len =
            work::detached(py, || source.size())?.map_err(|error| to_python(self.unread(key, error)))?;
        if expected.is_some_and(|expected| expected != len) {
            let (place, expected) = (self.backend.location(), expected.unwrap_or_default());
            let message = format!("`{place}/{key}` has {len} bytes, and was saved with {expected}");
            return Err(CorruptError::new_err(message));
        }
        let model =
            work::detached(py, || container::Model::open(key, source, Bases::none()))?.map_err(of_file)?;
        let names: BTreeSet<&str> = match model.container() {
            Some(container) => {
                container.entries().iter().filter_map(|entry| entry.base()).map(|(_, name)| name).collect()
            }
            None => BTreeSet::new(),
        };
        if names.is_empty() {
            return Ok(Model::new(model));
        }
        let names = PyList::new(py, names)?;
        let bases: Vec<Bound<'_, Model>> = find_bases.call1((names,))?.extract()?;
        let bases: Vec<_> = bases.iter().map(Bound::borrow).collect();
        Ok(Model::new(model.with_bases(shared(&bases)?)))
    }
}

impl Storage {
    fn unread(&self, key: &str, error: std::io::Error) -> Error {
        Error::io(format!("cannot read `{}/{key}`", self.backend.location()), error)
    }
}

fn shared(bases: &[PyRef<'_, Model>]) -> PyResult<Bases> {
    let models: Vec<_> = bases.iter().map(|base| base.get()).collect::<PyResult<_>>()?;
    Ok(Bases::shared(models))
}

/// A text in which no URL has a user, a password, a query or a fragment.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn without_secrets_of_urls(text: &str) -> String {
    mithril::storage::without_secrets_of_urls(text)
}

fn raise(error: StorageError) -> PyErr {
    of_storage(&error, error.to_string())
}
