//! Shares out independent pieces of work among threads; the results do not depend on how many there are.

use crate::pipeline::threads;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The results of some items, in their order. `threads` 0 is one per core.
pub(super) fn map_in_order<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let threads = thread_count(threads).min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let run = || {
        while let Some((idx, item)) = {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            items.get(idx).map(|item| (idx, item))
        } {
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((idx, result));
        }
    };
    std::thread::scope(|scope| {
        threads::start_helpers(scope, threads - 1, || run);
        run();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(idx, _)| *idx);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Threads for a request, where 0 is one per core.
pub(super) fn thread_count(requested: usize) -> usize {
    match requested {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        n => n,
    }
}
