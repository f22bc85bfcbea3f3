//! zstd dictionaries: training, and small records compressed with them, one by one or many at once.

use crate::buffer::{Buffer, FreshBytes, RecordList};
use crate::error::of_kind;
use crate::options;
use crate::work;
use mithril::dictionary::{
    Dictionary, DictionaryError, SampleSet, TrainOptions, Trained, choose_size, train, update,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::Arc;

/// A dictionary that is ready to use.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct RecordDictionary {
    dictionary: Arc<Dictionary>,
}

/// The bytes of all records side by side, and 64-bit numbers: where each starts, and the end of the last.
type Joined = (Py<PyBytes>, Py<PyBytes>);

#[pymethods]
impl RecordDictionary {
    /// Prepares a dictionary for a level.
    #[new]
    #[pyo3(signature = (data, level, /))]
    fn new(py: Python<'_>, data: &Bound<'_, PyAny>, level: i32) -> PyResult<Self> {
        options::level(Some(level))?;
        let data = Buffer::read(data)?;
        let dictionary = work::detached(py, || Dictionary::new(data.bytes(), level))?.map_err(raise)?;
        Ok(Self { dictionary: Arc::new(dictionary) })
    }

    /// Its bytes.
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.dictionary.as_bytes())
    }

    /// Its id; none for bare content.
    #[getter]
    fn id(&self) -> Option<u32> {
        self.dictionary.id()
    }

    /// Bytes before its content.
    #[getter]
    fn header_size(&self) -> usize {
        self.dictionary.header().header_len
    }

    /// The frame of one record.
    #[pyo3(signature = (record, /))]
    fn compress<'py>(&self, py: Python<'py>, record: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let (record, dictionary) = (Buffer::read(record)?, self.dictionary.clone());
        let len = record.bytes().len();
        let (_, frame) = work::run(py, len, record, move |record| dictionary.compress(record.bytes()))?;
        Ok(PyBytes::new(py, &frame.map_err(raise)?))
    }

    /// The record of one frame.
    #[pyo3(signature = (frame, /))]
    fn decompress<'py>(&self, py: Python<'py>, frame: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let (frame, dictionary) = (Buffer::read(frame)?, self.dictionary.clone());
        let len = frame.bytes().len();
        let (_, record) = work::run(py, len, frame, move |frame| dictionary.decompress(frame.bytes()))?;
        Ok(PyBytes::new(py, &record.map_err(raise)?))
    }

    /// The frames of all records of a list.
    #[pyo3(signature = (records, threads, /))]
    fn compress_list<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyList>,
        threads: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let threads = options::threads(threads)?;
        self.of_list(py, records, move |dictionary, records| dictionary.compress_slices(records, threads))
    }

    /// The records of all frames of a list.
    #[pyo3(signature = (frames, threads, /))]
    fn decompress_list<'py>(
        &self,
        py: Python<'py>,
        frames: &Bound<'py, PyList>,
        threads: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let threads = options::threads(threads)?;
        let frames_read = RecordList::read(frames)?;
        let lens = self.dictionary.record_lens(&frames_read.slices()).map_err(raise)?;
        let Some(lens) = lens else {
            return self.of_list(py, frames, move |dictionary, frames| {
                dictionary.decompress_slices(frames, threads)
            });
        };
        // Decoded where Python will have them, without a copy.
        let records = lens.iter().map(|&len| FreshBytes::new(py, len)).collect::<PyResult<Vec<_>>>()?;
        let (len, dictionary) = (lens.iter().sum(), self.dictionary.clone());
        let ((_, records), result) = work::run(py, len, (frames_read, records), move |(frames, records)| {
            let mut records: Vec<&mut [u8]> = records.iter_mut().map(FreshBytes::bytes_mut).collect();
            dictionary.decompress_into(&frames.slices(), &mut records, threads)
        })?;
        result.map_err(raise)?;
        PyList::new(py, records.into_iter().map(FreshBytes::finish))
    }

    /// The frames of all records of a buffer.
    #[pyo3(signature = (data, offsets, threads, /))]
    fn compress_joined(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        threads: i64,
    ) -> PyResult<Joined> {
        let threads = options::threads(threads)?;
        self.of_joined(py, data, offsets, move |dictionary, records| {
            dictionary.compress_slices(records, threads)
        })
    }

    /// The records of all frames of a buffer.
    #[pyo3(signature = (data, offsets, threads, /))]
    fn decompress_joined(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        threads: i64,
    ) -> PyResult<Joined> {
        let threads = options::threads(threads)?;
        let (data_read, offsets_read) = (Buffer::read(data)?, Buffer::read(offsets)?);
        let places = checked_offsets(offsets_read.bytes(), data_read.bytes().len())?;
        let lens = self.dictionary.record_lens(&cut(data_read.bytes(), &places)).map_err(raise)?;
        let Some(lens) = lens else {
            return self.of_joined(py, data, offsets, move |dictionary, frames| {
                dictionary.decompress_slices(frames, threads)
            });
        };
        let (len, dictionary) = (lens.iter().sum(), self.dictionary.clone());
        let ends = joined_offsets(py, lens.iter().copied());
        let inputs = (data_read, FreshBytes::new(py, len)?);
        let ((_, out), result) = work::run(py, len, inputs, move |(data, out)| {
            let mut rest = out.bytes_mut();
            let mut records = Vec::with_capacity(lens.len());
            for &len in &lens {
                let (record, later) = rest.split_at_mut(len);
                records.push(record);
                rest = later;
            }
            dictionary.decompress_into(&cut(data.bytes(), &places), &mut records, threads)
        })?;
        result.map_err(raise)?;
        Ok((out.finish(), ends))
    }

    /// Bytes of the records of a list, of their frames without a dictionary, and with this one.
    #[pyo3(signature = (records, level, threads, /))]
    fn evaluate(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyList>,
        level: i32,
        threads: i64,
    ) -> PyResult<(u64, u64, u64)> {
        options::level(Some(level))?;
        let (threads, records) = (options::threads(threads)?, RecordList::read(records)?);
        let dictionary = self.dictionary.clone();
        let work = move |records: &mut RecordList, _: &work::Signals| {
            let set: SampleSet = records.slices().into_iter().collect();
            dictionary.evaluate(&set.samples(), level, threads)
        };
        let (_, evaluation) = work::run_watched(py, records, work, |_, _| Ok(()))?;
        let evaluation = evaluation.map_err(raise)?;
        Ok((evaluation.raw_len, evaluation.plain_len, evaluation.coded_len))
    }
}

