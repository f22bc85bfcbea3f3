//! Sizes and speeds of a checkpoint store on two states of a training run, beside a copy and a raw write of the same bytes.
//!
//! ```sh
//! cargo run --release -p mithril --example store_figures -- DIRECTORY STATE BASE [EFFORT...] [from-moments]
//! cargo run --release -p mithril --example store_figures -- DIRECTORY chain STATE...   # oldest first
//! ```
//! States are safetensors files as `tools/train_small.py` writes them. Prints one line of JSON for the weights (`model.*`)
//! and one for the whole state, per effort: bytes in full and against the base, per role, and seconds. One coding thread;
//! CPU seconds of the process, the best of several passes; the store is in memory, except for `wall_*`, which are saves to
//! and writes in DIRECTORY with all syncs. Everything that is loaded is compared with what was saved.
//!
//! `chain` saves the states one after the other and restores the newest, beside the same state stored in full: in CPU
//! seconds of one thread from DIRECTORY, and in seconds on the wall with two threads from storages that give so many
//! bytes a second.

use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{Checkpoint, CheckpointMeta, CompressorConfig, TensorData};
use mithril::storage::{LocalStorage, MemoryStorage, ObjectInfo, ObjectWriter, StorageBackend, StorageError};
use mithril::{Effort, ReadAt, safetensors};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Passes of what is measured; the fastest counts.
const PASSES: usize = 3;

/// Bytes a second of the storages that chains are restored from.
const RATES: [u32; 3] = [200_000_000, 500_000_000, 1_000_000_000];

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [directory, word, states @ ..] if word == "chain" && states.len() > 1 => {
            chain(Path::new(directory), states)
        }
        [directory, state, base, efforts @ ..] => {
            let efforts = match efforts {
                [] => vec![Effort::Fast, Effort::Balanced, Effort::Max],
                names => names.iter().filter_map(|name| Effort::from_name(name)).collect(),
            };
            let from_moments = arguments.last().is_some_and(|word| word == "from-moments");
            let (state, base) = (read(state)?, read(base)?);
            for (what, state, base) in [("weights", weights(&state), weights(&base)), ("state", state, base)]
            {
                for &effort in &efforts {
                    let config = CompressorConfig::default().with_effort(effort).with_threads(1);
                    let config = config.with_from_moments(from_moments);
                    pair(Path::new(directory), what, &config, &state, &base)?;
                }
            }
            Ok(())
        }
        _ => Err("usage: store_figures DIRECTORY STATE BASE [EFFORT...] | DIRECTORY chain STATE...".into()),
    }
}

fn read(path: &str) -> Outcome<Checkpoint> {
    let file = std::fs::read(path)?;
    let end = safetensors::header_end(*file.first_chunk().ok_or("file of fewer than eight bytes")?)?;
    let header = file.get(..usize::try_from(end)?).ok_or("header is cut off")?;
    let mut checkpoint = Checkpoint::new();
    for tensor in safetensors::tensors(header, file.len() as u64)? {
        let range = usize::try_from(tensor.bytes.start)?..usize::try_from(tensor.bytes.end)?;
        let bytes = file.get(range).ok_or("a tensor lies outside of its file")?.to_vec();
        checkpoint = checkpoint.with_tensor(tensor.name, TensorData::new(bytes, tensor.shape, tensor.dtype));
    }
    Ok(checkpoint)
}

fn weights(state: &Checkpoint) -> Checkpoint {
    let mut weights = state.clone();
    weights.tensors.retain(|name, _| name.starts_with("model."));
    weights
}

fn pair(
    directory: &Path,
    what: &str,
    config: &CompressorConfig,
    state: &Checkpoint,
    base: &Checkpoint,
) -> Outcome<()> {
    let effort = config.coding.effort;
    let store = |storage: Arc<dyn StorageBackend>| CheckpointCompressor::new(config.clone(), storage);
    let (mut save_full, mut save_delta) = (f64::INFINITY, f64::INFINITY);
    let mut last = None;
    let passes = if effort == Effort::Fast { PASSES } else { 1 };
    for _ in 0..passes {
        let store = store(Arc::new(MemoryStorage::new()));
        let (meta, seconds) = timed(|| store.save(state, "alone", None))?;
        save_full = save_full.min(seconds);
        store.save(base, "base", None)?;
        let (against, seconds) = timed(|| store.save(state, "delta", Some("base")))?;
        save_delta = save_delta.min(seconds);
        last = Some((store, meta, against));
    }
    let (memory, full, delta) = last.ok_or("no pass")?;
    let load_full = load(&memory, "alone", state)?;
    let load_delta = load(&memory, "delta", state)?;

    // The slower efforts are not bounded by the disk.
    let wall =
        if effort == Effort::Fast { Some(wall_seconds(directory, &store, state, base)?) } else { None };

    let manifest = memory.manifest("delta")?;
    let mut roles: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for tensor in &manifest.tensors {
        let role = roles.entry(tensor.name.split('.').next().unwrap_or_default()).or_default();
        role[0] += tensor.raw_len;
        role[1] += tensor.stored_len;
    }
    let report = serde_json::json!({
        "what": what, "effort": effort.name(), "from_moments": config.from_moments, "raw": state.raw_len(), "full": len_of(&full),
        "delta": len_of(&delta), "roles": roles, "equal": equal_share(state, base),
        "restore_bytes": restore_len(&memory, "delta")?, "full_bytes": restore_len(&memory, "alone")?,
        "save_full": save_full, "save_delta": save_delta, "load_full": load_full, "load_delta": load_delta,
        "memcpy": memcpy(state), "wall_save_delta": wall.map(|wall| wall[0]), "wall_raw_write": wall.map(|wall| wall[1]),
    });
    println!("{report}");
    Ok(())
}

