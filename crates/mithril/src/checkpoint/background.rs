//! Saves that run while the caller goes on, one after the other.

use super::save::Permit;
use super::{CheckpointError, CheckpointMeta};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time that a manifest which is being written gets beyond the deadline.
const COMMIT_GRACE: Duration = Duration::from_millis(300);

/// A save in the background. Clones are the same save.
#[derive(Debug, Clone)]
pub struct SaveHandle {
    job: Arc<Job>,
}

/// How far a save in the background is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SaveStatus {
    /// It has the tensors, and nothing of it is safe yet.
    Staged,
    /// It is safe.
    Committed(Box<CheckpointMeta>),
    /// It was not saved, and why.
    Failed(Arc<CheckpointError>),
}

#[derive(Debug)]
struct Job {
    key: String,
    permit: Permit,
    status: Mutex<SaveStatus>,
    changed: Condvar,
}

impl Job {
    fn lock(&self) -> MutexGuard<'_, SaveStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the result. The first one stands: a caller that was told that a save is given up was told the truth.
    fn finish(&self, result: Result<CheckpointMeta, CheckpointError>) {
        let mut status = self.lock();
        if matches!(*status, SaveStatus::Staged) {
            *status = match result {
                Ok(meta) => SaveStatus::Committed(Box::new(meta)),
                Err(error) => SaveStatus::Failed(Arc::new(error)),
            };
        }
        self.changed.notify_all();
    }
}

impl SaveHandle {
    /// Key of the checkpoint.
    pub fn key(&self) -> &str {
        &self.job.key
    }

    /// How far it is.
    pub fn status(&self) -> SaveStatus {
        self.job.lock().clone()
    }

    /// Waits until it is safe or has failed.
    ///
    /// # Errors
    /// What the save failed with.
    pub fn wait(&self) -> Result<CheckpointMeta, Arc<CheckpointError>> {
        let mut status = self.job.lock();
        loop {
            match &*status {
                SaveStatus::Staged => {}
                SaveStatus::Committed(meta) => return Ok((**meta).clone()),
                SaveStatus::Failed(error) => return Err(error.clone()),
            }
            status = self.job.changed.wait(status).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits at most so long. Returns whether it is done.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut status = self.job.lock();
        while matches!(*status, SaveStatus::Staged) {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            status = self.job.changed.wait_timeout(status, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Gives it up, unless its manifest is being written already. Returns whether it is given up.
    pub fn abandon(&self) -> bool {
        let abandoned = self.job.permit.abandon();
        if abandoned {
            self.job.finish(Err(CheckpointError::Abandoned { key: self.job.key.clone() }));
        }
        abandoned
    }
}

/// The saves of a store that are not done.
#[derive(Debug, Default)]
pub(super) struct Background {
    jobs: Mutex<Vec<SaveHandle>>,
}

impl Background {
    /// Starts a save that runs when those before it are done. A thread of its own: nothing is left when it ends.
    pub(super) fn start(
        &self,
        key: String,
        work: impl FnOnce(&Permit) -> Result<CheckpointMeta, CheckpointError> + Send + 'static,
    ) -> SaveHandle {
        let job = Arc::new(Job {
            key: key.clone(),
            permit: Permit::default(),
            status: Mutex::new(SaveStatus::Staged),
            changed: Condvar::new(),
        });
        let handle = SaveHandle { job };
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|job| matches!(job.status(), SaveStatus::Staged));
        let before = jobs.last().cloned();
        jobs.push(handle.clone());
        let own = handle.clone();
        let run = move || {
            if let Some(before) = before {
                let _ = before.wait();
            }
            let result = catch_unwind(AssertUnwindSafe(|| work(&own.job.permit)));
            let result = result.unwrap_or_else(|panic| {
                Err(CheckpointError::Panicked { key: own.job.key.clone(), message: message_of(&*panic) })
            });
            own.job.finish(result);
        };
        if let Err(error) = std::thread::Builder::new().name("mithril-save".to_owned()).spawn(run) {
            let source = crate::Error::starting(error);
            handle.job.finish(Err(CheckpointError::Compression { key, source }));
        }
        handle
    }

    pub(super) fn flush(&self, deadline: Duration) -> Vec<SaveHandle> {
        let jobs: Vec<_> = {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.drain(..).collect()
        };
        let end = Instant::now() + deadline;
        for job in &jobs {
            job.wait_for(end.saturating_duration_since(Instant::now()));
        }
        // The later ones first, so that none starts because one before it was given up.
        for job in jobs.iter().rev() {
            job.abandon();
        }
        for job in &jobs {
            job.wait_for(COMMIT_GRACE);
        }
        jobs
    }
}

/// What a panic said.
pub(super) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(600);

    fn failed(handle: &SaveHandle) -> String {
        handle.wait().expect_err("no save of this test succeeds").to_string()
    }

    #[test]
    fn saves_run_in_order_and_all_that_wait_are_woken() {
        let (saves, n_ran) = (Background::default(), Arc::new(AtomicUsize::new(0)));
        let start = |number: usize| {
            let n_ran = Arc::clone(&n_ran);
            saves.start(number.to_string(), move |_| {
                assert_eq!(n_ran.fetch_add(1, Ordering::Relaxed), number, "the turn of another");
                assert_ne!(number, 1, "as asked");
                Err(CheckpointError::Abandoned { key: format!("number {number}") })
            })
        };
        let handles = [0, 1, 2].map(start);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(failed(&handles[2]).contains("number 2")));
            assert!(failed(&handles[2]).contains("number 2"));
        });
        assert!(failed(&handles[0]).contains("number 0"));
        assert!(failed(&handles[1]).contains("as asked"));
        saves.flush(LONG);
        assert_eq!(n_ran.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_save_is_either_given_up_or_begins_its_commit() {
        let saves = Background::default();
        let has_begun = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&has_begun);
        let handle = saves.start("key".to_owned(), move |permit| {
            permit.start_commit("key")?;
            theirs.store(1, Ordering::Relaxed);
            Err(CheckpointError::Abandoned { key: "the commit failed".to_owned() })
        });
        let is_given_up = handle.abandon();
        assert!(handle.wait_for(LONG));
        let error = failed(&handle);
        assert_eq!(error.contains("the commit failed"), !is_given_up, "{error}");
        // A save that is given up must not write its manifest.
        saves.flush(LONG);
        assert!(!is_given_up || has_begun.load(Ordering::Relaxed) == 0);
    }
}
