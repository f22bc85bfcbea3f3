//! Loading: the manifest, the containers of its chain, and then the tensors that are asked for.

use super::blocking::CheckpointCompressor;
use super::chain::Chain;
use super::error::about;
use super::save::KEPT_LEN;
use super::{Checkpoint, CheckpointError, Manifest, TensorData};
use crate::container::{Content, Entry, Follower, SharedReader, Wanted, read_many};
use crate::pack::{self, Progress, unpack};
use crate::pipeline::ahead::Ahead;
use crate::{Dtype, Error};
use bytes::BytesMut;
use mithril_format::safetensors_layout::Layout;
use std::collections::BTreeMap;
use std::io::Write;

/// Loads that may find another process at work on the same key.
pub(super) const MAX_TRIES: usize = 4;

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
            let tensors = || chain.own.iter().enumerate().flat_map(numbered_tensors);
            let mut pieces: Vec<BytesMut> = tensors().map(|_| BytesMut::new()).collect();
            let (order, ahead) = self.plan(chain, tensors().map(|(place, _)| place).collect());
            let wanted = order.iter().map(|leader| {
                let (own_idx, entry_idx) = leader.place;
                let reader = &chain.own[own_idx];
                let tensor = reader.open_ahead(entry_idx, &chain.bases, &ahead)?;
                let name = reader.entries()[entry_idx].name.as_str();
                let len = tensor.checked_len().map_err(|error| error.in_tensor(name))?;
                let followers = leader.followers.iter().map(|&(tensor_idx, rounded_to)| {
                    let len = if rounded_to.is_some() { len / 2 } else { len };
                    Follower { rounded_to, place: (tensor_idx, BytesMut::zeroed(len)) }
                });
                let followers = followers.collect();
                Ok(Wanted { tensor, name, place: (leader.tensor_idx, BytesMut::zeroed(len)), followers })
            });
            let take = |tensor_idx: usize, piece: BytesMut| {
                progress(piece.len() as u64);
                pieces[tensor_idx].unsplit(piece);
            };
            let read = read_many(&ahead, wanted, manifest.raw_len, self.config.coding.threads, take);
            self.store.buffers.keep(KEPT_LEN);
            read.map_err(about(key))?;
            let mut checkpoint = Checkpoint::new();
            checkpoint.step = manifest.has_step().then_some(manifest.step);
            checkpoint.metadata = manifest.metadata.clone();
            for ((_, entry), bytes) in tensors().zip(pieces) {
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
            let (order, ahead) = self.plan(chain, found);
            let mut places: Vec<_> =
                buffers.iter_mut().map(|(name, buffer)| Some((*name, &mut **buffer))).collect();
            let wanted = order.iter().map(|leader| {
                let (own_idx, entry_idx) = leader.place;
                let tensor = chain.own[own_idx].open_ahead(entry_idx, &chain.bases, &ahead)?;
                let mut place = |tensor_idx: usize| places[tensor_idx].take().expect("every buffer once");
                let followers = leader.followers.iter().map(|&(tensor_idx, rounded_to)| Follower {
                    rounded_to,
                    place: (tensor_idx, place(tensor_idx).1),
                });
                let followers = followers.collect();
                let (name, buffer) = place(leader.tensor_idx);
                Ok(Wanted { tensor, name, place: (leader.tensor_idx, buffer), followers })
            });
            let read = read_many(&ahead, wanted, raw_len, self.config.coding.threads, |_, _| ());
            self.store.buffers.keep(KEPT_LEN);
            read.map_err(about(key))
        })
    }

    /// Bytes of each file that [`CheckpointCompressor::export`] writes, before it is written: what the containers say, which
    /// cannot be restored to more.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::load`].
    pub fn file_lens(&self, key: &str) -> Result<Vec<u64>, CheckpointError> {
        self.with_chain(key, |_, chain| {
            let lens = chain.own.iter().map(|reader| Ok(pack::check(reader, &chain.bases)?.len));
            lens.collect::<Result<_, Error>>().map_err(about(key))
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
            let unpacked = unpack(reader, writer, &chain.bases, self.config.coding.threads, progress);
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
            let entries = || chain.own.iter().flat_map(|reader| reader.entries()).filter(|entry| !entry.glue);
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
                    tensor.for_each_piece(self.config.coding.threads, |piece| {
                        progress(piece.len() as u64);
                        writer.write_all(piece).map_err(Error::writing)
                    })
                });
                written.map_err(|error| error.in_tensor(&placed.name)).map_err(about(key))?;
            }
            Ok(writer)
        })
    }

    /// Plans to read the tensors at these places: in which order, and what is fetched ahead.
    fn plan<'a>(&self, chain: &'a Chain, places: Vec<(usize, usize)>) -> (Vec<Leader>, Ahead<'a>) {
        let order = leaders(chain, places);
        let frames = order.iter().map(|leader| {
            let (own_idx, entry_idx) = leader.place;
            let mut frames = Vec::new();
            // What is missing is found again, and reported, when the tensor is opened.
            let _ = chain.own[own_idx].list_frames(entry_idx, &chain.bases, &mut frames);
            frames
        });
        let ahead = Ahead::new(&self.store.buffers, frames.collect());
        (order, ahead)
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
            let done = Chain::open(&self.store.storage, &manifest).and_then(|chain| work(&manifest, &chain));
            let error = match done {
                Err(error) if error.missing_object().is_some() => error,
                done => return done,
            };
            // Gone, with its manifest: then this says that there is no such checkpoint.
            let now = self.store.manifest(key)?;
            if now.generation == manifest.generation {
                return Err(error);
            }
            manifest = now;
        }
        Chain::open(&self.store.storage, &manifest).and_then(|chain| work(&manifest, &chain))
    }
}

