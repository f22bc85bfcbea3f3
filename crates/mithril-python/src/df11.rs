//! DFloat11 directories: written, restored, read tensor by tensor, and their runs decoded into a caller's memory.

use crate::buffer::{Buffer, Output};
use crate::error::{NotFoundError, of_file, to_python};
use crate::options;
use crate::work::{self, Signals};
use mithril::convert::df11::{
    self, DecodeSummary, EncodeOptions, EncodeSummary, Files, Geometry, Outcome, Parts, PatternDict,
    ShapeSource,
};
use mithril::convert::{OutputDirectory, Repository, is_pipeline};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ops::Range;
use std::path::PathBuf;

/// Which modules are coded: names as regular expressions, each with submodules.
type Patterns = Vec<(String, Vec<String>)>;

/// How a model is encoded, as Python says it: patterns, one file or many, threads and bytes of a workgroup, shared memory,
/// the range of modules, whether every bit is compared, threads.
#[derive(FromPyObject)]
pub(crate) struct Encoding(Option<Patterns>, bool, u32, u32, Option<u64>, Option<(usize, usize)>, bool, i64);

impl Encoding {
    fn options(self) -> PyResult<EncodeOptions> {
        let Self(
            patterns,
            single_file,
            threads_per_block,
            bytes_per_thread,
            shared_memory,
            range,
            check,
            threads,
        ) = self;
        let mut options = EncodeOptions::default();
        options.patterns = patterns.map(PatternDict);
        options.files = if single_file { Files::Single } else { Files::PerModule };
        options.geometry = geometry((threads_per_block, bytes_per_thread))?;
        options.shared_memory = shared_memory;
        options.blocks = range.map(|(low, high)| Range { start: low, end: high });
        options.check = check;
        options.threads = options::threads(threads)?;
        Ok(options)
    }
}

/// A component (nothing for a model that is no pipeline), bytes before and after, coded modules, threads of a workgroup,
/// and the modules that were kept with the reason.
type Encoded = (String, u64, u64, usize, u32, Vec<(String, String)>);

/// Encodes a model, or the components of a pipeline.
#[pyfunction]
#[pyo3(signature = (input, output, encoding, replace, progress, /))]
pub(crate) fn df11_encode(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    encoding: Encoding,
    replace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<Encoded>> {
    let options = encoding.options()?;
    let total = work::detached(py, || weights_len(&input))?.map_err(to_python)?;
    let work = move |_: &mut (), signals: &Signals| {
        let directory =
            OutputDirectory::create(&output, replace)?.made_of(&input)?.stopped_by(signals.stop());
        let told = |len| signals.advance(len);
        if is_pipeline(&input) {
            return df11::encode_pipeline(&input, directory, &options, &told);
        }
        let summary = df11::encode(&Repository::open(&input)?, directory, &options, &told)?;
        Ok(vec![(String::new(), summary)])
    };
    let tell = |py: Python<'_>, done: u64| tell(py, progress.as_ref(), done, total);
    let (_, summaries) = work::run_watched(py, (), work, tell)?;
    let summaries = summaries.map_err(to_python)?;
    tell(py, total)?;
    Ok(summaries.into_iter().map(|(component, summary)| encoded(component, &summary)).collect())
}

fn encoded(component: String, summary: &EncodeSummary) -> Encoded {
    let kept = summary.modules.iter().filter_map(|module| match module.outcome {
        Outcome::Kept(reason) => Some((module.name.clone(), reason.to_string())),
        _ => None,
    });
    let kept: Vec<_> = kept.collect();
    let n_coded = summary.modules.len() - kept.len();
    let threads = summary.geometry.threads_per_block();
    (component, summary.raw_len, summary.coded_len, n_coded, threads, kept)
}

/// Component, bytes before and after, files, and weights without a shape.
type Decoded = (String, u64, u64, usize, Vec<String>);

/// Gives the plain weights of a directory back, or of the components of a pipeline.
#[pyfunction]
#[pyo3(signature = (input, output, shapes_from, threads, replace, progress, /))]
pub(crate) fn df11_decode(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    shapes_from: Option<PathBuf>,
    threads: i64,
    replace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<Decoded>> {
    let threads = options::threads(threads)?;
    let work = move |_: &mut (), signals: &Signals| {
        let directory =
            OutputDirectory::create(&output, replace)?.made_of(&input)?.stopped_by(signals.stop());
        let told = |len| signals.advance(len);
        if is_pipeline(&input) {
            return df11::decode_pipeline(&input, directory, threads, &told);
        }
        let shapes = shapes_from.as_deref().map(Repository::open).transpose()?;
        let source = ShapeSource { repository: shapes.as_ref(), model: None };
        let model = df11::Model::open_with(&input, &source)?;
        let summary = df11::decode(&model, directory, threads, &told)?;
        Ok(vec![(String::new(), summary)])
    };
    let tell = |py: Python<'_>, done: u64| tell(py, progress.as_ref(), done, 0);
    let (_, summaries) = work::run_watched(py, (), work, tell)?;
    let list = summaries.map_err(to_python)?;
    Ok(list.into_iter().map(|(component, summary)| decoded(component, summary)).collect())
}

fn decoded(component: String, summary: DecodeSummary) -> Decoded {
    (component, summary.coded_len, summary.raw_len, summary.n_files, summary.flat)
}

fn tell(py: Python<'_>, progress: Option<&Py<PyAny>>, done: u64, total: u64) -> PyResult<()> {
    match progress {
        Some(progress) => progress.call1(py, (done, total.max(done), "")).map(drop),
        None => Ok(()),
    }
}

/// Bytes of all weights; nothing for a pipeline, whose components are opened one by one.
fn weights_len(input: &std::path::Path) -> Result<u64, mithril::Error> {
    if is_pipeline(input) {
        return Ok(0);
    }
    let repository = Repository::open(input)?;
    Ok(repository.tensors().iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).sum())
}

/// An open DFloat11 directory.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct Df11Directory {
    model: df11::Model,
}

