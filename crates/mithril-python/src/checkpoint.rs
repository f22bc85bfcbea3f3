//! Stores of checkpoints.

use crate::buffer::{Buffer, Output};
use crate::error::{ConflictError, MithrilError, StorageError, of_kind, of_refusal};
use crate::options;
use crate::pack::{Given, TensorName};
use crate::work::{self, Signals};
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{
    self, Checkpoint, CheckpointError, CheckpointMeta, CheckpointView, CompressorConfig, GcOptions,
    Retention, SaveCheck, SaveOptions, SaveStatus, TensorData, TensorView, VerifyOptions,
};
use mithril::{Dtype, ErrorKind};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Where the metadata keep the state that tensors belong to.
const STATE: &str = "mithril.state";

/// How long a wait goes on without looking for signals.
const INTERVAL: Duration = Duration::from_millis(50);

/// A store of checkpoints.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct Store {
    compressor: CheckpointCompressor,
}

/// What is saved with tensors, and as what: text of the state, step, key, and key of the checkpoint to store it against.
#[derive(FromPyObject)]
struct Named(String, Option<u64>, String, Option<String>);

/// Checkpoints, and keys of those that cannot be read with the reason.
type Listed = (Vec<Meta>, Vec<(String, String)>);

/// A tensor that is to be saved.
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    data: Buffer,
}

/// How a store compresses, chains and keeps: deltas, fields, level, effort, threads, depth, restore cost, and the newest,
/// every n-th and named checkpoints that are kept; whether weights start where their moments say; how saves are checked.
#[derive(FromPyObject)]
pub(crate) struct Config(
    bool,
    bool,
    Option<i32>,
    Option<String>,
    i64,
    u32,
    f64,
    Option<usize>,
    Option<u64>,
    Vec<String>,
    bool,
    String,
);

impl Config {
    fn build(self) -> PyResult<CompressorConfig> {
        let Self(
            delta,
            grouping,
            level,
            effort,
            threads,
            depth,
            cost,
            keep_last,
            keep_every,
            keep,
            moments,
            verify,
        ) = self;
        let verify = match verify.as_str() {
            "chain" => SaveCheck::Chain,
            "full" => SaveCheck::Full,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "verify is \"chain\" or \"full\", not \"{verify}\""
                )));
            }
        };
        let mut config = CompressorConfig::default()
            .with_delta(delta)
            .with_byte_grouping(grouping)
            .with_from_moments(moments)
            .with_verify(verify)
            .with_effort(options::effort(effort.as_deref())?)
            .with_threads(options::threads(threads)?)
            .with_chain(depth, cost);
        config.coding.level = options::level(level)?;
        let mut retention = Retention::default();
        (retention.keep_last, retention.keep_every) = (keep_last, keep_every);
        retention.keep = keep.into_iter().collect();
        Ok(config.with_retention(retention))
    }
}

#[pymethods]
impl Store {
    /// Opens the store at a URL or path.
    #[new]
    fn new(py: Python<'_>, url: &str, config: Config) -> PyResult<Self> {
        let config = config.build()?;
        let storage =
            work::detached(py, || mithril::storage::open(url))?.map_err(|error| raise(error.into()))?;
        Ok(Self { compressor: CheckpointCompressor::new(config, storage) })
    }

    /// Where it is, without what its URL may hold of secrets.
    #[getter]
    fn location(&self) -> &str {
        self.compressor.storage().location()
    }

