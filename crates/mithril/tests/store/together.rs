//! Several at once: writers of one key, readers beside writers, saves in the background, async callers.

use super::{Run, store};
use crate::folder::Folder;
use mithril::ReadAt;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{
    self, CheckpointError, CompressorConfig, GcOptions, Retention, SaveStatus, VerifyOptions,
};
use mithril::storage::{LocalStorage, MemoryStorage, ObjectInfo, ObjectWriter, StorageBackend, StorageError};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

#[test]
fn of_eight_writers_of_a_key_one_wins_and_the_others_are_told() {
    let folder = Folder::new("writers");
    let open = || {
        CheckpointCompressor::new(CompressorConfig::default(), Arc::new(LocalStorage::new(folder.join("s"))))
    };
    let states: Vec<_> = (0..8).map(|writer| Run::new(writer, 2, 0, 3_000).step()).collect();
    for round in 0..10 {
        let key = format!("step_{round}");
        let winners: Vec<usize> = std::thread::scope(|scope| {
            let writers: Vec<_> = (states.iter().enumerate())
                .map(|(writer, state)| {
                    let (store, key) = (open(), &key);
                    scope.spawn(move || match store.save(state, key, None) {
                        Ok(_) => Some(writer),
                        Err(CheckpointError::Conflict { .. }) => None,
                        Err(error) => panic!("{error}"),
                    })
                })
                .collect();
            writers.into_iter().filter_map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(winners.len(), 1, "{key}");
        assert_eq!(open().load(&key).unwrap().tensors, states[winners[0]].tensors);
    }
    // The losers took their data with them.
    assert_eq!(std::fs::read_dir(folder.join("s/data")).unwrap().count(), 10);
}

#[test]
fn readers_see_whole_checkpoints_while_others_are_saved_and_removed() {
    let folder = Folder::new("readers");
    let config = CompressorConfig::default().with_retention(Retention::last(2)).with_threads(1);
    let storage = Arc::new(LocalStorage::new(folder.join("s")));
    let store = CheckpointCompressor::new(config, storage.clone());
    let reader = CheckpointCompressor::new(CompressorConfig::default(), storage);
    let mut run = Run::new(9, 2, 1, 500);
    store.save(&run.step(), "step_0", None).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1..60 {
                store
                    .save(&run.step(), &format!("step_{step}"), Some(&format!("step_{}", step - 1)))
                    .unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let mut n_read = 0;
        while !done.load(Ordering::Acquire) || n_read == 0 {
            let latest = reader.latest().unwrap().expect("there is always one");
            match reader.load(&latest.key) {
                Ok(loaded) => {
                    assert_eq!(loaded.tensors.len(), 2);
                    n_read += 1;
                }
                // Removed between the two calls.
                Err(CheckpointError::NotFound { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert_eq!(reader.list().unwrap().checkpoints.len(), 2);
}

#[test]
fn saves_in_the_background_follow_each_other_and_tell_the_truth() {
    let (store, _) = store(CompressorConfig::default());
    let mut run = Run::new(10, 2, 0, 50_000);
    let states: Vec<_> = (0..4).map(|_| run.step()).collect();
    let mut handles = Vec::new();
    for (step, state) in states.iter().enumerate() {
        let previous = step.checked_sub(1).map(|before| format!("step_{before}"));
        handles.push(store.save_async(state.clone(), &format!("step_{step}"), previous.as_deref()));
    }
    handles.push(store.save_async(states[0].clone(), "step_0", None));
    let flushed = store.flush(Duration::from_secs(60));
    assert!(flushed.len() <= 5);
    for (step, handle) in handles[..4].iter().enumerate() {
        assert!(matches!(handle.status(), SaveStatus::Committed(_)), "{:?}", handle.status());
        assert_eq!(store.load(handle.key()).unwrap().tensors, states[step].tensors);
    }
    let SaveStatus::Failed(error) = handles[4].status() else { panic!("a key that exists") };
    assert!(matches!(*error, CheckpointError::Conflict { .. }));
}

#[test]
fn a_deadline_gives_up_what_is_not_committed_and_says_so() {
    for wait_ms in [0, 1, 3, 10, 30] {
        let (store, _) = store(CompressorConfig::default());
        let mut run = Run::new(11, 4, 0, 200_000);
        let handles: Vec<_> =
            (0..3).map(|step| store.save_async(run.step(), &format!("step_{step}"), None)).collect();
        let before = std::time::Instant::now();
        store.flush(Duration::from_millis(wait_ms));
        assert!(before.elapsed() < Duration::from_millis(wait_ms + 1500));
        // What the handles said then is what the store holds in the end.
        let told: Vec<_> =
            handles.iter().map(|handle| matches!(handle.status(), SaveStatus::Committed(_))).collect();
        std::thread::sleep(Duration::from_millis(200));
        for (handle, told) in handles.iter().zip(told) {
            let there = store.load(handle.key()).is_ok();
            assert!(there == told || handle.wait_for(Duration::from_secs(5)), "{}", handle.key());
            assert_eq!(there, matches!(handle.status(), SaveStatus::Committed(_)), "{}", handle.key());
        }
    }
}

/// A storage in which another process does something before the n-th call.
#[derive(Debug)]
struct Meddled {
    memory: MemoryStorage,
    calls_left: AtomicI64,
}

impl Meddled {
    fn call(&self) -> &MemoryStorage {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            let other = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(self.memory.clone()));
            other.gc(&GcOptions::now()).unwrap();
        }
        &self.memory
    }
}

impl StorageBackend for Meddled {
    fn location(&self) -> &str {
        self.memory.location()
    }
    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError> {
        self.call().create(key)
    }
    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.call().put_new(key, bytes)
    }
    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.call().replace(key, bytes)
    }
    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        self.call().get(key, max_len)
    }
    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        self.call().open(key)
    }
    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        self.call().list(directory)
    }
    fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.call().delete(key)
    }
    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError> {
        self.call().remove_leftovers(directories, min_age)
    }
}

