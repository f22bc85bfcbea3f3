//! A model of any kind, packed or not, seen as named tensors.

use super::frame_source::Fetch;
use super::lineage::SharedReader;
use super::needs::digest_of;
use super::{Bases, Entry, OpenTensor, Reader};
use crate::Error;
use crate::pipeline::ahead::FramePlace;
use mithril_codec::Dtype;
use mithril_format::source::{self, Kind};
use mithril_format::{Digest, NameTable, ReadAt, framed_safetensors};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An open model file: plain (safetensors, npy, npz, pt, gguf, onnx) or a container.
pub struct Model {
    name: String,
    /// Digests that no container has recorded, taken when first asked for, by the number of the tensor.
    digests: Mutex<HashMap<usize, Digest>>,
    content: ModelContent,
}

enum ModelContent {
    Plain {
        listed: Listed,
        kind: Kind,
        source: Box<dyn ReadAt>,
        stored: Vec<Stored>,
    },
    /// Tensors that are read through a source of their own, one after the other.
    Parts {
        listed: Listed,
        source: Box<dyn ReadAt>,
        places: Vec<Range<u64>>,
    },
    Packed(Box<Packed>),
}

/// Tensors with a table of their names.
struct Listed {
    tensors: Vec<ModelTensor>,
    names: NameTable,
}

impl Listed {
    fn new(tensors: Vec<ModelTensor>) -> Self {
        let names = NameTable::of(tensors.len(), |idx| &tensors[idx].name);
        Self { tensors, names }
    }
}

/// Where the bytes of a tensor lie in a plain file.
struct Stored {
    bytes: Range<u64>,
    /// Whether they are a frame: see [`framed_safetensors`].
    is_frame: bool,
}

struct Packed {
    reader: SharedReader,
    bases: Bases,
    /// The entry of every tensor, in order.
    entries: Vec<usize>,
    /// Made of the entries when first asked for: of a million tensors they take as much memory as the entries.
    tensors: OnceLock<Vec<ModelTensor>>,
    /// Whether all that a tensor needs is at hand, found when first asked for.
    is_resolved: Vec<OnceLock<bool>>,
}

impl Packed {
    fn tensors(&self) -> &[ModelTensor] {
        let tensor = |&entry_idx: &usize| {
            let entry = &self.reader.entries()[entry_idx];
            let (name, shape) = (entry.name.clone(), entry.shape.clone());
            ModelTensor { name, dtype: entry.dtype, shape, raw_len: entry.raw_len() }
        };
        self.tensors.get_or_init(|| self.entries.iter().map(tensor).collect())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.entries.binary_search(&self.reader.find(name).ok()?).ok()
    }
}

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub raw_len: u64,
}

impl Model {
    /// Opens a model. `name` is how messages call it; `bases` are what a packed one needs.
    ///
    /// # Errors
    /// When it cannot be read, is of no known kind, or breaks the rules of its kind.
    pub fn open(name: impl Into<String>, source: Box<dyn ReadAt>, bases: Bases) -> Result<Self, Error> {
        let mut start = [0; 4];
        let is_container =
            source.read_exact_at(0, &mut start).is_ok() && start == mithril_format::forever::CONTAINER_MAGIC;
        if is_container {
            return Ok(Self::packed(name.into(), Arc::new(Reader::open(source)?), bases));
        }
        let kind = source::detect(&*source).ok_or_else(|| {
            Error::invalid(
                "neither a container nor a model file of a known kind (safetensors, npy, npz, pt, gguf, onnx)",
            )
        })?;
        let framed = match kind {
            Kind::Safetensors => framed_safetensors::read(&*source)?,
            _ => None,
        };
        let (found, stored): (Vec<_>, Vec<_>) = match framed {
            Some(framed) => framed
                .tensors
                .into_iter()
                .map(|tensor| (tensor.original, Stored { bytes: tensor.stored, is_frame: tensor.is_frame }))
                .unzip(),
            None => source::tensors(kind, &*source)?
                .into_iter()
                .map(|tensor| {
                    let bytes = tensor.bytes.clone();
                    (tensor, Stored { bytes, is_frame: false })
                })
                .unzip(),
        };
        let tensors = found.into_iter().map(|tensor| ModelTensor {
            raw_len: tensor.bytes.end - tensor.bytes.start,
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
        });
        let listed = Listed::new(tensors.collect());
        Ok(Self::new(name.into(), ModelContent::Plain { listed, kind, source, stored }))
    }

