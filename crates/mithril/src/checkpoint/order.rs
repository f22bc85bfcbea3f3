//! The order of checkpoints: which step a key names, which number a save has in its store, and which checkpoint is the
//! newest. Never by time.

use super::manifest::MAX_TOTAL;
use super::store::{Store, without_tensors};
use super::{CheckpointError, CheckpointMeta, Manifest, key};
use crate::storage::{ObjectInfo, StorageError, StorageErrorKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Words that a step may follow at the end of a key.
const STEP_WORDS: [&str; 6] = ["step", "iter", "iteration", "checkpoint", "ckpt", "epoch"];

/// Bytes of `latest.json` that a reader accepts.
const MAX_POINTER_LEN: u64 = 1 << 16;

/// The step that a key names: the number at its end, if all of the key is that number, or a word for a step comes before
/// it, with `-`, `_`, `=` or nothing between them. Anything else, such as the digits of a metric, is no step; nor is a
/// number that does not fit.
pub(super) fn step_of(key: &str) -> Option<u64> {
    let front = key.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &key[front.len()..];
    let word = front.strip_suffix(['-', '_', '=']).unwrap_or(front);
    let ends_with = |name: &str| {
        let start = word.len().checked_sub(name.len());
        let parts = start.and_then(|start| word.split_at_checked(start));
        parts.is_some_and(|(before, last)| {
            last.eq_ignore_ascii_case(name) && !before.ends_with(|c: char| c.is_alphanumeric())
        })
    };
    let is_step = front.is_empty() || STEP_WORDS.into_iter().any(ends_with);
    if is_step { digits.parse().ok() } else { None }
}

/// The highest numbers of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Highest {
    sequence: u64,
    step: u64,
}

impl Highest {
    fn or(self, other: Self) -> Self {
        Self { sequence: self.sequence.max(other.sequence), step: self.step.max(other.step) }
    }

    fn of(manifest: &Manifest) -> Self {
        Self { sequence: manifest.sequence, step: manifest.step }
    }
}

/// What a save is in the order of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Its number: one more than the highest.
    pub(super) sequence: u64,
    /// Its step; without one of its own the highest there is, so that it follows what was saved before.
    pub(super) step: u64,
    /// Whether the step is its own.
    pub(super) step_given: bool,
    /// The highest step, this one included.
    highest_step: u64,
}

impl Place {
    /// The place of a new save.
    pub(super) fn after(highest: Option<Highest>, step: Option<u64>) -> Self {
        let sequence = highest.map_or(0, |highest| (highest.sequence + 1).min(MAX_TOTAL));
        let highest_step = highest.map_or(0, |highest| highest.step);
        Self {
            sequence,
            step: step.unwrap_or(highest_step),
            step_given: step.is_some(),
            highest_step: highest_step.max(step.unwrap_or(0)),
        }
    }
}

/// What `latest.json` says: the save that was committed last, and the highest numbers then.
#[derive(Debug, Serialize, Deserialize)]
struct Pointer {
    key: String,
    step: u64,
    generation: String,
    /// Missing where an earlier build wrote it.
    #[serde(default)]
    sequence: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    highest_step: Option<u64>,
}

/// What `latest.json` says, and the manifests that it may say nothing of.
struct Guess {
    pointer: Option<Pointer>,
    /// The highest numbers of what it speaks of; none if it does not say, or names a manifest that is not there.
    highest: Option<Highest>,
    /// All manifests, if nothing is known of any of them.
    rest: Vec<ObjectInfo>,
}

impl Store {
    /// The highest numbers in the store; none if it has no checkpoint.
    pub(super) fn highest(&self) -> Result<Option<Highest>, CheckpointError> {
        self.highest_but(None)
    }

    /// The highest numbers in the store but for one checkpoint.
    fn highest_but(&self, left_out: Option<&str>) -> Result<Option<Highest>, CheckpointError> {
        let Guess { pointer, highest, rest } = self.guess(left_out)?;
        let found = self.read_all(&rest, without_tensors);
        // One that cannot be read does not stop a save.
        let last = if highest.is_none() { self.last_saved(&found.readable).unwrap_or(None) } else { None };
        let last = last.filter(|last| Some(last.key.as_str()) != left_out);
        let read = found.readable.iter().chain(&last).map(Highest::of);
        // Numbers go on also where what had them is gone.
        let numbered =
            pointer.and_then(|pointer| pointer.sequence).map(|sequence| Highest { sequence, step: 0 });
        Ok(read.chain(highest).chain(numbered).reduce(Highest::or))
    }

