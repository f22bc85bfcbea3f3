//! Containers of which later ones are stored against earlier ones: where the bytes of each base tensor lie.

use super::needs::{Bytes, each_base, each_beside};
use super::{Entry, Reader};
use mithril_format::ReadAt;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// A container that others hold too.
pub(crate) type SharedReader = Arc<Reader<Box<dyn ReadAt>>>;

/// Containers from old to new, and one place for the bytes of each tensor that is needed of them.
///
/// A value that a tensor had before may lie in several of them: in full, as a delta, as a mere mention. A place is only
/// taken once all that it needs itself has a place in an older container, so what is found here can always be read. Of
/// several places the one counts for which least is read.
pub(crate) struct Lineage {
    readers: Vec<SharedReader>,
    places: HashMap<Bytes, Place>,
}

struct Place {
    reader_idx: usize,
    entry_idx: usize,
    /// Bytes of all frames that are read, and one more for every tensor on the way: what a place needs costs less than
    /// the place, so no way leads back to where it came from.
    cost: u64,
}

impl Lineage {
    /// Finds places for all that some newer containers need.
    pub(crate) fn new(readers: Vec<SharedReader>, newer: &[SharedReader]) -> Self {
        let mut wanted = HashSet::new();
        for reader in newer {
            let entries = reader.entries();
            entries
                .iter()
                .for_each(|entry| each_base(entries, entry, &mut |base| _ = wanted.insert(base.bytes)));
        }
        // From new to old it is known what is wanted of a container when it is reached.
        let mut candidates = Vec::with_capacity(readers.len());
        for reader in readers.iter().rev() {
            let entries = reader.entries();
            let is_wanted = |idx: &usize| {
                let entry = &entries[*idx];
                entry.digest.is_some_and(|digest| wanted.contains(&(digest, entry.raw_len())))
            };
            let found: Vec<usize> = reader.holders().iter().copied().filter(is_wanted).collect();
            for &idx in &found {
                each_base(entries, &entries[idx], &mut |base| _ = wanted.insert(base.bytes));
            }
            candidates.push(found);
        }
        // From old to new it is known whether that has a place.
        let mut lineage = Self { readers, places: HashMap::new() };
        for (reader_idx, found) in candidates.into_iter().rev().enumerate() {
            for entry_idx in found {
                lineage.offer(reader_idx, entry_idx);
            }
        }
        lineage
    }

    /// Takes a place, if it can be read and no cheaper one is known.
    fn offer(&mut self, reader_idx: usize, entry_idx: usize) {
        let entries = self.readers[reader_idx].entries();
        let entry = &entries[entry_idx];
        let (Some(digest), Some(cost)) = (entry.digest, self.cost_of(entries, entry)) else { return };
        let bytes = (digest, entry.raw_len());
        if self.places.get(&bytes).is_none_or(|known| cost < known.cost) {
            self.places.insert(bytes, Place { reader_idx, entry_idx, cost });
        }
    }

    /// What reading an entry costs; nothing when something that it needs has no place.
    fn cost_of(&self, entries: &[Entry], entry: &Entry) -> Option<u64> {
        let mut cost = Some(entry.stored_len());
        let mut add = |more: Option<u64>| {
            cost = cost.zip(more).and_then(|(cost, more)| cost.checked_add(more)?.checked_add(1));
        };
        each_base(entries, entry, &mut |base| add(self.places.get(&base.bytes).map(|place| place.cost)));
        each_beside(entry, &mut |idx| add(Some(entries[idx].stored_len())));
        cost
    }

    /// The place of some bytes: a container and the number of an entry there.
    pub(super) fn find(&self, bytes: Bytes) -> Option<(&Reader<Box<dyn ReadAt>>, usize)> {
        let place = self.places.get(&bytes)?;
        Some((&self.readers[place.reader_idx], place.entry_idx))
    }

    /// The containers, from old to new.
    pub(crate) fn readers(&self) -> &[SharedReader] {
        &self.readers
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lineage").field("readers", &self.readers.len()).finish_non_exhaustive()
    }
}
