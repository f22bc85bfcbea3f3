//! Kernels for the CPU that runs: the only place of this crate with `unsafe` code.
//!
//! Every kernel has a scalar definition elsewhere in the crate and gives the same bytes. A kernel is reached
//! through a proof that the CPU can run it, so that calling one without the check does not compile.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::Avx2;

/// Proof that AVX2 may be used, if it may. Asked once per block, never inside a loop.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx2() -> Option<Avx2> {
    if cfg!(feature = "scalar-only") { None } else { Avx2::detect() }
}

#[cfg(not(target_arch = "x86_64"))]
mod absent;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use absent::{Avx2, avx2};