    /// An open container as a model.
    fn packed(name: String, reader: SharedReader, bases: Bases) -> Self {
        Self::packed_part(name, reader, bases, |_| true)
    }

    /// An open container as a model that has only some of its tensors.
    pub(crate) fn packed_part(
        name: String,
        reader: SharedReader,
        bases: Bases,
        is_part: impl Fn(&Entry) -> bool,
    ) -> Self {
        let is_part = |entry: &Entry| !entry.glue && is_part(entry);
        let entries: Vec<usize> =
            (0..reader.entries().len()).filter(|&idx| is_part(&reader.entries()[idx])).collect();
        let is_resolved = entries.iter().map(|_| OnceLock::new()).collect();
        let packed = Packed { reader, bases, entries, tensors: OnceLock::new(), is_resolved };
        Self::new(name, ModelContent::Packed(Box::new(packed)))
    }

    /// A model whose tensors lie one behind the other in the source that `make` returns, given their places.
    pub(crate) fn of_parts(
        name: String,
        tensors: Vec<ModelTensor>,
        make: impl FnOnce(Vec<Range<u64>>) -> Box<dyn ReadAt>,
    ) -> Self {
        let mut end = 0u64;
        let place = |tensor: &ModelTensor| {
            let start = end;
            end = end.saturating_add(tensor.raw_len);
            start..end
        };
        let places: Vec<Range<u64>> = tensors.iter().map(place).collect();
        let source = make(places.clone());
        Self::new(name, ModelContent::Parts { listed: Listed::new(tensors), source, places })
    }

    /// The model with these bases instead of those it has.
    #[must_use]
    pub fn with_bases(mut self, bases: Bases) -> Self {
        if let ModelContent::Packed(packed) = &mut self.content {
            packed.bases = bases;
            packed.is_resolved.iter_mut().for_each(|known| *known = OnceLock::new());
        }
        self
    }

    fn new(name: String, content: ModelContent) -> Self {
        Self { name, digests: Mutex::default(), content }
    }

    /// How messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its tensors, in the order of their bytes.
    pub fn tensors(&self) -> &[ModelTensor] {
        match &self.content {
            ModelContent::Plain { listed, .. } | ModelContent::Parts { listed, .. } => &listed.tensors,
            ModelContent::Packed(packed) => packed.tensors(),
        }
    }

