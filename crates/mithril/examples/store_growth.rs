//! What a store costs as it grows: saves in which tensors change in turn, which share of a save proves that it can be read,
//! and what a listing takes.
//!
//! ```sh
//! cargo run --release -p mithril --example store_growth -- turns DIRECTORY [N_TENSORS [N_SAVES]]   # 5000 and 300
//! cargo run --release -p mithril --example store_growth -- list DIRECTORY     # in a process of its own
//! cargo run --release -p mithril --example store_growth -- proof DIRECTORY    # saves of large tensors that all move
//! ```
//! `turns` makes a store in DIRECTORY, which must not exist: each save moves another group of the tensors, which have 64
//! numbers each, in as many groups as there are saves. Prints a line of JSON from time to time: seconds of a save on the
//! wall and of the CPU, the share that the proof took, seconds of a load by a store that has seen nothing yet, objects that
//! the checkpoint needs, and bytes of all data so far. `list` prints how many checkpoints there are, seconds, and the most
//! memory that the process held.

use mithril::Dtype;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{Checkpoint, CompressorConfig, TensorData};
use mithril::storage::LocalStorage;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Numbers of a tensor that changes in turn.
const LEN: usize = 64;

/// What is printed is the median of this many saves and loads.
const N_MEASURED: usize = 5;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    match arguments.get(..2) {
        Some([word, directory]) if word == "turns" => {
            turns(Path::new(directory), number(2, 5000)?, number(3, 300)?)
        }
        Some([word, directory]) if word == "list" => list(Path::new(directory)),
        Some([word, directory]) if word == "proof" => proof(Path::new(directory)),
        _ => Err(
            "usage: store_growth turns DIRECTORY [N_TENSORS [N_SAVES]] | list DIRECTORY | proof DIRECTORY"
                .into(),
        ),
    }
}

fn store(directory: &Path) -> CheckpointCompressor {
    CheckpointCompressor::new(CompressorConfig::default(), Arc::new(LocalStorage::new(directory)))
}

/// Numbers that look like weights, from a generator with this state.
fn weights(state: &mut u64, n: usize) -> Vec<f32> {
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f32::from((*state >> 48) as u16) / 65536.0 - 0.5
    };
    (0..n).map(|_| (next() + next() + next()) * 0.04).collect()
}

fn tensor(values: &[f32]) -> TensorData {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorData::new(bytes, [values.len() as u64], Dtype::F32)
}

fn turns(directory: &Path, n_tensors: usize, n_saves: usize) -> Outcome<()> {
    if directory.exists() {
        return Err(format!("{} exists", directory.display()).into());
    }
    let mut random = 1;
    let mut state = Checkpoint::new();
    let names: Vec<String> =
        (0..n_tensors).map(|idx| format!("layers.{}.experts.{}.weight", idx / 100, idx % 100)).collect();
    for name in &names {
        state = state.with_tensor(name.clone(), tensor(&weights(&mut random, LEN)));
    }
    let writer = store(directory);
    let n_groups = n_saves.min(n_tensors).max(1);
    let (mut saves, mut busy, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let mut stored = 0;
    let mut previous: Option<String> = None;
    for step in 1..=n_saves {
        for name in names.iter().skip(step % n_groups).step_by(n_groups) {
            state = state.with_tensor(name.clone(), tensor(&weights(&mut random, LEN)));
        }
        let key = format!("step_{step}");
        let (started, before) = (Instant::now(), cpu_seconds());
        let meta = writer.save(&state, &key, previous.as_deref())?;
        let seconds = started.elapsed().as_secs_f64();
        saves.push(seconds);
        busy.push(cpu_seconds() - before);
        shares.push(meta.proof_seconds / seconds);
        stored += meta.compressed_size;
        if step == 20 || step % 100 == 0 || step == n_saves {
            let (mut loads, mut busy_loads) = (Vec::new(), Vec::new());
            for _ in 0..N_MEASURED {
                let reader = store(directory);
                let (started, before) = (Instant::now(), cpu_seconds());
                let loaded = reader.load(&key)?;
                loads.push(started.elapsed().as_secs_f64());
                busy_loads.push(cpu_seconds() - before);
                if loaded.tensors != state.tensors {
                    return Err(format!("`{key}` is not what was saved").into());
                }
            }
            let last = saves.len().saturating_sub(2 * N_MEASURED);
            let report = serde_json::json!({
                "saves": step, "save_cpu": median(&busy[last..]), "load_cpu": median(&busy_loads),
                "save": median(&saves[last..]), "longest_save": longest(&saves[last..]),
                "proof_share": median(&shares[last..]), "load": median(&loads),
                "objects": writer.manifest(&key)?.objects.len(), "stored": stored,
            });
            println!("{report}");
        }
        previous = Some(key);
    }
    Ok(())
}

fn list(directory: &Path) -> Outcome<()> {
    let store = store(directory);
    let started = Instant::now();
    let n = store.list()?.checkpoints.len();
    let listed = started.elapsed().as_secs_f64();
    let listed_peak = peak_memory()?;
    let started = Instant::now();
    let latest = store.latest()?.map(|meta| meta.key);
    let report = serde_json::json!({
        "checkpoints": n, "list": listed, "list_peak_mb": listed_peak, "latest": latest,
        "latest_seconds": started.elapsed().as_secs_f64(), "peak_mb": peak_memory()?,
    });
    println!("{report}");
    Ok(())
}

/// Saves of 64 tensors of a million numbers that all move by a little.
fn proof(directory: &Path) -> Outcome<()> {
    let mut random = 1;
    let mut values: Vec<Vec<f32>> = (0..64).map(|_| weights(&mut random, 1 << 20)).collect();
    let writer = store(directory);
    let mut previous: Option<String> = None;
    let (mut saves, mut shares) = (Vec::new(), Vec::new());
    for step in 0..12 {
        let state = values.iter().enumerate().fold(Checkpoint::new(), |state, (idx, values)| {
            state.with_tensor(format!("layer.{idx}.weight"), tensor(values))
        });
        let key = format!("proof_{step}");
        let started = Instant::now();
        let meta = writer.save(&state, &key, previous.as_deref())?;
        let seconds = started.elapsed().as_secs_f64();
        saves.push(seconds);
        shares.push(meta.proof_seconds / seconds);
        for values in &mut values {
            let moves = weights(&mut random, values.len());
            values.iter_mut().zip(moves).for_each(|(value, by)| *value += by * 1e-4);
        }
        previous = Some(key);
    }
    println!(
        "{}",
        serde_json::json!({ "save": median(&saves), "proof_share": median(&shares), "largest_share": longest(&shares) })
    );
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn longest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// CPU seconds of this process: those on the wall depend on what else the machine does.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The most memory that this process held, in megabytes.
fn peak_memory() -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024.0 / 1e6)
}
