//! Checkpoint stores and storage: what is saved comes back, costs what it should, and stays. A binary of its own, which
//! builds faster than the other.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that fails here has found something"
)]

mod chains;
mod fetching;
mod files;
#[allow(dead_code, reason = "shared with the other tests")]
#[path = "../it/folder.rs"]
mod folder;
mod golden;
mod keeping;
mod listing;
mod moments;
mod needs;
mod order;
mod returns;
#[allow(dead_code, reason = "shared with the other tests")]
#[path = "../it/samples.rs"]
mod samples;
mod states;
mod storage;
mod together;
mod wrong;

use crate::samples::Random;
use mithril::Dtype;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{Checkpoint, CompressorConfig, TensorData};
use mithril::storage::MemoryStorage;
use std::sync::Arc;

/// A store in memory, and the memory.
fn store(config: CompressorConfig) -> (CheckpointCompressor, MemoryStorage) {
    let memory = MemoryStorage::new();
    (CheckpointCompressor::new(config, Arc::new(memory.clone())), memory)
}

/// Numbers about zero.
fn weights(seed: u64, n: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.gaussian() * 0.02).collect()
}

fn f32_tensor(values: &[f32]) -> TensorData {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorData::new(bytes, [values.len() as u64], Dtype::F32)
}

/// The upper halves of singles, rounded as training does.
fn bf16_tensor(values: &[f32]) -> TensorData {
    let round = |value: f32| {
        let bits = value.to_bits();
        ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    };
    let bytes: Vec<u8> = values.iter().flat_map(|&value| round(value).to_le_bytes()).collect();
    TensorData::new(bytes, [values.len() as u64], Dtype::Bf16)
}

/// A run of training: `n_layers` layers of which the first `n_frozen` never change.
struct Run {
    layers: Vec<Vec<f32>>,
    n_frozen: usize,
    random: Random,
}

impl Run {
    fn new(seed: u64, n_layers: usize, n_frozen: usize, n: usize) -> Self {
        let layers = (0..n_layers).map(|layer| weights(seed * 100 + layer as u64, n)).collect();
        Self { layers, n_frozen, random: Random::new(seed + 1) }
    }

    fn step(&mut self) -> Checkpoint {
        self.step_by(1e-5)
    }

    fn step_by(&mut self, size: f32) -> Checkpoint {
        for layer in &mut self.layers[self.n_frozen..] {
            for value in layer.iter_mut() {
                *value += self.random.gaussian() * size;
            }
        }
        self.now()
    }

    fn now(&self) -> Checkpoint {
        let layers = self.layers.iter().enumerate();
        layers.fold(Checkpoint::new(), |checkpoint, (layer, values)| {
            checkpoint.with_tensor(format!("layer.{layer}.weight"), bf16_tensor(values))
        })
    }
}