/// Seconds of a save against a base, and of a raw write, on disk with all syncs.
fn wall_seconds(
    directory: &Path,
    store: &dyn Fn(Arc<dyn StorageBackend>) -> CheckpointCompressor,
    state: &Checkpoint,
    base: &Checkpoint,
) -> Outcome<[f64; 2]> {
    let scratch = Scratch::new(directory)?;
    let local = store(Arc::new(LocalStorage::new(&scratch.0)));
    local.save(base, "base", None)?;
    let started = Instant::now();
    local.save(state, "delta", Some("base"))?;
    let save = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let mut file = std::fs::File::create(scratch.0.join("raw"))?;
    for tensor in state.tensors.values() {
        file.write_all(&tensor.data)?;
    }
    file.sync_all()?;
    Ok([save, started.elapsed().as_secs_f64()])
}

/// Restores the newest checkpoint of a chain, and the same one stored in full.
fn chain(directory: &Path, paths: &[String]) -> Outcome<()> {
    for (what, part) in [("weights", weights as fn(&Checkpoint) -> Checkpoint), ("state", Checkpoint::clone)]
    {
        let scratch = Scratch::new(directory)?;
        let states = || paths.iter().map(|path| read(path).map(|state| part(&state)));
        let config = CompressorConfig::default().with_threads(1);
        let store = CheckpointCompressor::new(config, Arc::new(LocalStorage::new(&scratch.0)));
        let (lens, key, newest) = save_chain(&store, states())?;
        let (in_chain, alone) = (load(&store, &key, &newest)?, load(&store, "alone", &newest)?);

        let memory = MemoryStorage::new();
        let config = CompressorConfig::default().with_threads(2);
        save_chain(&CheckpointCompressor::new(config.clone(), Arc::new(memory.clone())), states())?;
        let mut walls = Vec::new();
        for rate in RATES {
            let limited = Arc::new(Limited::new(memory.clone(), rate));
            let store = CheckpointCompressor::new(config.clone(), limited);
            let seconds = [&key, "alone"].map(|key| wall_load(&store, key, &newest));
            let [in_chain, alone] = seconds;
            let (in_chain, alone) = (in_chain?, alone?);
            walls.push(serde_json::json!({
                "bytes_a_second": rate, "newest": in_chain, "full": alone, "ratio": in_chain / alone,
            }));
        }
        let report = serde_json::json!({
            "what": "chain", "of": what, "n": paths.len(), "raw": newest.raw_len(), "bytes": lens,
            "depth": store.manifest(&key)?.depth(), "restore_bytes": restore_len(&store, &key)?,
            "full_bytes": restore_len(&store, "alone")?, "load_newest": in_chain, "load_full": alone,
            "memcpy": memcpy(&newest), "wall": walls,
        });
        println!("{report}");
    }
    Ok(())
}

/// Saves states, each against the one before, and the last in full too. Returns what they take, and the newest.
fn save_chain(
    store: &CheckpointCompressor,
    states: impl Iterator<Item = Outcome<Checkpoint>>,
) -> Outcome<(Vec<u64>, String, Checkpoint)> {
    let mut previous: Option<String> = None;
    let mut newest = Checkpoint::new();
    let mut lens = Vec::new();
    for (at, state) in states.enumerate() {
        newest = state?;
        let key = format!("step_{at}");
        lens.push(len_of(&store.save(&newest, &key, previous.as_deref())?));
        previous = Some(key);
    }
    store.save(&newest, "alone", None)?;
    Ok((lens, previous.ok_or("no state")?, newest))
}

/// A storage in memory that is read as over a line that gives so many bytes a second, to all readers together.
#[derive(Debug)]
struct Limited {
    memory: MemoryStorage,
    line: Arc<Line>,
}

#[derive(Debug)]
struct Line {
    rate: f64,
    free_at: Mutex<Instant>,
}

