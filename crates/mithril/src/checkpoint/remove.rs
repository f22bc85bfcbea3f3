//! Deleting checkpoints, and the data that no checkpoint needs any more.

use super::blocking::CheckpointCompressor;
use super::{CheckpointError, Manifest, Retention, key};
use crate::storage::ObjectInfo;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

/// What `gc` looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcOptions {
    /// Whether it only says what it would remove.
    pub dry_run: bool,
    /// Data without a manifest that is younger than this may belong to a save that is at work, and stays.
    pub min_age: Duration,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self { dry_run: false, min_age: Duration::from_secs(3600) }
    }
}

impl GcOptions {
    /// Removes all that no checkpoint needs, however young. A save that is at work in another process may then fail; it
    /// does not lose anything that it acknowledged.
    #[must_use]
    pub fn now() -> Self {
        Self { min_age: Duration::ZERO, ..Self::default() }
    }

    /// Sets whether it only says what it would remove.
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets from which age on data without a manifest is garbage.
    #[must_use]
    pub fn with_min_age(mut self, age: Duration) -> Self {
        self.min_age = age;
        self
    }
}

/// What `gc` removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GcReport {
    /// Objects that no checkpoint needs.
    pub removed: Vec<String>,
    /// Their bytes.
    pub removed_len: u64,
    /// Objects without a manifest that are too young to be removed.
    pub too_young: Vec<String>,
    /// Bytes of what killed writers left in temporary files.
    pub leftover_len: u64,
}

impl CheckpointCompressor {
    /// Deletes a checkpoint, and the data that no other one needs.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Storage` when the storage fails: once the manifest is gone, the checkpoint is
    /// deleted, and what is left of its data is removed by the next [`CheckpointCompressor::gc`].
    pub fn delete(&self, key: &str) -> Result<(), CheckpointError> {
        let objects = match self.store.manifest(key) {
            Ok(manifest) => objects_of(&manifest),
            // One that cannot be read can be deleted all the same; its data is found by `gc`.
            Err(CheckpointError::InvalidFormat { .. } | CheckpointError::ChecksumMismatch { .. }) => {
                BTreeSet::new()
            }
            Err(error) => return Err(error),
        };
        self.store.storage.delete(&key::manifest(key))?;
        self.store.cache.remove(key);
        self.collect_objects(&objects)?;
        Ok(())
    }

    /// Removes data that no checkpoint needs: of saves that were killed, and of deleted checkpoints.
    ///
    /// # Errors
    /// When a manifest cannot be read, because nobody knows what it needs; when the storage fails.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, CheckpointError> {
        let mut report = self.collect(None, options)?;
        if !options.dry_run {
            report.leftover_len = self.store.storage.remove_leftovers(options.min_age)?;
        }
        Ok(report)
    }

    /// Deletes the checkpoints that retention does not keep.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::gc`].
    pub fn apply_retention(&self) -> Result<Vec<String>, CheckpointError> {
        let found = self.store.manifests_without_tensors()?;
        let victims = victims(&found.readable, &self.config.retention);
        let mut objects = BTreeSet::new();
        for manifest in &victims {
            self.store.storage.delete(&key::manifest(&manifest.key))?;
            self.store.cache.remove(&manifest.key);
            objects.extend(objects_of(manifest));
        }
        if !victims.is_empty() {
            self.collect_objects(&objects)?;
        }
        Ok(victims.into_iter().map(|manifest| manifest.key.clone()).collect())
    }

    /// Removes those of some objects that no manifest lists.
    pub(super) fn collect_objects(&self, objects: &BTreeSet<String>) -> Result<GcReport, CheckpointError> {
        self.collect(Some(objects), &GcOptions::now())
    }

    /// Removes the objects that no manifest lists; of some, or of all that there are.
    fn collect(
        &self,
        candidates: Option<&BTreeSet<String>>,
        options: &GcOptions,
    ) -> Result<GcReport, CheckpointError> {
        let storage = &*self.store.storage;
        let mut report = GcReport::default();
        let data = storage.list(key::DATA)?;
        // Marks of a removal that was interrupted: it is done again, or taken back.
        let marks: Vec<String> = match candidates {
            None => storage.list(key::REMOVED)?.into_iter().map(|mark| mark.key).collect(),
            Some(_) => Vec::new(),
        };
        let listed = self.listed_objects()?;
        let is_candidate = |object: &&ObjectInfo| {
            !listed.contains(&object.key)
                && !self.store.is_in_use(&object.key)
                && candidates.is_none_or(|candidates| candidates.contains(&object.key))
        };
        let is_old = |object: &ObjectInfo| {
            options.min_age.is_zero() || object.age().is_some_and(|age| age >= options.min_age)
        };
        let (garbage, young): (Vec<_>, Vec<_>) =
            data.iter().filter(is_candidate).partition(|object| is_old(object));
        report.too_young = young.iter().map(|object| object.key.clone()).collect();
        if options.dry_run {
            for object in garbage {
                report.removed_len += object.len;
                report.removed.push(object.key.clone());
            }
            return Ok(report);
        }
        for object in &garbage {
            storage.replace(&key::removal_of(&object.key), b"")?;
        }
        // A save that committed since sees the mark, or is seen here: see `check_still_there`.
        let listed = if garbage.is_empty() { listed } else { self.listed_objects()? };
        for object in garbage {
            if !listed.contains(&object.key) && !self.store.is_in_use(&object.key) {
                storage.delete(&object.key)?;
                report.removed_len += object.len;
                report.removed.push(object.key.clone());
            }
            storage.delete(&key::removal_of(&object.key))?;
        }
        for mark in marks {
            storage.delete(&mark)?;
        }
        Ok(report)
    }

    /// All objects that manifests list.
    fn listed_objects(&self) -> Result<HashSet<String>, CheckpointError> {
        let found = self.store.manifests_without_tensors()?;
        if let Some((_, error)) = found.unreadable.into_iter().next() {
            // Nobody knows what it needs: nothing is removed.
            return Err(error);
        }
        Ok(found.readable.iter().flat_map(objects_of).collect())
    }
}

fn objects_of(manifest: &Manifest) -> BTreeSet<String> {
    manifest.kept_objects().map(str::to_owned).collect()
}

/// The checkpoints that are not kept; `manifests` are in order.
fn victims<'a>(manifests: &'a [Manifest], retention: &Retention) -> Vec<&'a Manifest> {
    let Some(keep_last) = retention.keep_last else { return Vec::new() };
    let n_old = manifests.len().saturating_sub(keep_last.max(1));
    let is_kept = |manifest: &Manifest| {
        retention.keep.contains(&manifest.key)
            || retention.keep_every.is_some_and(|steps| steps > 0 && manifest.step.is_multiple_of(steps))
    };
    manifests[..n_old].iter().filter(|manifest| !is_kept(manifest)).collect()
}
