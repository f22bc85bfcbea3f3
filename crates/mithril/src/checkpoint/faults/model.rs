//! What a store must hold: a dictionary, and what everything that is done to a store does to it.

use super::training::Tensors;
use crate::checkpoint::blocking::CheckpointCompressor;
use crate::checkpoint::tensors::{CheckpointFile, Metadata};
use crate::checkpoint::{Checkpoint, CheckpointError, Manifest, Retention};
use mithril_format::ReadAt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What was saved under a key.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) checkpoint: Checkpoint,
    /// The bytes that each of its files is restored to.
    pub(super) files: Vec<Vec<u8>>,
}

impl Saved {
    /// Tensors that are saved from memory, or as this many files.
    pub(super) fn new(tensors: Tensors, metadata: Metadata, step: Option<u64>, n_files: usize) -> Self {
        let mut parts = vec![Checkpoint::new(); n_files];
        for (idx, (name, tensor)) in tensors.iter().enumerate() {
            parts[idx % n_files].tensors.insert(name.clone(), tensor.clone());
        }
        let files = parts.iter().map(|part| {
            let view = part.view();
            let file = CheckpointFile::new(&view, false).unwrap();
            file.read_range(0..file.size().unwrap()).unwrap()
        });
        Self { files: files.collect(), checkpoint: Checkpoint { tensors, metadata, step } }
    }
}

/// Where a save is in the order of its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sequence: u64,
    pub(super) step: u64,
    pub(super) has_step: bool,
    generation: String,
}

impl Place {
    pub(super) fn of(manifest: &Manifest) -> Self {
        Self {
            sequence: manifest.sequence,
            step: manifest.step,
            has_step: manifest.has_step(),
            generation: manifest.generation.clone(),
        }
    }
}

/// A checkpoint that is there.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) saved: Arc<Saved>,
    pub(super) place: Place,
    /// Whether its save returned. One that is there although its save failed may be gone after a power cut.
    pub(super) is_acknowledged: bool,
}

impl Entry {
    /// A checkpoint whose place is not known yet.
    pub(super) fn new(saved: Arc<Saved>) -> Self {
        let place = Place { sequence: 0, step: 0, has_step: false, generation: String::new() };
        Self { saved, place, is_acknowledged: false }
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.saved, &other.saved)
    }
}

/// What is done to a store, in parts: each happens at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Effect(pub(super) Vec<Part>);

#[derive(Debug, Clone)]
pub(super) enum Part {
    Save(String, Entry),
    Delete(String),
    /// The checkpoint is there, before and after.
    Keep(String),
    /// What a retention does not keep goes; what was just saved stays.
    Retain(Retention, Option<String>),
}

impl Effect {
    pub(super) fn retains(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Retain(..)))
    }
}

/// The checkpoints that a store must hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) entries: BTreeMap<String, Entry>,
}

impl Model {
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn keys(&self) -> BTreeSet<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.keys() == other.keys() && self.entries.iter().all(|(key, entry)| entry.is(&other.entries[key]))
    }

    /// The models that a store goes through, from this one on; none where a part cannot be done.
    pub(super) fn through<'a>(&self, parts: impl IntoIterator<Item = &'a Part>) -> Option<Vec<Self>> {
        let mut states = vec![self.clone()];
        for part in parts {
            let mut next = states[states.len() - 1].clone();
            match part {
                Part::Save(key, entry) => {
                    if next.entries.insert(key.clone(), entry.clone()).is_some() {
                        return None;
                    }
                }
                Part::Delete(key) => drop(next.entries.remove(key)?),
                Part::Keep(key) => drop(next.get(key)?),
                Part::Retain(retention, saved) => {
                    for victim in next.victims(retention, saved.as_deref()) {
                        next.entries.remove(&victim);
                    }
                }
            }
            states.push(next);
        }
        Some(states)
    }

    /// What a retention removes: all but those that were saved last, the newest, and those that it names.
    pub(super) fn victims(&self, retention: &Retention, saved: Option<&str>) -> BTreeSet<String> {
        let Some(keep_last) = retention.keep_last else { return BTreeSet::new() };
        let mut by_save: Vec<(&String, &Place)> =
            self.entries.iter().map(|(key, entry)| (key, &entry.place)).collect();
        by_save.sort_by_key(|(_, place)| (place.sequence, place.step, &place.generation));
        let newest = self.newest();
        let old = by_save.iter().rev().skip(keep_last.max(1));
        let victims = old.filter(|(key, place)| {
            let is_nth = retention.keep_every.is_some_and(|n| place.has_step && place.step.is_multiple_of(n));
            let is_kept = retention.keep.contains(*key) || is_nth;
            !is_kept && saved != Some(key) && newest != Some(key)
        });
        victims.map(|(key, _)| key.to_string()).collect()
    }

    /// The one with the highest step, and of those the one that was saved last.
    pub(super) fn newest(&self) -> Option<&str> {
        let order = |place: &Place| (place.step, place.sequence, place.generation.clone());
        self.entries.iter().max_by_key(|(_, entry)| order(&entry.place)).map(|(key, _)| key.as_str())
    }

    /// What a store holds of all that these models say: each checkpoint must be one of theirs, whole.
    pub(super) fn found(store: &CheckpointCompressor, states: &[Self]) -> Result<Self, String> {
        let mut found = Self::default();
        let names: BTreeSet<&str> = states.iter().flat_map(Self::keys).collect();
        let listed = store.keys().map_err(|error| error.to_string())?;
        if let Some(stranger) = listed.iter().find(|key| !names.contains(key.as_str())) {
            return Err(format!("`{stranger}` is listed and was not saved"));
        }
        for key in names {
            let loaded = match store.load(key) {
                Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => continue,
                Err(error) => return Err(format!("`{key}` is there and cannot be loaded: {error}")),
                Ok(loaded) => loaded,
            };
            let mut known = states.iter().filter_map(|state| state.get(key));
            let entry = known.find(|entry| entry.saved.checkpoint.tensors == loaded.tensors);
            let Some(entry) = entry else { return Err(format!("`{key}` is torn")) };
            let manifest = store.manifest(key).map_err(|error| error.to_string())?;
            let entry = Entry { place: Place::of(&manifest), ..entry.clone() };
            found.entries.insert(key.to_owned(), entry);
        }
        Ok(found)
    }

    /// Leaves out what a power cut may have taken: what is not among those found, and was not acknowledged. And takes in what
    /// it may have brought back: what is among those found, and whose deletion was not acknowledged.
    pub(super) fn after_power_cut(mut self, found: &Self, ghosts: &Self) -> Self {
        self.entries.retain(|key, entry| entry.is_acknowledged || found.get(key).is_some());
        for (key, ghost) in &ghosts.entries {
            if found.get(key).is_some_and(|entry| entry.is(ghost)) {
                self.entries.entry(key.clone()).or_insert_with(|| ghost.clone());
            }
        }
        self
    }

    /// Whether every checkpoint here is one of `before` or of `after`, and each of both is here.
    pub(super) fn is_between(&self, before: &Self, after: &Self) -> bool {
        let is_one = |(key, entry): (&String, &Entry)| {
            [before, after].iter().any(|state| state.get(key).is_some_and(|known| known.is(entry)))
        };
        let in_both = |(key, _): &(&String, &Entry)| after.get(key).is_some();
        self.entries.iter().all(is_one)
            && before.entries.iter().filter(in_both).all(|(key, _)| self.get(key).is_some())
    }
}
