//! The objects of a store: manifests read and listed, and what is in use by this process.

use super::manifest::MAX_LEN;
use super::signature::ManifestCache;
use super::{CheckpointError, Manifest, key};
use crate::pipeline::buffers::Buffers;
use crate::pipeline::threads;
use crate::storage::{ObjectInfo, StorageBackend, StorageErrorKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Manifests that are read at the same time, and fewer than which are not worth a thread.
const READERS: u64 = 8;
const MIN_PER_READER: usize = 16;

/// Bytes of manifests that are read at the same time. In memory, compressed ones take up to twenty times as much.
const MAX_READ_LEN: u64 = 4 << 20;

/// A store's objects.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) storage: Arc<dyn StorageBackend>,
    pub(super) cache: ManifestCache,
    /// Objects that saves of this process write or are stored against, and how many do.
    in_use: Mutex<BTreeMap<String, usize>>,
    /// Set once the storage is known to refuse a second object of a key.
    is_exclusive: OnceLock<()>,
    /// Buffers of saves.
    pub(super) buffers: Arc<Buffers>,
}

/// All manifests of a store.
#[derive(Debug)]
pub(super) struct Manifests<T = Manifest> {
    /// Those that could be read, in order, or what is kept of them.
    pub(super) readable: Vec<T>,
    /// Keys of those that could not, and why.
    pub(super) unreadable: Vec<(String, CheckpointError)>,
    /// Objects beside them whose names no save can have written.
    pub(super) foreign: Vec<String>,
}

impl Store {
    pub(super) fn new(storage: Arc<dyn StorageBackend>, cache_len: usize) -> Self {
        let cache = ManifestCache::new(cache_len);
        Self {
            storage,
            cache,
            in_use: Mutex::default(),
            is_exclusive: OnceLock::new(),
            buffers: Arc::default(),
        }
    }

    /// Refuses a storage in which two writers of a key could both succeed. Asks it once.
    pub(super) fn check_exclusive(&self) -> Result<(), CheckpointError> {
        if self.is_exclusive.get().is_none() {
            self.storage.check_put_new()?;
            let _ = self.is_exclusive.set(());
        }
        Ok(())
    }

    /// The manifest of a key, as it is in the storage now.
    pub(super) fn manifest(&self, key: &str) -> Result<Manifest, CheckpointError> {
        let bytes = self.manifest_bytes(key)?;
        Manifest::parse(key, &key::manifest(key), &bytes)
    }

    /// As [`Store::manifest`]; one that is remembered, and still is what the storage has, is not parsed again.
    pub(super) fn known_manifest(&self, key: &str) -> Result<Arc<Manifest>, CheckpointError> {
        let bytes = self.manifest_bytes(key)?;
        if let Some(known) = self.cache.get(key, &bytes) {
            return Ok(known);
        }
        let manifest = Arc::new(Manifest::parse(key, &key::manifest(key), &bytes)?);
        self.cache.insert(Arc::clone(&manifest), &bytes);
        Ok(manifest)
    }

    /// The bytes of the manifest of a key.
    pub(super) fn manifest_bytes(&self, key: &str) -> Result<Vec<u8>, CheckpointError> {
        key::check(key)?;
        self.storage.get(&key::manifest(key), MAX_LEN).map_err(|error| match error.kind() {
            StorageErrorKind::NotFound => self.no_checkpoint(key),
            _ => error.into(),
        })
    }

    /// Puts other bytes in the place of those that the manifest of a key had, or nothing. A manifest is never changed by its
    /// key alone: by then it may be that of another save.
    pub(super) fn change_manifest(
        &self,
        key: &str,
        before: &[u8],
        after: Option<&[u8]>,
    ) -> Result<(), CheckpointError> {
        self.storage.exchange(&key::manifest(key), before, after).map_err(|error| match error.kind() {
            StorageErrorKind::Changed => CheckpointError::Changed { key: key.to_owned() },
            _ => error.into(),
        })
    }