    /// Saves tensors and the text of the state that they belong to.
    #[pyo3(signature = (tensors, named, progress, /))]
    fn save(
        &self,
        py: Python<'_>,
        tensors: Vec<Given<'_>>,
        named: Named,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Meta> {
        let Named(state, step, key, previous_key) = named;
        let tensors = given(tensors)?;
        let total = tensors.iter().map(|tensor| tensor.data.bytes().len() as u64).sum();
        let compressor = self.compressor.clone();
        let name = key.clone();
        let work = move |tensors: &mut Vec<Tensor>, signals: &Signals| {
            let told = |len| signals.advance(len);
            let options = SaveOptions::default()
                .with_previous(previous_key.as_deref())
                .with_progress(&told)
                .with_stop(signals.stop())
                .with_changing(tensors.iter().any(|tensor| tensor.data.is_changing()));
            let mut view = CheckpointView::default();
            view.metadata.insert(STATE.to_owned(), state.into());
            view.step = step;
            view.tensors = tensors
                .iter()
                .map(|tensor| {
                    let Tensor { name, dtype, shape, data } = tensor;
                    (name.as_str(), TensorView { data: data.bytes(), shape, dtype: *dtype })
                })
                .collect();
            compressor.save_view(&view, &key, &options)
        };
        let tell = |py: Python<'_>, done: u64| tell(py, progress.as_ref(), done, total, &name);
        let (_, meta) = work::run_watched(py, tensors, work, tell)?;
        let meta = meta.map_err(raise)?;
        self::tell(py, progress.as_ref(), total, total, &name)?;
        Ok(meta.into())
    }

    /// Saves in the background. The tensors must not change from now on.
    #[pyo3(signature = (tensors, named, /))]
    fn start_save(&self, tensors: Vec<Given<'_>>, named: Named) -> PyResult<SaveHandle> {
        let Named(state, step, key, previous_key) = named;
        let mut checkpoint = Checkpoint::new();
        checkpoint.step = step;
        checkpoint.metadata.insert(STATE.to_owned(), state.into());
        for tensor in given(tensors)? {
            let data = bytes::Bytes::from_owner(Lent(tensor.data));
            checkpoint =
                checkpoint.with_tensor(tensor.name, TensorData::new(data, tensor.shape, tensor.dtype));
        }
        Ok(SaveHandle { handle: self.compressor.save_async(checkpoint, &key, previous_key.as_deref()) })
    }

    /// The text of the state, and name, number type, dimensions and bytes of every tensor.
    #[pyo3(signature = (key, /))]
    fn describe(&self, py: Python<'_>, key: &str) -> PyResult<(Option<String>, Vec<Described>)> {
        let key = key.to_owned();
        let manifest = self.ask(py, move |store| store.manifest(&key))?;
        let state = manifest.metadata.get(STATE).and_then(|state| state.as_str()).map(str::to_owned);
        let tensors = manifest.tensors.into_iter();
        Ok((state, tensors.map(|t| (t.name, t.dtype, t.shape, t.raw_len)).collect()))
    }

    /// Decodes tensors into memory of exactly their lengths.
    #[pyo3(signature = (key, buffers, /))]
    fn load_into(
        &self,
        py: Python<'_>,
        key: String,
        buffers: Vec<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let mut outputs = Vec::with_capacity(buffers.len());
        for (name, memory) in buffers {
            outputs.push((name, Output::new(&memory, &[])?));
        }
        let compressor = self.compressor.clone();
        let work = move |outputs: &mut Vec<(String, Output)>, _: &Signals| {
            let mut borrowed: Vec<(&str, &mut [u8])> =
                outputs.iter_mut().map(|(name, output)| (name.as_str(), output.bytes_mut())).collect();
            compressor.load_into(&key, &mut borrowed)
        };
        let (_, loaded) = work::run_watched(py, outputs, work, |_, _| Ok(()))?;
        loaded.map_err(raise)
    }

    /// All checkpoints from the first step to the last, and keys of those that cannot be read with the reason.
    fn listing(&self, py: Python<'_>) -> PyResult<Listed> {
        let listing = self.ask(py, CheckpointCompressor::list)?;
        let unreadable = listing.unreadable.into_iter().map(|(key, error)| (key, error.to_string()));
        Ok((listing.checkpoints.into_iter().map(Meta::from).collect(), unreadable.collect()))
    }

    /// The keys of all checkpoints; no manifest is read.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.ask(py, CheckpointCompressor::keys)
    }

    /// What is known of a checkpoint.
    #[pyo3(signature = (key, /))]
    fn meta(&self, py: Python<'_>, key: &str) -> PyResult<Meta> {
        let key = key.to_owned();
        Ok(self.ask(py, move |store| store.meta(&key))?.into())
    }

