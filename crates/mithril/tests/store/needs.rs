//! What a checkpoint needs is bounded, proved before it is acknowledged, and read with few open files.

use super::{Run, f32_tensor, store, weights};
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, Manifest, SaveCheck, VerifyOptions,
};
use mithril::storage::{MemoryStorage, ObjectInfo, ObjectWriter, StorageBackend, StorageError};
use mithril::{ErrorKind, ReadAt};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A state of many small tensors, of which each save moves another group.
struct Turns {
    tensors: Vec<Vec<f32>>,
    n_saves: usize,
}

impl Turns {
    fn new(n_tensors: usize) -> Self {
        Self { tensors: (0..n_tensors).map(|idx| weights(idx as u64 + 1, 64)).collect(), n_saves: 0 }
    }

    fn next(&mut self, n_groups: usize) -> Checkpoint {
        let group = self.n_saves % n_groups;
        self.n_saves += 1;
        for values in self.tensors.iter_mut().skip(group).step_by(n_groups) {
            values.iter_mut().for_each(|value| *value += 1e-3);
        }
        let tensors = self.tensors.iter().enumerate();
        tensors.fold(Checkpoint::new(), |state, (idx, values)| {
            state.with_tensor(format!("expert.{idx}"), f32_tensor(values))
        })
    }
}

#[test]
fn tensors_that_change_in_turn_need_a_bounded_number_of_objects() {
    const N_GROUPS: usize = 40;
    let (store, _) = store(CompressorConfig::default().with_threads(1));
    let mut turns = Turns::new(N_GROUPS);
    let mut previous: Option<String> = None;
    let mut stored_anew = 0;
    for step in 0..80 {
        let state = turns.next(N_GROUPS);
        let key = format!("step_{step}");
        store.save(&state, &key, previous.as_deref()).unwrap();
        let manifest = store.manifest(&key).unwrap();
        assert!(manifest.objects.len() <= 32, "{key} needs {} objects", manifest.objects.len());
        if step > 0 {
            let anew = manifest.tensors.iter().filter(|tensor| tensor.kind != "copy").count();
            stored_anew += anew - 1;
        }
        if step % 16 == 15 {
            assert!(store.load(&key).unwrap().tensors == state.tensors, "{key}");
        }
        previous = Some(key);
    }
    // Every save moves one tensor. What is stored anew besides, so that objects can go, is a few tensors a save.
    assert!(stored_anew <= 79 * 4, "{stored_anew}");
    assert!(stored_anew > 0, "so many objects are not needed without it");
    assert!(store.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap().is_intact());
}

#[test]
fn tensors_that_all_change_keep_their_chains() {
    let (store, _) = store(CompressorConfig::default().with_max_objects(2).with_chain(4, 10.0));
    let mut run = Run::new(2, 2, 0, 5_000);
    let mut depths = Vec::new();
    for step in 0..7usize {
        let previous = step.checked_sub(1).map(|step| format!("step_{step}"));
        depths.push(store.save(&run.step(), &format!("step_{step}"), previous.as_deref()).unwrap().depth);
    }
    assert_eq!(depths, [0, 1, 2, 3, 4, 0, 1], "a bound on objects is no bound on chains");
}

/// A storage that counts how many objects are open at once.
#[derive(Debug, Clone, Default)]
struct Counting {
    memory: MemoryStorage,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Counted {
    source: Box<dyn ReadAt>,
    open: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadAt for Counted {
    fn size(&self) -> io::Result<u64> {
        self.source.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.source.read_exact_at(offset, out)
    }
}

impl StorageBackend for Counting {
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
        let n_open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(n_open, Ordering::Relaxed);
        Ok(Box::new(Counted { source, open: Arc::clone(&self.open) }))
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

/// As stores of earlier builds are, which had no bound.
#[test]
fn checkpoints_of_many_objects_are_read_and_saved_with_few_open() {
    let storage = Counting::default();
    let config = CompressorConfig::default().with_threads(1).with_max_objects(10_000);
    let unbounded = CheckpointCompressor::new(config, Arc::new(storage.clone()));
    let mut turns = Turns::new(72);
    let mut state = turns.next(72);
    for step in 0..72usize {
        let previous = step.checked_sub(1).map(|step| format!("step_{step}"));
        unbounded.save(&state, &format!("step_{step}"), previous.as_deref()).unwrap();
        if step < 71 {
            state = turns.next(72);
        }
    }
    assert_eq!(unbounded.manifest("step_71").unwrap().objects.len(), 72);
    storage.most.store(0, Ordering::Relaxed);
    let config = CompressorConfig::default().with_threads(2);
    let store = CheckpointCompressor::new(config, Arc::new(storage.clone()));
    assert!(store.load("step_71").unwrap().tensors == state.tensors);
    assert_eq!(store.load_tensor("step_71", "expert.3").unwrap(), state.tensors["expert.3"]);
    assert!(store.verify(Some("step_71"), &VerifyOptions::deep(), &|_| ()).unwrap().is_intact());
    let state = turns.next(72);
    store.save(&state, "step_72", Some("step_71")).unwrap();
    assert!(store.manifest("step_72").unwrap().objects.len() <= 32);
    assert!(store.load("step_72").unwrap().tensors == state.tensors);
    store.rebase("step_71").unwrap();
    let most = storage.most.load(Ordering::Relaxed);
    assert!(most < 64, "{most} objects were open at once");
}

/// A storage that damages the frames of what is written, but not the index behind them.
#[derive(Debug, Clone)]
struct Damaging(MemoryStorage);

struct DamagingWriter {
    bytes: Vec<u8>,
    inner: Box<dyn ObjectWriter>,
}

impl Write for DamagingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectWriter for DamagingWriter {
    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        let middle = self.bytes.len() / 2;
        self.bytes[middle] ^= 1;
        self.inner.write_all(&self.bytes).unwrap();
        self.inner.finish()
    }
}

impl StorageBackend for Damaging {
    fn location(&self) -> &str {
        self.0.location()
    }

    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError> {
        Ok(Box::new(DamagingWriter { bytes: Vec::new(), inner: self.0.create(key)? }))
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.0.put_new(key, bytes)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.0.replace(key, bytes)
    }

    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        self.0.get(key, max_len)
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        self.0.open(key)
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        self.0.list(directory)
    }

    fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.0.delete(key)
    }

    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError> {
        self.0.remove_leftovers(directories, min_age)
    }
}

