//! Independent pieces of work on several threads, with a bound on the memory that they hold together.

use super::threads;
use crate::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Runs `work` for 0 to `n_tasks`, on so many threads at most. The failure of the first task that fails is returned; tasks that
/// were not begun by then are left out.
pub(crate) fn run(
    n_tasks: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let run = || loop {
        let task = next.fetch_add(1, Ordering::Relaxed);
        if task >= n_tasks {
            return;
        }
        if let Err(error) = work(task) {
            next.store(n_tasks, Ordering::Relaxed);
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            if failure.as_ref().is_none_or(|(earlier, _)| task < *earlier) {
                *failure = Some((task, error));
            }
            return;
        }
    };
    std::thread::scope(|scope| {
        threads::start_helpers(scope, threads.min(n_tasks).saturating_sub(1), || run);
        run();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// What `work` makes of every item, on so many threads at most.
pub(crate) fn map<'a, I: Sync, T: Send>(
    items: &'a [I],
    threads: usize,
    work: impl Fn(&'a I) -> T + Sync,
) -> Vec<T> {
    let mut made: Vec<Option<T>> = items.iter().map(|_| None).collect();
    let next = Mutex::new(items.iter().zip(&mut made));
    let run = || {
        loop {
            let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((item, place)) = taken else { return };
            *place = Some(work(item));
        }
    };
    std::thread::scope(|scope| {
        threads::start_helpers(scope, threads.min(items.len()).saturating_sub(1), || run);
        run();
    });
    made.into_iter().map(|made| made.expect("every item was worked on")).collect()
}

/// Bytes that tasks may hold at the same time.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    n_taken: Mutex<u64>,
    given_back: Condvar,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, n_taken: Mutex::new(0), given_back: Condvar::new() }
    }

    /// Waits until so many bytes are free. What exceeds the limit waits until it has everything to itself.
    pub(crate) fn take(&self, len: u64) -> Share<'_> {
        let len = len.min(self.limit);
        let n_taken = self.n_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut n_taken = self
            .given_back
            .wait_while(n_taken, |n_taken| *n_taken + len > self.limit)
            .unwrap_or_else(PoisonError::into_inner);
        *n_taken += len;
        Share { budget: self, len }
    }
}

/// Bytes of a budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    budget: &'a Budget,
    len: u64,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.budget.n_taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.len;
        self.budget.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::sizes;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let ran: Vec<AtomicUsize> = (0..sizes(100, 8)).map(|_| AtomicUsize::new(0)).collect();
            run(ran.len(), threads, |task| {
                ran[task].fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
            assert!(ran.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{threads} threads");
        }
    }

    #[test]
    fn a_failure_ends_the_work_and_is_returned() {
        let n_ran = AtomicUsize::new(0);
        let result = run(1000, 1, |task| {
            n_ran.fetch_add(1, Ordering::Relaxed);
            if task == 3 { Err(Error::invalid("third")) } else { Ok(()) }
        });
        assert_eq!(result.unwrap_err().to_string(), "third");
        assert_eq!(n_ran.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn tasks_together_hold_no_more_than_the_budget() {
        let budget = Budget::new(100);
        let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let n_tasks = sizes(200, 10);
        run(n_tasks, 4, |task| {
            // The last ones are larger than all of it, and count as all of it.
            let len = if task < n_tasks * 19 / 20 { task as u64 % 60 } else { 1000 };
            let share = budget.take(len);
            let now = held.fetch_add(len.min(100), Ordering::SeqCst) + len.min(100);
            most.fetch_max(now, Ordering::SeqCst);
            held.fetch_sub(len.min(100), Ordering::SeqCst);
            drop(share);
            Ok(())
        })
        .unwrap();
        assert!(most.load(Ordering::SeqCst) <= 100);
    }
}
