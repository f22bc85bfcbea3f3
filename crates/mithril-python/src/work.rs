//! Work that may take long: without the interpreter, and so that Ctrl-C ends the wait.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often signals are looked for and progress is told.
const INTERVAL: Duration = Duration::from_millis(50);

/// How long work that was told to stop is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// Less than this many bytes are coded before a user could press a key.
const LARGE: usize = 4 << 20;

/// What work and those who wait for it tell each other.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    stop: Arc<AtomicBool>,
    done: AtomicU64,
}

impl Signals {
    /// Whether the work is in vain.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What is set once the work is in vain, for those who look at it themselves.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// So many more bytes are done.
    pub(crate) fn advance(&self, len: u64) {
        self.done.fetch_add(len, Ordering::Relaxed);
    }
}

/// Does work on `len` bytes with the interpreter released. `inputs` are what the work needs of Python's memory.
///
/// Ctrl-C is answered at once: the work is told to stop, and what cannot stop is left to end by itself.
pub(crate) fn run<I, T>(
    py: Python<'_>,
    len: usize,
    mut inputs: I,
    work: impl FnOnce(&mut I) -> T + Send + 'static,
) -> PyResult<(I, T)>
where
    I: Send + 'static,
    T: Send + 'static,
{
    if len < LARGE {
        let result = detached(py, || work(&mut inputs))?;
        return Ok((inputs, result));
    }
    run_watched(py, inputs, |inputs, _| work(inputs), |_, _| Ok(()))
}

/// As [`run`] for work that tells how far it is; `watch` is told from time to time how many bytes are done, and may end
/// the work by an error.
pub(crate) fn run_watched<I, T, W>(
    py: Python<'_>,
    mut inputs: I,
    work: W,
    mut watch: impl FnMut(Python<'_>, u64) -> PyResult<()>,
) -> PyResult<(I, T)>
where
    I: Send + 'static,
    T: Send + 'static,
    W: FnOnce(&mut I, &Signals) -> T + Send + 'static,
{
    bury(py);
    let signals = Arc::new(Signals::default());
    let of_worker = signals.clone();
    let (sender, receiver) = channel();
    let (job_sender, job_receiver) = channel();
    let worker = move || {
        let Ok((mut inputs, work)): Result<(I, W), _> = job_receiver.recv() else { return };
        let result = caught(|| work(&mut inputs, &of_worker));
        if let Err(unwanted) = sender.send((inputs, result)) {
            // Nobody waits any more, and the interpreter may be ending: what belongs to it is given back later.
            graveyard().push(Box::new(unwanted.0));
        }
    };
    if std::thread::Builder::new().spawn(worker).is_err() {
        // No thread is given: this one does it, and Ctrl-C is answered when it is done.
        let result = detached(py, || work(&mut inputs, &signals))?;
        return Ok((inputs, result));
    }
    // The thread waits for it.
    let _ = job_sender.send((inputs, work));
    let mut stopped: Option<(PyErr, Instant)> = None;
    // Only this thread uses it, whether it is attached to the interpreter or not.
    let receiver = Mutex::new(receiver);
    loop {
        let receive = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(INTERVAL);
        match py.detach(receive) {
            Ok((inputs, result)) => {
                return match stopped {
                    None => result.map(|result| (inputs, result)),
                    Some((error, _)) => Err(error),
                };
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the thread that did the work is gone"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        match stopped.take() {
            Some((error, since)) if since.elapsed() > PATIENCE => return Err(error),
            Some(waiting) => stopped = Some(waiting),
            None => {
                let done = signals.done.load(Ordering::Relaxed);
                if let Err(error) = py.check_signals().and_then(|()| watch(py, done)) {
                    signals.stop.store(true, Ordering::Relaxed);
                    stopped = Some((error, Instant::now()));
                }
            }
        }
    }
}

/// Does short work with the interpreter released.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| caught(work))
}

/// Does work of which a panic is an exception that programs catch: pyo3's own is none of theirs.
fn caught<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = message.unwrap_or("for an unknown reason");
        PyRuntimeError::new_err(format!("mithril failed, which is a defect of it: {message}"))
    })
}

/// What abandoned work held of Python's objects.
type Remains = Vec<Box<dyn Any + Send>>;

fn graveyard() -> std::sync::MutexGuard<'static, Remains> {
    static GRAVEYARD: Mutex<Remains> = Mutex::new(Vec::new());
    GRAVEYARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives back what abandoned work held, with the interpreter attached.
fn bury(_attached: Python<'_>) {
    let remains = std::mem::take(&mut *graveyard());
    drop(remains);
}
