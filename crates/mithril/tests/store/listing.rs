//! What a listing takes: memory, and manifests that are read.

use super::{f32_tensor, store};
use mithril::ReadAt;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{Checkpoint, CompressorConfig};
use mithril::storage::{MemoryStorage, ObjectInfo, ObjectWriter, StorageBackend, StorageError};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A store of checkpoints of many tensors, which are all the same but for their keys.
fn many(n_tensors: usize, n_checkpoints: usize) -> (CheckpointCompressor, MemoryStorage) {
    let (store, memory) = store(CompressorConfig::default().with_threads(1));
    let tensor = f32_tensor(&[1.5; 4]);
    let state = (0..n_tensors).fold(Checkpoint::new(), |state, idx| {
        state.with_tensor(format!("layers.{}.experts.{}.weight", idx / 100, idx % 100), tensor.clone())
    });
    store.save(&state, "step_0", None).unwrap();
    let mut manifest = store.manifest("step_0").unwrap();
    for step in 1..n_checkpoints {
        manifest.key = format!("step_{step}");
        manifest.step = step as u64;
        memory.put_new(&format!("manifests/step_{step}.json"), &manifest.write()).unwrap();
    }
    (store, memory)
}

#[test]
fn a_listing_takes_the_memory_of_one_checkpoint() {
    // Few enough for one thread: what it allocates is counted.
    let (store, _) = many(1000, 16);
    let one = allocation_counter::measure(|| drop(store.manifest("step_7").unwrap()));
    let mut listed = None;
    let all = allocation_counter::measure(|| listed = Some(store.list().unwrap()));
    let checkpoints = listed.unwrap().checkpoints;
    assert_eq!((checkpoints.len(), checkpoints[15].n_tensors), (16, 1000));
    assert!(all.count_total > 10 * one.count_total, "what reads the manifests is counted");
    assert!(all.bytes_max < 2 * one.bytes_max, "{} bytes, and {} for one", all.bytes_max, one.bytes_max);
}

fn small() -> Checkpoint {
    Checkpoint::new().with_tensor("w", f32_tensor(&[1.5; 4]))
}

/// A storage that counts which manifests are read.
#[derive(Debug, Clone, Default)]
struct Watched {
    memory: MemoryStorage,
    /// What it says how long each object is.
    len: Option<u64>,
    /// Called before an object is put.
    before_put: Option<fn(&MemoryStorage, &str)>,
    n_read: Arc<AtomicUsize>,
    at_once: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
}

impl StorageBackend for Watched {
    fn location(&self) -> &str {
        self.memory.location()
    }

    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError> {
        self.memory.create(key)
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        if let Some(call) = self.before_put {
            call(&self.memory, key);
        }
        self.memory.put_new(key, bytes)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.memory.replace(key, bytes)
    }

    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        self.n_read.fetch_add(usize::from(key.starts_with("manifests/")), Ordering::Relaxed);
        let at_once = self.at_once.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::Relaxed);
        // Long enough that reads by several threads overlap.
        std::thread::sleep(Duration::from_millis(2));
        self.at_once.fetch_sub(1, Ordering::Relaxed);
        self.memory.get(key, max_len)
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        self.memory.open(key)
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        let listed = self.memory.list(directory)?.into_iter();
        Ok(listed
            .map(|object| ObjectInfo::new(object.key, self.len.unwrap_or(object.len), object.modified))
            .collect())
    }

    fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.memory.delete(key)
    }

    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError> {
        self.memory.remove_leftovers(directories, min_age)
    }
}

#[test]
fn long_manifests_are_not_read_at_the_same_time() {
    let (_, memory) = many(1, 64);
    for (len, at_most) in [(100, 8), (2 << 20, 2), (100 << 20, 1)] {
        let watched = Watched { memory: memory.clone(), len: Some(len), ..Watched::default() };
        let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(watched.clone()));
        assert_eq!(store.list().unwrap().checkpoints.len(), 64);
        let most = watched.most_at_once.load(Ordering::Relaxed);
        assert!(most <= at_most, "{most} of {len} bytes at once");
    }
}

