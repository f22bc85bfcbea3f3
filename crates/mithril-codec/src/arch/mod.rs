//! Kernels for the CPU that runs: the only place of this crate with `unsafe` code.
//!
//! Every kernel has a scalar definition elsewhere in the crate and gives the same bytes. A kernel is reached
//! through a proof that the CPU can run it, so that calling one without the check does not compile.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(feature = "zstd")]
pub(crate) mod zdict;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Avx2, Columns};

/// Proof that AVX2 may be used, if it may. Asked once per block, never inside a loop.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx2() -> Option<Avx2> {
    #[cfg(feature = "fuzzing")]
    if switch::is_off() {
        return None;
    }
    if cfg!(feature = "scalar-only") { None } else { Avx2::detect() }
}

#[cfg(not(target_arch = "x86_64"))]
mod absent;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use absent::{Avx2, Columns, avx2};

/// Switches kernels off for one thread, so that one program can compare them with their definitions.
#[cfg(all(feature = "fuzzing", target_arch = "x86_64"))]
mod switch {
    use std::cell::Cell;

    thread_local! {
        static OFF: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_off() -> bool {
        OFF.get()
    }

    pub(super) fn set_off(off: bool) {
        OFF.set(off);
    }
}

/// Runs without kernels on this thread.
#[cfg(feature = "fuzzing")]
pub fn without_kernels<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    switch::set_off(true);
    let result = work();
    #[cfg(target_arch = "x86_64")]
    switch::set_off(false);
    result
}