    /// The number of the tensor of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        match &self.content {
            ModelContent::Plain { listed, .. } | ModelContent::Parts { listed, .. } => {
                listed.names.find(name, |idx| &listed.tensors[idx].name)
            }
            ModelContent::Packed(packed) => packed.find(name),
        }
    }

    /// Its kind: `container`, or the format of a plain file.
    pub fn kind(&self) -> &'static str {
        match &self.content {
            ModelContent::Plain { kind, .. } => kind.name(),
            ModelContent::Parts { .. } => "directory",
            ModelContent::Packed(_) => "container",
        }
    }

    /// The container, if it is one.
    pub fn container(&self) -> Option<&Reader<Box<dyn ReadAt>>> {
        match &self.content {
            ModelContent::Plain { .. } | ModelContent::Parts { .. } => None,
            ModelContent::Packed(packed) => Some(&packed.reader),
        }
    }

    /// Where the bytes of a plain file come from, and its kind.
    pub(super) fn plain_source(&self) -> Option<(Kind, &dyn ReadAt)> {
        match &self.content {
            ModelContent::Plain { kind, source, .. } => Some((*kind, source)),
            ModelContent::Parts { .. } | ModelContent::Packed(_) => None,
        }
    }

    /// What a packed model's own tensors are based on.
    pub fn bases(&self) -> Option<&Bases> {
        match &self.content {
            ModelContent::Plain { .. } | ModelContent::Parts { .. } => None,
            ModelContent::Packed(packed) => Some(&packed.bases),
        }
    }

    /// Prepares to read a tensor.
    ///
    /// # Errors
    /// When a packed tensor is damaged, or a base that it needs is not at hand.
    ///
    /// # Panics
    /// When there is no such tensor.
    pub fn open_tensor(&self, tensor_idx: usize) -> Result<OpenTensor<'_>, Error> {
        self.open_with(tensor_idx, Fetch::WholeIfSmall)
    }

    /// As [`Model::open_tensor`], fetched as it is said.
    pub(super) fn open_with<'a>(
        &'a self,
        tensor_idx: usize,
        fetch: Fetch<'a>,
    ) -> Result<OpenTensor<'a>, Error> {
        match &self.content {
            ModelContent::Plain { source, stored, .. } => match &stored[tensor_idx] {
                Stored { bytes, is_frame: false } => Ok(OpenTensor::plain(source, bytes.clone())),
                Stored { bytes, is_frame: true } => {
                    let tensor = &self.tensors()[tensor_idx];
                    OpenTensor::frame(source, bytes.clone(), tensor.raw_len)
                        .map_err(|error| error.in_tensor(&tensor.name))
                }
            },
            ModelContent::Parts { source, places, .. } => {
                Ok(OpenTensor::plain(source, places[tensor_idx].clone()))
            }
            ModelContent::Packed(packed) => {
                packed.reader.open_fetched(packed.entries[tensor_idx], &packed.bases, fetch)
            }
        }
    }

    /// As [`Reader::resolve`]; a plain tensor needs nothing.
    pub(super) fn resolve(&self, tensor_idx: usize) -> Result<(), Error> {
        let ModelContent::Packed(packed) = &self.content else { return Ok(()) };
        let Packed { reader, bases, entries, is_resolved, .. } = &**packed;
        // Bases of bases may be the same ones: each is gone through once.
        match (is_resolved[tensor_idx].get(), reader.entries()[entries[tensor_idx]].base()) {
            (Some(true), _) => return Ok(()),
            (Some(false), Some((digest, name))) => {
                let reason = format!("what `{}` is stored against was not given", self.name);
                return Err(Error::MissingBase { name: name.to_owned(), digest, reason });
            }
            _ => {}
        }
        let resolved = reader.resolve(entries[tensor_idx], bases);
        is_resolved[tensor_idx].get_or_init(|| resolved.is_ok());
        resolved
    }

    /// As [`Reader::list_frames`]; a plain tensor has none.
    pub(super) fn list_frames<'a>(
        &'a self,
        tensor_idx: usize,
        frames: &mut Vec<FramePlace<'a>>,
    ) -> Result<(), Error> {
        match &self.content {
            ModelContent::Plain { .. } | ModelContent::Parts { .. } => Ok(()),
            ModelContent::Packed(packed) => {
                packed.reader.list_frames(packed.entries[tensor_idx], &packed.bases, frames)
            }
        }
    }

    /// The raw bytes of a tensor.
    ///
    /// # Errors
    /// As [`Model::open_tensor`], and when they cannot be read.
    ///
    /// # Panics
    /// When there is no such tensor.
    pub fn read(&self, tensor_idx: usize) -> Result<Vec<u8>, Error> {
        let tensor = self.open_tensor(tensor_idx)?;
        tensor.read_all(0).map_err(|error| error.in_tensor(&self.tensors()[tensor_idx].name))
    }

    /// The digest of a tensor's raw bytes: as a container recorded it, or taken now and kept.
    ///
    /// # Errors
    /// As [`Model::read`].
    ///
    /// # Panics
    /// When there is no such tensor.
    pub fn digest(&self, tensor_idx: usize) -> Result<Digest, Error> {
        if let Some(digest) = self.known_digest(tensor_idx) {
            return Ok(digest);
        }
        let digest = self.open_tensor(tensor_idx)?.digest(0)?;
        self.taken().insert(tensor_idx, digest);
        Ok(digest)
    }

    /// The digest of a tensor's raw bytes, if it costs nothing.
    pub(crate) fn known_digest(&self, tensor_idx: usize) -> Option<Digest> {
        let recorded = match &self.content {
            ModelContent::Plain { .. } | ModelContent::Parts { .. } => None,
            ModelContent::Packed(packed) => digest_of(packed.reader.entries(), packed.entries[tensor_idx]),
        };
        recorded.or_else(|| self.taken().get(&tensor_idx).copied())
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<usize, Digest>> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("name", &self.name).field("tensors", &self.tensors().len()).finish()
    }
}
