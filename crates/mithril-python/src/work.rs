//! Work that may take long: without the interpreter, and so that Ctrl-C ends the wait.

use pyo3::prelude::*;
use std::any::Any;
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
        let result = py.detach(|| work(&mut inputs));
        return Ok((inputs, result));
    }
    run_watched(py, inputs, |inputs, _| work(inputs), |_, _| Ok(()))
}

/// As [`run`] for work that tells how far it is; `watch` is told from time to time how many bytes are done, and may end
/// the work by an error.
pub(crate) fn run_watched<I, T>(
    py: Python<'_>,
    mut inputs: I,
    work: impl FnOnce(&mut I, &Signals) -> T + Send + 'static,
    mut watch: impl FnMut(Python<'_>, u64) -> PyResult<()>,
) -> PyResult<(I, T)>
where
    I: Send + 'static,
    T: Send + 'static,
{
    bury(py);
    let signals = Arc::new(Signals::default());
    let of_worker = signals.clone();
    let (sender, receiver) = channel();
    let worker = std::thread::spawn(move || {
        let result = work(&mut inputs, &of_worker);
        if let Err(unwanted) = sender.send((inputs, result)) {
            // Nobody waits any more, and the interpreter may be ending: what belongs to it is given back later.
            graveyard().push(Box::new(unwanted.0));
        }
    });
    let mut stopped: Option<(PyErr, Instant)> = None;
    // Only this thread uses it, whether it is attached to the interpreter or not.
    let receiver = Mutex::new(receiver);
    loop {
        let receive = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(INTERVAL);
        match py.detach(receive) {
            Ok(done) => {
                return match stopped {
                    None => Ok(done),
                    Some((error, _)) => Err(error),
                };
            }
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("work ends with a result or a panic"),
            },
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
