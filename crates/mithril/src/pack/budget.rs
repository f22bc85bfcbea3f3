//! What the deltas of a file may take together, so that a restore of the checkpoint that they make stays cheap.
//!
//! A restore may read a multiple of what it would read if every tensor were stored in full. What it reads beyond that are
//! the deltas: those that are there already, and those of this file. The budget starts from what the file is expected to
//! become; while the file is packed, an account of it counts every tensor as what it has become.

use crate::container::{Entry, EntryKind};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What deltas may take. Against tensors that it does not know they may take what they like.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeltaBudget {
    tensors: BTreeMap<String, Planned>,
    /// Bytes that a restore may read for each byte of a full one, beyond that byte.
    rate: f64,
    /// Bytes that all deltas together may take beyond what is expected of them.
    spare: i64,
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
        self.spare += self.expected_rest(&planned);
        self.tensors.insert(name.to_owned(), planned);
    }

    /// Whether a delta of this tensor is worth trying.
    pub(crate) fn allows(&self, name: &str) -> bool {
        self.tensors.get(name).is_none_or(|planned| planned.expected != Expected::Full)
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

/// Threads that wait for others at most, beside those that code.
const MAX_WAITING: usize = 2;

/// What is left of a budget while a file is packed, and who may code: a thread that waits for the counts of others leaves
/// its place to another.
#[derive(Debug)]
pub(super) struct Account<'a> {
    budget: &'a DeltaBudget,
    state: Mutex<State>,
    /// A ticket was settled, or a thread codes no longer.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Threads that may code beside those that do.
    n_free: usize,
    n_tickets: usize,
    /// Tickets that are settled, as are all before them, and what they leave to spare.
    n_settled: usize,
    spare: i64,
    /// What later ones change that are settled already.
    later: BTreeMap<usize, i64>,
}

impl<'a> Account<'a> {
    /// An account for a file that this many threads code.
    pub(super) fn new(budget: &'a DeltaBudget, threads: usize) -> Self {
        let (spare, later) = (budget.spare, BTreeMap::new());
        let state = State { n_free: threads.max(1), n_tickets: 0, n_settled: 0, spare, later };
        Self { budget, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The place of the next entries among all: taken in their order, before they are coded.
    pub(super) fn ticket(&self) -> Ticket<'_> {
        let mut state = self.lock();
        state.n_tickets += 1;
        Ticket { account: self, number: state.n_tickets - 1, change: 0 }
    }

    /// Threads beside those that code: where deltas are counted, some wait for others.
    pub(super) fn n_waiting(&self) -> usize {
        if self.budget.tensors.is_empty() { 0 } else { MAX_WAITING }
    }

    /// Does some coding, when not too many threads code already.
    pub(super) fn code<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut state = self.wait_while(self.lock(), |state| state.n_free == 0);
        state.n_free -= 1;
        drop(state);
        let _coding = Coding(self);
        work()
    }

    fn wait_while<'s>(
        &self,
        state: MutexGuard<'s, State>,
        condition: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'s, State> {
        self.changed.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that codes, until it is dropped.
struct Coding<'a>(&'a Account<'a>);

impl Drop for Coding<'_> {
    fn drop(&mut self) {
        self.0.lock().n_free += 1;
        self.0.changed.notify_all();
    }
}

/// The place of some entries among all that are counted. It is settled when it is dropped, also by an error or a panic, so
/// that no other waits for it in vain.
#[derive(Debug)]
pub(super) struct Ticket<'a> {
    account: &'a Account<'a>,
    number: usize,
    change: i64,
}