    /// The checkpoint that `latest.json` names and those that come after it, in order and without their tensors. Nothing if
    /// the pointer is missing or wrong, or names one that was not the newest: only all manifests tell then.
    pub(super) fn likely_newest(&self) -> Result<Vec<Manifest>, CheckpointError> {
        let Guess { pointer: Some(pointer), highest: Some(highest), rest } = self.guess(None)? else {
            return Ok(Vec::new());
        };
        let named = match self.manifest(&pointer.key) {
            Ok(named) if named.generation == pointer.generation && Highest::of(&named) == highest => named,
            _ => return Ok(Vec::new()),
        };
        let mut found = self.read_all(&rest, without_tensors).readable;
        found.retain(|other| other.order() > named.order());
        found.insert(0, without_tensors(named));
        Ok(found)
    }

    /// What `latest.json` says of the manifests, but for one.
    ///
    /// It speaks of what was there before the manifest that it names. What was written at about the same time or later must be
    /// read as well: a save may have ended before it could change the pointer. So one or two manifests are read, not all.
    fn guess(&self, left_out: Option<&str>) -> Result<Guess, CheckpointError> {
        let mut rest = self.storage.list(key::MANIFESTS)?;
        rest.retain(|object| key::of_manifest(&object.key).is_some_and(|key| Some(key.as_str()) != left_out));
        let pointer = self.pointer()?;
        let named = pointer.as_ref().map(|pointer| key::manifest(&pointer.key));
        let since =
            rest.iter().find(|object| Some(&object.key) == named.as_ref()).and_then(|named| named.modified);
        let highest = pointer.as_ref().and_then(|pointer| {
            Some(Highest {
                sequence: pointer.sequence?,
                step: pointer.highest_step.filter(|_| since.is_some())?,
            })
        });
        if let (Some(highest), Some(since)) = (highest, since) {
            // A clock or a pointer may be wrong: what names a higher step is read whenever it was written.
            let is_higher = |key: String| step_of(&key).is_some_and(|step| step > highest.step);
            rest.retain(|object| {
                Some(&object.key) != named.as_ref()
                    && (object.modified.is_none_or(|at| at >= since)
                        || key::of_manifest(&object.key).is_some_and(is_higher))
            });
        }
        Ok(Guess { pointer, highest, rest })
    }

    /// Says that the highest step is not known any more, as a checkpoint of this step is gone.
    pub(super) fn forget_step(&self, step: u64) -> Result<(), StorageError> {
        match self.pointer()? {
            Some(pointer) if pointer.highest_step.is_some_and(|highest| highest <= step) => {
                self.write_pointer(&Pointer { highest_step: None, ..pointer })
            }
            _ => Ok(()),
        }
    }

