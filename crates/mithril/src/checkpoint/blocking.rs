//! Checkpoint stores for callers without an async runtime. Every call blocks until it is done.

use super::background::Background;
use super::save::{Permit, Request, SourceFile};
use super::store::Store;
use super::tensors::CheckpointFile;
use super::{
    Checkpoint, CheckpointError, CheckpointMeta, CheckpointSignature, CheckpointView, CompressorConfig,
    Manifest, SaveHandle, key,
};
use crate::pack::Progress;
use crate::storage::StorageBackend;
use mithril_format::ReadAt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Saves and loads checkpoints of one store. Clones share it.
///
/// ```
/// use mithril::Dtype;
/// use mithril::checkpoint::blocking::CheckpointCompressor;
/// use mithril::checkpoint::{Checkpoint, CompressorConfig, TensorData};
///
/// let storage = mithril::storage::open("memory://")?;
/// let compressor = CheckpointCompressor::new(CompressorConfig::default(), storage);
/// let tensor = TensorData::new(vec![0u8; 4096], [1024], Dtype::F32);
/// let checkpoint = Checkpoint::new().with_tensor("weight", tensor);
/// let meta = compressor.save(&checkpoint, "step_1", None)?;
/// assert_eq!(meta.original_size, 4096);
/// compressor.save(&checkpoint, "step_2", Some("step_1"))?; // nothing changed: no tensor is stored again
/// assert_eq!(compressor.load("step_2")?.tensors, checkpoint.tensors);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CheckpointCompressor {
    pub(super) config: CompressorConfig,
    pub(super) store: Arc<Store>,
    background: Arc<Background>,
}

/// What a store holds.
#[derive(Debug)]
#[non_exhaustive]
pub struct Listing {
    /// Its checkpoints, from the first step to the last.
    pub checkpoints: Vec<CheckpointMeta>,
    /// Keys of manifests that cannot be read, and why.
    pub unreadable: Vec<(String, CheckpointError)>,
    /// Objects beside the manifests that no save can have written. They are left alone.
    pub foreign: Vec<String>,
}

/// How a save is done, besides the configuration.
#[derive(Clone)]
#[non_exhaustive]
pub struct SaveOptions<'a> {
    /// Key of the checkpoint to store this one against.
    pub previous_key: Option<&'a str>,
    /// Told how many more raw bytes are done.
    pub progress: Progress<'a>,
    /// Gives the save up once it is set, unless its manifest is being written already.
    pub stop: Option<Arc<AtomicBool>>,
    /// Whether others may change tensors while they are saved, as memory that Python lends: every byte is then copied before
    /// it is looked at. What is saved of a tensor is what was copied, each part of it as it was at some moment.
    pub changing: bool,
}

impl Default for SaveOptions<'_> {
    fn default() -> Self {
        Self { previous_key: None, progress: &|_| (), stop: None, changing: false }
    }
}

impl<'a> SaveOptions<'a> {
    /// Sets the checkpoint to store this one against.
    #[must_use]
    pub fn with_previous(mut self, key: Option<&'a str>) -> Self {
        self.previous_key = key;
        self
    }

    /// Sets who is told how far it is.
    #[must_use]
    pub fn with_progress(mut self, progress: Progress<'a>) -> Self {
        self.progress = progress;
        self
    }

    /// Sets the flag that gives the save up.
    #[must_use]
    pub fn with_stop(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Sets whether others may change tensors while they are saved.
    #[must_use]
    pub fn with_changing(mut self, changing: bool) -> Self {
        self.changing = changing;
        self
    }
}

impl CheckpointCompressor {
    /// A compressor over a storage; see [`storage::open`](crate::storage::open).
    pub fn new(config: CompressorConfig, storage: Arc<dyn StorageBackend>) -> Self {
        let store = Arc::new(Store::new(storage, config.signature_cache_len));
        Self { config, store, background: Arc::default() }
    }

    /// How it compresses.
    pub fn config(&self) -> &CompressorConfig {
        &self.config
    }

    /// Where it keeps its objects.
    pub fn storage(&self) -> &Arc<dyn StorageBackend> {
        &self.store.storage
    }

    /// Saves a checkpoint, against an earlier one if there is a key for it. When this returns, nothing can lose it.
    ///
    /// # Errors
    /// `Conflict` when the key exists; `MissingPrevious` when the earlier one does not; `UnsafeName`,
    /// `UnsupportedDtype` or `ShapeMismatch` when the checkpoint is at fault; `Storage` when the storage fails. Nothing is
    /// changed then.
    pub fn save(
        &self,
        checkpoint: &Checkpoint,
        key: &str,
        previous_key: Option<&str>,
    ) -> Result<CheckpointMeta, CheckpointError> {
        let options = SaveOptions::default().with_previous(previous_key);
        self.save_view(&checkpoint.view(), key, &options)
    }

    /// As [`CheckpointCompressor::save`], for tensors that belong to the caller.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::save`]; `Compression` when a tensor changed that others were stored by.
    pub fn save_view(
        &self,
        checkpoint: &CheckpointView<'_>,
        key: &str,
        options: &SaveOptions<'_>,
    ) -> Result<CheckpointMeta, CheckpointError> {
        self.save_permitted(checkpoint, key, options, &Permit::stopped_by(options.stop.clone()))
    }

