//! Open model files, packed or plain: their tensors one by one, and parts of them.

use crate::buffer::{Buffer, FreshBytes, Output};
use crate::error::{NotFoundError, of_file, to_python};
use crate::options::threads;
use crate::work::{self, Signals};
use mithril::container::{self, Bases, Content, EntryKind};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Tensors of this many bytes take long enough that Ctrl-C must end the wait for them: it costs opening them again.
const LARGE: u64 = 64 << 20;

/// An open model file.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct Model {
    /// None once it is closed.
    model: Mutex<Option<Arc<container::Model>>>,
}

/// A tensor as its file lists it: number type, dimensions, bytes, and bytes that its frame takes.
type TensorEntry<'py> = (&'static str, Bound<'py, PyTuple>, u64, Option<u64>);

#[pymethods]
impl Model {
    /// Opens a file. Without `bases`, those that a packed one names are looked for beside it.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, bases: Vec<PathBuf>) -> PyResult<Self> {
        let opened = work::detached(py, || {
            if bases.is_empty() {
                return container::Model::open_path(&path);
            }
            let io = |error| mithril::Error::io_at("cannot read", &path, error);
            let file = File::open(&path).map_err(io)?;
            let name = path.file_name().unwrap_or_default().display().to_string();
            container::Model::open(name, Box::new(file), Bases::open_paths(&bases)?)
        })?;
        Ok(Self::new(opened.map_err(of_file)?))
    }

    /// Opens the bytes of a file.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &Bound<'_, PyAny>, bases: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let (data, bases) = (Buffer::read(data)?, bases_of(py, &bases)?);
        let opened = work::detached(py, || container::Model::open("bytes", Box::new(data), bases))?;
        Ok(Self::new(opened.map_err(of_file)?))
    }

    /// Ends all reading.
    fn close(&self) {
        self.model.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// `container`, or the format of a plain file.
    fn kind(&self) -> PyResult<&'static str> {
        Ok(self.get()?.kind())
    }

    /// The tensors, in the order of their bytes.
    fn names(&self) -> PyResult<Vec<String>> {
        Ok(self.get()?.tensors().iter().map(|tensor| tensor.name.clone()).collect())
    }

    /// What the file says of a tensor.
    fn entry<'py>(&self, py: Python<'py>, name: &str) -> PyResult<TensorEntry<'py>> {
        let model = self.get()?;
        let tensor = &model.tensors()[find(&model, name)?];
        let shape = PyTuple::new(py, &tensor.shape)?;
        Ok((tensor.dtype.name(), shape, tensor.raw_len, stored_len(&model, name)))
    }

    /// Decodes bytes `start` to `end` of a tensor, or all of it, into what `make(size)` returns.
    fn read(
        &self,
        py: Python<'_>,
        name: &str,
        range: Option<(u64, u64)>,
        make: &Bound<'_, PyAny>,
        threads: i64,
    ) -> PyResult<()> {
        let (model, threads) = (self.get()?, self::threads(threads)?);
        let idx = find(&model, name)?;
        let tensor = work::detached(py, || model.open_tensor(idx))?.map_err(to_python)?;
        let (start, end) = range.unwrap_or((0, tensor.raw_len()));
        let size =
            end.checked_sub(start).ok_or_else(|| PyValueError::new_err("a range ends before it starts"))?;
        tensor.check_limit(size).map_err(|error| to_python(error.in_tensor(name)))?;
        let mut out = Output::new(&make.call1((size,))?, &[])?;
        if size < LARGE {
            return work::detached(py, || tensor.read_range(start..end, out.bytes_mut(), threads))?
                .map_err(|error| to_python(error.in_tensor(name)));
        }
        drop(tensor);
        let read = move |out: &mut Output, _: &Signals| {
            model.open_tensor(idx)?.read_range(start..end, out.bytes_mut(), threads)
        };
        let (_, result) = work::run_watched(py, out, read, |_, _| Ok(()))?;
        result.map_err(|error| to_python(error.in_tensor(name)))
    }

    /// The raw bytes of a tensor.
    fn read_bytes(&self, py: Python<'_>, name: &str, threads: i64) -> PyResult<Py<PyBytes>> {
        let (model, threads) = (self.get()?, self::threads(threads)?);
        let idx = find(&model, name)?;
        let tensor = work::detached(py, || model.open_tensor(idx))?.map_err(to_python)?;
        let len = tensor.raw_len();
        tensor.check_limit(len).map_err(|error| to_python(error.in_tensor(name)))?;
        let size = usize::try_from(len).map_err(|_| PyMemoryError::new_err("larger than memory"))?;
        drop(tensor);
        let read =
            move |out: &mut FreshBytes| model.open_tensor(idx)?.read_range(0..len, out.bytes_mut(), threads);
        let (out, result) = work::run(py, size, FreshBytes::new(py, size)?, read)?;
        result.map_err(|error| to_python(error.in_tensor(name)))?;
        Ok(out.finish())
    }

    /// The header of the safetensors file that it is or was: JSON; none for files of other kinds.
    fn header(&self, py: Python<'_>) -> PyResult<Option<Py<PyBytes>>> {
        let model = self.get()?;
        let head = work::detached(py, || model.safetensors_head())?.map_err(to_python)?;
        Ok(head.map(|head| PyBytes::new(py, &head[8..]).unbind()))
    }

    /// Names of the base models that a container was made with.
    fn base_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let model = self.get()?;
        let Some(container) = model.container() else { return Ok(Vec::new()) };
        let header = work::detached(py, || container.header())?.map_err(to_python)?;
        Ok(header.bases.into_iter().map(|base| base.name).collect())
    }
}

impl Model {
    pub(crate) fn new(model: container::Model) -> Self {
        Self { model: Mutex::new(Some(Arc::new(model))) }
    }

    pub(crate) fn get(&self) -> PyResult<Arc<container::Model>> {
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner).clone();
        model.ok_or_else(|| PyValueError::new_err("the file is closed"))
    }
}

/// Base models from the bytes of their files.
pub(crate) fn bases_of(py: Python<'_>, bases: &[Bound<'_, PyAny>]) -> PyResult<Bases> {
    let mut models = Vec::new();
    for base in bases {
        let base = Buffer::read(base)?;
        let model = work::detached(py, || container::Model::open("base", Box::new(base), Bases::none()))?;
        models.push(model.map_err(of_file)?);
    }
    Ok(Bases::new(models))
}

fn find(model: &container::Model, name: &str) -> PyResult<usize> {
    let missing = || NotFoundError::new_err(format!("there is no tensor `{}`", name.escape_debug()));
    model.find(name).ok_or_else(missing)
}

/// Bytes that a container holds of a tensor; none in a plain file, and for what is stored elsewhere.
fn stored_len(model: &container::Model, name: &str) -> Option<u64> {
    let container = model.container()?;
    let mut idx = container.find(name).ok()?;
    while let Content::Ref { entry_idx } = container.entries()[idx].content {
        idx = entry_idx;
    }
    let entry = &container.entries()[idx];
    let is_elsewhere = matches!(entry.kind(), EntryKind::Copy | EntryKind::Derived);
    (!is_elsewhere).then(|| entry.stored_len())
}
