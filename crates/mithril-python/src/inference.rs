//! Matrices whose weights stay coded in memory.

use crate::buffer::{Buffer, Output};
use crate::error::to_python;
use crate::options::threads;
use crate::work;
use mithril::Dtype;
use mithril::convert::ecq::NewPart;
use mithril::inference::{
    EntropyCodedLinear, QuantisedMatrix as Quantised, WeightClass, block_values, multiply_blocks,
    multiply_singles,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What names of parts start with here; in a file it is the name of the matrix.
const NAME: &str = "weight";

/// A tensor of a matrix: its name, number type, dimensions and bytes.
type Part<'py> = (String, &'static str, Bound<'py, PyTuple>, Bound<'py, PyBytes>);

/// Tensors of a matrix by their names without that of the matrix.
fn parts_of(parts: &BTreeMap<String, Bound<'_, PyAny>>) -> PyResult<Vec<NewPart>> {
    let mut taken = Vec::new();
    for (name, data) in parts {
        let bytes = Buffer::read(data)?.bytes().to_vec();
        let shape = vec![bytes.len() as u64];
        taken.push(NewPart { name: format!("{NAME}.{name}"), dtype: Dtype::U8, shape, bytes });
    }
    Ok(taken)
}

fn named<'py>(py: Python<'py>, parts: Vec<NewPart>) -> PyResult<Vec<Part<'py>>> {
    let one = |part: NewPart| {
        let name = part.name.get(NAME.len() + 1..).unwrap_or_default().to_owned();
        Ok((name, part.dtype.name(), PyTuple::new(py, &part.shape)?, PyBytes::new(py, &part.bytes)))
    };
    parts.into_iter().map(one).collect()
}

/// The bytes of the tensors of a matrix, by name.
fn pickled(py: Python<'_>, parts: Vec<NewPart>) -> PyResult<Bound<'_, PyDict>> {
    let bytes = PyDict::new(py);
    for (name, _, _, content) in named(py, parts)? {
        bytes.set_item(name, content)?;
    }
    Ok(bytes)
}

/// A matrix whose weights stay coded.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct CodedMatrix(Arc<EntropyCodedLinear>);

#[pymethods]
impl CodedMatrix {
    /// Codes bf16 weights without loss: `fixed12` or `entropy`.
    #[staticmethod]
    #[pyo3(signature = (weights, rows, columns, kind, /))]
    fn from_bf16(
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        rows: usize,
        columns: usize,
        kind: &str,
    ) -> PyResult<Self> {
        let class = match kind {
            "fixed12" => WeightClass::Fixed12,
            "entropy" => WeightClass::EntropyCoded,
            _ => return Err(PyValueError::new_err(format!("`{kind}` is neither `fixed12` nor `entropy`"))),
        };
        let weights = Buffer::read(weights)?;
        let len = weights.bytes().len();
        let (_, matrix) = work::run(py, len, weights, move |weights| {
            EntropyCodedLinear::from_bf16(NAME, weights.bytes(), rows, columns, class)
        })?;
        Ok(Self(Arc::new(matrix.map_err(to_python)?)))
    }

    /// Takes the tensors of a matrix, by their names without that of the matrix, and checks all of them.
    #[new]
    #[pyo3(signature = (parts, /))]
    fn new(py: Python<'_>, parts: BTreeMap<String, Bound<'_, PyAny>>) -> PyResult<Self> {
        let taken = parts_of(&parts)?;
        let matrix = work::detached(py, || EntropyCodedLinear::from_parts(NAME, taken))?;
        Ok(Self(Arc::new(matrix.map_err(to_python)?)))
    }

    /// The tensors of the matrix, as it is made of.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Vec<Part<'py>>> {
        named(py, self.0.to_parts())
    }

    /// What pickle makes it of again.
    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>,)> {
        Ok((pickled(py, self.0.to_parts())?,))
    }

    /// Itself: it never changes.
    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// Itself: it never changes.
    #[pyo3(signature = (_memo, /))]
    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    /// Outputs.
    #[getter]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Inputs.
    #[getter]
    fn columns(&self) -> usize {
        self.0.columns()
    }

    /// `fixed12`, `entropy` or `levels`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.class() {
            WeightClass::Fixed12 => "fixed12",
            WeightClass::Levels => "levels",
            _ => "entropy",
        }
    }

    /// Bytes that its weights take in memory.
    #[getter]
    fn resident_bytes(&self) -> usize {
        self.0.resident_len()
    }

    /// Products with each of some vectors of singles, one behind the other, into as many singles as there are outputs.
    #[pyo3(signature = (x, out, threads, /))]
    fn multiply(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        threads: i64,
    ) -> PyResult<()> {
        let (matrix, threads) = (self.0.clone(), self::threads(threads)?);
        multiply(py, None, x, out, move |_, x, out| matrix.forward(x, out, threads))
    }

    /// All weights: bf16 ones as they were.
    #[pyo3(signature = (out, threads, /))]
    fn decode_bf16(&self, py: Python<'_>, out: &Bound<'_, PyAny>, threads: i64) -> PyResult<()> {
        let mut out = Output::new(out, &[])?;
        let len = out.bytes_mut().len();
        let (matrix, threads) = (self.0.clone(), self::threads(threads)?);
        let (_, result) = work::run(py, len, out, move |out| matrix.decode_bf16(out.bytes_mut(), threads))?;
        result.map_err(to_python)
    }

    /// Some rows, as singles.
    #[pyo3(signature = (start, end, out, /))]
    fn decode_rows(&self, py: Python<'_>, start: usize, end: usize, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let out = Output::new(out, &[])?;
        let matrix = self.0.clone();
        let (_, result) = work::run(py, 0, out, move |out| {
            let rows = matrix.decode_rows(start..end)?;
            let out = out.bytes_mut().as_chunks_mut::<4>().0;
            if out.len() != rows.len() {
                return Ok(false);
            }
            out.iter_mut().zip(rows).for_each(|(out, weight)| *out = weight.to_le_bytes());
            Ok(true)
        })?;
        match result.map_err(to_python)? {
            true => Ok(()),
            false => Err(PyValueError::new_err("`out` has not a single for every weight of the rows")),
        }
    }
}

