//! Loading: the manifest, the containers of its chain, and then the tensors that are asked for.

use super::blocking::CheckpointCompressor;
use super::chain::Chain;
use super::error::about;
use super::{Checkpoint, CheckpointError, Manifest, TensorData};
use crate::container::{Entry, Reader, read_many};
use crate::pack::{Progress, unpack};
use crate::{Dtype, Error};
use bytes::BytesMut;
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
            let tensors = || chain.own.iter().flat_map(numbered_tensors);
            let wanted = tensors().map(|(reader, entry_idx, entry)| {
                let tensor = reader.open_tensor(entry_idx, &chain.bases)?;
                let len = tensor.checked_len().map_err(|error| error.in_tensor(&entry.name))?;
                Ok((tensor, entry.name.as_str(), BytesMut::zeroed(len)))
            });
            let mut pieces: Vec<BytesMut> = tensors().map(|_| BytesMut::new()).collect();
            let take = |tensor_idx: usize, piece: BytesMut| {
                progress(piece.len() as u64);
                pieces[tensor_idx].unsplit(piece);
            };
            read_many(wanted, manifest.raw_len, self.config.threads, take).map_err(about(key))?;
            let mut checkpoint = Checkpoint::new().with_step(manifest.step);
            checkpoint.metadata = manifest.metadata.clone();
            for ((_, _, entry), bytes) in tensors().zip(pieces) {
                let tensor = TensorData::new(bytes.freeze(), entry.shape.clone(), entry.dtype);
                checkpoint.tensors.insert(entry.name.clone(), tensor);
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
                let place = place(chain, key, name)?;
                let entry = &chain.own[place.0].entries()[place.1];
                if entry.raw_len() != buffer.len() as u64 {
                    return Err(CheckpointError::ShapeMismatch {
                        name: (*name).to_owned(),
                        expected: entry.shape.clone(),
                        actual: vec![entry.dtype.elements_in(buffer.len() as u64)],
                    });
                }
                found.push(place);
            }
            let raw_len = buffers.iter().map(|(_, buffer)| buffer.len() as u64).sum();
            let mut places: Vec<_> = found.into_iter().zip(buffers.iter_mut()).collect();
            // As they lie in the containers, which are then read from front to back.
            places.sort_by_key(|(place, _)| *place);
            let wanted = places.into_iter().map(|((own_idx, entry_idx), (name, buffer))| {
                let tensor = chain.own[own_idx].open_tensor(entry_idx, &chain.bases)?;
                Ok((tensor, *name, &mut **buffer))
            });
            read_many(wanted, raw_len, self.config.threads, |_, _| ()).map_err(about(key))
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

type OwnReader = Reader<Box<dyn ReadAt>>;

/// The tensors of a container with their numbers.
fn numbered_tensors(reader: &OwnReader) -> impl Iterator<Item = (&OwnReader, usize, &Entry)> {
    let entries = reader.entries().iter().enumerate().filter(|(_, entry)| !entry.glue);
    entries.map(move |(entry_idx, entry)| (reader, entry_idx, entry))
}

/// The container of a checkpoint and the entry that hold the tensor of a name.
fn place(chain: &Chain, key: &str, name: &str) -> Result<(usize, usize), CheckpointError> {
    let mut own = chain.own.iter().enumerate();
    let found = own.find_map(|(own_idx, reader)| Some((own_idx, reader.directory().find(name)?)));
    found.ok_or_else(|| CheckpointError::NotFound {
        what: format!("checkpoint `{key}` has no tensor `{}`", name.escape_debug()),
    })
}

fn find<'a>(chain: &'a Chain, key: &str, name: &str) -> Result<(&'a OwnReader, usize), CheckpointError> {
    place(chain, key, name).map(|(own_idx, entry_idx)| (&chain.own[own_idx], entry_idx))
}
