//! Faults at every step, power cuts, and random sequences against a model: nothing acknowledged is lost, nothing else is
//! seen in part.
//!
//! The numbers of cases are those of every run. `MITHRIL_FAULTS=full cargo test --release -p mithril --lib faults` runs
//! those of a release, which `docs/benchmarks` records.

mod actions;
mod model;
mod scenario;
mod sequences;
mod simulated;
mod steps;
mod training;
mod worker;

use crate::Dtype;
use crate::checkpoint::{Checkpoint, TensorData};
use simulated::Random;

/// How many cases to run: few in every run, all of them for a release.
fn n_cases(quick: u64, full: u64) -> u64 {
    if std::env::var_os("MITHRIL_FAULTS").is_some_and(|tier| tier == "full") { full } else { quick }
}

/// A small state: two tensors that change and one that does not.
fn state(seed: u64) -> Checkpoint {
    let moving = |name: &str, value: u64, n: usize| {
        let mut random = Random(value.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut fixed = Random(name.len() as u64 + 77);
        let bytes: Vec<u8> = (0..n)
            .flat_map(|_| {
                let value = fixed.below(1 << 16) as f32 / 65536.0 - 0.5;
                (value + random.below(1000) as f32 * 1e-6).to_le_bytes()
            })
            .collect();
        TensorData::new(bytes, [n as u64], Dtype::F32)
    };
    Checkpoint::new()
        .with_tensor("weight", moving("weight", seed, 300))
        .with_tensor("moment.1", moving("moment.1", seed.wrapping_add(1 << 40), 200))
        .with_tensor("flag", TensorData::new(vec![7; 600], [300], Dtype::Bf16))
}