/// The garbage collection of another process, which spares nothing young, between any two calls of a save or a rebase:
/// what is acknowledged is there, and what was there stays.
#[test]
fn gc_between_any_two_calls_of_a_save_or_rebase_loses_nothing() {
    let mut run = Run::new(20, 2, 1, 300);
    let states: Vec<_> = (0..3).map(|_| run.step()).collect();
    let mut n_refused = 0;
    for n_calls in 0..40 {
        let memory = MemoryStorage::new();
        let plain = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(memory.clone()));
        plain.save(&states[0], "step_0", None).unwrap();
        plain.save(&states[1], "step_1", Some("step_0")).unwrap();
        // Its data is there only because the others need it.
        plain.delete("step_0").unwrap();
        for rebase in [false, true] {
            let meddled = Meddled { memory: memory.clone(), calls_left: AtomicI64::new(n_calls) };
            let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(meddled));
            let done = match rebase {
                false => store.save(&states[2], "step_2", Some("step_1")),
                true => store.rebase("step_1"),
            };
            match done {
                Ok(meta) => assert!(
                    meta.key == "step_1" || plain.load("step_2").unwrap().tensors == states[2].tensors
                ),
                Err(CheckpointError::Collected { .. }) => n_refused += 1,
                // Collected before the manifest was written: what was read back is not there.
                Err(CheckpointError::Storage(_)) => n_refused += 1,
                Err(error) => panic!("{n_calls} calls: {error}"),
            }
            assert_eq!(plain.load("step_1").unwrap().tensors, states[1].tensors, "{n_calls} calls");
            assert!(
                plain.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap().is_intact(),
                "{n_calls} calls"
            );
        }
    }
    assert!(n_refused > 0, "some are hit");
}

/// A storage whose lists of manifests lack what was written a moment ago, and whose data looks as old as the test says.
#[derive(Debug)]
struct Lagging {
    memory: MemoryStorage,
    data_age: Duration,
}

