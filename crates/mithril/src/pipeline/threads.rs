//! Starts threads: as many as wanted, or as few as the system gives.

use std::io;
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Starts a thread in a scope, or says why the system refuses one.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    #[cfg(test)]
    refusal::check()?;
    Builder::new().spawn_scoped(scope, work)
}

/// Starts up to `n` threads that all do the same. Limits on processes and on memory refuse threads at any time: the caller
/// does what is left of the work, also when there are none.
pub(crate) fn start_helpers<'scope, T: Send + 'scope, W: FnOnce() -> T + Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    n: usize,
    work: impl Fn() -> W,
) -> Vec<ScopedJoinHandle<'scope, T>> {
    (0..n).map_while(|_| start(scope, work()).ok()).collect()
}

/// Threads that a test has the system refuse.
#[cfg(test)]
pub(crate) mod refusal {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// How many threads this one may still start.
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Does some work during which this thread may start so many others.
    pub(crate) fn with_at_most<T>(n: usize, work: impl FnOnce() -> T) -> T {
        LEFT.set(n);
        let result = work();
        LEFT.set(usize::MAX);
        result
    }

    pub(super) fn check() -> io::Result<()> {
        let left = LEFT.get();
        if left == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        LEFT.set(left.saturating_sub(1));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::refusal::with_at_most;
    use crate::pack::{PackOptions, pack, unpack};
    use crate::pipeline::{ordered, tasks};
    use crate::{Dtype, ErrorKind, FrameOptions};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Numbers that look like weights.
    fn weights(n: u32) -> Vec<u8> {
        (0..n)
            .flat_map(|i| ((i.wrapping_mul(0x9e37_79b9) >> 8) as f32 * 1e-9 - 0.008).to_le_bytes())
            .collect()
    }

    #[test]
    fn work_is_done_by_as_many_threads_as_the_system_gives() {
        for n_given in [0, 1, 2] {
            let n_ran = AtomicUsize::new(0);
            with_at_most(n_given, || {
                let count = |_| {
                    n_ran.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                tasks::run(100, 8, count).unwrap();
                assert_eq!(tasks::map(&[1, 2, 3, 4], 8, |x| x * 2), [2, 4, 6, 8]);
            });
            assert_eq!(n_ran.into_inner(), 100, "{n_given} threads");
        }
    }

    #[test]
    fn frames_are_the_same_with_fewer_threads_than_asked_for() {
        let raw = weights(500_000);
        let options = FrameOptions::default().with_dtype(Dtype::F32).with_threads(8);
        let expected = crate::compress(&raw, &options).unwrap();
        for n_given in [0, 1, 3] {
            with_at_most(n_given, || {
                assert!(crate::compress(&raw, &options).unwrap() == expected, "{n_given} threads");
                let decode = crate::DecodeOptions::default().with_threads(8);
                assert!(crate::frame::decompress_with(&expected, &decode).unwrap() == raw);
            });
        }
    }

    #[test]
    fn jobs_are_done_by_the_one_who_feeds_them_when_only_one_thread_is_given() {
        for n_given in [1, 2] {
            let (fed, taken) = with_at_most(n_given, || {
                ordered::run(
                    8,
                    |line| (0..200u32).try_for_each(|number| line.push(move || number)),
                    |results| results.collect::<Vec<u32>>(),
                )
            })
            .unwrap();
            assert!(fed.is_ok() && taken == (0..200).collect::<Vec<_>>(), "{n_given} threads");
        }
    }

    #[test]
    fn a_file_is_packed_with_one_thread_and_refused_without_any() {
        let data = weights(300_000);
        let header =
            format!(r#"{{"w":{{"dtype":"F32","shape":[300000],"data_offsets":[0,{}]}}}}"#, data.len());
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        let options = PackOptions::default().with_threads(4);
        let (expected, _) = pack(&file, Vec::new(), &options, &|_| ()).unwrap();
        let (packed, _) = with_at_most(1, || pack(&file, Vec::new(), &options, &|_| ())).unwrap();
        assert!(packed == expected);
        let reader = crate::container::Reader::open(packed).unwrap();
        let bases = crate::container::Bases::none();
        let (restored, _) = with_at_most(1, || unpack(&reader, Vec::new(), &bases, 4, &|_| ())).unwrap();
        assert!(restored == file);
        let refused = with_at_most(0, || pack(&file, Vec::new(), &options, &|_| ())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io);
        assert!(refused.to_string().starts_with("cannot start a thread"), "{refused}");
    }
}
