//! What is remembered of checkpoints, so that the next save need not parse them.

use super::Manifest;
use mithril_format::{Digest, Digester};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names the content of a checkpoint: equal signatures mean equal tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointSignature {
    /// Digest over names, types, shapes and bytes of all tensors.
    pub hash: [u8; 32],
    /// Bytes of all tensors.
    pub size: u64,
    /// Training step.
    pub step: u64,
}

impl CheckpointSignature {
    /// The signature of a checkpoint, from its manifest alone.
    pub fn of(manifest: &Manifest) -> Self {
        let mut digester = Digester::default();
        let mut tensors: Vec<_> = manifest.tensors.iter().collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        for tensor in &tensors {
            for text in [tensor.name.as_str(), tensor.dtype.as_str()] {
                digester.update(&(text.len() as u64).to_le_bytes());
                digester.update(text.as_bytes());
            }
            digester.update(&(tensor.shape.len() as u64).to_le_bytes());
            tensor.shape.iter().for_each(|dimension| digester.update(&dimension.to_le_bytes()));
            digester.update(&tensor.digest.0);
        }
        let Digest(hash) = digester.finish();
        Self { hash, size: tensors.iter().map(|tensor| tensor.raw_len).sum(), step: manifest.step }
    }
}

/// The manifests that were used last, newest first.
#[derive(Debug)]
pub(super) struct ManifestCache {
    max_len: usize,
    manifests: Mutex<VecDeque<(Digest, Arc<Manifest>)>>,
}

impl ManifestCache {
    pub(super) fn new(max_len: usize) -> Self {
        Self { max_len, manifests: Mutex::default() }
    }

    /// The manifest of a key, if it still has these bytes.
    pub(super) fn get(&self, key: &str, bytes: &[u8]) -> Option<Arc<Manifest>> {
        let digest = Digest::of(bytes);
        let mut manifests = self.lock();
        let at = manifests.iter().position(|(known, manifest)| manifest.key == key && *known == digest)?;
        let found = manifests.remove(at)?;
        manifests.push_front(found.clone());
        Some(found.1)
    }

    /// Remembers a manifest that has these bytes.
    pub(super) fn insert(&self, manifest: Arc<Manifest>, bytes: &[u8]) {
        let mut manifests = self.lock();
        manifests.retain(|(_, known)| known.key != manifest.key);
        manifests.push_front((Digest::of(bytes), manifest));
        manifests.truncate(self.max_len);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Digest, Arc<Manifest>)>> {
        self.manifests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remove(&self, key: &str) {
        self.lock().retain(|(_, known)| known.key != key);
    }
}