/// Bytes of all results side by side, and where each ends.
type Ends = Result<(Vec<u8>, Vec<usize>), DictionaryError>;

impl RecordDictionary {
    fn of_list<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyList>,
        work: impl FnOnce(&Dictionary, &[&[u8]]) -> Ends + Send + 'static,
    ) -> PyResult<Bound<'py, PyList>> {
        let (records, dictionary) = (RecordList::read(records)?, self.dictionary.clone());
        let len = records.slices().iter().map(|record| record.len()).sum();
        let (_, results) = work::run(py, len, records, move |records| work(&dictionary, &records.slices()))?;
        let (bytes, ends) = results.map_err(raise)?;
        let mut start = 0;
        let objects = ends.iter().map(|&end| {
            let object = PyBytes::new(py, &bytes[start..end]);
            start = end;
            object
        });
        PyList::new(py, objects)
    }

    fn of_joined(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        work: impl FnOnce(&Dictionary, &[&[u8]]) -> Ends + Send + 'static,
    ) -> PyResult<Joined> {
        let (data, offsets) = (Buffer::read(data)?, Buffer::read(offsets)?);
        let offsets = checked_offsets(offsets.bytes(), data.bytes().len())?;
        let (len, dictionary) = (data.bytes().len(), self.dictionary.clone());
        let (_, results) =
            work::run(py, len, data, move |data| work(&dictionary, &cut(data.bytes(), &offsets)))?;
        let (bytes, ends) = results.map_err(raise)?;
        let lens = std::iter::once(0).chain(ends.iter().copied()).zip(&ends).map(|(start, end)| end - start);
        Ok((PyBytes::new(py, &bytes).unbind(), joined_offsets(py, lens)))
    }
}

/// Where pieces of these lengths start when they lie side by side, and where the last ends.
fn joined_offsets(py: Python<'_>, lens: impl Iterator<Item = usize>) -> Py<PyBytes> {
    let mut offsets = 0u64.to_ne_bytes().to_vec();
    let mut end = 0u64;
    for len in lens {
        end += len as u64;
        offsets.extend_from_slice(&end.to_ne_bytes());
    }
    PyBytes::new(py, &offsets).unbind()
}

/// Offsets as Python gives them, 64-bit numbers, which rise and stay within a buffer.
fn checked_offsets(numbers: &[u8], data_len: usize) -> PyResult<Vec<usize>> {
    let (numbers, rest) = numbers.as_chunks::<8>();
    let offsets: Option<Vec<usize>> = numbers
        .iter()
        .map(|&number| usize::try_from(u64::from_ne_bytes(number)).ok().filter(|&at| at <= data_len))
        .collect();
    offsets.filter(|offsets| rest.is_empty() && !offsets.is_empty() && offsets.is_sorted()).ok_or_else(|| {
        let message = format!(
            "offsets are one more than there are records, do not fall, and lie within the buffer of {data_len} bytes"
        );
        PyValueError::new_err(message)
    })
}