impl Ticket<'_> {
    /// Whether an entry may be stored by a delta of `len` bytes. Waits until all entries before it are counted, so that the
    /// same file always gives the same answers; another thread may code meanwhile. For work in [`Account::code`].
    pub(super) fn fits(&self, entry: &Entry, len: u64) -> bool {
        let Account { budget, changed, .. } = self.account;
        let Some(base) = budget.base_of(entry) else { return true };
        let rest = budget.allowed(base.full) - base.deltas - signed(len);
        let mut state = self.account.lock();
        if state.n_settled != self.number {
            state.n_free += 1;
            changed.notify_all();
            let must_wait = |state: &mut State| state.n_settled != self.number || state.n_free == 0;
            state = self.account.wait_while(state, must_wait);
            state.n_free -= 1;
        }
        state.spare + self.change + rest >= budget.expected_rest_of(&entry.name)
    }

    /// Counts an entry as what it has become, with a frame of `len` bytes if it has one: what was expected of it and is not
    /// needed is left to others.
    pub(super) fn count(&mut self, entry: &Entry, len: u64) {
        // The bound is about tensors.
        if entry.glue {
            return;
        }
        let budget = self.account.budget;
        let rest = match (entry.kind(), budget.base_of(entry)) {
            (EntryKind::Full, _) => budget.allowed(signed(len)),
            (EntryKind::Delta | EntryKind::Copy, Some(base)) => {
                budget.allowed(base.full) - base.deltas - signed(len)
            }
            // Read with another tensor, or from a base that nothing is known of.
            _ => 0,
        };
        self.change += rest - budget.expected_rest_of(&entry.name);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.account.lock();
        state.later.insert(self.number, self.change);
        let state = &mut *state;
        while let Some(change) = state.later.remove(&state.n_settled) {
            state.spare += change;
            state.n_settled += 1;
        }
        self.account.changed.notify_all();
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

    /// Counts an entry that is the next.
    fn count(account: &Account<'_>, entry: &Entry, len: u64) {
        account.ticket().count(entry, len);
    }

    /// Whether an entry may be stored by a delta, if it is the next.
    fn fits(account: &Account<'_>, entry: &Entry, len: u64) -> bool {
        account.ticket().fits(entry, len)
    }

    #[test]
    fn what_one_delta_leaves_another_may_take() {
        let budget = budget();
        let account = Account::new(&budget, 1);
        assert!(!fits(&account, &delta("a"), 81), "nothing is to spare");
        assert!(fits(&account, &delta("a"), 80));
        count(&account, &delta("a"), 30);
        assert!(!fits(&account, &delta("b"), 131));
        assert!(fits(&account, &delta("b"), 130), "what `a` left");
        count(&account, &delta("b"), 120);
        assert!(fits(&account, &delta("c"), 90) && !fits(&account, &delta("c"), 91));
        assert!(fits(&account, &delta("other"), u64::MAX), "nothing is known of it");
        assert!(!fits(&Account::new(&budget, 1), &delta("b"), 81), "the budget itself counts nothing");
    }

    #[test]
    fn answers_depend_on_the_entries_before_and_not_on_when_they_are_counted() {
        let budget = budget();
        let account = Account::new(&budget, 1);
        let [mut a, b, mut c] = [account.ticket(), account.ticket(), account.ticket()];
        // A later one leaves much, and is counted first.
        c.count(&delta("c"), 0);
        drop(c);
        std::thread::scope(|scope| {
            let account = &account;
            let asked = scope.spawn(move || account.code(|| [130, 131].map(|len| b.fits(&delta("b"), len))));
            // There is one thread that may code, and the other waits.
            account.code(|| a.count(&delta("a"), 30));
            drop(a);
            assert_eq!(asked.join().unwrap(), [true, false]);
        });
    }

    #[test]
    fn one_that_fails_is_not_waited_for() {
        let budget = budget();
        let account = Account::new(&budget, 1);
        let (failing, next) = (account.ticket(), account.ticket());
        std::thread::scope(|scope| {
            let account = &account;
            let asked = scope.spawn(move || account.code(|| next.fits(&delta("b"), 80)));
            let panicked = scope.spawn(move || {
                let _ticket = failing;
                panic!("a job that fails")
            });
            assert!(panicked.join().is_err() && asked.join().unwrap());
        });
    }

    #[test]
    fn what_became_full_a_copy_or_a_link_gives_its_part_back() {
        let next_after = |entry: &Entry, len: u64| {
            let budget = budget();
            let account = Account::new(&budget, 1);
            count(&account, entry, len);
            (0..).find(|len| !fits(&account, &delta("d"), 80 + len + 1)).expect("a bound")
        };
        assert_eq!(next_after(&full("a"), 200), 100);
        assert_eq!(next_after(&full("a"), 300), 150, "a restore in full reads more");
        assert_eq!(next_after(&copy("a"), 0), 80, "its deltas are still read");
        let link = entry("a", Content::Ref { entry_idx: 0 });
        assert_eq!(next_after(&link, 0), 0, "it is not read, and so allows nothing");
        assert_eq!(next_after(&full("new"), 10), 5);
    }

    #[test]
    fn deltas_that_a_copy_keeps_are_counted() {
        let mut budget = DeltaBudget::new(0.5);
        budget.plan("deep", 200, 60, Expected::Full);
        budget.plan("other", 200, 0, Expected::Delta(100));
        assert!(!budget.allows("deep") && budget.allows("other") && budget.allows("unknown"));
        let account = Account::new(&budget, 1);
        assert!(fits(&account, &delta("other"), 200));
        count(&account, &copy("deep"), 0);
        assert!(fits(&account, &delta("other"), 140) && !fits(&account, &delta("other"), 141));
    }

    #[test]
    fn a_link_that_becomes_a_delta_is_counted() {
        let mut budget = budget();
        budget.plan("rounding", 100, 20, Expected::Link);
        let account = Account::new(&budget, 1);
        assert!(fits(&account, &delta("rounding"), 30) && !fits(&account, &delta("rounding"), 31));
    }
}
