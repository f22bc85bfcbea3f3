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

/// A storage whose manifests are as long as it says, and which counts how many are read at once.
#[derive(Debug, Clone)]
struct Long {
    memory: MemoryStorage,
    len: u64,
    at_once: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl StorageBackend for Long {
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
        let at_once = self.at_once.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(at_once, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
        self.at_once.fetch_sub(1, Ordering::Relaxed);
        self.memory.get(key, max_len)
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        self.memory.open(key)
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        let listed = self.memory.list(directory)?.into_iter();
        Ok(listed.map(|object| ObjectInfo { len: self.len, ..object }).collect())
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
        let (at_once, most) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let long = Long { memory: memory.clone(), len, at_once, most: Arc::clone(&most) };
        let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(long));
        assert_eq!(store.list().unwrap().checkpoints.len(), 64);
        let most = most.load(Ordering::Relaxed);
        assert!(most <= at_most, "{most} of {len} bytes at once");
    }
}