    pub(super) fn save_permitted(
        &self,
        checkpoint: &CheckpointView<'_>,
        key: &str,
        options: &SaveOptions<'_>,
        permit: &Permit,
    ) -> Result<CheckpointMeta, CheckpointError> {
        let file = CheckpointFile::new(checkpoint, options.changing)?;
        let request = Request {
            key,
            previous_key: options.previous_key,
            step: checkpoint.step,
            metadata: checkpoint.metadata.clone(),
            files: vec![SourceFile { name: None, source: &file }],
            raw_len: checkpoint.tensors.values().map(|tensor| tensor.data.len() as u64).sum(),
        };
        self.save_request(&request, permit, options.progress)
    }

    /// Saves model files (safetensors, npy, npz, pt, gguf, onnx), each with the name that it is restored under.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::save`]; `Compression` when a file is of no known kind or cannot be read.
    pub fn save_files(
        &self,
        files: &[(&str, &dyn ReadAt)],
        key: &str,
        step: Option<u64>,
        options: &SaveOptions<'_>,
    ) -> Result<CheckpointMeta, CheckpointError> {
        let mut raw_len = 0;
        for (_, source) in files {
            let size = source.size().map_err(crate::Error::reading);
            raw_len += size.map_err(super::error::about(key))?;
        }
        let files = files.iter().map(|&(name, source)| SourceFile { name: Some(name.to_owned()), source });
        let request = Request {
            key,
            previous_key: options.previous_key,
            step,
            metadata: super::Metadata::new(),
            files: files.collect(),
            raw_len,
        };
        if request.files.is_empty() {
            let source = crate::Error::invalid("there is no file to save");
            return Err(CheckpointError::Compression { key: key.to_owned(), source });
        }
        self.save_request(&request, &Permit::stopped_by(options.stop.clone()), options.progress)
    }

    /// Saves in the background, after those that were started before. The tensors are shared, not copied: they cannot
    /// change, so what is saved is what was given.
    pub fn save_async(&self, checkpoint: Checkpoint, key: &str, previous_key: Option<&str>) -> SaveHandle {
        let compressor = self.clone();
        let (key, previous_key) = (key.to_owned(), previous_key.map(str::to_owned));
        self.background.start(key.clone(), move |permit| {
            let options = SaveOptions::default().with_previous(previous_key.as_deref());
            compressor.save_permitted(&checkpoint.view(), &key, &options, permit)
        })
    }

    /// Waits for the saves in the background, at most so long; those that are not being committed by then are given up.
    /// Returns the handles of all of them, each with its truth.
    pub fn flush(&self, deadline: Duration) -> Vec<SaveHandle> {
        self.background.flush(deadline)
    }

    /// Whether there is a store: whether anything was ever saved there. The calls that only ask what there is
    /// ([`CheckpointCompressor::list`], [`CheckpointCompressor::keys`], [`CheckpointCompressor::latest`]) find nothing in a
    /// place that is none, as a run that starts expects; all others refuse it as `NoStore`.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn exists(&self) -> Result<bool, CheckpointError> {
        self.store.exists()
    }

    /// All checkpoints, from the first step to the last.
    ///
    /// # Errors
    /// When the storage fails. Manifests that cannot be read are part of the answer.
    pub fn list(&self) -> Result<Listing, CheckpointError> {
        let found = self.store.manifests(|manifest| CheckpointMeta::of(&manifest))?;
        Ok(Listing { checkpoints: found.readable, unreadable: found.unreadable, foreign: found.foreign })
    }

    /// The manifest of a checkpoint.
    ///
    /// # Errors
    /// `NotFound`; `InvalidFormat`, `ChecksumMismatch` or `UnsupportedVersion` when it cannot be used.
    pub fn manifest(&self, key: &str) -> Result<Manifest, CheckpointError> {
        self.store.manifest(key)
    }

    /// What is known of a checkpoint.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::manifest`].
    pub fn meta(&self, key: &str) -> Result<CheckpointMeta, CheckpointError> {
        Ok(CheckpointMeta::of(&self.store.manifest(key)?))
    }

    /// The signature of a checkpoint.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::manifest`].
    pub fn signature(&self, key: &str) -> Result<CheckpointSignature, CheckpointError> {
        Ok(CheckpointSignature::of(&*self.store.known_manifest(key)?))
    }

    /// The keys of all checkpoints, in order. No manifest is read: some may be unreadable.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn keys(&self) -> Result<Vec<String>, CheckpointError> {
        let objects = self.store.storage.list(key::MANIFESTS)?;
        let mut keys: Vec<String> =
            objects.iter().filter_map(|object| key::of_manifest(&object.key)).collect();
        keys.sort();
        Ok(keys)
    }

    /// The newest checkpoint whose data is all there: the one with the highest step, and of those the one that was saved
    /// last. A save without a step has the highest one that the store had before it. Reads the manifest that `latest.json` names
    /// and those that were written since, and all of them only where that does not tell.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn latest(&self) -> Result<Option<CheckpointMeta>, CheckpointError> {
        match self.newest_among(&self.store.likely_newest()?)? {
            None => self.newest_among(&self.store.manifests_without_tensors()?.readable),
            found => Ok(found),
        }
    }

    /// The last of some manifests in order whose data is all there.
    fn newest_among(&self, mut left: &[Manifest]) -> Result<Option<CheckpointMeta>, CheckpointError> {
        while let Some(newest) = self.store.newest_of(left.iter())? {
            match self.meta(&newest.key) {
                // Deleted meanwhile.
                Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => {
                    let at = left.iter().position(|manifest| manifest.key == newest.key);
                    left = &left[..at.unwrap_or(0)];
                }
                meta => return meta.map(Some),
            }
        }
        Ok(None)
    }
}
