//! What the deltas of a file may take together, so that a restore of the checkpoint that they make stays cheap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What deltas may take. Tensors that it does not name may take what they like. Clones share what is to spare.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeltaBudget {
    deltas: BTreeMap<String, Planned>,
    /// Bytes that all deltas together may take beyond what is expected of them.
    spare: Arc<AtomicI64>,
}

#[derive(Debug, Clone, Copy)]
enum Planned {
    /// Stored in full.
    None,
    /// A delta of about so many bytes, with which a restore reads so many more than a full one.
    Delta { len: i64, extra: i64 },
}

impl DeltaBudget {
    /// A budget with so many bytes to spare.
    pub(crate) fn new(spare: i64) -> Self {
        Self { deltas: BTreeMap::new(), spare: Arc::new(AtomicI64::new(spare)) }
    }

    /// Stores this tensor in full, unless it is equal to a base.
    pub(crate) fn forbid(&mut self, name: &str) {
        self.deltas.insert(name.to_owned(), Planned::None);
    }

    /// Expects a delta of `len` bytes for this tensor, with which a restore reads `extra` more bytes than a full one.
    pub(crate) fn expect(&mut self, name: &str, len: i64, extra: i64) {
        self.deltas.insert(name.to_owned(), Planned::Delta { len, extra });
    }

    /// Whether a delta of this tensor is worth trying.
    pub(crate) fn allows(&self, name: &str) -> bool {
        !matches!(self.deltas.get(name), Some(Planned::None))
    }

    /// Whether this tensor may be stored by a delta of `len` bytes; it is then counted. Must be asked in the order of the
    /// tensors, so that the same file always gives the same answers.
    pub(crate) fn take(&self, name: &str, len: u64) -> bool {
        let Some(&Planned::Delta { len: expected, extra }) = self.deltas.get(name) else { return true };
        let more = i64::try_from(len).unwrap_or(i64::MAX).saturating_sub(expected);
        let fits = more <= self.spare.load(Ordering::Relaxed);
        // What is stored in full leaves its part to the others.
        self.spare.fetch_sub(if fits { more } else { -extra }, Ordering::Relaxed);
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_delta_leaves_another_may_take() {
        let mut budget = DeltaBudget::new(10);
        for name in ["a", "b", "c", "d"] {
            budget.expect(name, 100, 120);
        }
        budget.forbid("e");
        assert!(budget.allows("a") && !budget.allows("e") && budget.allows("other"));
        assert!(!budget.take("a", 111), "ten are to spare");
        assert!(budget.take("b", 230), "what `a` does not take is");
        assert!(!budget.take("c", 101));
        assert!(budget.clone().take("d", 220));
        assert!(budget.take("other", u64::MAX));
    }
}
