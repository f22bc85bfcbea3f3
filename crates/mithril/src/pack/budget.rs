//! What the deltas of a file may take together, so that a restore of the checkpoint that they make stays cheap.
//!
//! A restore may read a multiple of what it would read if every tensor were stored in full. What it reads beyond that are
//! the deltas: those that are there already, and those of this file. The budget starts from what the file is expected to
//! become, and every tensor that is stored is counted as what it has become.

use crate::container::{Entry, EntryKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What deltas may take. Against tensors that it does not know they may take what they like. Clones share what is to
/// spare.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeltaBudget {
    tensors: BTreeMap<String, Planned>,
    /// Bytes that a restore may read for each byte of a full one, beyond that byte.
    rate: f64,
    /// Bytes that all deltas together may take beyond what is expected of them.
    spare: Arc<AtomicI64>,
}

/// A tensor of the checkpoint before, and what is expected of the one of the same name.
#[derive(Debug, Clone, Copy)]
struct Planned {
    /// The full frame that its chain starts with, and the deltas behind it.
    full: i64,
    deltas: i64,
    expected: Expected,
}

/// What every tensor allows when restores may read what they like: of a million tensors it can still be summed up.
const UNBOUNDED: i64 = 1 << 40;

/// What a tensor will most likely be stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// In full, unless it is equal to a base: a delta is not allowed.
    Full,
    /// A delta of so many bytes.
    Delta(i64),
    /// Without bytes of its own, by another tensor of the file.
    Link,
}

impl DeltaBudget {
    /// A budget of nothing, with which a restore may read `rate` bytes beyond each byte of a full one.
    pub(crate) fn new(rate: f64) -> Self {
        Self { rate, ..Self::default() }
    }

    /// Plans a tensor whose chain in the checkpoint before starts with a frame of `full` bytes, and has so many bytes of
    /// deltas.
    pub(crate) fn plan(&mut self, name: &str, full: i64, deltas: i64, expected: Expected) {
        let planned = Planned { full, deltas, expected };
        self.spare.fetch_add(self.expected_rest(&planned), Ordering::Relaxed);
        self.tensors.insert(name.to_owned(), planned);
    }

    /// Whether a delta of this tensor is worth trying.
    pub(crate) fn allows(&self, name: &str) -> bool {
        self.tensors.get(name).is_none_or(|planned| planned.expected != Expected::Full)
    }

    /// Whether this tensor may be stored by a delta of `len` bytes. Must be asked in the order of the tensors, when all
    /// before it are counted, so that the same file always gives the same answers.
    pub(crate) fn fits(&self, entry: &Entry, len: u64) -> bool {
        let Some(base) = self.base_of(entry) else { return true };
        let rest = self.allowed(base.full) - base.deltas - signed(len);
        self.spare.load(Ordering::Relaxed) + rest >= self.expected_rest_of(&entry.name)
    }

    /// Counts a tensor as what it has become, with a frame of `len` bytes if it has one: what was expected of it and is not
    /// needed is left to others.
    pub(crate) fn count(&self, entry: &Entry, len: u64) {
        // The bound is about tensors.
        if entry.glue {
            return;
        }
        let base = self.base_of(entry);
        let rest = match (entry.kind(), base) {
            (EntryKind::Full, _) => self.allowed(signed(len)),
            (EntryKind::Delta | EntryKind::Copy, Some(base)) => {
                self.allowed(base.full) - base.deltas - signed(len)
            }
            // Read with another tensor, or from a base that nothing is known of.
            _ => 0,
        };
        self.spare.fetch_add(rest - self.expected_rest_of(&entry.name), Ordering::Relaxed);
    }

    /// What is known of the base tensor of an entry.
    fn base_of(&self, entry: &Entry) -> Option<&Planned> {
        entry.base().and_then(|(_, name)| self.tensors.get(name))
    }

