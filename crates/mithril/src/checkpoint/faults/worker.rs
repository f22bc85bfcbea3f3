//! A process that does one thing to a store, and compares what it reads with the model.

use super::actions::{Action, How, Key, Save};
use super::model::{Effect, Entry, Model, Part, Place, Saved};
use super::training::Tensors;
use crate::checkpoint::blocking::CheckpointCompressor;
use crate::checkpoint::{Checkpoint, CheckpointError, GcOptions, SaveOptions, VerifyOptions};
use mithril_format::ReadAt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A process that does something.
pub(super) struct Worker {
    pub(super) process: CheckpointCompressor,
    pub(super) action: Action,
    /// What it saves.
    pub(super) tensors: Tensors,
}

impl Worker {
    /// Does it. What is read must be what the model says; what cannot be done is an error of the store.
    pub(super) fn work(&mut self, model: &Model, is_alone: bool) -> Result<Done, String> {
        let mut done = Done { effect: Effect::default(), refusal: None, error: None };
        let result = match self.action.clone() {
            Action::Save(save) => self.save(&save, model, &mut done),
            action => self.work_on(&action, model, is_alone, &mut done),
        };
        match result {
            Ok(()) => {}
            // Where no checkpoint is, there need not be a store.
            Err(Wrong::Refused(error))
                if matches!(*error, CheckpointError::NoStore { .. })
                    && model.entries.is_empty()
                    && done.refusal.is_none() => {}
            Err(Wrong::Refused(error)) => done.error = Some(error),
            Err(Wrong::Content(what)) => return Err(what),
        }
        Ok(done)
    }

    fn save(&mut self, save: &Save, model: &Model, done: &mut Done) -> Result<(), Wrong> {
        let key = save.key.pick(model);
        let previous = save.previous.as_ref().map(|previous| previous.pick(model));
        let (n_files, mut metadata) = (if let How::Files(n) = save.how { n } else { 1 }, BTreeMap::new());
        if !matches!(save.how, How::Files(_)) {
            metadata.insert("tensors".to_owned(), self.tensors.len().into());
        }
        let saved = Arc::new(Saved::new(std::mem::take(&mut self.tensors), metadata, save.step, n_files));
        done.effect.0.push(Part::Save(key.clone(), Entry::new(saved.clone())));
        if save.config.retention.removes() {
            done.effect.0.push(Part::Retain(save.config.retention.clone(), Some(key.clone())));
        }
        let is_missing = |previous: &String| save.config.delta_enabled && model.get(previous).is_none();
        if model.get(&key).is_some() {
            done.refusal = Some(Refusal::Conflict);
        } else if previous.as_ref().is_some_and(is_missing) {
            done.refusal = Some(Refusal::MissingPrevious);
        }

        self.process.config = save.config.clone();
        let (store, previous) = (&self.process, previous.as_deref());
        let options = SaveOptions::default().with_previous(previous);
        let result = match save.how {
            How::Memory => store.save(&saved.checkpoint, &key, previous).map(drop),
            How::Changing => {
                store.save_view(&saved.checkpoint.view(), &key, &options.with_changing(true)).map(drop)
            }
            How::Background => {
                let handle = store.save_async(saved.checkpoint.clone(), &key, previous);
                return handle.wait().map(drop).map_err(Wrong::Refused);
            }
            How::Stopped(after) => {
                let (n_reports, stop) = (AtomicU64::new(0), Arc::new(AtomicBool::new(after == 0)));
                let progress = |_| {
                    if n_reports.fetch_add(1, Ordering::Relaxed) + 1 >= after {
                        stop.store(true, Ordering::Release);
                    }
                };
                let options = options.with_stop(stop.clone()).with_progress(&progress);
                match store.save_view(&saved.checkpoint.view(), &key, &options) {
                    Err(CheckpointError::Abandoned { .. }) if stop.load(Ordering::Acquire) => {
                        (done.effect, done.refusal) = (Effect::default(), None);
                        Ok(())
                    }
                    result => result.map(drop),
                }
            }
            How::Files(_) => {
                let names: Vec<String> =
                    (0..n_files).map(|part| format!("model-{part}.safetensors")).collect();
                let files = names.iter().zip(&saved.files);
                let files: Vec<_> = files.map(|(name, file)| (name.as_str(), file as &dyn ReadAt)).collect();
                store.save_files(&files, &key, save.step, &options).map(drop)
            }
        };
        Ok(result?)
    }