/// A tensor: name, number type, dimensions.
type TensorEntry<'py> = (String, &'static str, Bound<'py, PyTuple>);

/// A weight of a module: name, dimensions, whether they are known, first element and the one behind the last.
type WeightEntry<'py> = (String, Bound<'py, PyTuple>, bool, u64, u64);

#[pymethods]
impl Df11Directory {
    /// Opens a directory. Shapes that it lacks are looked up in `shapes_from`.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, shapes_from: Option<PathBuf>) -> PyResult<Self> {
        let opened = work::detached(py, || {
            let shapes = shapes_from.as_deref().map(Repository::open).transpose()?;
            df11::Model::open_with(&path, &ShapeSource { repository: shapes.as_ref(), model: None })
        })?;
        Ok(Self { model: opened.map_err(of_file)? })
    }

    /// Threads of a workgroup and their bytes.
    fn geometry(&self) -> (u32, u32) {
        let geometry = self.model.geometry();
        (geometry.threads_per_block(), geometry.bytes_per_thread())
    }

    /// The tensors of the files, those of coded modules among them.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<TensorEntry<'py>>> {
        let entry = |tensor: &mithril::safetensors::TensorInfo| {
            Ok((tensor.name.clone(), tensor.dtype.name(), PyTuple::new(py, &tensor.shape)?))
        };
        self.model.repository().tensors().iter().map(entry).collect()
    }

    /// The coded modules, each with its weights in the order of their elements.
    fn modules<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Vec<WeightEntry<'py>>)>> {
        let mut modules: Vec<(String, Vec<WeightEntry<'py>>)> =
            self.model.modules().iter().map(|module| (module.name.clone(), Vec::new())).collect();
        for tensor in self.model.tensors() {
            if let Some((module, elements)) = tensor.coded_elements() {
                let shape = PyTuple::new(py, &tensor.shape)?;
                let entry = (tensor.name.clone(), shape, tensor.has_shape, elements.start, elements.end);
                modules[module].1.push(entry);
            }
        }
        for (_, weights) in &mut modules {
            weights.sort_by_key(|weight| weight.3);
        }
        Ok(modules)
    }

    /// Reads a tensor of the files into exactly `out`.
    fn read_into(&self, py: Python<'_>, name: &str, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let repository = self.model.repository();
        let missing = || NotFoundError::new_err(format!("there is no tensor `{}`", name.escape_debug()));
        let idx = repository.find(name).ok_or_else(missing)?;
        let bytes = &repository.tensors()[idx].bytes;
        let mut out = Output::new(out, &[])?;
        if out.bytes_mut().len() as u64 != bytes.end - bytes.start {
            return Err(PyValueError::new_err(format!("`out` has another length than `{name}`")));
        }
        work::detached(py, || repository.read_into(idx, 0, out.bytes_mut()))?.map_err(to_python)
    }
}

/// The parts of a run that decoders read: tables, codes, signs and mantissas, output positions, gaps.
type RunParts<'py> =
    (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Decodes a run to BF16 into exactly `out`: all of it, or rows of so many elements, whose numbers (little-endian `i64`)
/// rise.
#[pyfunction]
#[pyo3(signature = (name, parts, geometry, rows, out, threads, /))]
pub(crate) fn df11_decode_into(
    py: Python<'_>,
    name: &str,
    parts: RunParts<'_>,
    geometry: (u32, u32),
    rows: Option<(Bound<'_, PyAny>, usize)>,
    out: &Bound<'_, PyAny>,
    threads: i64,
) -> PyResult<()> {
    let (geometry, threads) = (self::geometry(geometry)?, options::threads(threads)?);
    let read = |part: &Bound<'_, PyAny>| Buffer::read(part);
    let buffers = [read(&parts.0)?, read(&parts.1)?, read(&parts.2)?, read(&parts.3)?, read(&parts.4)?];
    let rows =
        rows.map(|(rows, row_len)| Ok::<_, PyErr>((row_numbers(&read(&rows)?)?, row_len))).transpose()?;
    let sources: Vec<&Buffer> = buffers.iter().collect();
    let mut out = Output::new(out, &sources)?;
    let [luts, encoded_exponent, sign_mantissa, output_positions, gaps] =
        buffers.each_ref().map(Buffer::bytes);
    let parts = Parts { luts, encoded_exponent, sign_mantissa, output_positions, gaps };
    work::detached(py, || {
        let coded = df11::coded(name, parts, geometry)?;
        match &rows {
            Some((rows, row_len)) => {
                df11::decode_rows_into(&coded, name, (rows, *row_len), out.bytes_mut(), threads)
            }
            None => df11::decode_into(&coded, name, out.bytes_mut(), threads),
        }
    })?
    .map_err(to_python)
}

fn row_numbers(rows: &Buffer) -> PyResult<Vec<u64>> {
    let (rows, rest) = rows.bytes().as_chunks();
    let rows: Option<Vec<u64>> =
        rows.iter().map(|&row| u64::try_from(i64::from_le_bytes(row)).ok()).collect();
    rows.filter(|_| rest.is_empty()).ok_or_else(|| PyValueError::new_err("rows are numbers from 0 on"))
}

fn geometry((threads_per_block, bytes_per_thread): (u32, u32)) -> PyResult<Geometry> {
    Geometry::new(threads_per_block, bytes_per_thread).ok_or_else(|| {
        let what = format!("no kernel has {threads_per_block} threads of {bytes_per_thread} bytes");
        PyValueError::new_err(what)
    })
}
