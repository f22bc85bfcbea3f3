//! How far training has come.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Steps of about the same work: a dictionary that was made and measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Steps that are done.
    pub n_done: usize,
    /// Steps in all.
    pub n_steps: usize,
}

/// Counts steps for whoever watches. Threads may share it.
pub(super) struct Watched<'a> {
    watch: &'a (dyn Fn(Progress) + Sync),
    n_steps: usize,
    n_done: AtomicUsize,
}

impl<'a> Watched<'a> {
    pub(super) fn new(watch: &'a (dyn Fn(Progress) + Sync), n_steps: usize) -> Self {
        Self { watch, n_steps, n_done: AtomicUsize::new(0) }
    }

    /// One more step is done.
    pub(super) fn step(&self) {
        let n_done = self.n_done.fetch_add(1, Ordering::Relaxed) + 1;
        (self.watch)(Progress { n_done: n_done.min(self.n_steps), n_steps: self.n_steps });
    }

    /// All is done, in fewer steps or not.
    pub(super) fn finish(&self) {
        (self.watch)(Progress { n_done: self.n_steps, n_steps: self.n_steps });
    }
}