    fn work_on(
        &mut self,
        action: &Action,
        model: &Model,
        is_alone: bool,
        done: &mut Done,
    ) -> Result<(), Wrong> {
        let mut pick = |key: &Key| {
            let key = key.pick(model);
            let entry = model.get(&key).map(|entry| entry.saved.clone());
            if entry.is_none() {
                done.refusal = Some(Refusal::NotFound);
            }
            (key, entry)
        };
        let wrong = |what: &str, key: &str| Err(Wrong::Content(format!("{what} of `{key}` is another one")));
        let store = &mut self.process;
        match action {
            Action::Save(_) => unreachable!("is done elsewhere"),
            Action::Delete(key) => {
                let (key, _) = pick(key);
                done.effect.0.push(Part::Delete(key.clone()));
                store.delete(&key)?;
            }
            Action::Rebase(key) => {
                let (key, _) = pick(key);
                done.effect.0.push(Part::Keep(key.clone()));
                store.rebase(&key)?;
            }
            Action::Retain(retention) => {
                done.effect.0.push(Part::Retain(retention.clone(), None));
                store.config.retention = retention.clone();
                store.apply_retention()?;
            }
            Action::Collect => {
                let would_go = store.gc(&GcOptions::now().with_dry_run(true))?;
                let gone = store.gc(&GcOptions::now())?;
                let (there, needed) = objects(store)?;
                if is_alone && (would_go.removed != gone.removed || there != needed) {
                    return Err(Wrong::Content(format!(
                        "gc: {would_go:?}, {gone:?}, {there:?}, not {needed:?}"
                    )));
                }
            }
            Action::Load(key) => {
                let (key, saved) = pick(key);
                let loaded = store.load(&key)?;
                if saved.is_some_and(|saved| {
                    (&loaded.tensors, &loaded.metadata)
                        != (&saved.checkpoint.tensors, &saved.checkpoint.metadata)
                }) {
                    return wrong("the content", &key);
                }
            }
            Action::LoadTensor(key, tensor) => {
                let (key, saved) = pick(key);
                let tensors = saved.map(|saved| saved.checkpoint.tensors.clone()).unwrap_or_default();
                let names: Vec<&String> = tensors.keys().collect();
                let name = if names.is_empty() { "none" } else { tensor.get(&names).as_str() };
                if names.is_empty() {
                    done.refusal = Some(Refusal::NotFound);
                }
                if tensors.get(name) != Some(&store.load_tensor(&key, name)?) && !names.is_empty() {
                    return wrong("a tensor", &key);
                }
            }
            Action::LoadInto(key) => {
                let (key, saved) = pick(key);
                let tensors = saved.map(|saved| saved.checkpoint.tensors.clone()).unwrap_or_default();
                let mut buffers: Vec<_> = tensors
                    .iter()
                    .step_by(2)
                    .map(|(name, tensor)| (name, vec![1; tensor.data.len()]))
                    .collect();
                let mut borrowed: Vec<_> =
                    buffers.iter_mut().map(|(name, buffer)| (name.as_str(), buffer.as_mut_slice())).collect();
                store.load_into(&key, &mut borrowed)?;
                if buffers.iter().any(|(name, buffer)| tensors[*name].data != *buffer) {
                    return wrong("a tensor in a buffer", &key);
                }
            }
            Action::Export(key, part) => {
                let (key, saved) = pick(key);
                let part = saved.as_ref().map_or(0, |saved| part.index(saved.files.len()));
                let file = store.export(&key, part, Vec::new(), &|_| ())?;
                if saved.is_some_and(|saved| saved.files[part] != file) {
                    return wrong("a file", &key);
                }
            }
            Action::Verify { key, deep } => {
                let key = key.as_ref().map(|key| pick(key).0);
                let options = VerifyOptions { deep: *deep };
                let report = store.verify(key.as_deref(), &options, &|_| ())?;
                let n_expected = if key.is_some() { 1 } else { model.entries.len() };
                if is_alone && (!report.is_intact() || report.intact.len() != n_expected) {
                    return Err(Wrong::Content(format!("verify: {report:?}")));
                }
            }
            Action::Compress(previous) => {
                let previous = previous.as_ref().map(|previous| pick(previous).0);
                let tensors = std::mem::take(&mut self.tensors);
                let checkpoint = Checkpoint { tensors, step: Some(3), ..Checkpoint::new() };
                let compressed = store.compress(&checkpoint, previous.as_deref())?;
                if store.decompress(&compressed)? != checkpoint {
                    return wrong("a checkpoint in memory", previous.as_deref().unwrap_or_default());
                }
            }
            Action::List => {
                let listing = store.list()?;
                let latest = store.latest()?.map(|meta| meta.key);
                let keys: BTreeSet<&str> = listing.checkpoints.iter().map(|meta| meta.key.as_str()).collect();
                let is_whole = listing.unreadable.is_empty() && listing.foreign.is_empty();
                if is_alone && (keys != model.keys() || latest.as_deref() != model.newest() || !is_whole) {
                    return Err(Wrong::Content(format!("{listing:?}, latest {latest:?}")));
                }
            }
        }
        Ok(())
    }
}

