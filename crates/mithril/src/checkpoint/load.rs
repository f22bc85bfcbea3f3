//! Loading: the manifest, the containers of its chain, and then the tensors that are asked for.

use super::blocking::CheckpointCompressor;
use super::chain::Chain;
use super::error::about;
use super::{Checkpoint, CheckpointError, Manifest, TensorData};
use crate::container::Reader;
use crate::pack::{Progress, unpack};
use crate::{Dtype, Error};
use mithril_format::ReadAt;
use mithril_format::safetensors_layout::Layout;
use std::collections::BTreeMap;
use std::io::Write;

/// Loads that may find another process at work on the same key.
const MAX_TRIES: usize = 4;

impl CheckpointCompressor {
    /// All tensors of a checkpoint.
    ///
    /// # Errors
    /// `NotFound` when there is no such checkpoint; `MissingBase`, `BaseMismatch` or `Compression` when it cannot be
    /// restored; `Storage` when the storage fails.
    pub fn load(&self, key: &str) -> Result<Checkpoint, CheckpointError> {
        self.load_with(key, &|_| ())
    }

    /// As [`CheckpointCompressor::load`], and tells how many bytes are done.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::load`].
    pub fn load_with(&self, key: &str, progress: Progress<'_>) -> Result<Checkpoint, CheckpointError> {
        self.with_chain(key, |manifest, chain| {
            let mut checkpoint = Checkpoint::new().with_step(manifest.step);
            checkpoint.metadata = manifest.metadata.clone();
            for reader in &chain.own {
                for (entry_idx, entry) in reader.entries().iter().enumerate().filter(|(_, entry)| !entry.glue)
                {
                    let opened = reader.open_tensor(entry_idx, &chain.bases);
                    let bytes = opened.and_then(|tensor| tensor.read_all(self.config.threads));
                    let bytes = bytes.map_err(|error| error.in_tensor(&entry.name)).map_err(about(key))?;
                    progress(bytes.len() as u64);
                    let tensor = TensorData::new(bytes, entry.shape.clone(), entry.dtype);
                    checkpoint.tensors.insert(entry.name.clone(), tensor);
                }
            }
            Ok(checkpoint)
        })
    }

    /// One tensor of a checkpoint.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::load`]; `NotFound` when the checkpoint has no such tensor.
    pub fn load_tensor(&self, key: &str, name: &str) -> Result<TensorData, CheckpointError> {
        self.with_chain(key, |_, chain| {
            let (reader, entry_idx) = find(chain, key, name)?;
            let entry = &reader.entries()[entry_idx];
            let bytes = reader.read(entry_idx, &chain.bases).map_err(about(key))?;
            Ok(TensorData::new(bytes, entry.shape.clone(), entry.dtype))
        })
    }

    /// Some tensors of a checkpoint, into buffers that are there already.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::load_tensor`]; `ShapeMismatch` when a buffer has another length than its tensor.
    /// Lengths are checked before anything is written; when bytes turn out damaged, buffers may hold part of the data.
    pub fn load_into(&self, key: &str, buffers: &mut [(&str, &mut [u8])]) -> Result<(), CheckpointError> {
        self.with_chain(key, |_, chain| {
            let mut found = Vec::with_capacity(buffers.len());
            for (name, buffer) in buffers.iter() {
                let (reader, entry_idx) = find(chain, key, name)?;
                let entry = &reader.entries()[entry_idx];
                if entry.raw_len() != buffer.len() as u64 {
                    return Err(CheckpointError::ShapeMismatch {
                        name: (*name).to_owned(),
                        expected: entry.shape.clone(),
                        actual: vec![entry.dtype.elements_in(buffer.len() as u64)],
                    });
                }
                found.push((reader, entry_idx));
            }
            for ((reader, entry_idx), (name, buffer)) in found.into_iter().zip(buffers.iter_mut()) {
                let opened = reader.open_tensor(entry_idx, &chain.bases);
                let read = opened
                    .and_then(|tensor| tensor.read_range(0..tensor.raw_len(), buffer, self.config.threads));
                read.map_err(|error| error.in_tensor(name)).map_err(about(key))?;
            }
            Ok(())
        })
    }