    /// Says that there is no such checkpoint, or that there is no store.
    fn no_checkpoint(&self, key: &str) -> CheckpointError {
        match self.check_exists() {
            Err(error @ CheckpointError::NoStore { .. }) => error,
            // Whatever else is wrong, this key is not there. A web server may not list.
            _ => CheckpointError::no_checkpoint(key),
        }
    }

    /// What is kept of all manifests, in order.
    pub(super) fn manifests<T: Send>(
        &self,
        keep: fn(Manifest) -> T,
    ) -> Result<Manifests<T>, CheckpointError> {
        Ok(self.read_all(&self.storage.list(key::MANIFESTS)?, keep))
    }

    /// All manifests without their tensors: what deciding about data takes, in little memory.
    pub(super) fn manifests_without_tensors(&self) -> Result<Manifests, CheckpointError> {
        self.manifests(without_tensors)
    }

    /// Reads those of some objects that are manifests by their names. Each is made what is kept of it as soon as it is read:
    /// all tensors of all of them may take more memory than there is.
    pub(super) fn read_all<T: Send>(&self, listed: &[ObjectInfo], keep: fn(Manifest) -> T) -> Manifests<T> {
        let mut found = Manifests { readable: Vec::new(), unreadable: Vec::new(), foreign: Vec::new() };
        let mut objects = Vec::with_capacity(listed.len());
        for object in listed {
            match key::of_manifest(&object.key) {
                Some(key) => objects.push(key),
                None => found.foreign.push(object.key.clone()),
            }
        }
        let read = |key: &String| match self.manifest(key) {
            Ok(manifest) => {
                let (step, sequence, generation) = manifest.order();
                Some(Ok(((step, sequence, generation.to_owned()), keep(manifest))))
            }
            // Deleted since it was listed.
            Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => None,
            Err(error) => Some(Err((key.clone(), error))),
        };
        // Over a network, requests take longer to come than to serve.
        let part_len = objects.len().div_ceil(n_readers(listed)).max(MIN_PER_READER);
        let results: Vec<_> = std::thread::scope(|scope| {
            let mut parts = objects.chunks(part_len);
            let own = parts.next().unwrap_or_default();
            let read_part = |part: &[String]| part.iter().filter_map(read).collect::<Vec<_>>();
            let others: Vec<_> =
                parts.map(|part| (part, threads::start(scope, move || read_part(part)))).collect();
            let mut results = read_part(own);
            for (part, other) in others {
                results.extend(match other {
                    Ok(other) => other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    Err(_) => read_part(part),
                });
            }
            results
        });
        let mut readable = Vec::with_capacity(results.len());
        for result in results {
            match result {
                Ok(ordered) => readable.push(ordered),
                Err(unreadable) => found.unreadable.push(unreadable),
            }
        }
        readable.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.readable = readable.into_iter().map(|(_, kept)| kept).collect();
        found
    }

    /// Marks objects as in use, until the guard is dropped.
    pub(super) fn hold(&self, objects: impl IntoIterator<Item = String>) -> Held<'_> {
        let objects: Vec<String> = objects.into_iter().collect();
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        for object in &objects {
            *in_use.entry(object.clone()).or_insert(0) += 1;
        }
        Held { store: self, objects }
    }

    pub(super) fn is_in_use(&self, object: &str) -> bool {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).contains_key(object)
    }
}

/// A manifest without its tensors.
pub(super) fn without_tensors(manifest: Manifest) -> Manifest {
    Manifest { tensors: Vec::new(), ..manifest }
}

/// How many threads read these manifests: fewer where they are large, so that what they hold at the same time is bounded.
fn n_readers(listed: &[ObjectInfo]) -> usize {
    let largest = listed.iter().map(|object| object.len).max().unwrap_or(0);
    usize::try_from((MAX_READ_LEN / largest.max(1)).clamp(1, READERS)).unwrap_or(1)
}

/// Objects that are in use.
pub(super) struct Held<'a> {
    store: &'a Store,
    objects: Vec<String>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut in_use = self.store.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        for object in &self.objects {
            if let Some(n) = in_use.get_mut(object) {
                *n -= 1;
                if *n == 0 {
                    in_use.remove(object);
                }
            }
        }
    }
}
