//! Saving: data first, then the manifest that commits it, then everything that may fail without harm.

use super::background::message_of;
use super::blocking::CheckpointCompressor;
use super::chain::{self, Against, Chain, OwnObject};
use super::error::about;
use super::let_go::{LetGo, check_files, let_go};
use super::manifest::{self, DataObject, Previous};
use super::order::{self, Place};
use super::tensors::Metadata;
use super::{CheckpointError, CheckpointMeta, GcOptions, Manifest, key};
use crate::container::{Bases, Reader};
use crate::pack::{DeltaBudget, PackOptions, Progress, expected_sizes, pack, writer_name};
use crate::storage::{ObjectWriter, StorageError, StorageErrorKind};
use mithril_format::{Digester, ReadAt};
use std::collections::HashSet;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

/// Bytes of buffers that stay for the next save or load.
pub(super) const KEPT_LEN: usize = 32 << 20;

/// A file or a checkpoint that is saved.
pub(super) struct SourceFile<'a> {
    /// Name of the file that it restores to.
    pub(super) name: Option<String>,
    pub(super) source: &'a dyn ReadAt,
}

/// What is saved, and as what.
pub(super) struct Request<'a> {
    pub(super) key: &'a str,
    pub(super) previous_key: Option<&'a str>,
    pub(super) step: Option<u64>,
    pub(super) metadata: Metadata,
    pub(super) files: Vec<SourceFile<'a>>,
    /// Bytes of the tensors or files, for the ratio.
    pub(super) raw_len: u64,
}

/// Whether a save may go on, may still be given up, or is past that.
#[derive(Debug, Default)]
pub(super) struct Permit {
    state: AtomicU8,
    /// Set by a caller who no longer wants it.
    stop: Option<Arc<AtomicBool>>,
}

const RUNNING: u8 = 0;
const COMMITTING: u8 = 1;
const ABANDONED: u8 = 2;

impl Permit {
    /// A permit that ends when the caller sets a flag.
    pub(super) fn stopped_by(stop: Option<Arc<AtomicBool>>) -> Self {
        Self { state: AtomicU8::new(RUNNING), stop }
    }

    /// Gives the save up, unless its manifest is being written already. Returns whether it is given up.
    pub(super) fn abandon(&self) -> bool {
        let before = self.state.compare_exchange(RUNNING, ABANDONED, Ordering::AcqRel, Ordering::Acquire);
        matches!(before, Ok(_) | Err(ABANDONED))
    }

    fn is_abandoned(&self) -> bool {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Acquire)) {
            self.abandon();
        }
        self.state.load(Ordering::Acquire) == ABANDONED
    }

    pub(super) fn start_commit(&self, key: &str) -> Result<(), CheckpointError> {
        if self.is_abandoned() {
            return Err(CheckpointError::Abandoned { key: key.to_owned() });
        }
        match self.state.compare_exchange(RUNNING, COMMITTING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(COMMITTING) => Ok(()),
            Err(_) => Err(CheckpointError::Abandoned { key: key.to_owned() }),
        }
    }
}