    /// The newest checkpoint whose data is all there.
    fn latest(&self, py: Python<'_>) -> PyResult<Option<Meta>> {
        Ok(self.ask(py, CheckpointCompressor::latest)?.map(Meta::from))
    }

    /// Deletes a checkpoint.
    #[pyo3(signature = (key, /))]
    fn delete(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        let key = key.to_owned();
        self.ask(py, move |store| store.delete(&key))
    }

    /// Stores a checkpoint anew without a delta of any other.
    #[pyo3(signature = (key, /))]
    fn rebase(&self, py: Python<'_>, key: &str) -> PyResult<Meta> {
        let key = key.to_owned();
        Ok(self.ask(py, move |store| store.rebase(&key))?.into())
    }

    /// Removes data that no checkpoint needs: what was removed, its bytes, and what is too young to be.
    #[pyo3(signature = (dry_run, min_age, /))]
    fn gc(&self, py: Python<'_>, dry_run: bool, min_age: f64) -> PyResult<(Vec<String>, u64, Vec<String>)> {
        let options = GcOptions::default().with_dry_run(dry_run).with_min_age(seconds(min_age)?);
        let report = self.ask(py, move |store| store.gc(&options))?;
        Ok((report.removed, report.removed_len, report.too_young))
    }

    /// Deletes the checkpoints that are not to be kept; returns their keys.
    fn apply_retention(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.ask(py, CheckpointCompressor::apply_retention)
    }

    /// Checks a checkpoint, or all: keys of those that are intact, keys of damaged ones with everything that is wrong,
    /// and tensors that were decoded.
    #[pyo3(signature = (key, deep, /))]
    fn verify(&self, py: Python<'_>, key: Option<&str>, deep: bool) -> PyResult<Verified> {
        let mut options = VerifyOptions::default();
        options.deep = deep;
        let key = key.map(str::to_owned);
        let report = self.ask(py, move |store| store.verify(key.as_deref(), &options, &|_| ()))?;
        let damaged = report.damaged.into_iter();
        let texts = |errors: Vec<CheckpointError>| errors.iter().map(ToString::to_string).collect();
        let damaged = damaged.map(|(key, errors)| (key, texts(errors))).collect();
        Ok((report.intact, damaged, report.n_decoded))
    }

    /// Waits for saves in the background, and gives up those that are not done in time; returns their keys.
    #[pyo3(signature = (timeout, /))]
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<SaveHandle>> {
        let timeout = seconds(timeout)?;
        let handles = py.detach(|| self.compressor.flush(timeout));
        Ok(handles.into_iter().map(|handle| SaveHandle { handle }).collect())
    }
}

impl Store {
    /// Asks the store for something that may take long: without the interpreter, and so that Ctrl-C ends the wait.
    fn ask<T: Send + 'static>(
        &self,
        py: Python<'_>,
        question: impl FnOnce(&CheckpointCompressor) -> Result<T, CheckpointError> + Send + 'static,
    ) -> PyResult<T> {
        let work = |store: &mut CheckpointCompressor, _: &Signals| question(store);
        work::run_watched(py, self.compressor.clone(), work, |_, _| Ok(()))?.1.map_err(raise)
    }
}

/// Name, number type, dimensions and bytes of a stored tensor.
type Described = (String, String, Vec<u64>, u64);

/// Intact keys, damaged keys with their faults, tensors that were decoded.
type Verified = (Vec<String>, Vec<(String, Vec<String>)>, usize);

/// Python's memory, lent to a save in the background.
struct Lent(Buffer);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// A save in the background.
#[pyclass(module = "mithril._mithril", frozen)]
pub(crate) struct SaveHandle {
    handle: checkpoint::SaveHandle,
}

#[pymethods]
impl SaveHandle {
    /// Key of the checkpoint.
    #[getter]
    fn key(&self) -> &str {
        self.handle.key()
    }

    /// Whether it is safe or has failed.
    fn done(&self) -> bool {
        !matches!(self.handle.status(), SaveStatus::Staged)
    }

