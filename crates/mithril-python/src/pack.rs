//! Whole model files to containers and back.

use crate::buffer::{Buffer, FreshBytes};
use crate::error::{of_file, to_python};
use crate::model::bases_of;
use crate::options::{self, Coding};
use crate::work::{self, Signals};
use mithril::container::{Bases, Reader};
use mithril::pack::Source;
use mithril::safetensors_layout::{Layout, NewTensor, check_new_name};
use mithril::{AtomicFile, Attributes, Error, ReadAt, room};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes of the original file, bytes of the container, tensors.
type Sizes = (u64, u64, usize);

/// Packs a file.
#[pyfunction]
#[pyo3(signature = (input, output, bases, coding, replace, progress, /))]
pub(crate) fn pack_file(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    bases: Vec<PathBuf>,
    coding: Coding,
    replace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Sizes> {
    let mut options = coding.pack_options()?;
    options.name = input.file_name().unwrap_or_default().display().to_string();
    let steps = work::detached(py, || Steps::of_file(&input))?.map_err(of_file)?;
    let work = move |_: &mut (), signals: &Signals| {
        options.bases = Bases::open_paths(&bases)?;
        let source = Source::open(&input)?;
        let pack = |target| {
            let told = |len| signals.advance(len);
            let (target, summary) = mithril::pack::pack(source.file(), target, &options, &told)?;
            source.check_unchanged(&input)?;
            Ok((target, (summary.raw_len, summary.packed_len, summary.tensors.len())))
        };
        write_file(&output, replace, source.attributes(), signals, pack)
    };
    let (_, sizes) = work::run_watched(py, (), work, |py, done| steps.tell(py, progress.as_ref(), done))?;
    let sizes = sizes.map_err(of_file)?;
    steps.tell(py, progress.as_ref(), steps.total)?;
    Ok(sizes)
}

/// Unpacks a container to a file.
#[pyfunction]
#[pyo3(signature = (input, output, bases, threads, replace, progress, /))]
pub(crate) fn unpack_file(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    bases: Vec<PathBuf>,
    threads: i64,
    replace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Sizes> {
    let threads = options::threads(threads)?;
    let steps = work::detached(py, || Steps::of_container(&input))?.map_err(of_file)?;
    let work = move |_: &mut (), signals: &Signals| {
        let source = Source::open(&input)?;
        let reader = Reader::open(source.file())?;
        let bases = match bases.as_slice() {
            [] => mithril::container::Model::open_path(&input)?.bases().cloned().unwrap_or_default(),
            bases => Bases::open_paths(bases)?,
        };
        let original = mithril::pack::check(&reader, &bases)?;
        room::check(&output, original.len).map_err(|error| Error::io_at("cannot write", &output, error))?;
        let unpack = |target| {
            let told = |len| signals.advance(len);
            let (target, summary) = mithril::pack::unpack(&reader, target, &bases, threads, &told)?;
            source.check_unchanged(&input)?;
            let n_tensors = reader.entries().iter().filter(|entry| !entry.glue).count();
            Ok((target, (summary.raw_len, summary.packed_len, n_tensors)))
        };
        write_file(&output, replace, source.attributes(), signals, unpack)
    };
    let (_, sizes) = work::run_watched(py, (), work, |py, done| steps.tell(py, progress.as_ref(), done))?;
    let sizes = sizes.map_err(of_file)?;
    steps.tell(py, progress.as_ref(), steps.total)?;
    Ok(sizes)
}

/// Packs the bytes of a file.
#[pyfunction]
#[pyo3(signature = (data, bases, coding, /))]
pub(crate) fn pack_bytes(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    bases: Vec<Bound<'_, PyAny>>,
    coding: Coding,
) -> PyResult<Py<PyBytes>> {
    let data = Buffer::read(data)?;
    let mut options = coding.pack_options()?.with_changing(data.is_changing());
    options.bases = bases_of(py, &bases)?;
    let work = move |data: &mut Buffer, signals: &Signals| {
        mithril::pack::pack(data, Stoppable::new(Vec::new(), signals), &options, &|_| ())
            .map(|(packed, _)| packed.inner)
    };
    let (_, packed) = work::run_watched(py, data, work, |_, _| Ok(()))?;
    Ok(PyBytes::new(py, &packed.map_err(of_file)?).unbind())
}

/// Unpacks a container to the bytes of the original file.
#[pyfunction]
#[pyo3(signature = (data, bases, threads, /))]
pub(crate) fn unpack_bytes(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    bases: Vec<Bound<'_, PyAny>>,
    threads: i64,
) -> PyResult<Py<PyBytes>> {
    let (bases, threads) = (bases_of(py, &bases)?, options::threads(threads)?);
    let reader = Reader::open(Buffer::read(data)?).map_err(of_file)?;
    let original = mithril::pack::check(&reader, &bases).map_err(of_file)?;
    let limit = mithril::DecodeOptions::default().output_limit(reader.source().bytes().len());
    if bases.is_empty() && original.len > limit {
        return Err(to_python(Error::TooLarge { raw_len: original.len, limit }));
    }
    let len = usize::try_from(original.len).map_err(|_| PyValueError::new_err("larger than memory"))?;
    let inputs = (reader, FreshBytes::new(py, len)?);
    let work = move |(reader, out): &mut (Reader<Buffer>, FreshBytes), signals: &Signals| {
        // A slice takes what fits: the length was checked against the sum of all entries.
        let target = Stoppable::new(out.bytes_mut(), signals);
        mithril::pack::unpack(reader, target, &bases, threads, &|_| ()).map(|_| ())
    };
    let (inputs, result) = work::run_watched(py, inputs, work, |_, _| Ok(()))?;
    result.map_err(to_python)?;
    Ok(inputs.1.finish())
}

/// Name, number type, dimensions and bytes of a tensor.
pub(crate) type Given<'py> = (TensorName, String, Vec<u64>, Bound<'py, PyAny>);

/// The name of a tensor that is to be saved: anything that reading finds again.
pub(crate) struct TensorName(pub(crate) String);

impl FromPyObject<'_, '_> for TensorName {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let text = given.cast::<PyString>()?;
        let name =
            text.to_str().map_err(|_| "it has surrogates without a partner, which UTF-8 has no bytes for");
        match name.and_then(|name| check_new_name(name).map(|()| name)) {
            Ok(name) => Ok(Self(name.to_owned())),
            Err(reason) => {
                let shown: String = text.repr()?.to_str()?.chars().take(120).collect();
                Err(PyValueError::new_err(format!("{shown} cannot be the name of a tensor: {reason}")))
            }
        }
    }
}