    /// Writes the file that a checkpoint was saved from: byte for byte for files, and for tensors from memory the
    /// safetensors file that holds them. `part` is the number of the file, for a checkpoint of several.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::load`]; what was written by then is of no use.
    pub fn export<W: Write + Send>(
        &self,
        key: &str,
        part: usize,
        writer: W,
        progress: Progress<'_>,
    ) -> Result<W, CheckpointError> {
        let mut writer = Some(writer);
        self.with_chain(key, |manifest, chain| {
            let reader = chain.own.get(part).ok_or_else(|| CheckpointError::NotFound {
                what: format!("checkpoint `{key}` has {} files, not {}", manifest.n_own, part + 1),
            })?;
            // Taken once: a second try would write behind the first.
            let writer = writer.take().ok_or_else(|| CheckpointError::no_checkpoint(key))?;
            let unpacked = unpack(reader, writer, &chain.bases, self.config.threads, progress);
            Ok(unpacked.map_err(about(key))?.0)
        })
    }

    /// Writes all tensors of a checkpoint as one safetensors file, whatever files they were saved from.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::export`]; `UnsupportedDtype` for a dtype that safetensors lacks.
    pub fn export_safetensors<W: Write + Send>(
        &self,
        key: &str,
        writer: W,
        progress: Progress<'_>,
    ) -> Result<W, CheckpointError> {
        let mut writer = Some(writer);
        self.with_chain(key, |_, chain| {
            let entries = || chain.own.iter().flat_map(Reader::entries).filter(|entry| !entry.glue);
            if let Some(entry) = entries().find(|entry| entry.dtype.id() >= Dtype::Q4_0.id()) {
                let (name, dtype) = (entry.name.clone(), entry.dtype);
                return Err(CheckpointError::UnsupportedDtype { name, dtype });
            }
            let list = entries().map(|entry| (entry.name.clone(), entry.dtype, entry.shape.clone()));
            let layout = Layout::new(list.collect(), &BTreeMap::new());
            let invalid =
                || CheckpointError::InvalidFormat { what: format!("`{key}` has impossible shapes") };
            let layout = layout.ok_or_else(invalid)?;
            let mut writer = writer.take().ok_or_else(|| CheckpointError::no_checkpoint(key))?;
            let failed = |error| about(key)(Error::writing(error));
            writer.write_all(&layout.header).map_err(failed)?;
            for placed in &layout.tensors {
                let (reader, entry_idx) = find(chain, key, &placed.name)?;
                let opened = reader.open_tensor(entry_idx, &chain.bases);
                let written = opened.and_then(|tensor| {
                    tensor.for_each_piece(self.config.threads, |piece| {
                        progress(piece.len() as u64);
                        writer.write_all(piece).map_err(Error::writing)
                    })
                });
                written.map_err(|error| error.in_tensor(&placed.name)).map_err(about(key))?;
            }
            Ok(writer)
        })
    }

    /// Does something with an open checkpoint. Another process may replace or delete it at the same time: then it is
    /// opened again, or it is not there.
    pub(super) fn with_chain<T>(
        &self,
        key: &str,
        mut work: impl FnMut(&Manifest, &Chain) -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let mut manifest = self.store.manifest(key)?;
        for _ in 1..MAX_TRIES {
            let done = Chain::open(&*self.store.storage, &manifest).and_then(|chain| work(&manifest, &chain));
            let error = match done {
                Err(error) if error.is_missing_object() => error,
                done => return done,
            };
            // Gone, with its manifest: then this says that there is no such checkpoint.
            let now = self.store.manifest(key)?;
            if now.generation == manifest.generation {
                return Err(error);
            }
            manifest = now;
        }
        Chain::open(&*self.store.storage, &manifest).and_then(|chain| work(&manifest, &chain))
    }
}

type Found<'a> = (&'a Reader<Box<dyn ReadAt>>, usize);

fn find<'a>(chain: &'a Chain, key: &str, name: &str) -> Result<Found<'a>, CheckpointError> {
    let found = chain.own.iter().find_map(|reader| Some((reader, reader.directory().find(name)?)));
    found.ok_or_else(|| CheckpointError::NotFound {
        what: format!("checkpoint `{key}` has no tensor `{}`", name.escape_debug()),
    })
}
