//! Kernels for the CPU that runs: the only place of this crate with `unsafe` code.
//!
//! Every kernel has a scalar definition elsewhere in the crate and gives the same bytes. [`kernels()`] gives the set that
//! runs, and a call through [`Kernels`] is all that other modules know of it. A set is a proof that the CPU can run it,
//! which only detection makes, so that calling a kernel without the check does not compile.
//!
//! A new set is a folder with such a proof and an implementation of [`Kernels`], and a line in [`detect()`].

#[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
mod avx512;
mod kernels;
#[cfg(all(target_arch = "aarch64", not(feature = "scalar-only")))]
mod neon;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "scalar-only")))]
mod shared;
#[cfg(any(test, feature = "fuzzing"))]
mod switch;
#[cfg(feature = "zstd")]
pub(crate) mod zdict;

use kernels::Scalar;
pub(crate) use kernels::{JoinTiles, Kernels, WordKernels};
#[cfg(feature = "fuzzing")]
pub use switch::without_kernels;
#[cfg(any(test, feature = "fuzzing"))]
pub use switch::{kernel_sets, with_kernels};

/// An instruction set that there are kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelSet {
    /// None: everything runs by its scalar definition.
    Scalar,
    /// AVX2 with the bit instructions that come with it.
    Avx2,
    /// AVX-512 with instructions on bytes.
    Avx512,
    /// NEON.
    Neon,
}

impl KernelSet {
    /// All sets, those to prefer first.
    const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Scalar];
}

/// The kernels to use. Asked for once per block, never inside a loop.
pub(crate) fn kernels() -> &'static dyn Kernels {
    #[cfg(any(test, feature = "fuzzing"))]
    if let Some(chosen) = switch::chosen() {
        return detect(chosen).unwrap_or(&Scalar);
    }
    KernelSet::ALL.into_iter().find_map(detect).unwrap_or(&Scalar)
}

/// The kernels of a set, if this build has them and the CPU can run them.
fn detect(set: KernelSet) -> Option<&'static dyn Kernels> {
    match set {
        KernelSet::Scalar => Some(&Scalar),
        #[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
        KernelSet::Avx2 => Some(avx2::Avx2::detect()?),
        #[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
        KernelSet::Avx512 => Some(avx512::Avx512::detect()?),
        #[cfg(all(target_arch = "aarch64", not(feature = "scalar-only")))]
        KernelSet::Neon => Some(neon::Neon::detect()?),
        _ => None,
    }
}