/// Refuses names that tensors to be saved cannot have.
#[pyfunction]
#[pyo3(signature = (names, /))]
pub(crate) fn check_tensor_names(names: Vec<TensorName>) {
    drop(names);
}

/// Packs tensors as the safetensors file that they would be; to a file, or to bytes without a path.
#[pyfunction]
#[pyo3(signature = (tensors, metadata, output, bases, coding, progress, /))]
pub(crate) fn pack_tensors(
    py: Python<'_>,
    tensors: Vec<Given<'_>>,
    metadata: Option<BTreeMap<String, String>>,
    output: Option<PathBuf>,
    bases: Vec<PathBuf>,
    coding: Coding,
    progress: Option<Py<PyAny>>,
) -> PyResult<Option<Py<PyBytes>>> {
    let file = TensorFile::new(tensors, &metadata.unwrap_or_default())?;
    let mut options = coding.pack_options()?.with_changing(file.is_changing());
    let name = output.as_deref().and_then(Path::file_name).unwrap_or_default();
    options.name = name.display().to_string();
    let steps = Steps { total: file.layout.file_len(), ends: file.ends() };
    let work = move |file: &mut TensorFile, signals: &Signals| {
        options.bases = Bases::open_paths(&bases)?;
        let told = |len| signals.advance(len);
        match output {
            Some(output) => write_file(&output, true, Attributes::default(), signals, |target| {
                Ok((mithril::pack::pack(file, target, &options, &told)?.0, None))
            }),
            None => mithril::pack::pack(file, Stoppable::new(Vec::new(), signals), &options, &told)
                .map(|(packed, _)| Some(packed.inner)),
        }
    };
    let (_, packed) = work::run_watched(py, file, work, |py, done| steps.tell(py, progress.as_ref(), done))?;
    let packed = packed.map_err(to_python)?;
    steps.tell(py, progress.as_ref(), steps.total)?;
    Ok(packed.map(|packed| PyBytes::new(py, &packed).unbind()))
}

/// A safetensors file that is nowhere: its header, and the tensors where Python has them.
pub(crate) struct TensorFile {
    layout: Layout,
    /// In the order of the layout.
    data: Vec<Buffer>,
}

impl TensorFile {
    pub(crate) fn new(tensors: Vec<Given<'_>>, metadata: &BTreeMap<String, String>) -> PyResult<Self> {
        let mut listed: Vec<NewTensor> = Vec::new();
        let mut data = BTreeMap::new();
        for (TensorName(name), dtype, shape, bytes) in tensors {
            listed.push((name.clone(), options::dtype(Some(&dtype))?, shape));
            data.insert(name, Buffer::read(&bytes)?);
        }
        let layout = Layout::new(listed, metadata)
            .ok_or_else(|| PyValueError::new_err("a shape is too large, or does not fill whole bytes"))?;
        let in_order = layout.tensors.iter().map(|tensor| {
            let bytes = data
                .remove(&tensor.name)
                .filter(|bytes| bytes.bytes().len() as u64 == tensor.bytes.end - tensor.bytes.start);
            let wrong = || format!("tensor `{}` has other bytes than its shape takes", tensor.name);
            bytes.ok_or_else(|| PyValueError::new_err(wrong()))
        });
        let data = in_order.collect::<PyResult<_>>()?;
        Ok(Self { layout, data })
    }

