//! Kernels for the CPU that runs: the only place of this crate with `unsafe` code.
//!
//! Every kernel has a scalar definition elsewhere in the crate and gives the same bytes. A kernel is reached
//! through a proof that the CPU can run it, so that calling one without the check does not compile.

#[cfg(all(target_arch = "aarch64", not(feature = "scalar-only")))]
mod aarch64;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "scalar-only")))]
mod shared;
#[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
mod x86_64;
#[cfg(feature = "zstd")]
pub(crate) mod zdict;

#[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
pub(crate) use x86_64::{Avx2, Columns, JoinKernel};

/// Proof that AVX2 may be used, if it may. Asked once per block, never inside a loop.
#[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
pub(crate) fn avx2() -> Option<Avx2> {
    let kernels = Avx2::detect();
    #[cfg(any(test, feature = "fuzzing"))]
    let kernels = kernels.and_then(switch::apply);
    kernels
}

#[cfg(not(all(target_arch = "x86_64", not(feature = "scalar-only"))))]
mod absent;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "scalar-only"))))]
mod absent_fast;

#[cfg(not(all(target_arch = "x86_64", not(feature = "scalar-only"))))]
pub(crate) use absent::{Avx2, Columns, JoinKernel, avx2};

/// Kernels of what `fast` does, rANS8 and the bit fields around it, if there are any for this CPU.
#[cfg(not(all(target_arch = "aarch64", not(feature = "scalar-only"))))]
pub(crate) fn fast() -> Option<Avx2> {
    avx2()
}

/// Kernels of what `fast` does, rANS8 and the bit fields around it, if there are any for this CPU.
#[cfg(all(target_arch = "aarch64", not(feature = "scalar-only")))]
pub(crate) fn fast() -> Option<aarch64::Neon> {
    let kernels = Some(aarch64::Neon::new());
    #[cfg(any(test, feature = "fuzzing"))]
    let kernels = kernels.filter(|_| switch::any());
    kernels
}

/// Which kernels run.
#[cfg(any(test, feature = "fuzzing"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// The widest that the CPU has.
    All,
    /// None wider than AVX2.
    Avx2,
    /// The scalar definitions.
    None,
}

/// Switches kernels off for one thread, so that one program can compare them with their definitions.
#[cfg(any(test, feature = "fuzzing"))]
mod switch {
    use super::Kernels;
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Kernels> = const { Cell::new(Kernels::All) };
    }

    #[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
    pub(super) fn apply(avx2: super::Avx2) -> Option<super::Avx2> {
        match CHOSEN.get() {
            Kernels::All => Some(avx2),
            Kernels::Avx2 => Some(avx2.narrow()),
            Kernels::None => None,
        }
    }

    #[cfg(all(target_arch = "aarch64", not(feature = "scalar-only")))]
    pub(super) fn any() -> bool {
        CHOSEN.get() != Kernels::None
    }

    /// Puts back, when it goes, the kernels that ran before.
    pub(super) struct Restore(Kernels);

    impl Restore {
        pub(super) fn after_setting(kernels: Kernels) -> Self {
            Self(CHOSEN.replace(kernels))
        }
    }

    impl Drop for Restore {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }

    #[cfg(test)]
    #[test]
    fn kernels_are_restored_after_work_nested_work_and_a_panic() {
        super::with_kernels(Kernels::Avx2, || {
            super::with_kernels(Kernels::None, || assert_eq!(CHOSEN.get(), Kernels::None));
            assert_eq!(CHOSEN.get(), Kernels::Avx2);
            let panic = std::panic::catch_unwind(|| {
                super::with_kernels(Kernels::None, || panic!("work that fails"));
            });
            assert!(panic.is_err());
            assert_eq!(CHOSEN.get(), Kernels::Avx2);
        });
        assert_eq!(CHOSEN.get(), Kernels::All);
    }
}

/// Runs with these kernels on this thread.
#[cfg(any(test, feature = "fuzzing"))]
pub fn with_kernels<T>(kernels: Kernels, work: impl FnOnce() -> T) -> T {
    let _restore = switch::Restore::after_setting(kernels);
    work()
}

/// Runs without kernels on this thread.
#[cfg(feature = "fuzzing")]
pub fn without_kernels<T>(work: impl FnOnce() -> T) -> T {
    with_kernels(Kernels::None, work)
}
