//! How a file is packed, and what came of it.

use super::budget::DeltaBudget;
use crate::container::{Bases, EntryKind};
use crate::options::coding_setters;
use crate::pipeline::buffers::Buffers;
use crate::{Coding, Dtype, FrameOptions};
use mithril_format::Digest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a model file is packed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PackOptions {
    /// How much work goes into size, and how many threads do it.
    pub coding: Coding,
    /// Frames start on multiples of two to this power.
    pub alignment_log2: u8,
    /// Whether the index carries a digest of every tensor, so that it can serve as a base without being decoded.
    pub digests: bool,
    /// Whether others may change the source while it is packed, as memory that Python lends: every byte is then copied
    /// before it is looked at, and what is written is what was copied.
    pub changing: bool,
    /// Models that tensors may be stored against.
    pub bases: Bases,
    /// Whether the deltas of F32 weights start where the moments of their optimiser, which the file and the base hold
    /// too, say that they went: smaller, but the weights are then not read without those moments.
    pub from_moments: bool,
    /// What deltas may take. Tensors equal to a base are not stored again in any case.
    pub(crate) delta_budget: DeltaBudget,
    /// Raw bytes of the tensors that are coded in memory as a whole. Larger ones are coded as streams.
    pub(crate) in_memory_len: u64,
    /// Buffers for what is under way, which may outlive a call: fresh pages cost as much as coding.
    pub(crate) buffers: Arc<Buffers>,
    /// Name of the original file, without directories.
    pub name: String,
    /// Training step.
    pub step: Option<u64>,
    /// The user's own metadata.
    pub metadata: BTreeMap<String, serde_json::Value>,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            coding: Coding::default(),
            alignment_log2: 6,
            digests: false,
            changing: false,
            bases: Bases::none(),
            from_moments: false,
            delta_budget: DeltaBudget::default(),
            in_memory_len: 64 << 20,
            buffers: Arc::default(),
            name: String::new(),
            step: None,
            metadata: BTreeMap::new(),
        }
    }
}

impl PackOptions {
    coding_setters!(coding);

    /// Sets the models that tensors may be stored against.
    #[must_use]
    pub fn with_bases(mut self, bases: Bases) -> Self {
        self.bases = bases;
        self
    }

    /// Sets the name of the original file.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets whether the index carries a digest of every tensor.
    #[must_use]
    pub fn with_digests(mut self, digests: bool) -> Self {
        self.digests = digests;
        self
    }

    /// Sets whether others may change the source while it is packed.
    #[must_use]
    pub fn with_changing(mut self, changing: bool) -> Self {
        self.changing = changing;
        self
    }

    /// Whether the digest of every tensor is computed.
    pub(super) fn keeps_digests(&self) -> bool {
        self.digests || self.changing
    }

    /// How a tensor of this type and shape is compressed.
    pub(super) fn frame_options(&self, dtype: Dtype, shape: &[u64]) -> FrameOptions {
        FrameOptions::default().with_dtype(dtype).with_shape(shape).with_coding(self.coding)
    }
}

/// What packing a file came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackSummary {
    /// Format of the original file.
    pub format: &'static str,
    /// Bytes of the original file.
    pub raw_len: u64,
    /// Bytes of the container.
    pub packed_len: u64,
    /// Digest of the container; none for other packagings.
    pub digest: Option<Digest>,
    /// Its tensors, in order.
    pub tensors: Vec<PackedTensor>,
}

/// What became of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackedTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub kind: EntryKind,
    /// Its bytes in the original file.
    pub raw_len: u64,
    /// Bytes of its frame; zero for what has none.
    pub stored_len: u64,
}