    /// Whether other threads of Python may change a tensor.
    pub(crate) fn is_changing(&self) -> bool {
        self.data.iter().any(Buffer::is_changing)
    }

    fn ends(&self) -> Vec<(u64, String)> {
        self.layout.tensors.iter().map(|tensor| (tensor.bytes.end, tensor.name.clone())).collect()
    }
}

impl ReadAt for TensorFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.layout.file_len())
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let piece = self.piece_at(at).ok_or(io::ErrorKind::UnexpectedEof)?;
            let len = piece.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&piece[..len]);
            (at, rest) = (at + len as u64, later);
        }
        Ok(())
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        self.piece_at(range.start)?.get(..usize::try_from(range.end - range.start).ok()?)
    }
}

impl TensorFile {
    /// The bytes from a place on, up to the end of the header or tensor there.
    fn piece_at(&self, offset: u64) -> Option<&[u8]> {
        let header_len = self.layout.header.len() as u64;
        if offset < header_len {
            return self.layout.header.get(usize::try_from(offset).ok()?..);
        }
        // Empty tensors end where they start, and are passed over.
        let idx = self.layout.tensors.partition_point(|tensor| tensor.bytes.end <= offset);
        let start = self.layout.tensors.get(idx)?.bytes.start;
        self.data[idx].bytes().get(usize::try_from(offset - start).ok()?..)
    }
}

/// Writes a file that appears whole or not at all.
fn write_file<'a, T>(
    path: &Path,
    replace: bool,
    attributes: Attributes,
    signals: &'a Signals,
    write: impl FnOnce(Stoppable<'a, AtomicFile>) -> Result<(Stoppable<'a, AtomicFile>, T), Error>,
) -> Result<T, Error> {
    let failed = |error| Error::io_at("cannot write", path, error);
    let target = AtomicFile::create_with(path, replace, attributes).map_err(failed)?;
    let (target, result) = write(Stoppable::new(target, signals))?;
    target.inner.commit().map_err(failed)?;
    Ok(result)
}

/// A writer that fails once the work is in vain.
pub(crate) struct Stoppable<'a, W> {
    pub(crate) inner: W,
    signals: &'a Signals,
}

impl<'a, W> Stoppable<'a, W> {
    pub(crate) fn new(inner: W, signals: &'a Signals) -> Self {
        Self { inner, signals }
    }
}

impl<W: Write> Write for Stoppable<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.signals.is_stopped() {
            return Err(io::Error::other("stopped"));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// How far work is: its bytes, and the tensors they belong to.
struct Steps {
    total: u64,
    /// Where each tensor ends.
    ends: Vec<(u64, String)>,
}

impl Steps {
    fn of_file(path: &Path) -> Result<Self, Error> {
        let source = Source::open(path)?;
        let total = source.file().size().map_err(|error| Error::io_at("cannot read", path, error))?;
        let kind = mithril::source::detect(source.file());
        let kind = kind.ok_or_else(|| Error::InvalidArgument {
            what: format!("`{}` is no model file of a known kind", path.display()),
        })?;
        let tensors = mithril::source::tensors_to_pack(kind, source.file())?;
        Ok(Self { total, ends: tensors.into_iter().map(|tensor| (tensor.bytes.end, tensor.name)).collect() })
    }

    fn of_container(path: &Path) -> Result<Self, Error> {
        let source = Source::open(path)?;
        let reader = Reader::open(source.file())?;
        let mut total = 0;
        let mut ends = Vec::new();
        for entry in reader.entries() {
            total += entry.raw_len();
            ends.push((total, entry.name.clone()));
        }
        Ok(Self { total, ends })
    }

    /// Calls the user's function with bytes that are done, all bytes, and the tensor at work.
    fn tell(&self, py: Python<'_>, progress: Option<&Py<PyAny>>, done: u64) -> PyResult<()> {
        let Some(progress) = progress else { return Ok(()) };
        let at = self.ends.partition_point(|(end, _)| *end <= done);
        let name = self.ends.get(at.min(self.ends.len().saturating_sub(1)));
        let name = name.map_or("", |(_, name)| name.as_str());
        progress.call1(py, (done.min(self.total), self.total, name)).map(|_| ())
    }
}
