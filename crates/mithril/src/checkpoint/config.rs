//! How checkpoints are compressed, chained and kept.

use super::SaveCheck;
use crate::Coding;
use crate::options::coding_setters;
use crate::pack::PackOptions;
use std::collections::BTreeSet;

/// How a store compresses, chains and keeps checkpoints.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CompressorConfig {
    /// Whether a checkpoint may be stored against the previous one.
    pub delta_enabled: bool,
    /// How much work goes into size, and how many threads do it.
    pub coding: Coding,
    /// Whether the deltas of master weights start where the moments of their optimiser say that they went: smaller, but
    /// weights are then not read without their moments.
    pub from_moments: bool,
    /// Lossy coding: there is none.
    pub quantization: Option<QuantizationConfig>,
    /// Deltas of deltas of deltas: at most so many, then a tensor is stored in full.
    pub max_chain_depth: u32,
    /// Bytes that restoring a checkpoint may read, as a multiple of those of its tensors in full; where deltas would take
    /// it further, those that save least are stored in full.
    pub max_restore_cost: f64,
    /// Objects that a checkpoint may need: where tensors change in turn and it would need more, those go that are cheapest to
    /// do without, and what is still needed of them is stored anew. Chains of many files may need more, at most 10,000.
    pub max_objects: usize,
    /// How far a save is checked before it is committed.
    pub verify: SaveCheck,
    /// Which checkpoints are kept.
    pub retention: Retention,
    /// Checkpoints whose manifests are remembered, so that the next save need not parse them.
    pub signature_cache_len: usize,
}

/// Lossy coding, of which there is none yet: this type has no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizationConfig {}

/// Which checkpoints are kept when others are removed. By default all of them. What was just saved, and the newest, are
/// always kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Retention {
    /// Those that were saved last: this many, whatever their steps.
    pub keep_last: Option<usize>,
    /// Those whose step is a multiple of this; a save without a step of its own is none of them.
    pub keep_every: Option<u64>,
    /// Those with these keys.
    pub keep: BTreeSet<String>,
}

impl Retention {
    /// Keeps as many as were saved last.
    #[must_use]
    pub fn last(n: usize) -> Self {
        Self { keep_last: Some(n), ..Self::default() }
    }

    /// Keeps those whose step is a multiple of `steps`, too.
    #[must_use]
    pub fn and_every(mut self, steps: u64) -> Self {
        self.keep_every = Some(steps);
        self
    }

    /// Keeps this one, too.
    #[must_use]
    pub fn and_key(mut self, key: impl Into<String>) -> Self {
        self.keep.insert(key.into());
        self
    }

    /// Whether anything is ever removed.
    pub fn removes(&self) -> bool {
        self.keep_last.is_some()
    }
}

impl Default for CompressorConfig {
    fn default() -> Self {
        Self {
            delta_enabled: true,
            coding: Coding::default(),
            from_moments: false,
            quantization: None,
            max_chain_depth: 8,
            max_restore_cost: 1.5,
            max_objects: 32,
            verify: SaveCheck::default(),
            retention: Retention::default(),
            signature_cache_len: 64,
        }
    }
}

impl CompressorConfig {
    /// How containers are packed.
    pub(super) fn pack_options(&self) -> PackOptions {
        let mut options = PackOptions::default().with_coding(self.coding).with_digests(true);
        options.from_moments = self.from_moments;
        options
    }

    /// Sets whether a checkpoint may be stored against the previous one.
    #[must_use]
    pub fn with_delta(mut self, enabled: bool) -> Self {
        self.delta_enabled = enabled;
        self
    }

    /// Sets whether the deltas of master weights start where their moments say that they went.
    #[must_use]
    pub fn with_from_moments(mut self, enabled: bool) -> Self {
        self.from_moments = enabled;
        self
    }

    coding_setters!(coding);

    /// Sets how many deltas a tensor may be away from a full one, and how much restoring it may cost.
    #[must_use]
    pub fn with_chain(mut self, max_depth: u32, max_restore_cost: f64) -> Self {
        (self.max_chain_depth, self.max_restore_cost) = (max_depth, max_restore_cost);
        self
    }

    /// Sets how many objects a checkpoint may need.
    #[must_use]
    pub fn with_max_objects(mut self, n: usize) -> Self {
        self.max_objects = n;
        self
    }

    /// Sets how far a save is checked before it is committed.
    #[must_use]
    pub fn with_verify(mut self, check: SaveCheck) -> Self {
        self.verify = check;
        self
    }

    /// Sets which checkpoints are kept.
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }
}
