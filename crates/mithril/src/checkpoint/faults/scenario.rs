//! One scenario of everything that changes a store, and what must be true whenever it stops.

use super::simulated::{Random, SimulatedDisk};
use super::state;
use crate::checkpoint::blocking::CheckpointCompressor;
use crate::checkpoint::{Checkpoint, CheckpointError, CompressorConfig, GcOptions};
use crate::storage::LocalStorage;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// What the caller of a store knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Knowledge {
    /// Checkpoints whose save returned, and that nobody has begun to delete.
    pub(super) acknowledged: BTreeMap<String, Checkpoint>,
    /// Checkpoints that may be there or not: their save or deletion did not return.
    pub(super) in_doubt: BTreeMap<String, Checkpoint>,
}

pub(super) fn open(disk: &SimulatedDisk) -> CheckpointCompressor {
    let storage = LocalStorage::on(Arc::new(disk.for_process()), PathBuf::from("/store"));
    CheckpointCompressor::new(CompressorConfig::default().with_threads(1), Arc::new(storage))
}

impl Knowledge {
    pub(super) fn save(
        &mut self,
        store: &CheckpointCompressor,
        key: &str,
        checkpoint: Checkpoint,
        previous: Option<&str>,
    ) -> Result<(), CheckpointError> {
        self.in_doubt.insert(key.to_owned(), checkpoint.clone());
        store.save(&checkpoint, key, previous)?;
        self.in_doubt.remove(key);
        self.acknowledged.insert(key.to_owned(), checkpoint);
        Ok(())
    }

    pub(super) fn delete(&mut self, store: &CheckpointCompressor, key: &str) -> Result<(), CheckpointError> {
        if let Some(checkpoint) = self.acknowledged.remove(key) {
            self.in_doubt.insert(key.to_owned(), checkpoint);
        }
        store.delete(key)?;
        self.in_doubt.remove(key);
        Ok(())
    }

    /// What must be true on a disk that somebody finds later. Returns what is wrong.
    pub(super) fn check(&self, disk: &SimulatedDisk) -> Result<(), String> {
        let store = open(disk);
        for (key, checkpoint) in &self.acknowledged {
            match store.load(key) {
                Ok(loaded) if loaded.tensors == checkpoint.tensors => {}
                Ok(_) => return Err(format!("`{key}` was acknowledged and is another one")),
                Err(error) => return Err(format!("`{key}` was acknowledged and is lost: {error}")),
            }
        }
        for (key, checkpoint) in &self.in_doubt {
            match store.load(key) {
                Ok(loaded) if loaded.tensors == checkpoint.tensors => {}
                Ok(_) => return Err(format!("`{key}` is torn")),
                Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => {}
                Err(error) => return Err(format!("`{key}` is there in part: {error}")),
            }
        }
        let latest = store.latest().map_err(|error| error.to_string())?;
        if latest.is_none() && !self.acknowledged.is_empty() {
            return Err("there is no newest checkpoint".to_owned());
        }
        // Life goes on: what was left is cleaned up, and the next save works.
        match store.gc(&GcOptions::now()) {
            // Nothing was ever saved here.
            Err(CheckpointError::NoStore { .. }) if self.acknowledged.is_empty() => {}
            cleaned => drop(cleaned.map_err(|error| format!("gc: {error}"))?),
        }
        let previous = latest.map(|meta| meta.key);
        let next = state(999);
        store.save(&next, "next_999", previous.as_deref()).map_err(|error| format!("next save: {error}"))?;
        let loaded = store.load("next_999").map_err(|error| error.to_string())?;
        if loaded.tensors != next.tensors {
            return Err("the next save is another one".to_owned());
        }
        for key in self.acknowledged.keys() {
            store.load(key).map_err(|error| format!("`{key}` is lost after gc: {error}"))?;
        }
        store.delete("next_999").map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// A full save, deltas, a rebase, deletions with their garbage: until it is done, or a step fails.
pub(super) fn run(disk: &SimulatedDisk) -> (Knowledge, Result<(), CheckpointError>) {
    let store = open(disk);
    let mut known = Knowledge::default();
    let result = (|| {
        known.save(&store, "step_1", state(1), None)?;
        known.save(&store, "step_2", state(2), Some("step_1"))?;
        known.save(&store, "step_3", state(3), Some("step_2"))?;
        known.delete(&store, "step_1")?;
        store.rebase("step_3")?;
        known.delete(&store, "step_2")?;
        store.gc(&GcOptions::now())?;
        known.save(&store, "step_4", state(4), Some("step_3"))
    })();
    (known, result)
}

#[test]
fn the_scenario_succeeds_without_faults() {
    let disk = SimulatedDisk::new();
    let (known, result) = run(&disk);
    result.unwrap();
    assert_eq!(known.acknowledged.len(), 2);
    known.check(&disk).unwrap();
    assert!(disk.n_steps() > 50, "{} steps", disk.n_steps());
    known.check(&disk.after_power_cut(&mut Random(5))).unwrap();
}

/// Bytes of temporary files.
pub(super) fn temporary_len(disk: &SimulatedDisk) -> u64 {
    LocalStorage::on(Arc::new(disk.clone()), PathBuf::from("/store")).temporary_len()
}
