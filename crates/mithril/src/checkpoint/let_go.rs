//! What a new save no longer takes from earlier ones, so that a checkpoint does not need more objects with every save.
//!
//! Where tensors change in turn, every save leaves an object behind that holds the last state of a few of them. When there
//! are too many, the objects go that are cheapest to do without: their tensors are no bases for the new save, which so
//! stores them anew, in one object. At least half of what is allowed goes at a time, so it is long until the next time, and
//! a tensor that never changes is stored anew only as often as the logarithm of the run.

use super::{CheckpointError, CompressorConfig, Manifest, manifest::MAX_OBJECTS};
use crate::Error;
use crate::container::EntryKind;
use std::collections::HashSet;

/// Tensors of a checkpoint that a new one is not stored against: the number of the object that lists each, and its name.
pub(super) type LetGo<'a> = HashSet<(usize, &'a str)>;

/// Most objects that a save of so many files may need, with its own.
fn most_objects(n_files: usize, config: &CompressorConfig) -> usize {
    // A chain of every file, and as much again.
    let depth = usize::try_from(config.max_chain_depth).unwrap_or(MAX_OBJECTS);
    let chains = depth.saturating_add(1).saturating_mul(n_files).saturating_mul(2);
    config.max_objects.max(chains).min(MAX_OBJECTS)
}

/// The tensors of a checkpoint that a save of so many files is not stored against.
pub(super) fn let_go<'a>(previous: &'a Manifest, n_files: usize, config: &CompressorConfig) -> LetGo<'a> {
    let most = most_objects(n_files, config);
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); previous.objects.len()];
    for (tensor_idx, tensor) in previous.tensors.iter().enumerate() {
        for &object_idx in tensor.needs.iter().chain([&tensor.holder]) {
            if users[object_idx].last() != Some(&tensor_idx) {
                users[object_idx].push(tensor_idx);
            }
        }
    }
    let cost = |tensor_idx: usize| {
        let tensor = &previous.tensors[tensor_idx];
        let is_link = matches!(tensor.entry_kind(), Some(EntryKind::Ref | EntryKind::Derived));
        // An entry is never free.
        if is_link { 1 } else { tensor.full_len.saturating_add(1) }
    };
    let mut is_kept = vec![true; previous.tensors.len()];
    let mut left: Vec<usize> = (0..users.len()).filter(|&idx| !users[idx].is_empty()).collect();
    if left.len().saturating_add(n_files) <= most {
        return LetGo::new();
    }
    let target = (most / 2).saturating_sub(n_files);
    while left.len() > target {
        let cost_of = |object_idx: usize| {
            let kept = users[object_idx].iter().filter(|&&idx| is_kept[idx]);
            kept.fold(0u64, |sum, &idx| sum.saturating_add(cost(idx)))
        };
        let Some((cheapest, _)) = left.iter().map(|&idx| (idx, cost_of(idx))).min_by_key(|&(_, cost)| cost)
        else {
            break;
        };
        users[cheapest].iter().for_each(|&idx| is_kept[idx] = false);
        left.retain(|&object_idx| users[object_idx].iter().any(|&idx| is_kept[idx]));
    }
    let gone = previous.tensors.iter().zip(is_kept).filter(|(_, is_kept)| !is_kept);
    gone.map(|(tensor, _)| (tensor.object, tensor.name.as_str())).collect()
}

/// Refuses more files than a checkpoint can have.
pub(super) fn check_files(key: &str, n_files: usize) -> Result<(), CheckpointError> {
    if n_files <= MAX_OBJECTS {
        return Ok(());
    }
    let what = format!("{n_files} files are too many for a checkpoint, which has at most {MAX_OBJECTS}");
    Err(CheckpointError::Compression { key: key.to_owned(), source: Error::invalid(what) })
}
