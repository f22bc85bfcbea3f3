//! Checkpoints as one container in memory, for callers that store them themselves.

use super::blocking::CheckpointCompressor;
use super::chain::{self, Against, Chain};
use super::error::about;
use super::let_go::LetGo;
use super::load::MAX_TRIES;
use super::tensors::CheckpointFile;
use super::{Checkpoint, CheckpointError, TensorData};
use crate::container::{Bases, Reader};
use crate::pack::{expected_sizes, pack};
use bytes::Bytes;
use std::sync::Arc;

/// A compressed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompressedCheckpoint {
    /// A container. `mithril decompress` makes a safetensors file of it.
    pub bytes: Bytes,
    /// Key of the checkpoint of the store that it needs.
    pub previous: Option<String>,
    /// Bytes of its tensors.
    pub original_size: u64,
}

impl CompressedCheckpoint {
    /// A container that was made before.
    pub fn new(bytes: impl Into<Bytes>, previous: Option<String>, original_size: u64) -> Self {
        Self { bytes: bytes.into(), previous, original_size }
    }
}

/// What messages call a checkpoint that has no key.
const IN_MEMORY: &str = "in memory";

impl CheckpointCompressor {
    fn against(&self, key: &str) -> Result<Against, CheckpointError> {
        let manifest = Arc::new(self.store.manifest(key)?);
        Ok(Against { chain: Chain::open(&self.store.storage, &manifest)?, manifest })
    }

    /// Does something that reads an earlier checkpoint: once more where another process has replaced it meanwhile, and in vain
    /// where it has deleted it.
    fn reading<T>(
        &self,
        previous: Option<&str>,
        work: impl Fn() -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let Some(previous) = previous else { return work() };
        for _ in 1..MAX_TRIES {
            match work() {
                Err(error) if error.missing_object().is_some() => drop(self.store.manifest(previous)?),
                done => return done,
            }
        }
        work()
    }

    /// A checkpoint as a container in memory, stored against one of the store if a key is given.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::save`].
    pub fn compress(
        &self,
        checkpoint: &Checkpoint,
        previous: Option<&str>,
    ) -> Result<CompressedCheckpoint, CheckpointError> {
        self.reading(previous, || self.compress_against(checkpoint, previous))
    }

    fn compress_against(
        &self,
        checkpoint: &Checkpoint,
        previous: Option<&str>,
    ) -> Result<CompressedCheckpoint, CheckpointError> {
        let view = checkpoint.view();
        let file = CheckpointFile::new(&view, false)?;
        let previous = previous.filter(|_| self.config.delta_enabled);
        let mut options = self.config.pack_options();
        options.name = "checkpoint.safetensors".to_owned();
        options.step = checkpoint.step;
        options.metadata = checkpoint.metadata.clone();
        if let Some(previous) = previous {
            let against = self.against(previous)?;
            let manifest = Arc::clone(&against.manifest);
            options.bases = against.models(&LetGo::new());
            let names = chain::without_deltas(&manifest);
            let sizes = expected_sizes(&file, &names, &options).map_err(about(IN_MEMORY))?;
            options.delta_budget = chain::delta_budget(&manifest, &LetGo::new(), &sizes, &self.config);
        }
        let (bytes, _) = pack(&file, Vec::new(), &options, &|_| ()).map_err(about(IN_MEMORY))?;
        Ok(CompressedCheckpoint::new(bytes, previous.map(str::to_owned), checkpoint.raw_len()))
    }

    /// The checkpoint that a container in memory holds.
    ///
    /// # Errors
    /// `NotFound` or `MissingBase` when the one it needs is not in the store; `Compression` when it is damaged.
    pub fn decompress(&self, compressed: &CompressedCheckpoint) -> Result<Checkpoint, CheckpointError> {
        self.reading(compressed.previous.as_deref(), || self.decompress_against(compressed))
    }

    fn decompress_against(&self, compressed: &CompressedCheckpoint) -> Result<Checkpoint, CheckpointError> {
        let bases = match &compressed.previous {
            Some(previous) => self.against(previous)?.models(&LetGo::new()),
            None => Bases::none(),
        };
        let failed = about(IN_MEMORY);
        let reader = Reader::open(compressed.bytes.as_ref()).map_err(&failed)?;
        let header = reader.header().map_err(&failed)?;
        let mut checkpoint = Checkpoint { step: header.step, metadata: header.metadata, ..Checkpoint::new() };
        for (entry_idx, entry) in reader.entries().iter().enumerate().filter(|(_, entry)| !entry.glue) {
            let bytes = reader.read(entry_idx, &bases).map_err(&failed)?;
            let tensor = TensorData::new(bytes, entry.shape.clone(), entry.dtype);
            checkpoint.tensors.insert(entry.name.clone(), tensor);
        }
        Ok(checkpoint)
    }
}