impl Line {
    /// Waits until so many bytes have come, behind those that others have asked for.
    fn receive(&self, len: usize) {
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let takes = Duration::from_secs_f64(len as f64 / self.rate);
        let done = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = (*free_at).max(Instant::now()) + takes;
            *free_at
        };
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
    }
}

impl Limited {
    fn new(memory: MemoryStorage, rate: u32) -> Self {
        let line = Line { rate: f64::from(rate), free_at: Mutex::new(Instant::now()) };
        Self { memory, line: Arc::new(line) }
    }
}

impl StorageBackend for Limited {
    fn location(&self) -> &str {
        self.memory.location()
    }

    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError> {
        self.memory.create(key)
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.memory.put_new(key, bytes)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.memory.replace(key, bytes)
    }

    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        let bytes = self.memory.get(key, max_len)?;
        self.line.receive(bytes.len());
        Ok(bytes)
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        Ok(Box::new(LimitedSource { source: self.memory.open(key)?, line: Arc::clone(&self.line) }))
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        self.memory.list(directory)
    }

    fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.memory.delete(key)
    }

    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError> {
        self.memory.remove_leftovers(directories, min_age)
    }
}

struct LimitedSource {
    source: Box<dyn ReadAt>,
    line: Arc<Line>,
}

impl ReadAt for LimitedSource {
    fn size(&self) -> std::io::Result<u64> {
        self.source.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.line.receive(out.len());
        self.source.read_exact_at(offset, out)
    }
}

fn len_of(meta: &CheckpointMeta) -> u64 {
    meta.compressed_size
}

/// Bytes of the frames that a restore reads; what follows from other tensors is counted once.
fn restore_len(store: &CheckpointCompressor, key: &str) -> Outcome<u64> {
    let manifest = store.manifest(key)?;
    let own = manifest.tensors.iter().filter(|tensor| !matches!(tensor.kind.as_str(), "ref" | "derived"));
    Ok(own.map(|tensor| tensor.restore_len).sum())
}

/// Loads into buffers that are there already, as training does; returns CPU seconds.
fn load(store: &CheckpointCompressor, key: &str, expected: &Checkpoint) -> Outcome<f64> {
    fastest_load(store, key, expected, cpu_seconds)
}

/// As `load`; returns seconds on the wall.
fn wall_load(store: &CheckpointCompressor, key: &str, expected: &Checkpoint) -> Outcome<f64> {
    let started = Instant::now();
    fastest_load(store, key, expected, || started.elapsed().as_secs_f64())
}

fn fastest_load(
    store: &CheckpointCompressor,
    key: &str,
    expected: &Checkpoint,
    clock: impl Fn() -> f64,
) -> Outcome<f64> {
    let mut buffers: Vec<(&str, Vec<u8>)> =
        expected.tensors.iter().map(|(name, tensor)| (name.as_str(), vec![1; tensor.data.len()])).collect();
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let mut borrowed: Vec<(&str, &mut [u8])> =
            buffers.iter_mut().map(|(name, buffer)| (*name, buffer.as_mut_slice())).collect();
        let started = clock();
        store.load_into(key, &mut borrowed)?;
        best = best.min(clock() - started);
    }
    let is_equal = |(name, buffer): &(&str, Vec<u8>)| expected.tensors[*name].data == *buffer;
    if !buffers.iter().all(is_equal) {
        return Err(format!("`{key}` is not what was saved").into());
    }
    Ok(best)
}

fn memcpy(state: &Checkpoint) -> f64 {
    let mut copies: Vec<Vec<u8>> = state.tensors.values().map(|tensor| vec![1; tensor.data.len()]).collect();
    let mut best = f64::INFINITY;
    for _ in 0..2 * PASSES + 1 {
        let started = cpu_seconds();
        for (copy, tensor) in copies.iter_mut().zip(state.tensors.values()) {
            copy.copy_from_slice(&tensor.data);
        }
        best = best.min(cpu_seconds() - started);
    }
    best
}

/// Share of the elements that are the same in both.
fn equal_share(state: &Checkpoint, base: &Checkpoint) -> f64 {
    let (mut n, mut n_equal) = (0u64, 0u64);
    for (name, tensor) in &state.tensors {
        let Some(before) = base.tensors.get(name) else { continue };
        let width = tensor.dtype.unit_len();
        let pairs = tensor.data.chunks(width).zip(before.data.chunks(width));
        n += (tensor.data.len() / width) as u64;
        n_equal += pairs.filter(|(now, before)| now == before).count() as u64;
    }
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = n_equal as f64 / n.max(1) as f64;
    share
}

fn timed<T, E: Error + 'static>(work: impl FnOnce() -> Result<T, E>) -> Outcome<(T, f64)> {
    let started = cpu_seconds();
    let done = work()?;
    Ok((done, cpu_seconds() - started))
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let seconds = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    seconds
}

/// A directory that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path) -> Outcome<Self> {
        let path = directory.join(format!("store-figures-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