/// A matrix of a model that came quantised, whose codes and scales stay coded.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct QuantisedMatrix(Arc<Quantised>);

#[pymethods]
impl QuantisedMatrix {
    /// Takes the tensors of a matrix, by their names without that of the matrix, and checks all of them.
    #[new]
    #[pyo3(signature = (parts, /))]
    fn new(py: Python<'_>, parts: BTreeMap<String, Bound<'_, PyAny>>) -> PyResult<Self> {
        let taken = parts_of(&parts)?;
        let matrix = work::detached(py, || Quantised::from_parts(NAME, taken))?;
        Ok(Self(Arc::new(matrix.map_err(to_python)?)))
    }

    /// The tensors of the matrix, as it is made of.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Vec<Part<'py>>> {
        named(py, self.0.to_parts())
    }

    /// What pickle makes it of again.
    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>,)> {
        Ok((pickled(py, self.0.to_parts())?,))
    }

    /// Itself: it never changes.
    fn __copy__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// Itself: it never changes.
    #[pyo3(signature = (_memo, /))]
    fn __deepcopy__(this: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    /// Outputs.
    #[getter]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Inputs.
    #[getter]
    fn columns(&self) -> usize {
        self.0.columns()
    }

    /// `ecq`.
    #[getter]
    fn kind(&self) -> &'static str {
        "ecq"
    }

    /// What its codes mean: `Q4_1`, `affine` and so on.
    #[getter]
    fn layout(&self) -> &'static str {
        self.0.layout().name()
    }

    /// Bytes that its weights take in memory.
    #[getter]
    fn resident_bytes(&self) -> usize {
        self.0.resident_len()
    }

    /// Products with each of some vectors of singles, one behind the other, into as many singles as there are outputs.
    #[pyo3(signature = (x, out, threads, /))]
    fn multiply(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        threads: i64,
    ) -> PyResult<()> {
        let (matrix, threads) = (self.0.clone(), self::threads(threads)?);
        multiply(py, None, x, out, move |_, x, out| matrix.multiply(x, out, threads))
    }

    /// Some rows, as singles.
    #[pyo3(signature = (start, end, out, threads, /))]
    fn decode_rows(
        &self,
        py: Python<'_>,
        start: usize,
        end: usize,
        out: &Bound<'_, PyAny>,
        threads: i64,
    ) -> PyResult<()> {
        let out = Output::new(out, &[])?;
        let (matrix, threads) = (self.0.clone(), self::threads(threads)?);
        let (_, result) = work::run(py, 0, out, move |out| {
            let out = out.bytes_mut().as_chunks_mut::<4>().0;
            let mut rows = vec![0.0; out.len()];
            matrix.decode_rows(start..end, &mut rows, threads)?;
            out.iter_mut().zip(rows).for_each(|(out, weight)| *out = weight.to_le_bytes());
            Ok(())
        })?;
        result.map_err(to_python)
    }
}