    /// Bytes that a restore may read beyond a full frame of this length.
    pub(crate) fn allowed(&self, full: i64) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "saturates, which is meant")]
        let allowed = (self.rate * full as f64) as i64;
        allowed.min(UNBOUNDED)
    }

    /// What a tensor is expected to leave to others; less than nothing, if it takes from them.
    fn expected_rest(&self, planned: &Planned) -> i64 {
        match planned.expected {
            Expected::Full => self.allowed(planned.full),
            Expected::Delta(len) => self.allowed(planned.full) - planned.deltas - len,
            Expected::Link => 0,
        }
    }

    fn expected_rest_of(&self, name: &str) -> i64 {
        self.tensors.get(name).map_or(0, |planned| self.expected_rest(planned))
    }
}

fn signed(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX).min(1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::container::Content;
    use mithril_format::Digest;

    fn entry(name: &str, content: Content) -> Entry {
        let mut entry = Entry::full(name, Dtype::Bytes, vec![1000]);
        entry.content = content;
        entry
    }

    fn delta(name: &str) -> Entry {
        let base = Digest([0; Digest::LEN]);
        entry(name, Content::Delta { base, base_name: None, step: None, len: 0, checksum: 0 })
    }

    fn copy(name: &str) -> Entry {
        entry(name, Content::Copy { base: Digest([0; Digest::LEN]), base_name: None })
    }

    fn full(name: &str) -> Entry {
        entry(name, Content::Full { len: 0, checksum: 0 })
    }

    /// Four tensors of 200 bytes that may have 100 bytes of deltas each, have 20, and are expected to get 80 more.
    fn budget() -> DeltaBudget {
        let mut budget = DeltaBudget::new(0.5);
        for name in ["a", "b", "c", "d"] {
            budget.plan(name, 200, 20, Expected::Delta(80));
        }
        budget
    }

    #[test]
    fn what_one_delta_leaves_another_may_take() {
        let budget = budget();
        assert!(!budget.fits(&delta("a"), 81), "nothing is to spare");
        assert!(budget.fits(&delta("a"), 80));
        budget.count(&delta("a"), 30);
        assert!(!budget.fits(&delta("b"), 131));
        assert!(budget.fits(&delta("b"), 130), "what `a` left");
        budget.clone().count(&delta("b"), 120);
        assert!(budget.fits(&delta("c"), 90) && !budget.fits(&delta("c"), 91));
        assert!(budget.fits(&delta("other"), u64::MAX), "nothing is known of it");
    }

    #[test]
    fn what_became_full_a_copy_or_a_link_gives_its_part_back() {
        let of_next = |budget: &DeltaBudget| {
            (0..).find(|len| !budget.fits(&delta("d"), 80 + len + 1)).expect("a bound")
        };
        let (as_full, as_larger, as_copy, as_link) = (budget(), budget(), budget(), budget());
        as_full.count(&full("a"), 200);
        assert_eq!(of_next(&as_full), 100);
        as_larger.count(&full("a"), 300);
        assert_eq!(of_next(&as_larger), 150, "a restore in full reads more");
        as_copy.count(&copy("a"), 0);
        assert_eq!(of_next(&as_copy), 80, "its deltas are still read");
        as_link.count(&entry("a", Content::Ref { entry_idx: 0 }), 0);
        assert_eq!(of_next(&as_link), 0, "it is not read, and so allows nothing");
        let new = budget();
        new.count(&full("new"), 10);
        assert_eq!(of_next(&new), 5);
    }

    #[test]
    fn deltas_that_a_copy_keeps_are_counted() {
        let mut budget = DeltaBudget::new(0.5);
        budget.plan("deep", 200, 60, Expected::Full);
        budget.plan("other", 200, 0, Expected::Delta(100));
        assert!(!budget.allows("deep") && budget.allows("other") && budget.allows("unknown"));
        assert!(budget.fits(&delta("other"), 200));
        budget.count(&copy("deep"), 0);
        assert!(budget.fits(&delta("other"), 140) && !budget.fits(&delta("other"), 141));
    }

    #[test]
    fn a_link_that_becomes_a_delta_is_counted() {
        let mut budget = budget();
        budget.plan("rounding", 100, 20, Expected::Link);
        assert!(budget.fits(&delta("rounding"), 30) && !budget.fits(&delta("rounding"), 31));
    }
}
