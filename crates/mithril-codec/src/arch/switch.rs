//! Kernels chosen for one thread, so that one program can compare the sets with the definitions.

use super::{KernelSet, detect};
use std::cell::Cell;

thread_local! {
    static CHOSEN: Cell<Option<KernelSet>> = const { Cell::new(None) };
}

/// The set that this thread is to use, if one was chosen.
pub(super) fn chosen() -> Option<KernelSet> {
    CHOSEN.get()
}

/// The sets that this build has and the CPU can run, those to prefer first. The last is [`KernelSet::Scalar`].
pub fn kernel_sets() -> impl Iterator<Item = KernelSet> {
    KernelSet::ALL.into_iter().filter(|&set| detect(set).is_some())
}

/// Puts back, when it goes, the choice that was there before.
struct Restore(Option<KernelSet>);

impl Drop for Restore {
    fn drop(&mut self) {
        CHOSEN.set(self.0);
    }
}

/// Runs with the kernels of this set on this thread; without any where the CPU cannot run them.
pub fn with_kernels<T>(set: KernelSet, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(CHOSEN.replace(Some(set)));
    work()
}

/// Runs without kernels on this thread.
#[cfg(feature = "fuzzing")]
pub fn without_kernels<T>(work: impl FnOnce() -> T) -> T {
    with_kernels(KernelSet::Scalar, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_restored_after_work_nested_work_and_a_panic() {
        with_kernels(KernelSet::Avx2, || {
            with_kernels(KernelSet::Scalar, || assert_eq!(chosen(), Some(KernelSet::Scalar)));
            assert_eq!(chosen(), Some(KernelSet::Avx2));
            let panic = std::panic::catch_unwind(|| {
                with_kernels(KernelSet::Scalar, || panic!("work that fails"));
            });
            assert!(panic.is_err());
            assert_eq!(chosen(), Some(KernelSet::Avx2));
        });
        assert_eq!(chosen(), None);
    }

    #[test]
    fn the_definitions_are_the_last_of_the_sets() {
        assert_eq!(kernel_sets().last(), Some(KernelSet::Scalar));
    }
}
