//! What a caller is told of a checkpoint.

use super::{CheckpointSignature, Manifest};
use crate::container::EntryKind;
use std::collections::BTreeMap;

/// What is known of a checkpoint without reading its data. Of its tensors only sums: a store of many checkpoints is listed in
/// little memory. A [`Manifest`] has each of them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CheckpointMeta {
    /// Its key.
    pub key: String,
    /// Random name of the save.
    pub generation: String,
    /// Training step; of a save that has none of its own, the highest in the store then.
    pub step: u64,
    /// Whether the step is its own: given, or named by the key.
    pub has_step: bool,
    /// Bytes of the tensors or files that were saved.
    pub original_size: u64,
    /// Bytes that the save wrote as data.
    pub compressed_size: u64,
    /// Original bytes over compressed ones.
    pub ratio: f64,
    /// Seconds that the save took.
    pub seconds: f64,
    /// Seconds of those in which a save proved that it can be read; 0 for one that was not saved just now.
    pub proof_seconds: f64,
    /// When it was saved, as [`Manifest::saved`] has it.
    pub saved: Option<String>,
    /// Key of the checkpoint that it is stored against.
    pub base: Option<String>,
    /// Deltas that are undone to restore the tensor that needs most.
    pub depth: u32,
    /// Bytes that a restore reads.
    pub restore_len: u64,
    /// How many tensors are stored how, and how many bytes those take.
    pub kinds: BTreeMap<EntryKind, KindTotal>,
    /// How many tensors there are.
    pub n_tensors: usize,
    /// Names its content.
    pub signature: CheckpointSignature,
}

/// Tensors of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KindTotal {
    /// How many.
    pub n_tensors: usize,
    /// Their raw bytes.
    pub raw_len: u64,
    /// Bytes of their frames.
    pub stored_len: u64,
}

impl CheckpointMeta {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let mut kinds: BTreeMap<EntryKind, KindTotal> = BTreeMap::new();
        for tensor in &manifest.tensors {
            let Some(kind) = tensor.entry_kind() else { continue };
            let total = kinds.entry(kind).or_default();
            total.n_tensors += 1;
            total.raw_len += tensor.raw_len;
            total.stored_len += tensor.stored_len;
        }
        let (original_size, compressed_size) = (manifest.raw_len, manifest.stored_len());
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let ratio = original_size as f64 / compressed_size.max(1) as f64;
        Self {
            key: manifest.key.clone(),
            generation: manifest.generation.clone(),
            step: manifest.step,
            has_step: manifest.has_step(),
            original_size,
            compressed_size,
            ratio,
            seconds: manifest.seconds,
            proof_seconds: 0.0,
            saved: manifest.saved.clone(),
            base: manifest.previous.as_ref().map(|previous| previous.key.clone()),
            depth: manifest.depth(),
            restore_len: manifest.restore_len(),
            kinds,
            n_tensors: manifest.tensors.len(),
            signature: CheckpointSignature::of(manifest),
        }
    }
}
