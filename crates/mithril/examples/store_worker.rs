//! Works on a checkpoint store until it is killed, says what it was told is safe, and checks what it finds.
//!
//! `tools/store_faults.py` starts it, kills it, and compares. Every state follows from its step, so what is found is
//! compared with what must have been saved.
//!
//! ```sh
//! store_worker work STORE SEED      # saves, deletes, gc, rebase, until killed
//! store_worker background STORE     # saves in the background; SIGTERM flushes with a deadline of 2 s
//! store_worker race STORE WRITER N  # tries to save N keys that others save, too
//! store_worker faulty STORE FIRST N # saves N steps, from FIRST on, through a network that fails
//! store_worker read STORE           # loads what workers said on stdin through a network that lies
//! store_worker check STORE          # reads what workers said from stdin, and compares
//! store_worker memory STORE MIB     # peak memory of a save, a delta and a load beyond the tensors
//! ```

use mithril::Dtype;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, GcOptions, SaveStatus, TensorData, VerifyOptions,
};
use mithril::storage::StorageOptions;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let url = arguments.get(1).ok_or("which store?")?;
    match arguments[0].as_str() {
        "work" => work(&open(url)?, number(2)),
        "background" => background(&open(url)?),
        "race" => race(&open(url)?, number(2), number(3)),
        "faulty" => faulty(&open(url)?, number(2), number(3)),
        "read" => read(&open(url)?),
        "check" => check(&open(url)?),
        "memory" => memory(&open(url)?, number(2)),
        other => Err(format!("unknown mode {other}").into()),
    }
}

fn open(url: &str) -> Result<CheckpointCompressor, Box<dyn Error>> {
    // Few and short retries: whoever injects faults waits for them.
    let options = StorageOptions::default().with_retries(4, Duration::from_secs(10));
    Ok(CheckpointCompressor::new(CompressorConfig::default(), mithril::storage::open_with(url, &options)?))
}

/// States from this step on have 24 MiB that do not shrink: object stores take them in parts.
const LARGE: u64 = 1_000_000;

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}

/// The state of a step, as one writer has it: weights that drift, one frozen tensor, a copy in lower precision.
fn state(step: u64, writer: u64) -> Checkpoint {
    let mut checkpoint = Checkpoint::new().with_step(step);
    for layer in 0..3 {
        let mut fixed = Random::new(layer + 1);
        let mut moved = Random::new(step * 1000 + layer * 10 + writer + 7);
        let values: Vec<f32> = (0..60_000)
            .map(|_| {
                let weight = (fixed.next() % 65536) as f32 / 65536.0 - 0.5;
                if layer == 0 { weight } else { weight + (moved.next() % 1000) as f32 * 1e-7 }
            })
            .collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        checkpoint =
            checkpoint.with_tensor(format!("layer.{layer}"), TensorData::new(bytes, [60_000], Dtype::F32));
    }
    if step >= LARGE {
        let mut random = Random::new(step);
        let bytes: Vec<u8> = (0..3 << 20).flat_map(|_| random.next().to_le_bytes()).collect();
        checkpoint = checkpoint.with_tensor("large", TensorData::new(bytes, [24 << 20], Dtype::U8));
    }
    checkpoint.with_tensor("writer", TensorData::new(writer.to_le_bytes().to_vec(), [1], Dtype::U64))
}

/// Says something that must not be lost when the next moment is the last.
fn say(line: &str) {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdout.flush());
}

fn steps(store: &CheckpointCompressor) -> Result<Vec<u64>, CheckpointError> {
    Ok(store.list()?.checkpoints.iter().map(|meta| meta.step).collect())
}

fn work(store: &CheckpointCompressor, seed: u64) -> Outcome {
    let mut random = Random::new(seed + 1);
    loop {
        let steps = steps(store)?;
        let next = steps.last().map_or(0, |step| step + 1);
        let some = |random: &mut Random| {
            let at = random.next() % (steps.len() as u64).max(1);
            steps.get(usize::try_from(at).unwrap_or(0)).copied()
        };
        match random.next() % 20 {
            0..=8 => {
                let key = format!("step_{next}");
                let previous = steps.last().map(|step| format!("step_{step}"));
                store.save(&state(next, 0), &key, previous.as_deref())?;
                say(&format!("saved {key}"));
            }
            9..=10 => {
                let key = format!("step_{next}");
                store.save(&state(next, 0), &key, None)?;
                say(&format!("saved {key}"));
            }
            11..=13 => {
                let handles: Vec<_> = (next..next + 2)
                    .map(|step| {
                        let previous = step.checked_sub(1).filter(|_| step > next || !steps.is_empty());
                        let previous = previous.map(|before| format!("step_{before}"));
                        store.save_async(state(step, 0), &format!("step_{step}"), previous.as_deref())
                    })
                    .collect();
                for handle in handles {
                    handle.wait()?;
                    say(&format!("saved {}", handle.key()));
                }
            }
            14..=17 if steps.len() > 4 => {
                if let Some(step) = some(&mut random).filter(|step| Some(step) != steps.last()) {
                    say(&format!("deleting step_{step}"));
                    store.delete(&format!("step_{step}"))?;
                }
            }
            18 if store.exists()? => drop(store.gc(&GcOptions::now())?),
            18 => {}
            _ => {
                if let Some(step) = some(&mut random) {
                    store.rebase(&format!("step_{step}"))?;
                }
            }
        }
    }
}