    /// Waits until it is safe.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Meta> {
        let end = timeout.map(seconds).transpose()?.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let wait = left.unwrap_or(INTERVAL).min(INTERVAL);
            if py.detach(|| self.handle.wait_for(wait)) {
                return match py.detach(|| self.handle.wait()) {
                    Ok(meta) => Ok(meta.into()),
                    Err(error) => Err(raise_shared(&error)),
                };
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Err(PyTimeoutError::new_err(format!("`{}` is not saved yet", self.handle.key())));
            }
        }
    }

    /// Gives it up, unless it is being committed already; returns whether it is given up.
    fn abandon(&self) -> bool {
        self.handle.abandon()
    }
}

/// What is known of a checkpoint without reading its data.
#[pyclass(module = "mithril.checkpoint", name = "CheckpointMeta", frozen, get_all)]
pub(crate) struct Meta {
    /// Its key.
    key: String,
    /// Random name of the save.
    generation: String,
    /// Training step.
    step: u64,
    /// Bytes of the tensors.
    original_size: u64,
    /// Bytes that the save wrote.
    compressed_size: u64,
    /// Original bytes over compressed ones.
    ratio: f64,
    /// Seconds that the save took.
    seconds: f64,
    /// When it was saved, as RFC 3339 has it; None where an earlier build saved it.
    saved: Option<String>,
    /// Key of the checkpoint that it is stored against.
    base: Option<String>,
    /// Deltas that are undone to restore the tensor that needs most.
    depth: u32,
    /// Bytes that a restore reads.
    restore_size: u64,
    /// How many tensors are stored how.
    kinds: BTreeMap<&'static str, usize>,
}

#[pymethods]
impl Meta {
    fn __repr__(&self) -> String {
        format!(
            "CheckpointMeta(key='{}', original_size={}, compressed_size={}, ratio={:.3})",
            self.key, self.original_size, self.compressed_size, self.ratio
        )
    }
}

impl From<CheckpointMeta> for Meta {
    fn from(meta: CheckpointMeta) -> Self {
        Self {
            key: meta.key,
            generation: meta.generation,
            step: meta.step,
            original_size: meta.original_size,
            compressed_size: meta.compressed_size,
            ratio: meta.ratio,
            seconds: meta.seconds,
            saved: meta.saved,
            base: meta.base,
            depth: meta.depth,
            restore_size: meta.restore_len,
            kinds: meta.kinds.iter().map(|(kind, total)| (kind.name(), total.n_tensors)).collect(),
        }
    }
}

fn given(tensors: Vec<Given<'_>>) -> PyResult<Vec<Tensor>> {
    let convert = |(TensorName(name), dtype, shape, data): Given<'_>| {
        Ok(Tensor { name, dtype: options::dtype(Some(&dtype))?, shape, data: Buffer::read(&data)? })
    };
    tensors.into_iter().map(convert).collect()
}

fn tell(py: Python<'_>, progress: Option<&Py<PyAny>>, done: u64, total: u64, name: &str) -> PyResult<()> {
    let Some(progress) = progress else { return Ok(()) };
    progress.call1(py, (done.min(total), total, name)).map(|_| ())
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| pyo3::exceptions::PyValueError::new_err(format!("{seconds} is no number of seconds")))
}

/// The exception for a failure of a store.
fn raise(error: CheckpointError) -> PyErr {
    raise_shared(&error)
}

fn raise_shared(error: &CheckpointError) -> PyErr {
    let message = error.to_string();
    if let CheckpointError::Compression { source: mithril::Error::Io { source, .. }, .. } = error
        && let Some(refusal) = of_refusal(source, &message)
    {
        return refusal;
    }
    match error.kind() {
        ErrorKind::Conflict => ConflictError::new_err(message),
        ErrorKind::Io => match error {
            CheckpointError::Storage(_) | CheckpointError::Compression { .. } => {
                StorageError::new_err(message)
            }
            _ => MithrilError::new_err(message),
        },
        kind => of_kind(kind, message),
    }
}