/// A tensor that is decoded, and those that follow from it.
struct Leader {
    /// Its container and its entry there.
    place: (usize, usize),
    /// Its number among those that are read.
    tensor_idx: usize,
    /// Numbers of others, and what its elements are rounded to for them.
    followers: Vec<(usize, Option<Dtype>)>,
}

/// The tensors at some places in the order in which they are read: as they lie in their containers, which are then read from
/// front to back. Those that follow from another one that is read come with it.
fn leaders(chain: &Chain, places: Vec<(usize, usize)>) -> Vec<Leader> {
    let mut numbered: Vec<_> = places.into_iter().enumerate().collect();
    numbered.sort_by_key(|(_, place)| *place);
    let content = |(own_idx, entry_idx): (usize, usize)| &chain.own[own_idx].entries()[entry_idx];
    let is_link = |place| matches!(content(place).content, Content::Ref { .. } | Content::Derived { .. });
    let mut order: Vec<Leader> = Vec::with_capacity(numbered.len());
    for &(tensor_idx, place) in numbered.iter().filter(|(_, place)| !is_link(*place)) {
        // The same tensor may be asked for twice.
        match order.last_mut().filter(|leader| leader.place == place) {
            Some(leader) => leader.followers.push((tensor_idx, None)),
            None => order.push(Leader { place, tensor_idx, followers: Vec::new() }),
        }
    }
    let mut alone = Vec::new();
    for (tensor_idx, place) in numbered.into_iter().filter(|(_, place)| is_link(*place)) {
        let entry = content(place);
        let (target, rounded_to) = match entry.content {
            Content::Derived { entry_idx, .. } => (entry_idx, Some(entry.dtype)),
            Content::Ref { entry_idx } => (entry_idx, None),
            _ => continue,
        };
        match order.binary_search_by_key(&(place.0, target), |leader| leader.place) {
            Ok(at) => order[at].followers.push((tensor_idx, rounded_to)),
            Err(_) => alone.push(Leader { place, tensor_idx, followers: Vec::new() }),
        }
    }
    order.extend(alone);
    order.sort_by_key(|leader| leader.place);
    order
}

/// The tensors of a container with their places.
fn numbered_tensors(
    (own_idx, reader): (usize, &SharedReader),
) -> impl Iterator<Item = ((usize, usize), &Entry)> {
    let entries = reader.entries().iter().enumerate().filter(|(_, entry)| !entry.glue);
    entries.map(move |(entry_idx, entry)| ((own_idx, entry_idx), entry))
}

/// The container of a checkpoint and the entry that hold the tensor of a name.
fn place(chain: &Chain, key: &str, name: &str) -> Result<(usize, usize), CheckpointError> {
    let mut own = chain.own.iter().enumerate();
    let found = own.find_map(|(own_idx, reader)| Some((own_idx, reader.directory().find(name)?)));
    found.ok_or_else(|| CheckpointError::NotFound {
        what: format!("checkpoint `{key}` has no tensor `{}`", name.escape_debug()),
    })
}

fn find<'a>(chain: &'a Chain, key: &str, name: &str) -> Result<(&'a SharedReader, usize), CheckpointError> {
    place(chain, key, name).map(|(own_idx, entry_idx)| (&chain.own[own_idx], entry_idx))
}
