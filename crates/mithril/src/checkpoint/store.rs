//! The objects of a store: manifests read and listed, and what is in use by this process.

use super::manifest::MAX_LEN;
use super::signature::ManifestCache;
use super::{CheckpointError, Manifest, key};
use crate::pipeline::buffers::Buffers;
use crate::storage::{ObjectInfo, StorageBackend, StorageErrorKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Manifests that are read at the same time, and fewer than which are not worth a thread.
const READERS: usize = 8;
const MIN_PER_READER: usize = 16;

/// A store's objects.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) storage: Arc<dyn StorageBackend>,
    pub(super) cache: ManifestCache,
    /// Objects that saves of this process write or are stored against, and how many do.
    in_use: Mutex<BTreeMap<String, usize>>,
    /// Buffers of saves.
    pub(super) buffers: Arc<Buffers>,
}

/// All manifests of a store.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    /// Those that could be read, in order.
    pub(super) readable: Vec<Manifest>,
    /// Keys of those that could not, and why.
    pub(super) unreadable: Vec<(String, CheckpointError)>,
}

impl Store {
    pub(super) fn new(storage: Arc<dyn StorageBackend>, cache_len: usize) -> Self {
        let cache = ManifestCache::new(cache_len);
        Self { storage, cache, in_use: Mutex::default(), buffers: Arc::default() }
    }

    /// The manifest of a key, as it is in the storage now.
    pub(super) fn manifest(&self, key: &str) -> Result<Manifest, CheckpointError> {
        key::check(key)?;
        let object = key::manifest(key);
        let bytes = self.storage.get(&object, MAX_LEN).map_err(|error| match error.kind() {
            StorageErrorKind::NotFound => CheckpointError::no_checkpoint(key),
            _ => error.into(),
        })?;
        Manifest::parse(key, &object, &bytes)
    }

    /// All manifests, by step and generation.
    pub(super) fn manifests(&self) -> Result<Manifests, CheckpointError> {
        self.read_all(|manifest| manifest)
    }

    /// All manifests without their tensors: what deciding about data takes, in little memory.
    pub(super) fn manifests_without_tensors(&self) -> Result<Manifests, CheckpointError> {
        self.read_all(|manifest| Manifest { tensors: Vec::new(), ..manifest })
    }

    fn read_all(&self, keep: fn(Manifest) -> Manifest) -> Result<Manifests, CheckpointError> {
        let objects = self.storage.list(key::MANIFESTS)?;
        let read = |object: &ObjectInfo| match key::of_manifest(&object.key) {
            Some(key) => match self.manifest(&key) {
                Ok(manifest) => Some(Ok(keep(manifest))),
                // Deleted since it was listed.
                Err(CheckpointError::NotFound { .. }) => None,
                Err(error) => Some(Err((key, error))),
            },
            None => {
                let what = format!("`{}` is the manifest of no key", object.key);
                Some(Err((object.key.clone(), CheckpointError::InvalidFormat { what })))
            }
        };
        // Behind a network, requests take longer to come than to serve.
        let part_len = objects.len().div_ceil(READERS).max(MIN_PER_READER);
        let results: Vec<_> = std::thread::scope(|scope| {
            let mut parts = objects.chunks(part_len);
            let own = parts.next().unwrap_or_default();
            let others: Vec<_> =
                parts.map(|part| scope.spawn(|| part.iter().filter_map(read).collect::<Vec<_>>())).collect();
            let mut results: Vec<_> = own.iter().filter_map(read).collect();
            for other in others {
                results.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            results
        });
        let mut found = Manifests::default();
        for result in results {
            match result {
                Ok(manifest) => found.readable.push(manifest),
                Err(unreadable) => found.unreadable.push(unreadable),
            }
        }
        found.readable.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(found)
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