#[test]
fn the_newest_is_found_by_few_manifests() {
    let watched = Watched::default();
    let open = || CheckpointCompressor::new(CompressorConfig::default(), Arc::new(watched.clone()));
    for step in 0..40 {
        open().save(&small().with_step(step), &format!("state-{step}-x"), None).unwrap();
    }
    let reads_of_latest = || {
        watched.n_read.store(0, Ordering::Relaxed);
        let key = open().latest().unwrap().unwrap().key;
        (key, watched.n_read.load(Ordering::Relaxed))
    };
    let (key, n_read) = reads_of_latest();
    assert!(key == "state-39-x" && n_read <= 3, "{key}: {n_read} manifests were read");
    // A save that was killed before it could change the pointer.
    let pointer = watched.memory.get("latest.json", 1 << 16).unwrap();
    open().save(&small().with_step(40), "state-40-x", None).unwrap();
    watched.memory.replace("latest.json", &pointer).unwrap();
    let (key, n_read) = reads_of_latest();
    assert!(key == "state-40-x" && n_read <= 3, "{key}: {n_read} manifests were read");
    // Without the data of the newest it is the one before, and without that of both all are read.
    for (lost, left) in [("state-40-x", "state-39-x"), ("state-39-x", "state-38-x")] {
        let object = open().manifest(lost).unwrap().own()[0].object.clone();
        watched.memory.delete(&object).unwrap();
        assert_eq!(reads_of_latest().0, left);
    }
}

#[test]
fn a_pointer_that_lies_is_stale_or_missing_changes_nothing() {
    let (store, memory) = store(CompressorConfig::default());
    let pointer =
        || serde_json::from_slice::<serde_json::Value>(&memory.get("latest.json", 1 << 16).unwrap());
    let mut pointers = Vec::new();
    for (key, step) in [("step_10", 10), ("best", 90), ("step_20", 20), ("step_100", 100), ("again", 7)] {
        store.save(&small().with_step(step), key, None).unwrap();
        pointers.push(pointer().unwrap());
    }
    // One of a roll-back, by an honest pointer.
    assert_eq!(store.latest().unwrap().unwrap().key, "step_100");
    let [first, .., last] = &pointers[..] else { unreachable!() };
    let lies = [
        (last, "highest_step", 7.into()),
        (last, "highest_step", 101.into()),
        (last, "sequence", 0.into()),
        (first, "highest_step", 100.into()),
        (first, "sequence", 4.into()),
        (first, "generation", last["generation"].clone()),
        (first, "generation", "".into()),
        (last, "key", "step_10".into()),
        (last, "key", "gone".into()),
        (last, "key", "../latest".into()),
    ];
    let lies = lies.map(|(pointer, field, value): (_, _, serde_json::Value)| {
        let mut pointer = pointer.clone();
        pointer[field] = value;
        pointer
    });
    for pointer in pointers.iter().chain(&lies) {
        memory.replace("latest.json", pointer.to_string().as_bytes()).unwrap();
        assert_eq!(store.latest().unwrap().unwrap().key, "step_100", "{pointer}");
    }
    memory.replace("latest.json", b"no JSON").unwrap();
    assert_eq!(store.latest().unwrap().unwrap().key, "step_100");
    memory.delete("latest.json").unwrap();
    assert_eq!(store.latest().unwrap().unwrap().key, "step_100");
}

/// The second save takes its place in the order, and then the first is committed and points at itself.
#[test]
fn saves_at_the_same_time_leave_no_pointer_that_hides_one() {
    let watched = Watched {
        before_put: Some(|memory, object| {
            if object == "manifests/slow.json" {
                let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(memory.clone()));
                store.save(&small().with_step(100), "quick", None).unwrap();
            }
        }),
        ..Watched::default()
    };
    let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(watched));
    store.save(&small().with_step(1), "before", None).unwrap();
    store.save(&small().with_step(2), "slow", None).unwrap();
    assert_eq!(store.latest().unwrap().unwrap().key, "quick");
    // Numbers go on after both.
    store.save(&small(), "next", None).unwrap();
    assert_eq!((store.manifest("next").unwrap().step, store.manifest("next").unwrap().sequence), (100, 2));
    assert_eq!(store.latest().unwrap().unwrap().key, "next");
}
