//! Work that is handed out in order, done on several threads, and taken in order.
//!
//! The caller's thread feeds jobs, up to `threads` others do them, one takes their results in the order in which the jobs
//! were fed. Few jobs are under way at a time, so that memory is bounded. Where the system gives no thread for the jobs,
//! the caller's does them.

use super::threads;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Where jobs are fed.
pub(crate) struct Line<'env, T> {
    workers: Workers<'env>,
    places: SyncSender<Receiver<T>>,
    n_places: usize,
}

/// The threads that do jobs; none when the caller's does them.
#[derive(Clone)]
struct Workers<'env>(Option<SyncSender<Job<'env>>>);

type Job<'env> = Box<dyn FnOnce() + Send + 'env>;

/// The results of a line, in order.
pub(crate) struct Results<T>(Receiver<Receiver<T>>);

impl<T> Iterator for Results<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()?.recv().ok()
    }
}

/// Results that are done but not taken, beside one per thread.
const WAITING: usize = 2;

/// Nobody takes results any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

impl<'env, T: Send + 'env> Line<'env, T> {
    fn new(workers: Workers<'env>, n_places: usize) -> (Self, Results<T>) {
        let (places, results) = sync_channel(n_places);
        (Self { workers, places, n_places }, Results(results))
    }

    /// A line for the parts of one result, which the same threads make, and where they are taken.
    pub(crate) fn branch<P: Send + 'env>(&self) -> (Line<'env, P>, Results<P>) {
        Line::new(self.workers.clone(), self.n_places)
    }

    /// Feeds a job; waits while enough are under way.
    pub(crate) fn push(&self, job: impl FnOnce() -> T + Send + 'env) -> Result<(), Closed> {
        let (place, result) = sync_channel(1);
        self.places.send(result).map_err(|_| Closed)?;
        let job = move || {
            // There is room for one, and its receiver may be gone, as the next job shows.
            let _ = place.send(job());
        };
        match &self.workers.0 {
            Some(jobs) => jobs.send(Box::new(job)).map_err(|_| Closed),
            None => {
                job();
                Ok(())
            }
        }
    }

    /// Feeds a result that is there already.
    pub(crate) fn push_done(&self, value: T) -> Result<(), Closed> {
        let (place, result) = sync_channel(1);
        // There is room for one.
        let _ = place.send(value);
        self.places.send(result).map_err(|_| Closed)
    }
}

/// Runs `feed` on this thread, its jobs on up to `threads` others, and `take` on one more, which gets the results in order
/// and may stop before their end. Returns what both return.
///
/// # Errors
/// When the system gives not even one thread.
pub(crate) fn run<'env, T: Send + 'env, F, C: Send>(
    threads: usize,
    feed: impl FnOnce(&Line<'env, T>) -> F,
    take: impl FnOnce(&mut dyn Iterator<Item = T>) -> C + Send,
) -> io::Result<(F, C)> {
    let (job_sender, jobs) = sync_channel::<Job<'env>>(threads);
    let (line, mut results) = Line::new(Workers(Some(job_sender)), threads + WAITING);
    let jobs = Mutex::new(jobs);
    let work = || {
        loop {
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = next else { return };
            job();
        }
    };
    std::thread::scope(|scope| {
        // First, as nothing goes on without it.
        let taking = threads::start(scope, move || take(&mut results))?;
        let workers = threads::start_helpers(scope, threads.max(1), || work);
        let line = if workers.is_empty() { Line { workers: Workers(None), ..line } } else { line };
        let fed = feed(&line);
        // What the other threads wait for is dropped now, so that they end too.
        drop(line);
        // A scope waits for what its threads do, not for their end: joined, nothing of them is left.
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        Ok((fed, taking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::sizes;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        for threads in [1, 2, 5] {
            let (fed, taken) = run(
                threads,
                |line| {
                    for number in 0..sizes(500u32, 9) {
                        // Uneven work, so that threads overtake each other.
                        let job = move || {
                            (0..number % 7 * sizes(1000, 1))
                                .for_each(|i| drop(std::hint::black_box(i.to_string())));
                            number
                        };
                        if number % 5 == 0 { line.push_done(number)? } else { line.push(job)? }
                    }
                    Ok::<_, Closed>(())
                },
                |results| results.collect::<Vec<u32>>(),
            )
            .unwrap();
            assert_eq!(fed, Ok(()));
            assert_eq!(taken, (0..sizes(500, 9)).collect::<Vec<u32>>(), "{threads} threads");
        }
    }

    #[test]
    fn parts_of_a_result_come_in_order_while_others_are_made() {
        for threads in [1, 3] {
            let (fed, taken) = run(
                threads,
                |line: &Line<'_, Results<u32>>| {
                    for first in (0..50).map(|result| 100 * result) {
                        let (parts, results) = line.branch();
                        line.push_done(results)?;
                        (first..first + 20).try_for_each(|number| parts.push(move || number))?;
                    }
                    Ok::<_, Closed>(())
                },
                |results| results.flatten().collect::<Vec<u32>>(),
            )
            .unwrap();
            assert_eq!(fed, Ok(()));
            let expected = (0..50).flat_map(|result| 100 * result..100 * result + 20);
            assert_eq!(taken, expected.collect::<Vec<u32>>(), "{threads} threads");
        }
    }

    #[test]
    fn feeding_ends_when_nobody_takes() {
        let (fed, taken) = run(
            2,
            |line| (0..1_000_000u32).try_for_each(|number| line.push(move || number)),
            |results| results.take(3).collect::<Vec<u32>>(),
        )
        .unwrap();
        assert_eq!(fed, Err(Closed));
        assert_eq!(taken, [0, 1, 2]);
    }
}
