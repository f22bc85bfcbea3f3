//! What reading an entry takes besides its own frame.

use super::{Content, Entry};
use mithril_format::Digest;

/// A tensor of another container that an entry needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needed<'a> {
    /// What the entry calls it: a hint.
    pub(super) name: &'a str,
    /// What it is.
    pub(super) bytes: Bytes,
}

/// Names the bytes of a tensor: their digest and how many they are.
pub(super) type Bytes = (Digest, u64);

/// All tensors of other containers that an entry needs, also by the entries that it needs.
pub(super) fn each_base<'a>(entries: &'a [Entry], entry: &'a Entry, take: &mut dyn FnMut(Needed<'a>)) {
    let raw_len = entry.raw_len();
    if let Some((digest, name)) = entry.base() {
        take(Needed { name, bytes: (digest, raw_len) });
    }
    if let Some(step) = entry.step() {
        for (&moment_idx, &digest) in step.moments.iter().zip(&step.base_moments) {
            take(Needed { name: &entries[moment_idx].name, bytes: (digest, raw_len) });
        }
    }
    each_beside(entry, &mut |idx| each_base(entries, &entries[idx], &mut *take));
}

/// The entries of the same container that an entry needs: a target, or moments. They need no further ones, but a target
/// may need moments.
pub(super) fn each_beside(entry: &Entry, take: &mut dyn FnMut(usize)) {
    if let Some(step) = entry.step() {
        step.moments.iter().for_each(|&idx| take(idx));
    }
    if let Content::Ref { entry_idx } | Content::Derived { entry_idx, .. } = entry.content {
        take(entry_idx);
    }
}

/// The digest of an entry's raw bytes, if the index tells it.
pub(crate) fn digest_of(entries: &[Entry], entry_idx: usize) -> Option<Digest> {
    let mut entry = &entries[entry_idx];
    // What it refers to refers to nothing further.
    if let Content::Ref { entry_idx } = entry.content {
        entry = &entries[entry_idx];
    }
    match &entry.content {
        Content::Copy { base, .. } => Some(*base),
        _ => entry.digest,
    }
}
