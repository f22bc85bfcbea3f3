//! Deleting checkpoints, and the data that no checkpoint needs any more.

use super::blocking::CheckpointCompressor;
use super::save::new_generation;
use super::{CheckpointError, Manifest, Retention, key, order};
use crate::storage::{MARK_AGE, ObjectInfo, StorageBackend};
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, SystemTime};

/// Deletions of a checkpoint that another process changes at the same time.
const MAX_TRIES: usize = 8;

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
    /// `NotFound` when there is none; `Changed` when other processes change it all the time; `Storage` when the storage fails: once the manifest is gone, the checkpoint is
    /// deleted, and what is left of its data is removed by the next [`CheckpointCompressor::gc`].
    pub fn delete(&self, key: &str) -> Result<(), CheckpointError> {
        let mut n_tries = 1;
        let (step, objects) = loop {
            let bytes = self.store.manifest_bytes(key)?;
            let found = match Manifest::parse(key, &key::manifest(key), &bytes) {
                Ok(manifest) => (manifest.step, objects_of(&manifest)),
                // One that cannot be read can be deleted all the same; its data is found by `gc`.
                Err(CheckpointError::InvalidFormat { .. } | CheckpointError::ChecksumMismatch { .. }) => {
                    (u64::MAX, BTreeSet::new())
                }
                Err(error) => return Err(error),
            };
            match self.store.change_manifest(key, &bytes, None) {
                // It is rebased, or gone: a second look tells.
                Err(CheckpointError::Changed { .. }) if n_tries < MAX_TRIES => n_tries += 1,
                deleted => break deleted.map(|()| found)?,
            }
        };
        self.store.cache.remove(key);
        self.store.forget_step(step)?;
        self.collect_objects(&objects)?;
        Ok(())
    }

    /// Removes data that no checkpoint needs: of saves that were killed, and of deleted checkpoints.
    ///
    /// # Errors
    /// `NoStore` when there is none; when a manifest cannot be read, because its data cannot be told from garbage; when the
    /// storage fails.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, CheckpointError> {
        self.store.check_exists()?;
        let mut report = self.collect(None, options)?;
        if !options.dry_run {
            report.leftover_len = self.store.storage.remove_leftovers(&key::DIRECTORIES, options.min_age)?;
        }
        Ok(report)
    }

    /// Deletes the checkpoints that retention does not keep; never the newest.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::gc`].
    pub fn apply_retention(&self) -> Result<Vec<String>, CheckpointError> {
        self.store.check_exists()?;
        self.retain(None)
    }

    /// As [`CheckpointCompressor::apply_retention`], after a save, which is kept as well.
    pub(super) fn retain(&self, saved: Option<&str>) -> Result<Vec<String>, CheckpointError> {
        let found = self.store.manifests_without_tensors()?;
        let newest = self.store.newest_of(found.readable.iter())?.map(|manifest| manifest.key.as_str());
        let mut victims = victims(&found.readable, &self.config.retention);
        victims.retain(|manifest| ![saved, newest].contains(&Some(manifest.key.as_str())));
        let mut objects = BTreeSet::new();
        let mut removed = Vec::new();
        for manifest in victims {
            if !self.remove_manifest(manifest)? {
                continue;
            }
            self.store.cache.remove(&manifest.key);
            objects.extend(objects_of(manifest));
            removed.push(manifest);
        }
        if let Some(step) = removed.iter().map(|manifest| manifest.step).max() {
            self.store.forget_step(step)?;
            self.collect_objects(&objects)?;
        }
        Ok(removed.into_iter().map(|manifest| manifest.key.clone()).collect())
    }

    /// Removes a manifest, unless another process has changed it, or has saved another checkpoint of its key: that one was
    /// not judged. Returns whether it is removed.
    fn remove_manifest(&self, judged: &Manifest) -> Result<bool, CheckpointError> {
        let key = judged.key.as_str();
        let bytes = match self.store.manifest_bytes(key) {
            Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => return Ok(false),
            bytes => bytes?,
        };
        if Manifest::parse(key, &key::manifest(key), &bytes)?.generation != judged.generation {
            return Ok(false);
        }
        match self.store.change_manifest(key, &bytes, None) {
            Err(CheckpointError::Changed { .. }) => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    /// Removes those of some objects that no manifest lists. Where a list may lack a manifest that was written a moment ago,
    /// only what [`CheckpointCompressor::gc`] would remove, and then all of it: so what is too young now goes later.
    pub(super) fn collect_objects(&self, objects: &BTreeSet<String>) -> Result<GcReport, CheckpointError> {
        match self.store.storage.lists_may_lag() {
            true => self.collect(None, &GcOptions::default()),
            false => self.collect(Some(objects), &GcOptions::now()),
        }
    }

    /// Removes the objects that no manifest lists; of some, or of all that there are.
    fn collect(
        &self,
        candidates: Option<&BTreeSet<String>>,
        options: &GcOptions,
    ) -> Result<GcReport, CheckpointError> {
        let storage = &*self.store.storage;
        let mut report = GcReport::default();
        // Whatever else lies there is not ours to remove.
        let ours = |directory: &str, is_ours: fn(&str) -> bool| -> Result<Vec<ObjectInfo>, CheckpointError> {
            Ok(storage.list(directory)?.into_iter().filter(|object| is_ours(&object.key)).collect())
        };
        let data = ours(key::DATA, key::is_data)?;
        let is_old = |object: &ObjectInfo| {
            options.min_age.is_zero() || object.age().is_some_and(|age| age >= options.min_age)
        };
        if candidates.is_none() && !options.dry_run {
            for mark in ours(key::REMOVED, key::is_removal)? {
                storage.remove_dead_mark(&mark)?;
            }
        }
        let listed = self.listed_objects()?;
        let is_candidate = |object: &&ObjectInfo| {
            !listed.contains(&object.key)
                && !self.store.is_in_use(&object.key)
                && candidates.is_none_or(|candidates| candidates.contains(&object.key))
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
        if garbage.is_empty() {
            return Ok(report);
        }
        // A manifest that is gone must not come back after its data is gone.
        storage.sync(key::MANIFESTS)?;
        let mark = Mark::put(storage, &garbage)?;
        // A save that committed since sees the mark, or is seen here: see `check_still_there`.
        let listed = self.listed_objects()?;
        for object in garbage {
            let is_wanted = listed.contains(&object.key) || self.store.is_in_use(&object.key);
            if !is_wanted && mark.counts() {
                storage.delete(&object.key)?;
                report.removed_len += object.len;
                report.removed.push(object.key.clone());
            }
        }
        Ok(report)
    }

    /// All objects that manifests list.
    fn listed_objects(&self) -> Result<HashSet<String>, CheckpointError> {
        let found = self.store.manifests_without_tensors()?;
        if let Some((_, error)) = found.unreadable.into_iter().next() {
            // It is not known what it needs: nothing is removed.
            return Err(error);
        }
        let mut listed: HashSet<String> = found.readable.iter().flat_map(objects_of).collect();
        // What was saved last counts even where the list does not have it yet.
        if let Some(last) = self.store.last_saved(&found.readable)? {
            listed.extend(objects_of(&last));
        }
        Ok(listed)
    }
}

/// Says which objects are being removed, until it is dropped.
struct Mark<'a> {
    storage: &'a dyn StorageBackend,
    key: String,
    made: SystemTime,
    _life: Option<Box<dyn Send>>,
}

impl<'a> Mark<'a> {
    fn put(storage: &'a dyn StorageBackend, objects: &[&ObjectInfo]) -> Result<Self, CheckpointError> {
        let key = key::removal(&new_generation(storage.location())?);
        let names: Vec<&str> = objects.iter().map(|object| object.key.as_str()).collect();
        let made = SystemTime::now();
        // Removing must work on a full disk above all. A mark that names nothing counts for everything.
        let life = storage.put_mark(&key, names.join("\n").as_bytes()).or_else(|error| {
            let _ = storage.delete(&key);
            storage.put_mark(&key, b"").map_err(|_| error)
        })?;
        Ok(Self { storage, key, made, _life: life })
    }

    /// Whether other processes still respect it. After an hour they may delete it, so a removal that was suspended stops
    /// well before.
    fn counts(&self) -> bool {
        self.made.elapsed().is_ok_and(|age| age < MARK_AGE / 2)
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // One that stays is removed when its maker is gone.
        let _ = self.storage.delete(&self.key);
    }
}

fn objects_of(manifest: &Manifest) -> BTreeSet<String> {
    manifest.kept_objects().map(str::to_owned).collect()
}

/// The checkpoints that are not kept.
fn victims<'a>(manifests: &'a [Manifest], retention: &Retention) -> Vec<&'a Manifest> {
    let Some(keep_last) = retention.keep_last else { return Vec::new() };
    let last = order::saved_last(manifests, keep_last.max(1));
    let is_kept = |manifest: &Manifest| {
        let is_nth = |steps: u64| steps > 0 && manifest.step.is_multiple_of(steps);
        last.contains(manifest.key.as_str())
            || retention.keep.contains(&manifest.key)
            || manifest.has_step() && retention.keep_every.is_some_and(is_nth)
    };
    manifests.iter().filter(|manifest| !is_kept(manifest)).collect()
}