impl CheckpointCompressor {
    pub(super) fn save_request(
        &self,
        request: &Request<'_>,
        permit: &Permit,
        progress: Progress<'_>,
    ) -> Result<CheckpointMeta, CheckpointError> {
        let started = Instant::now();
        key::check_new(request.key)?;
        let storage = &*self.store.storage;
        // What killed writers left is in nobody's way, but takes room.
        let _ = storage.remove_leftovers(&key::DIRECTORIES, GcOptions::default().min_age);
        match self.store.manifest(request.key) {
            Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(CheckpointError::Conflict { key: request.key.to_owned() }),
        }
        self.store.check_exclusive()?;
        check_files(request.key, request.files.len())?;
        let against = self.open_previous(request).map_err(|error| self.or_collected(request, error))?;
        let previous = against.as_ref().map(|against| Arc::clone(&against.manifest));
        let let_go = previous.as_deref().map(|previous| let_go(previous, request.files.len(), &self.config));
        let let_go = let_go.unwrap_or_default();
        let bases = against.as_ref().map_or_else(Bases::none, |against| against.models(&let_go));
        let generation = new_generation(storage.location())?;
        let object_keys: Vec<String> =
            (0..request.files.len()).map(|part| key::data(&generation, part)).collect();
        let needed =
            previous.iter().flat_map(|manifest| &manifest.objects).map(|object| object.object.clone());
        let held = self.store.hold(object_keys.iter().cloned().chain(needed));
        let mut options = self.config.pack_options().with_bases(bases);
        options.buffers = Arc::clone(&self.store.buffers);
        let step = request.step.or_else(|| order::step_of(request.key));
        options.step = step;

        // A panic of a worker, or of the caller's source, is an error like any other.
        let write = || {
            if let Some(previous) = &previous {
                options.delta_budget = self.delta_budget(request, previous, &let_go, &options)?;
            }
            self.write_objects(request, &object_keys, &options, permit, progress)
        };
        let own = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|panic| {
            Err(CheckpointError::Panicked { key: request.key.to_owned(), message: message_of(&*panic) })
        });
        self.store.buffers.keep(KEPT_LEN);
        let own = own.map_err(|error| {
            self.remove_objects(&object_keys);
            self.or_collected(request, error)
        })?;
        let own_readers: Vec<_> = own.iter().map(|own| Arc::clone(&own.reader)).collect();
        let linked = chain::link(own, previous.as_deref());
        let (objects, tensors) = linked.inspect_err(|_| self.remove_objects(&object_keys))?;
        let highest = self.store.highest().inspect_err(|_| self.remove_objects(&object_keys))?;
        let place = Place::after(highest, step);
        let manifest = Manifest {
            format: Manifest::magic(),
            version: manifest::VERSION,
            key: request.key.to_owned(),
            generation,
            step: place.step,
            step_given: Some(place.step_given),
            sequence: place.sequence,
            previous: previous.as_deref().map(Previous::new),
            writer: writer_name(),
            effort: self.config.coding.effort.name().to_owned(),
            n_own: object_keys.len(),
            pinned: Vec::new(),
            objects,
            tensors,
            raw_len: request.raw_len,
            seconds: started.elapsed().as_secs_f64(),
            saved: super::saved::now(),
            metadata: request.metadata.clone(),
        };
        let proving = Instant::now();
        let proved = self.prove(&manifest, own_readers, against.as_ref());
        proved.map_err(|error| {
            self.remove_objects(&object_keys);
            self.or_collected(request, error)
        })?;
        let proof_seconds = proving.elapsed().as_secs_f64();
        self.check_unchanged(request).inspect_err(|_| self.remove_objects(&object_keys))?;
        permit.start_commit(request.key).inspect_err(|_| self.remove_objects(&object_keys))?;
        let bytes = manifest.write();
        self.commit(&manifest, &bytes, &object_keys).inspect_err(|_| {
            drop(held);
            // Others may have seen the manifest, and may be stored against the data by now.
            let _ = self.collect_objects(&object_keys.iter().cloned().collect());
        })?;