/// The records between offsets.
fn cut<'a>(data: &'a [u8], offsets: &[usize]) -> Vec<&'a [u8]> {
    offsets.windows(2).map(|pair| &data[pair[0]..pair[1]]).collect()
}

/// How a dictionary is trained, as Python says it: size (none for automatic), level, k, d, id, search, bare content,
/// threads.
#[derive(FromPyObject)]
pub(crate) struct Training(Option<usize>, i32, Option<usize>, Option<usize>, Option<u32>, bool, bool, i64);

impl Training {
    fn options(&self) -> PyResult<TrainOptions> {
        let &Self(size, level, k, d, id, search, raw_content, threads) = self;
        let mut options = TrainOptions::default()
            .with_level(level)
            .with_search(search)
            .with_raw_content(raw_content)
            .with_threads(options::threads(threads)?);
        (options.k, options.d, options.id) = (k, d, id);
        if let Some(size) = size {
            options.size = size;
        }
        Ok(options)
    }
}

/// Samples: a list of objects, or one buffer and offsets.
enum Given {
    List(RecordList),
    Joined(Buffer, Vec<usize>),
}

impl Given {
    fn read(samples: &Bound<'_, PyAny>, offsets: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(offsets) = offsets else {
            return Ok(Self::List(RecordList::read(samples.cast::<PyList>()?)?));
        };
        let (data, offsets) = (Buffer::read(samples)?, Buffer::read(offsets)?);
        let offsets = checked_offsets(offsets.bytes(), data.bytes().len())?;
        Ok(Self::Joined(data, offsets))
    }

    fn set(&self) -> SampleSet {
        match self {
            Self::List(records) => records.slices().into_iter().collect(),
            Self::Joined(data, offsets) => cut(data.bytes(), offsets).into_iter().collect(),
        }
    }
}

/// A dictionary, the `k` and `d` it was made with, and of held-out samples, if there was a search: their bytes, and those
/// of their frames without a dictionary and with it.
type Made = (Py<PyBytes>, usize, usize, Option<(u64, u64, u64)>);

/// Trains a dictionary.
#[pyfunction]
#[pyo3(signature = (samples, offsets, training, /))]
pub(crate) fn train_dictionary(
    py: Python<'_>,
    samples: &Bound<'_, PyAny>,
    offsets: Option<&Bound<'_, PyAny>>,
    training: Training,
) -> PyResult<Made> {
    let (given, mut options) = (Given::read(samples, offsets)?, training.options()?);
    let is_sized = training.0.is_some();
    let work = move |given: &mut Given, _: &work::Signals| -> Result<Trained, DictionaryError> {
        let set = given.set();
        if !is_sized {
            options.size = choose_size(&set.samples(), &options)?.0;
        }
        train(&set.samples(), &options)
    };
    let (_, trained) = work::run_watched(py, given, work, |_, _| Ok(()))?;
    let trained = trained.map_err(raise)?;
    let held_out = trained.search.as_ref().map(|search| (search.raw_len, search.plain_len, search.coded_len));
    let (k, d) = (trained.parameters.k, trained.parameters.d);
    Ok((PyBytes::new(py, &trained.dictionary).unbind(), k, d, held_out))
}

/// Fits a dictionary to newer samples.
#[pyfunction]
#[pyo3(signature = (old, samples, offsets, training, /))]
pub(crate) fn update_dictionary(
    py: Python<'_>,
    old: &Bound<'_, PyAny>,
    samples: &Bound<'_, PyAny>,
    offsets: Option<&Bound<'_, PyAny>>,
    training: Training,
) -> PyResult<Py<PyBytes>> {
    let (given, options) = (Given::read(samples, offsets)?, training.options()?);
    let work = move |(old, given): &mut (Buffer, Given), _: &work::Signals| {
        update(old.bytes(), &given.set().samples(), &options)
    };
    let (_, new) = work::run_watched(py, (Buffer::read(old)?, given), work, |_, _| Ok(()))?;
    Ok(PyBytes::new(py, &new.map_err(raise)?).unbind())
}

/// The id of the dictionary that a frame names; none when it names none.
#[pyfunction]
#[pyo3(signature = (frame, /))]
pub(crate) fn dictionary_id(frame: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    Ok(mithril::dictionary::dictionary_id_of_frame(Buffer::read(frame)?.bytes()))
}

/// The exception for a failure, with what to do about it.
fn raise(error: DictionaryError) -> PyErr {
    let message = match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    };
    of_kind(error.kind(), message)
}