/// Singles of a buffer.
fn singles(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Runs a product of singles without the lock of the interpreter; `weights` are bytes that it needs, if any.
fn multiply(
    py: Python<'_>,
    weights: Option<Buffer>,
    x: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    product: impl FnOnce(&[u8], &[f32], &mut [f32]) -> Result<(), mithril::Error> + Send + 'static,
) -> PyResult<()> {
    let x = Buffer::read(x)?;
    let out = Output::new(out, &[&x])?;
    let (_, result) = work::run(py, 0, (weights, x, out), move |(weights, x, out)| {
        let out = out.bytes_mut().as_chunks_mut::<4>().0;
        let mut products = vec![0.0; out.len()];
        product(weights.as_ref().map_or(&[], Buffer::bytes), &singles(x.bytes()), &mut products)?;
        out.iter_mut().zip(products).for_each(|(out, product)| *out = product.to_le_bytes());
        Ok(())
    })?;
    result.map_err(to_python)
}

/// Products of rows of singles with each of some vectors of so many, in the order of additions of `QuantisedMatrix`.
#[pyfunction]
#[pyo3(signature = (weights, columns, x, out, threads, /))]
pub(crate) fn singles_multiply(
    py: Python<'_>,
    weights: &Bound<'_, PyAny>,
    columns: usize,
    x: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    threads: i64,
) -> PyResult<()> {
    let (weights, threads) = (Buffer::read(weights)?, self::threads(threads)?);
    multiply(py, Some(weights), x, out, move |weights, x, out| {
        multiply_singles(&singles(weights), columns, x, out, threads)
    })
}

/// Products of rows of plain blocks of GGUF with each of some vectors of so many, in the order of additions of
/// `QuantisedMatrix`.
#[pyfunction]
#[pyo3(signature = (dtype, blocks, columns, x, out, threads, /))]
pub(crate) fn gguf_multiply(
    py: Python<'_>,
    dtype: &str,
    blocks: &Bound<'_, PyAny>,
    columns: usize,
    x: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    threads: i64,
) -> PyResult<()> {
    let (dtype, threads) = (dtype_of(dtype)?, self::threads(threads)?);
    let blocks = Buffer::read(blocks)?;
    multiply(py, Some(blocks), x, out, move |blocks, x, out| {
        multiply_blocks(dtype, blocks, columns, x, out, threads)
    })
}

fn dtype_of(name: &str) -> PyResult<Dtype> {
    Dtype::from_name(name).ok_or_else(|| PyValueError::new_err(format!("no number type is named `{name}`")))
}

/// The weights of plain blocks of GGUF, as singles.
#[pyfunction]
#[pyo3(signature = (dtype, blocks, out, /))]
pub(crate) fn gguf_values(
    py: Python<'_>,
    dtype: &str,
    blocks: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let dtype = dtype_of(dtype)?;
    let blocks = Buffer::read(blocks)?;
    let out = Output::new(out, &[&blocks])?;
    let (_, result) = work::run(py, 0, (blocks, out), move |(blocks, out)| {
        let out = out.bytes_mut().as_chunks_mut::<4>().0;
        let mut values = vec![0.0; out.len()];
        block_values(dtype, blocks.bytes(), &mut values)?;
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_le_bytes());
        Ok(())
    })?;
    result.map_err(to_python)
}
