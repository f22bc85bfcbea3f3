//! What can be done to a store, what can go wrong meanwhile, and how both are drawn.

use super::model::Model;
use super::training::{Change, change};
use crate::checkpoint::{CompressorConfig, Retention, SaveCheck};
use crate::{Coding, Effort};
use proptest::prelude::*;
use proptest::sample::Index;

/// Keys that are saved, and the steps that they name.
pub(super) const KEYS: [(&str, Option<u64>); 10] = [
    ("step_1", Some(1)),
    ("step_2", Some(2)),
    ("step_3", Some(3)),
    ("step_4", Some(4)),
    ("step_4 again/step_4", Some(4)),
    ("epoch=4-val_loss=0.20", None),
    ("best", None),
    ("run 1/step-9", Some(9)),
    ("Iter0012", Some(12)),
    ("step_7.pt", None),
];

/// Most things done in a sequence.
const MAX_STEPS: usize = 40;

/// Something that is done, and what goes wrong meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// Which of the processes does it.
    pub(super) process: usize,
    pub(super) action: Action,
    pub(super) trouble: Trouble,
}

#[derive(Debug, Clone)]
pub(super) enum Action {
    Save(Box<Save>),
    Delete(Key),
    Rebase(Key),
    Retain(Retention),
    Collect,
    Load(Key),
    LoadTensor(Key, Index),
    LoadInto(Key),
    Export(Key, Index),
    Verify {
        key: Option<Key>,
        deep: bool,
    },
    /// As a container in memory, and back.
    Compress(Option<Key>),
    List,
}

/// One of the keys: one that is there, one that is not, or any of them.
#[derive(Debug, Clone)]
pub(super) enum Key {
    There(Index),
    Free(Index),
    Any(Index),
}

#[derive(Debug, Clone)]
pub(super) struct Save {
    pub(super) changes: Vec<Change>,
    pub(super) key: Key,
    pub(super) previous: Option<Key>,
    pub(super) step: Option<u64>,
    pub(super) config: CompressorConfig,
    pub(super) how: How,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    Memory,
    /// From memory that may change.
    Changing,
    Background,
    /// Given up after this many reports of progress.
    Stopped(u64),
    Files(usize),
}

#[derive(Debug, Clone)]
pub(super) enum Trouble {
    None,
    /// The process is killed at this step of the disk from now.
    Killed(u64),
    /// The machine is out of power then.
    PowerCut(u64, u64),
    /// The disk fails once, or from then on.
    Fails(u64, i32),
    FailsFrom(u64, i32),
    /// The other process does this at that call of the disk.
    Other(u64, Action),
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![8 => any::<Index>().prop_map(Key::There), 1 => any::<Index>().prop_map(Key::Any)]
}

fn retention() -> impl Strategy<Value = Retention> {
    let keep = proptest::option::weighted(0.3, proptest::sample::select(&KEYS[..]));
    (1..6usize, proptest::option::weighted(0.3, 2..4u64), keep).prop_map(|(n, every, keep)| {
        let retention = Retention { keep_every: every, ..Retention::last(n) };
        keep.into_iter().fold(retention, |retention, (key, _)| retention.and_key(key))
    })
}

fn config() -> impl Strategy<Value = CompressorConfig> {
    let effort = prop_oneof![4 => Just(Effort::Fast), 1 => Just(Effort::Balanced), 1 => Just(Effort::Max)];
    let flags = (
        proptest::bool::weighted(0.9),
        proptest::bool::weighted(0.85),
        proptest::bool::weighted(0.3),
        proptest::bool::weighted(0.2),
    );
    let chain = (prop_oneof![Just(8u32), 0..4u32], prop_oneof![Just(1.5), Just(1.0), Just(4.0)]);
    let level = proptest::option::weighted(0.2, 1..10);
    let max_objects = prop_oneof![Just(32usize), 1..6usize];
    let retention = proptest::option::weighted(0.2, retention());
    (effort, flags, chain, level, max_objects, 1..3usize, retention).prop_map(
        |(
            effort,
            (delta, grouping, from_moments, is_full),
            chain,
            level,
            max_objects,
            threads,
            retention,
        )| {
            let coding = Coding { level, ..Coding::default() };
            CompressorConfig::default()
                .with_coding(coding.with_effort(effort))
                .with_delta(delta)
                .with_byte_grouping(grouping)
                .with_from_moments(from_moments)
                .with_verify(if is_full { SaveCheck::Full } else { SaveCheck::Chain })
                .with_chain(chain.0, chain.1)
                .with_max_objects(max_objects)
                .with_threads(threads)
                .with_retention(retention.unwrap_or_default())
        },
    )
}