fn background(store: &CheckpointCompressor) -> Outcome {
    let told = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, told.clone())?;
    let first = steps(store)?.last().map_or(0, |step| step + 1);
    let mut handles = Vec::new();
    say("ready");
    for step in first.. {
        let previous = step.checked_sub(1).filter(|_| step > first).map(|before| format!("step_{before}"));
        handles.push(store.save_async(state(step, 0), &format!("step_{step}"), previous.as_deref()));
        // Not too far ahead, as in training.
        while handles.len() > 3 && matches!(handles[handles.len() - 4].status(), SaveStatus::Staged) {
            if told.load(Ordering::Acquire) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if told.load(Ordering::Acquire) {
            break;
        }
    }
    store.flush(Duration::from_secs(2));
    for handle in handles {
        match handle.status() {
            SaveStatus::Committed(_) => say(&format!("saved {}", handle.key())),
            SaveStatus::Failed(_) => say(&format!("failed {}", handle.key())),
            _ => say(&format!("unknown {}", handle.key())),
        }
    }
    std::process::exit(0)
}

fn race(store: &CheckpointCompressor, writer: u64, n: u64) -> Outcome {
    for step in 0..n {
        let key = format!("step_{step}");
        let previous = step.checked_sub(1).map(|before| format!("step_{before}"));
        match store.save(&state(step, writer), &key, previous.as_deref()) {
            Ok(_) => say(&format!("saved {key} {writer}")),
            Err(CheckpointError::Conflict { .. }) => say(&format!("conflict {key} {writer}")),
            // The others are ahead, or were killed.
            Err(CheckpointError::MissingPrevious { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Saves some steps; every save succeeds, or says why not.
fn faulty(store: &CheckpointCompressor, first: u64, n: u64) -> Outcome {
    let steps = loop {
        match steps(store) {
            Ok(steps) => break steps,
            Err(error) => say(&format!("refused list: {error}")),
        }
    };
    let first = steps.last().map_or(first, |step| (step + 1).max(first));
    let mut previous = steps.last().map(|step| format!("step_{step}"));
    for step in first..first + n {
        let key = format!("step_{step}");
        match store.save(&state(step, 0), &key, previous.as_deref()) {
            Ok(_) => {
                say(&format!("saved {key}"));
                previous = Some(key);
            }
            Err(error) => say(&format!("refused {key}: {error}")),
        }
    }
    Ok(())
}

/// Loads what was saved; every load gives the right tensors, or says why not.
fn read(store: &CheckpointCompressor) -> Outcome {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let Some(key) = line.strip_prefix("saved ") else { continue };
        let step = key.strip_prefix("step_").ok_or("a key without a step")?.parse()?;
        match store.load(key) {
            Ok(loaded) if loaded.tensors == state(step, 0).tensors => say(&format!("loaded {key}")),
            Ok(_) => return Err(format!("{key} was loaded with wrong bytes").into()),
            Err(error) => say(&format!("refused {key}: {error}")),
        }
    }
    Ok(())
}

/// Compares the store with what workers said: lines on stdin.
fn check(store: &CheckpointCompressor) -> Outcome {
    let mut safe: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = BTreeSet::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["saved", key] => drop(safe.insert(key.to_owned(), 0)),
            ["saved", key, writer] => {
                if let Some(other) = safe.insert(key.to_owned(), writer.parse()?) {
                    return Err(format!("{key} was acknowledged to {other} and to {writer}").into());
                }
            }
            ["deleting", key] => drop(safe.remove(key)),
            ["failed", key] => drop(failed.insert(key.to_owned())),
            ["unknown", key] => return Err(format!("nobody knows about {key}").into()),
            _ => {}
        }
    }
    let listing = store.list()?;
    if let Some((key, error)) = listing.unreadable.first() {
        return Err(format!("{key} cannot be read: {error}").into());
    }
    let there: BTreeSet<String> = listing.checkpoints.iter().map(|meta| meta.key.clone()).collect();
    if let Some(lost) = safe.keys().find(|key| !there.contains(*key)) {
        return Err(format!("{lost} was acknowledged and is lost").into());
    }
    if let Some(key) = failed.iter().find(|key| there.contains(*key) && !safe.contains_key(*key)) {
        return Err(format!("{key} is there, and its handle said that it failed").into());
    }
    for meta in &listing.checkpoints {
        let loaded = store.load(&meta.key).map_err(|error| format!("{}: {error}", meta.key))?;
        let mut writer = [0; 8];
        writer.copy_from_slice(&loaded.tensors["writer"].data);
        let writer = u64::from_le_bytes(writer);
        if safe.get(&meta.key).is_some_and(|expected| *expected != writer) {
            return Err(format!("{} is that of another writer", meta.key).into());
        }
        if loaded.tensors != state(meta.step, writer).tensors {
            return Err(format!("{} is torn", meta.key).into());
        }
    }
    if !store.exists()? {
        // Killed before anything was committed: gc leaves alone what is not a store yet. The next save cleans up.
        store.storage().remove_leftovers(&["data"], std::time::Duration::ZERO)?;
        println!("0 acknowledged, 0 there");
        return Ok(());
    }
    store.gc(&GcOptions::now())?;
    let report = store.verify(None, &VerifyOptions::default(), &|_| ())?;
    if !report.is_intact() {
        return Err(format!("damaged after gc: {:?}", report.damaged).into());
    }
    let mut needed = BTreeSet::new();
    for key in &there {
        let manifest = store.manifest(key)?;
        needed.extend(manifest.objects.into_iter().map(|object| object.object));
        // What a rebase pinned before it was killed stays until the next one of this key; it may be gone, too.
        let pinned = manifest.pinned.into_iter();
        needed.extend(pinned.filter(|object| store.storage().open(object).is_ok()));
    }
    let n_objects = store.storage().list("data")?.len();
    if n_objects != needed.len() {
        return Err(format!("{n_objects} objects after gc, {} are needed", needed.len()).into());
    }
    println!("{} acknowledged, {} there", safe.len(), there.len());
    Ok(())
}

/// Peak memory beyond the tensors, from `/proc/self/status`.
fn memory(store: &CheckpointCompressor, mib: u64) -> Outcome {
    let n_tensors = mib.div_ceil(64).max(1);
    let make = |step: u64| {
        let mut checkpoint = Checkpoint::new().with_step(step);
        for tensor in 0..n_tensors {
            let mut random = Random::new(tensor + 1);
            let len = (mib << 20) / n_tensors / 2;
            let mut bytes = Vec::with_capacity(2 * usize::try_from(len).unwrap_or(0));
            bytes.extend((0..len).flat_map(|at| {
                let noise = if at % 97 == step { step } else { 0 };
                let value = random.next();
                // A bf16 number about 0.02 with few exponents.
                let exponent = 0x3c00 + ((value >> 8) % 5) * 0x80;
                let bits = u16::try_from((exponent + (value & 0x7f) + noise) & 0xffff).unwrap_or(0);
                bits.to_le_bytes()
            }));
            checkpoint =
                checkpoint.with_tensor(format!("t{tensor}"), TensorData::new(bytes, [len], Dtype::Bf16));
        }
        checkpoint
    };
    let first = make(0);
    let raw_len = first.raw_len();
    let before = start_peak()?;
    store.save(&first, "step_0", None)?;
    let full = peak()? - before;
    drop(first);
    let second = make(1);
    let before = start_peak()?;
    store.save(&second, "step_1", Some("step_0"))?;
    let delta = peak()? - before;
    let mut buffers: Vec<(String, Vec<u8>)> =
        second.tensors.iter().map(|(name, tensor)| (name.clone(), vec![1; tensor.data.len()])).collect();
    let before = start_peak()?;
    let mut borrowed: Vec<(&str, &mut [u8])> =
        buffers.iter_mut().map(|(name, buffer)| (name.as_str(), buffer.as_mut_slice())).collect();
    store.load_into("step_1", &mut borrowed)?;
    let load = peak()? - before;
    for (name, buffer) in &buffers {
        if second.tensors[name].data != buffer {
            return Err(format!("{name} is another one").into());
        }
    }
    println!(
        "{} MiB of tensors; beyond them: full save {full} kB, delta save {delta} kB, load into buffers {load} kB",
        raw_len >> 20
    );
    Ok(())
}

/// Most memory that the process had since the last start, in kB.
fn peak() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}

/// Forgets the peak; returns what is used now.
fn start_peak() -> Result<u64, Box<dyn Error>> {
    std::fs::write("/proc/self/clear_refs", "5")?;
    peak()
}