/// Why an action did not give what it should.
enum Wrong {
    /// The store refused it.
    Refused(Arc<CheckpointError>),
    /// It gave something else.
    Content(String),
}

impl From<CheckpointError> for Wrong {
    fn from(error: CheckpointError) -> Self {
        Self::Refused(Arc::new(error))
    }
}

/// Why something is refused that nothing disturbs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Refusal {
    Conflict,
    MissingPrevious,
    NotFound,
}

/// What was done, and what came of it.
#[derive(Debug, Clone)]
pub(super) struct Done {
    /// What it does if it succeeds.
    pub(super) effect: Effect,
    /// What it must be refused for, by the model before it.
    pub(super) refusal: Option<Refusal>,
    pub(super) error: Option<Arc<CheckpointError>>,
}

impl Done {
    pub(super) fn why(&self) -> String {
        self.error.as_ref().map_or_else(|| "it succeeded".to_owned(), |error| error.to_string())
    }

    /// Whether it was refused for the reason that the model knows, or succeeded where it knows none.
    pub(super) fn is_expected(&self) -> bool {
        match (self.refusal, self.error.as_deref()) {
            (None, None) => true,
            (Some(Refusal::Conflict), Some(error)) => matches!(error, CheckpointError::Conflict { .. }),
            (Some(Refusal::MissingPrevious), Some(error)) => {
                matches!(error, CheckpointError::MissingPrevious { .. })
            }
            (Some(Refusal::NotFound), Some(error)) => {
                matches!(error, CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. })
            }
            _ => false,
        }
    }

    /// Whether it succeeded, or was refused for what another process did at the same time.
    pub(super) fn is_fair(&self) -> bool {
        self.error.as_deref().is_none_or(|error| {
            matches!(
                error,
                CheckpointError::Conflict { .. }
                    | CheckpointError::Changed { .. }
                    | CheckpointError::Collected { .. }
                    | CheckpointError::MissingPrevious { .. }
                    | CheckpointError::NotFound { .. }
                    | CheckpointError::NoStore { .. }
            )
        })
    }
}

/// The data objects that there are, and those that manifests list.
pub(super) fn objects(
    store: &CheckpointCompressor,
) -> Result<(BTreeSet<String>, BTreeSet<String>), CheckpointError> {
    let there = store.storage().list("data")?.into_iter().map(|object| object.key).collect();
    let mut needed = BTreeSet::new();
    for key in store.keys()? {
        needed.extend(store.manifest(&key)?.kept_objects().map(str::to_owned));
    }
    Ok((there, needed))
}

/// Reads the places of what was saved, where it is there.
pub(super) fn place_of(store: &CheckpointCompressor, done: &mut Done) -> Result<(), String> {
    for part in &mut done.effect.0 {
        let Part::Save(key, entry) = part else { continue };
        match store.manifest(key) {
            Ok(manifest) => {
                (entry.place, entry.is_acknowledged) = (Place::of(&manifest), done.error.is_none())
            }
            Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}