#[test]
fn a_save_that_is_verified_in_full_is_refused_when_its_bytes_are_damaged() {
    let state = Checkpoint::new().with_tensor("w", f32_tensor(&weights(3, 50_000)));
    for (check, is_refused) in [(SaveCheck::Chain, false), (SaveCheck::Full, true)] {
        let memory = MemoryStorage::new();
        let config = CompressorConfig::default().with_verify(check);
        let damaged = CheckpointCompressor::new(config.clone(), Arc::new(Damaging(memory.clone())));
        let saved = damaged.save(&state, "step_1", None);
        assert_eq!(saved.is_err(), is_refused, "{check:?}");
        if let Err(error) = saved {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("`w`"), "{error}");
            assert!(memory.list("").unwrap().is_empty(), "nothing is left of it");
            let sound = CheckpointCompressor::new(config, Arc::new(memory));
            sound.save(&state, "step_1", None).unwrap();
            sound.save(&state, "step_2", Some("step_1")).unwrap();
            assert!(sound.load("step_2").unwrap().tensors == state.tensors);
        }
    }
}

/// Puts another manifest in the place of one.
fn replace(storage: &MemoryStorage, key: &str, change: impl Fn(&mut serde_json::Value)) {
    let object = format!("manifests/{key}.json");
    let manifest = Manifest::parse(key, &object, &storage.get(&object, 8 << 20).unwrap()).unwrap();
    let mut json = serde_json::to_value(&manifest).unwrap();
    change(&mut json);
    let json = json.to_string();
    let sum = mithril_format::Digest::of(json.as_bytes());
    storage.replace(&object, format!("{json}\nblake3 {sum}\n").as_bytes()).unwrap();
}

#[test]
fn an_object_that_is_listed_twice_is_refused() {
    let (store, memory) = store(CompressorConfig::default());
    store.save(&Turns::new(2).next(1), "step_1", None).unwrap();
    replace(&memory, "step_1", |manifest| {
        let object = manifest["objects"][0].clone();
        manifest["objects"] = vec![object; 200].into();
    });
    for error in [store.load("step_1").unwrap_err(), store.manifest("step_1").unwrap_err()] {
        assert!(error.to_string().contains("an object is listed twice"), "{error}");
        assert!(matches!(error, CheckpointError::InvalidFormat { .. }));
    }
}

/// Indexes of up to a mebibyte may come of few bytes: of many objects they are refused together.
#[test]
fn indexes_that_take_too_much_memory_together_are_refused() {
    let (store, memory) = store(CompressorConfig::default());
    // Names that compress to almost nothing, and tensors that refer to the first.
    let tensor = f32_tensor(&[1.0; 16]);
    let name = |idx: usize| format!("{}{idx}", "n".repeat(4000));
    let state = (0..250).fold(Checkpoint::new(), |state, idx| state.with_tensor(name(idx), tensor.clone()));
    store.save(&state, "step_1", None).unwrap();
    let object = store.manifest("step_1").unwrap().own()[0].object.clone();
    let bytes = memory.get(&object, 8 << 20).unwrap();
    let copy = |idx: usize| format!("data/{idx:032x}.mckp");
    (0..60).for_each(|idx| memory.put_new(&copy(idx), &bytes).unwrap());
    let with = |n: usize| {
        replace(&memory, "step_1", |manifest| {
            let first = manifest["objects"][0].clone();
            let mut objects = vec![first.clone()];
            objects.extend((0..n).map(|idx| {
                let mut object = first.clone();
                object["object"] = copy(idx).into();
                object
            }));
            manifest["objects"] = objects.into();
        });
        store.load("step_1")
    };
    assert!(with(20).unwrap().tensors == state.tensors);
    let error = with(60).unwrap_err();
    assert!(error.to_string().contains("take too much memory"), "{error}");
}

#[test]
fn a_manifest_that_says_something_else_than_the_container_is_found() {
    let changes: [(&str, serde_json::Value); 4] = [
        ("dtype", "I32".into()),
        ("shape", vec![8, 8].into()),
        ("raw_len", 128.into()),
        ("name", "other".into()),
    ];
    for (field, value) in changes {
        let (store, memory) = store(CompressorConfig::default());
        store.save(&Turns::new(2).next(1), "step_1", None).unwrap();
        replace(&memory, "step_1", |manifest| manifest["tensors"][1][field] = value.clone());
        for options in [VerifyOptions::default(), VerifyOptions::deep()] {
            let report = store.verify(Some("step_1"), &options, &|_| ()).unwrap();
            let [(key, problems)] = &report.damaged[..] else { panic!("{field}: {report:?}") };
            assert_eq!(key, "step_1");
            assert!(problems[0].to_string().contains("do not agree about tensor `expert.1`"), "{problems:?}");
        }
    }
}