fn save() -> impl Strategy<Value = Action> {
    let free = prop_oneof![9 => any::<Index>().prop_map(Key::Free), 1 => any::<Index>().prop_map(Key::Any)];
    let how = prop_oneof![
        4 => Just(How::Memory),
        1 => Just(How::Changing),
        1 => Just(How::Background),
        1 => (0..6u64).prop_map(How::Stopped),
        2 => (1..4usize).prop_map(How::Files),
    ];
    let changes = proptest::collection::vec(change(), 0..6);
    let step = proptest::option::weighted(0.2, 0..15u64);
    (changes, free, proptest::option::weighted(0.85, key()), step, config(), how).prop_map(
        |(changes, key, previous, step, config, how)| {
            Action::Save(Box::new(Save { changes, key, previous, step, config, how }))
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => save(),
        2 => key().prop_map(Action::Delete),
        2 => key().prop_map(Action::Rebase),
        1 => retention().prop_map(Action::Retain),
        1 => Just(Action::Collect),
        1 => key().prop_map(Action::Load),
        1 => (key(), any::<Index>()).prop_map(|(key, tensor)| Action::LoadTensor(key, tensor)),
        1 => key().prop_map(Action::LoadInto),
        1 => (key(), any::<Index>()).prop_map(|(key, part)| Action::Export(key, part)),
        1 => (proptest::option::of(key()), any::<bool>()).prop_map(|(key, deep)| Action::Verify { key, deep }),
        1 => proptest::option::of(key()).prop_map(Action::Compress),
        1 => Just(Action::List),
    ]
}

fn trouble() -> impl Strategy<Value = Trouble> {
    let code = proptest::sample::select(vec![5, 28, 30, 122]);
    prop_oneof![
        12 => Just(Trouble::None),
        2 => (0..40u64).prop_map(Trouble::Killed),
        2 => (0..40u64, any::<u64>()).prop_map(|(at, seed)| Trouble::PowerCut(at, seed)),
        1 => (0..40u64, code.clone()).prop_map(|(at, code)| Trouble::Fails(at, code)),
        1 => (0..40u64, code).prop_map(|(at, code)| Trouble::FailsFrom(at, code)),
        4 => (0..60u64, action()).prop_map(|(at, action)| Trouble::Other(at, action)),
    ]
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..2usize, action(), trouble()).prop_map(|(process, action, trouble)| Step {
        process,
        action,
        trouble,
    });
    proptest::collection::vec(step, 1..MAX_STEPS)
}

impl Key {
    pub(super) fn pick(&self, model: &Model) -> String {
        let is_there = |key: &str| model.get(key).is_some();
        let (index, keys): (&Index, Vec<&str>) = match self {
            Self::There(index) => {
                (index, KEYS.iter().map(|(key, _)| *key).filter(|key| is_there(key)).collect())
            }
            Self::Free(index) => {
                (index, KEYS.iter().map(|(key, _)| *key).filter(|key| !is_there(key)).collect())
            }
            Self::Any(index) => (index, KEYS.iter().map(|(key, _)| *key).collect()),
        };
        if keys.is_empty() { KEYS[0].0.to_owned() } else { index.get(&keys).to_string() }
    }
}
