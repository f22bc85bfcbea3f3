//! Entropy-coded files: the tensors that they were made of.

use crate::error::{NotFoundError, of_file};
use crate::work;
use mithril::convert::ecq::{EcqFile, Originals};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::path::PathBuf;

/// A tensor: its name, number type, dimensions.
type TensorEntry<'py> = (String, &'static str, Bound<'py, PyTuple>);

/// An open entropy-coded file.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct CodedFile(EcqFile);

#[pymethods]
impl CodedFile {
    /// Opens a file.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        match work::detached(py, || EcqFile::open(&path))?.map_err(of_file)? {
            Some(file) => Ok(Self(file)),
            None => Err(PyValueError::new_err(format!("`{}` is not entropy-coded", path.display()))),
        }
    }

    /// The tensors of the file that it was made of.
    fn originals<'py>(&self, py: Python<'py>) -> PyResult<Vec<TensorEntry<'py>>> {
        let originals = Originals::of(&self.0).map_err(of_file)?;
        let mut entries = Vec::new();
        for tensor in originals.tensors() {
            entries.push((tensor.name.clone(), tensor.dtype.name(), PyTuple::new(py, &tensor.shape)?));
        }
        Ok(entries)
    }

    /// The bytes of some of these tensors, as they were.
    fn read_originals<'py>(&self, py: Python<'py>, names: Vec<String>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let read = || {
            let originals = Originals::of(&self.0).map_err(of_file)?;
            let find = |name: &String| {
                let found = originals.tensors().iter().position(|tensor| tensor.name == *name);
                found.ok_or_else(|| NotFoundError::new_err(format!("no tensor `{name}`")))
            };
            let bytes = |name| originals.read(find(name)?).map_err(of_file);
            names.iter().map(bytes).collect::<PyResult<Vec<Vec<u8>>>>()
        };
        Ok(work::detached(py, read)??.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }
}