        let meta = CheckpointMeta { proof_seconds, ..CheckpointMeta::of(&manifest) };
        self.store.cache.insert(Arc::new(manifest), &bytes);
        // The checkpoint is safe: what follows is for convenience, and its failure is not that of the save.
        let _ = self.store.point_latest(&meta, place);
        if self.config.retention.removes() {
            let _ = self.retain(Some(&meta.key));
        }
        Ok(meta)
    }

    /// The checkpoint that a new one is stored against.
    fn open_previous(&self, request: &Request<'_>) -> Result<Option<Against>, CheckpointError> {
        let Some(previous_key) = request.previous_key.filter(|_| self.config.delta_enabled) else {
            return Ok(None);
        };
        let manifest = self.store.known_manifest(previous_key).map_err(|error| match error {
            CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. } => {
                CheckpointError::MissingPrevious {
                    key: previous_key.to_owned(),
                    needed_by: request.key.to_owned(),
                }
            }
            error => error,
        })?;
        let chain = Chain::open(&self.store.storage, &manifest)?;
        Ok(Some(Against { manifest, chain }))
    }

    /// Says that another process has removed the previous checkpoint, where an object is missing for that reason.
    fn or_collected(&self, request: &Request<'_>, error: CheckpointError) -> CheckpointError {
        let Some(object) = error.missing_object() else { return error };
        let previous = request.previous_key.map(|key| self.store.manifest(key));
        let is_needed = |manifest: &Manifest| manifest.objects.iter().any(|needed| needed.object == object);
        match previous {
            Some(Ok(manifest)) if is_needed(&manifest) => error,
            _ => CheckpointError::Collected { key: request.key.to_owned(), object },
        }
    }

    /// What the deltas of a save may take.
    fn delta_budget(
        &self,
        request: &Request<'_>,
        previous: &Manifest,
        let_go: &LetGo<'_>,
        options: &PackOptions,
    ) -> Result<DeltaBudget, CheckpointError> {
        let names = chain::without_deltas(previous);
        let mut sizes = Vec::new();
        for file in &request.files {
            sizes.extend(expected_sizes(file.source, &names, options).map_err(about(request.key))?);
        }
        Ok(chain::delta_budget(previous, let_go, &sizes, &self.config))
    }

    pub(super) fn write_objects(
        &self,
        request: &Request<'_>,
        object_keys: &[String],
        options: &PackOptions,
        permit: &Permit,
        progress: Progress<'_>,
    ) -> Result<Vec<OwnObject>, CheckpointError> {
        let mut own = Vec::with_capacity(object_keys.len());
        for (part, (file, object_key)) in request.files.iter().zip(object_keys).enumerate() {
            let mut options = options.clone();
            options.name = file.name.clone().unwrap_or_else(|| "checkpoint.safetensors".to_owned());
            if part == 0 {
                options.metadata = request.metadata.clone();
            }
            own.push(self.write_object(request.key, file, object_key, &options, permit, progress)?);
        }
        Ok(own)
    }

    fn write_object(
        &self,
        key: &str,
        file: &SourceFile<'_>,
        object_key: &str,
        options: &PackOptions,
        permit: &Permit,
        progress: Progress<'_>,
    ) -> Result<OwnObject, CheckpointError> {
        let storage = &*self.store.storage;
        let writer = storage.create(object_key)?;
        let sink = Sink { writer, digester: Digester::default(), len: 0, permit };
        let packed = pack(file.source, sink, options, progress);
        let (sink, summary) = packed.map_err(|error| match permit.is_abandoned() {
            true => CheckpointError::Abandoned { key: key.to_owned() },
            false => about(key)(error),
        })?;
        let Sink { writer, digester, len, .. } = sink;
        writer.finish()?;
        // Read back: what the next save and every reader will open must be there, and be what was written.
        let written = storage.open(object_key).map_err(|error| match error.kind() {
            // Another process has taken it for garbage.
            StorageErrorKind::NotFound => {
                CheckpointError::Collected { key: key.to_owned(), object: object_key.to_owned() }
            }
            _ => error.into(),
        })?;
        let reader = Reader::open(written).map_err(about(key))?;
        let container = reader.directory().digest();
        if Some(container) != summary.digest || reader.directory().file_len() != len {
            let what = format!("`{object_key}` is not what was written");
            return Err(CheckpointError::InvalidFormat { what });
        }
        let object = DataObject {
            object: object_key.to_owned(),
            key: key.to_owned(),
            len,
            digest: digester.finish(),
            container,
            file: file.name.clone(),
        };
        Ok(OwnObject { object, reader: Arc::new(reader) })
    }

    /// Files that changed while they were read, also while another one was: what is saved may be no state that ever was.
    fn check_unchanged(&self, request: &Request<'_>) -> Result<(), CheckpointError> {
        for file in &request.files {
            let name = file.name.as_deref().unwrap_or_default();
            let failed = |error| crate::Error::io(format!("cannot read `{name}`"), error);
            file.source.check_unchanged().map_err(failed).map_err(about(request.key))?;
        }
        Ok(())
    }

    /// Writes the manifest, unless there is one, and makes sure that what it needs was not removed meanwhile.
    fn commit(
        &self,
        manifest: &Manifest,
        bytes: &[u8],
        object_keys: &[String],
    ) -> Result<(), CheckpointError> {
        let storage = &*self.store.storage;
        let object = key::manifest(&manifest.key);
        if let Err(error) = storage.put_new(&object, bytes) {
            return match storage.get(&object, manifest::MAX_LEN) {
                // Visible, but perhaps not safe. It is not acknowledged, so it goes.
                Ok(there) if there == bytes => {
                    self.withdraw(manifest, bytes)?;
                    Err(error.into())
                }
                Ok(_) if error.kind() == StorageErrorKind::AlreadyExists => {
                    // No other process has seen what was saved here.
                    self.remove_objects(object_keys);
                    Err(CheckpointError::Conflict { key: manifest.key.clone() })
                }
                _ => Err(error.into()),
            };
        }
        if let Err(error) = self.check_still_there(manifest) {
            self.withdraw(manifest, bytes)?;
            return Err(error);
        }
        Ok(())
    }

    /// Takes back a manifest that is not acknowledged, unless another process has put one of its own in its place.
    fn withdraw(&self, manifest: &Manifest, bytes: &[u8]) -> Result<(), CheckpointError> {
        match self.store.change_manifest(&manifest.key, bytes, None) {
            Err(CheckpointError::Changed { .. }) => Ok(()),
            withdrawn => withdrawn,
        }
    }

    /// Another process may have decided to remove an object before it could see the manifest. It marks what it removes
    /// first, and looks at the manifests again after that: so either it sees the manifest, or we see its mark.
    pub(super) fn check_still_there(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let storage = &*self.store.storage;
        let removed = self.objects_being_removed()?;
        let collected = |object: &str| CheckpointError::Collected {
            key: manifest.key.clone(),
            object: object.to_owned(),
        };
        for object in manifest.kept_objects() {
            if removed.as_ref().is_none_or(|removed| removed.contains(object)) {
                return Err(collected(object));
            }
        }
        for object in manifest.kept_objects() {
            match storage.open(object) {
                Err(error) if error.kind() == StorageErrorKind::NotFound => {
                    return Err(collected(object));
                }
                opened => drop(opened?),
            }
        }
        Ok(())
    }

    /// What removals at work name; none if it can be anything.
    fn objects_being_removed(&self) -> Result<Option<HashSet<String>>, CheckpointError> {
        let storage = &*self.store.storage;
        let mut named = HashSet::new();
        for mark in storage.list(key::REMOVED)?.iter().filter(|object| key::is_removal(&object.key)) {
            if storage.remove_dead_mark(mark)? {
                continue;
            }
            match storage.get(&mark.key, manifest::MAX_LEN) {
                Ok(names) if names.is_empty() => return Ok(None),
                Ok(names) => named.extend(String::from_utf8_lossy(&names).lines().map(str::to_owned)),
                // That removal is done: what it took away is not there.
                Err(error) if error.kind() == StorageErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(named))
    }

    /// Removes the data of a save that failed. What cannot be removed now is garbage for later.
    pub(super) fn remove_objects(&self, objects: &[String]) {
        for object in objects {
            let _ = self.store.storage.delete(object);
        }
    }
}

/// 128 random bits.
pub(super) fn new_generation(location: &str) -> Result<String, StorageError> {
    crate::temporary::random_digits().map_err(|error| {
        let reason = error.to_string();
        StorageError::new(StorageErrorKind::Failed, "name a generation", "", location, reason)
    })
}

/// Counts and digests what goes to the storage, and stops when the save is given up.
struct Sink<'a> {
    writer: Box<dyn ObjectWriter>,
    digester: Digester,
    len: u64,
    permit: &'a Permit,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.permit.is_abandoned() {
            return Err(io::Error::other("the save was given up"));
        }
        let len = self.writer.write(bytes)?;
        self.digester.update(&bytes[..len]);
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