    /// What `latest.json` says, if there is one that can be read.
    fn pointer(&self) -> Result<Option<Pointer>, StorageError> {
        match self.storage.get(key::LATEST, MAX_POINTER_LEN) {
            Ok(text) => {
                let pointer = serde_json::from_slice(&text).ok();
                Ok(pointer
                    .filter(|pointer: &Pointer| pointer.sequence.is_none_or(|number| number <= MAX_TOTAL)))
            }
            Err(error) if matches!(error.kind(), StorageErrorKind::NotFound | StorageErrorKind::TooLarge) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The manifest that `latest.json` names, unless it is among those that are known.
    pub(super) fn last_saved(&self, known: &[Manifest]) -> Result<Option<Manifest>, CheckpointError> {
        let named = self.pointer()?.map(|pointer| pointer.key);
        let Some(key) = named.filter(|key| known.iter().all(|manifest| manifest.key != *key)) else {
            return Ok(None);
        };
        match self.manifest(&key) {
            // Deleted, or no key at all: the pointer is advice.
            Err(
                CheckpointError::NotFound { .. }
                | CheckpointError::NoStore { .. }
                | CheckpointError::UnsafeName { .. },
            ) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Writes down which save was committed last.
    pub(super) fn point_latest(&self, meta: &CheckpointMeta, place: Place) -> Result<(), StorageError> {
        // Another save may have been committed since the place was taken, and then this one may not be the newest.
        let others = self.highest_but(Some(&meta.key));
        let step = place.step_given.then_some(place.step);
        let is_alone = others.is_ok_and(|others| Place::after(others, step) == place);
        let pointer = Pointer {
            key: meta.key.clone(),
            step: meta.step,
            generation: meta.generation.clone(),
            sequence: Some(place.sequence),
            highest_step: is_alone.then_some(place.highest_step),
        };
        self.write_pointer(&pointer)
    }

    fn write_pointer(&self, pointer: &Pointer) -> Result<(), StorageError> {
        let text = serde_json::to_string(pointer).expect("texts and numbers");
        self.storage.replace(key::LATEST, format!("{text}\n").as_bytes())
    }

    /// Whether something was ever saved there: there is a manifest, or `latest.json`.
    pub(super) fn exists(&self) -> Result<bool, CheckpointError> {
        if self.pointer()?.is_some() {
            return Ok(true);
        }
        let listed = self.storage.list(key::MANIFESTS)?;
        Ok(listed.iter().any(|object| key::of_manifest(&object.key).is_some()))
    }

    /// Refuses a place that is no store.
    pub(super) fn check_exists(&self) -> Result<(), CheckpointError> {
        match self.exists()? {
            true => Ok(()),
            false => Err(CheckpointError::NoStore { location: self.storage.location().to_owned() }),
        }
    }

    /// The last of some manifests in order whose data is all there.
    pub(super) fn newest_of<'a>(
        &self,
        ordered: impl DoubleEndedIterator<Item = &'a Manifest>,
    ) -> Result<Option<&'a Manifest>, CheckpointError> {
        'newest: for manifest in ordered.rev() {
            for object in &manifest.objects {
                match self.storage.open(&object.object) {
                    Err(error) if error.kind() == StorageErrorKind::NotFound => continue 'newest,
                    opened => drop(opened?),
                }
            }
            return Ok(Some(manifest));
        }
        Ok(None)
    }
}

/// The keys of those that were saved last.
pub(super) fn saved_last(manifests: &[Manifest], n: usize) -> BTreeSet<&str> {
    let mut by_save: Vec<&Manifest> = manifests.iter().collect();
    by_save.sort_by(|a, b| save_order(b).cmp(&save_order(a)));
    by_save.into_iter().take(n).map(|manifest| manifest.key.as_str()).collect()
}

/// The order of saves. Those of earlier builds come first, by step: their numbers tell only how far they are from a save
/// without a previous one.
fn save_order(manifest: &Manifest) -> (bool, u64, u64, &str) {
    match manifest.step_given {
        None => (false, manifest.step, manifest.sequence, &manifest.generation),
        Some(_) => (true, manifest.sequence, manifest.step, &manifest.generation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_a_step_after_a_word_for_it_or_as_a_number_alone() {
        let steps = [
            ("step_1000", 1000),
            ("step-7", 7),
            ("step7", 7),
            ("Step_0008", 8),
            ("checkpoint-500", 500),
            ("ckpt_12", 12),
            ("iter=7", 7),
            ("iteration_3", 3),
            ("global_step100", 100),
            ("epoch_3", 3),
            ("epoch=3-step=100", 100),
            ("run 1/step_5", 5),
            ("7", 7),
            ("step_18446744073709551615", u64::MAX),
        ];
        for (key, step) in steps {
            assert_eq!(step_of(key), Some(step), "{key}");
        }
        let none = [
            "best",
            "final",
            "",
            "epoch=4-val_loss=0.20",
            "epoch=3-val_loss=25",
            "step_7.pt",
            "step_",
            "step__7",
            "misstep_5",
            "laststep5",
            "retry_9100",
            "2024-11-18",
            "v2",
            "é7",
            "step_-1",
            "step_1_000",
            "step_18446744073709551616",
            "step_99999999999999999999",
            "x@12345678901234567890123456789012",
        ];
        for key in none {
            assert_eq!(step_of(key), None, "{key}");
        }
    }

    #[test]
    fn numbers_stay_within_what_a_reader_accepts() {
        let highest = Highest { sequence: MAX_TOTAL, step: u64::MAX };
        let place = Place::after(Some(highest), None);
        assert_eq!((place.sequence, place.step, place.step_given), (MAX_TOTAL, u64::MAX, false));
        assert_eq!(
            Place::after(None, Some(3)),
            Place { sequence: 0, step: 3, step_given: true, highest_step: 3 }
        );
    }
}
