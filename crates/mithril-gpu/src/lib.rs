//! GPU kernels of mithril: frames and DFloat11 weights decoded by compute shaders, through wgpu.
//!
//! Each kernel is one file of `kernels/`, which names the CPU code that defines it; results are equal bit for bit, and
//! what the CPU refuses is refused. No kernel assumes a size of subgroup, but for the forms that are only used where it is 32,
//! and limits are those of the adapter.
//!
//! * [`Gpu`]: a device with its kernels. [`Gpu::info`] says what it is and what it can hold.
//! * [`Gpu::decode_frame`]: a frame of `mithril`; blocks that no kernel knows are decoded on the CPU and counted.
//! * [`Gpu::decode_df11`]: a run of DFloat11 weights.
//! * [`Gpu::decode_symbols`]: an entropy-coded matrix.
//! * [`Gpu::dot_levels`], [`Gpu::dot_fixed12`]: coded matrices times a vector, decoded on the way.
//!
//! Checked on software Vulkan (lavapipe) only: no figure of speed is claimed.

mod device;
mod df11;
mod ecq;
mod error;
mod frame;
mod gemv;
mod lanes;
mod run;

pub use device::{Gpu, GpuInfo};
pub use error::GpuError;
pub use frame::Decoded;

/// The sources of all kernels by name, for whoever translates them.
pub const KERNELS: &[(&str, &str)] = &[
    ("df11_decode", df11::KERNEL),
    (frame::KERNEL.name, frame::KERNEL.any),
    (frame::KERNEL.subgroup_name, frame::KERNEL.subgroup),
    (ecq::KERNEL.name, ecq::KERNEL.any),
    (ecq::KERNEL.subgroup_name, ecq::KERNEL.subgroup),
    (gemv::LEVELS_KERNEL.name, gemv::LEVELS_KERNEL.any),
    (gemv::LEVELS_KERNEL.subgroup_name, gemv::LEVELS_KERNEL.subgroup),
    ("fixed12_gemv", gemv::FIXED12_KERNEL),
];
