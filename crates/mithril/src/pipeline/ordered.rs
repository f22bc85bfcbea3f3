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
    /// None when there is no other thread to do them.
    jobs: Option<SyncSender<(Job<'env, T>, SyncSender<T>)>>,
    places: SyncSender<Receiver<T>>,
}

type Job<'env, T> = Box<dyn FnOnce() -> T + Send + 'env>;

/// Results that are done but not taken, beside one per thread.
const WAITING: usize = 2;

/// Nobody takes results any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

impl<'env, T> Line<'env, T> {
    /// Feeds a job; waits while enough are under way.
    pub(crate) fn push(&self, job: impl FnOnce() -> T + Send + 'env) -> Result<(), Closed> {
        let (place, result) = sync_channel(1);
        self.places.send(result).map_err(|_| Closed)?;
        match &self.jobs {
            Some(jobs) => jobs.send((Box::new(job), place)).map_err(|_| Closed),
            None => {
                // There is room for one, and whoever wanted it may be gone, as the next one shows.
                let _ = place.send(job());
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
    let (job_sender, jobs) = sync_channel::<(Job<'env, T>, SyncSender<T>)>(threads);
    let (place_sender, places) = sync_channel::<Receiver<T>>(threads + WAITING);
    let jobs = Mutex::new(jobs);
    let work = || {
        loop {
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((job, place)) = next else { return };
            // Nobody may want it any more.
            let _ = place.send(job());
        }
    };
    std::thread::scope(|scope| {
        // First, as nothing goes on without it.
        let taking = threads::start(scope, move || {
            take(&mut places.iter().map_while(|result: Receiver<T>| result.recv().ok()))
        })?;
        let workers = threads::start_helpers(scope, threads.max(1), || work);
        let jobs = (!workers.is_empty()).then_some(job_sender);
        let line = Line { jobs, places: place_sender };
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
