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

    fn start_commit(&self, key: &str) -> Result<(), CheckpointError> {
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
        let against = self.open_previous(request)?;
        let previous = against.as_ref().map(|against| Arc::clone(&against.manifest));
        let let_go = previous.as_deref().map(|previous| let_go(previous, request.files.len(), &self.config));
        let let_go = let_go.unwrap_or_default();
        let bases = against.as_ref().map_or_else(Bases::none, |against| against.models(&let_go));
        let generation = new_generation(storage.location())?;
        let object_keys: Vec<String> =
            (0..request.files.len()).map(|part| key::data(&generation, part)).collect();
        let needed =
            previous.iter().flat_map(|manifest| &manifest.objects).map(|object| object.object.clone());
        let _held = self.store.hold(object_keys.iter().cloned().chain(needed));
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
        let own = own.inspect_err(|_| self.remove_objects(&object_keys))?;
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
            effort: self.config.effort.name().to_owned(),
            n_own: object_keys.len(),
            pinned: Vec::new(),
            objects,
            tensors,
            raw_len: request.raw_len,
            seconds: started.elapsed().as_secs_f64(),
            metadata: request.metadata.clone(),
        };
        let proving = Instant::now();
        let proved = self.prove(&manifest, own_readers, against.as_ref());
        proved.inspect_err(|_| self.remove_objects(&object_keys))?;
        let proof_seconds = proving.elapsed().as_secs_f64();
        self.check_unchanged(request).inspect_err(|_| self.remove_objects(&object_keys))?;
        permit.start_commit(request.key).inspect_err(|_| self.remove_objects(&object_keys))?;
        self.commit(&manifest, &object_keys)?;

        let meta = CheckpointMeta { proof_seconds, ..CheckpointMeta::of(&manifest) };
        self.store.cache.insert(Arc::new(manifest));
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
        key::check(previous_key)?;
        let storage = &self.store.storage;
        if let Some(known) = self.store.cache.get(previous_key)
            && let Ok(chain) = Chain::open(storage, &known)
        {
            return Ok(Some(Against { manifest: known, chain }));
        }
        // Not known, or removed by another process since.
        self.store.cache.remove(previous_key);
        let manifest = self.store.manifest(previous_key).map_err(|error| match error {
            CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. } => {
                CheckpointError::MissingPrevious {
                    key: previous_key.to_owned(),
                    needed_by: request.key.to_owned(),
                }
            }
            error => error,
        })?;
        let chain = Chain::open(storage, &manifest)?;
        let manifest = Arc::new(manifest);
        self.store.cache.insert(manifest.clone());
        Ok(Some(Against { manifest, chain }))
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
        let reader = Reader::open(storage.open(object_key)?).map_err(about(key))?;
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
    fn commit(&self, manifest: &Manifest, object_keys: &[String]) -> Result<(), CheckpointError> {
        let storage = &*self.store.storage;
        let object = key::manifest(&manifest.key);
        let bytes = manifest.write();
        if let Err(error) = storage.put_new(&object, &bytes) {
            let ours = match storage.get(&object, manifest::MAX_LEN) {
                Ok(there) => there == bytes,
                // Not there: the data is of no use to anybody.
                Err(missing) if missing.kind() == StorageErrorKind::NotFound => false,
                // Nothing is known: the data stays for those who may see the manifest.
                Err(_) => return Err(error.into()),
            };
            if ours {
                // Visible, but perhaps not safe. It is not acknowledged, so it goes; its data only if it is gone.
                storage.delete(&object)?;
            }
            self.remove_objects(object_keys);
            return Err(match error.kind() {
                StorageErrorKind::AlreadyExists => CheckpointError::Conflict { key: manifest.key.clone() },
                _ => error.into(),
            });
        }
        if let Err(error) = self.check_still_there(manifest) {
            storage.delete(&object)?;
            self.remove_objects(object_keys);
            return Err(error);
        }
        Ok(())
    }

    /// Another process may have decided to remove an object before it could see the manifest. It marks what it removes
    /// first, and looks at the manifests again behind that: so either it sees the manifest, or we see its mark.
    pub(super) fn check_still_there(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let storage = &*self.store.storage;
        let marks = storage.list(key::REMOVED)?;
        let collected = |object: &str| CheckpointError::Collected {
            key: manifest.key.clone(),
            object: object.to_owned(),
        };
        for object in manifest.kept_objects() {
            let mark = key::removal_of(object);
            if marks.iter().any(|found| found.key == mark) {
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
