//! Kernels against their CPU twins, on whatever device there is; software Vulkan will do.

mod df11;
mod ecq;
mod frames;
mod gemv;
mod kernels;

use mithril_gpu::Gpu;
use std::path::PathBuf;
use std::sync::LazyLock;

/// One device for all tests: opening one compiles the kernels.
static GPU: LazyLock<Gpu> = LazyLock::new(|| {
    Gpu::new().expect("a GPU or a software driver: Debian's package is mesa-vulkan-drivers")
});

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Numbers that depend on a seed alone.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Numbers spread as weights are: a sum of evenly spread ones.
fn weights(n: usize, seed: u64) -> Vec<f32> {
    let mut random = random(seed);
    (0..n)
        .map(|_| {
            let sum: f32 = (0..6).map(|_| (random() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum();
            sum * 0.05
        })
        .collect()
}
