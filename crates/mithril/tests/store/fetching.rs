//! Loads from a storage that is asked for bytes: how often it is, and what happens when it fails.

use super::{Run, bf16_tensor, f32_tensor, weights};
use mithril::ReadAt;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{Checkpoint, CompressorConfig};
use mithril::storage::{MemoryStorage, ObjectInfo, ObjectWriter, StorageBackend, StorageError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A memory whose objects are read by requests, of which so many succeed.
#[derive(Debug, Default)]
struct Remote {
    memory: MemoryStorage,
    requests: Arc<Requests>,
}

#[derive(Debug)]
struct Requests {
    n: AtomicU64,
    n_bytes: AtomicU64,
    limit: AtomicU64,
}

impl Default for Requests {
    fn default() -> Self {
        Self { n: AtomicU64::new(0), n_bytes: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) }
    }
}

impl Requests {
    fn start(&self, limit: u64) {
        self.n.store(0, Ordering::SeqCst);
        self.n_bytes.store(0, Ordering::SeqCst);
        self.limit.store(limit, Ordering::SeqCst);
    }
}

struct RemoteSource {
    source: Box<dyn ReadAt>,
    requests: Arc<Requests>,
}

impl ReadAt for RemoteSource {
    fn size(&self) -> io::Result<u64> {
        self.source.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.requests.n.fetch_add(1, Ordering::SeqCst) >= self.requests.limit.load(Ordering::SeqCst) {
            return Err(io::Error::other("the line is cut"));
        }
        self.requests.n_bytes.fetch_add(out.len() as u64, Ordering::SeqCst);
        self.source.read_exact_at(offset, out)
    }
}

impl StorageBackend for Remote {
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
        self.memory.get(key, max_len)
    }
    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        let source = self.memory.open(key)?;
        Ok(Box::new(RemoteSource { source, requests: Arc::clone(&self.requests) }))
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

/// A chain of checkpoints of layers, of a tensor that is stored in parts, of its copy in lower precision and of one that is
/// there twice. Returns the newest too.
fn chain(threads: usize) -> (CheckpointCompressor, Arc<Requests>, Checkpoint) {
    let remote = Remote::default();
    let requests = Arc::clone(&remote.requests);
    let config = CompressorConfig::default().with_threads(threads);
    let store = CheckpointCompressor::new(config, Arc::new(remote));
    let mut run = Run::new(11, 40, 10, 3000);
    let mut large = weights(12, 1_500_000);
    let mut newest = Checkpoint::new();
    for step in 0..4 {
        large.iter_mut().step_by(3).for_each(|value| *value *= 1.0001);
        newest = run.step();
        newest = newest.with_tensor("copy", bf16_tensor(&large)).with_tensor("large", f32_tensor(&large));
        newest = newest.with_tensor("twice", f32_tensor(&large));
        let previous = (step > 0).then(|| format!("step_{}", step - 1));
        store.save(&newest, &format!("step_{step}"), previous.as_deref()).unwrap();
    }
    (store, requests, newest)
}

fn load_into(
    store: &CheckpointCompressor,
    newest: &Checkpoint,
) -> Result<(), mithril::checkpoint::CheckpointError> {
    let mut buffers: Vec<_> =
        newest.tensors.iter().map(|(name, tensor)| (name.as_str(), vec![7; tensor.data.len()])).collect();
    let mut places: Vec<_> =
        buffers.iter_mut().map(|(name, buffer)| (*name, buffer.as_mut_slice())).collect();
    store.load_into("step_3", &mut places)?;
    assert!(buffers.iter().all(|(name, buffer)| newest.tensors[*name].data == *buffer));
    Ok(())
}

#[test]
fn a_chain_takes_few_requests_and_every_byte_once() {
    for threads in [1, 3] {
        let (store, requests, newest) = chain(threads);
        let manifest = store.manifest("step_3").unwrap();
        assert_eq!(manifest.depth(), 3);
        let stored: u64 = manifest.objects.iter().map(|object| object.len).sum();
        requests.start(u64::MAX);
        load_into(&store, &newest).unwrap();
        let n = requests.n.load(Ordering::SeqCst);
        let n_bytes = requests.n_bytes.load(Ordering::SeqCst);
        assert!(
            n < 50,
            "{n} requests for {} tensors in {} objects",
            newest.tensors.len(),
            manifest.objects.len()
        );
        // The ends of the objects are read when they are opened, and again with the frames there.
        assert!(
            n_bytes < stored + (manifest.objects.len() as u64) * (100 << 10),
            "{n_bytes} of {stored} bytes"
        );
        assert_eq!(store.load("step_3").unwrap().tensors, newest.tensors);
    }
}

#[test]
fn links_come_without_what_they_follow_from() {
    let (store, _, newest) = chain(2);
    for name in ["copy", "twice", "large"] {
        let mut buffer = vec![7; newest.tensors[name].data.len()];
        store.load_into("step_3", &mut [(name, &mut buffer)]).unwrap();
        assert_eq!(newest.tensors[name].data, buffer);
    }
    let (large, copy) = (&newest.tensors["large"].data, &newest.tensors["copy"].data);
    let [mut first, mut second] = [(); 2].map(|()| vec![7; large.len()]);
    let mut third = vec![7; copy.len()];
    store
        .load_into("step_3", &mut [("large", &mut first), ("large", &mut second), ("copy", &mut third)])
        .unwrap();
    assert!(*large == first && *large == second && *copy == third);
}

#[test]
fn a_line_that_is_cut_anywhere_ends_a_load_with_its_reason() {
    for threads in [1, 3] {
        let (store, requests, newest) = chain(threads);
        requests.start(u64::MAX);
        load_into(&store, &newest).unwrap();
        let n_needed = requests.n.load(Ordering::SeqCst);
        for limit in 0..n_needed {
            requests.start(limit);
            let error = load_into(&store, &newest).unwrap_err();
            assert!(error.to_string().contains("the line is cut"), "{error}");
            requests.start(limit);
            assert!(store.load("step_3").is_err());
        }
        requests.start(u64::MAX);
        load_into(&store, &newest).unwrap();
    }
}