impl StorageBackend for Lagging {
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
        self.memory.open(key)
    }
    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        let mut listed = self.memory.list(directory)?;
        listed.retain(|object| !object.key.starts_with("manifests/"));
        for object in &mut listed {
            object.modified = object.modified.and_then(|modified| modified.checked_sub(self.data_age));
        }
        Ok(listed)
    }
    fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.memory.delete(key)
    }
    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError> {
        self.memory.remove_leftovers(directories, min_age)
    }
    fn lists_may_lag(&self) -> bool {
        true
    }
}

#[test]
fn a_list_that_lags_loses_no_checkpoint() {
    for (data_age, has_pointer) in [(0, true), (0, false), (7200, true)] {
        let memory = MemoryStorage::new();
        let lagging = Lagging { memory: memory.clone(), data_age: Duration::from_secs(data_age) };
        let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(lagging));
        let mut run = Run::new(30, 2, 1, 300);
        let states = [run.step(), run.step()];
        store.save(&states[0], "step_1", None).unwrap();
        store.save(&states[1], "step_2", Some("step_1")).unwrap();
        if !has_pointer {
            memory.delete("latest.json").unwrap();
        }
        store.delete("step_1").unwrap();
        assert_eq!(store.load("step_2").unwrap().tensors, states[1].tensors, "{data_age} {has_pointer}");
        assert!(memory.list("removed").unwrap().is_empty());
    }
    // What is old and not needed goes, whichever deletion finds it.
    let memory = MemoryStorage::new();
    let lagging = Lagging { memory: memory.clone(), data_age: Duration::from_secs(7200) };
    let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(lagging));
    let mut run = Run::new(31, 2, 0, 300);
    store.save(&run.step(), "step_1", None).unwrap();
    memory.put_new("data/0123456789abcdef0123456789abcdef.mckp", b"too young when it was deleted").unwrap();
    store.delete("step_1").unwrap();
    assert!(memory.list("data").unwrap().is_empty());
}

/// Waits for a future without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn async_callers_need_no_particular_runtime() {
    let (blocking, memory) = store(CompressorConfig::default());
    let store = checkpoint::CheckpointCompressor::new(CompressorConfig::default(), Arc::new(memory));
    let mut run = Run::new(12, 2, 1, 2_000);
    let (first, second) = (run.step(), run.step());
    block_on(async {
        store.save(&first, "step_1", None).await.unwrap();
        let meta = store.save(&second, "step_2", Some("step_1")).await.unwrap();
        assert_eq!(meta.base.as_deref(), Some("step_1"));
        assert_eq!(store.load("step_2").await.unwrap().tensors, second.tensors);
        assert_eq!(
            store.load_tensor("step_1", "layer.0.weight").await.unwrap(),
            first.tensors["layer.0.weight"]
        );
        let len = second.tensors["layer.1.weight"].data.len();
        let buffers =
            store.load_into("step_2", vec![("layer.1.weight".to_owned(), vec![0; len])]).await.unwrap();
        assert_eq!(buffers[0].1, second.tensors["layer.1.weight"].data);
        assert_eq!(store.list().await.unwrap().checkpoints.len(), 2);
        let compressed = store.compress(&second, Some("step_1")).await.unwrap();
        assert_eq!(store.decompress(&compressed).await.unwrap().tensors, second.tensors);
        assert!(store.verify(None, &checkpoint::VerifyOptions::deep()).await.unwrap().is_intact());
        store.rebase("step_2").await.unwrap();
        store.delete("step_1").await.unwrap();
        store.gc(&checkpoint::GcOptions::now()).await.unwrap();
        assert!(store.flush(Duration::ZERO).await.unwrap().is_empty());
        let error = store.save(&second, "step_2", None).await.unwrap_err();
        assert!(matches!(error, CheckpointError::Conflict { .. }));
    });
    assert_eq!(blocking.load("step_2").unwrap().tensors, second.tensors);
}
