//! Random sequences of everything that can be done to a store, by two processes, with kills, power cuts, full disks and one
//! process at work in the middle of what the other does; against a model of the store.

use super::model::{Effect, Entry, Model, Part, Place, Saved};
use super::n_cases;
use super::scenario::{open, temporary_len};
use super::simulated::{Fault, Random, SimulatedDisk};
use super::training::{Change, Tensors, Training, change};
use crate::Effort;
use crate::checkpoint::blocking::CheckpointCompressor;
use crate::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, GcOptions, Retention, SaveCheck, SaveOptions,
    VerifyOptions,
};
use mithril_format::ReadAt;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{RngSeed, TestRunner};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Keys that are saved, and the steps that they name.
const KEYS: [(&str, Option<u64>); 10] = [
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

/// Runs at the same time, each with a seed of its own.
const N_RUNNERS: u64 = 4;

/// A run for a release takes long: it says every so often how far it came, so that a run that is ended tells what it did.
const REPORTED_EVERY: u64 = 1000;

/// Something that is done, and what goes wrong meanwhile.
#[derive(Debug, Clone)]
struct Step {
    /// Which of the processes does it.
    process: usize,
    action: Action,
    trouble: Trouble,
}

#[derive(Debug, Clone)]
enum Action {
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
enum Key {
    There(Index),
    Free(Index),
    Any(Index),
}

#[derive(Debug, Clone)]
struct Save {
    changes: Vec<Change>,
    key: Key,
    previous: Option<Key>,
    step: Option<u64>,
    config: CompressorConfig,
    how: How,
}

#[derive(Debug, Clone, Copy)]
enum How {
    Memory,
    /// From memory that may change.
    Changing,
    Background,
    /// Given up after this many reports of progress.
    Stopped(u64),
    Files(usize),
}

#[derive(Debug, Clone)]
enum Trouble {
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
            let config = CompressorConfig { compression_level: level, ..CompressorConfig::default() };
            config
                .with_effort(effort)
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

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..2usize, action(), trouble()).prop_map(|(process, action, trouble)| Step {
        process,
        action,
        trouble,
    });
    proptest::collection::vec(step, 1..MAX_STEPS)
}

#[test]
fn random_sequences_agree_with_the_model() {
    let n_sequences = n_cases(300, 20_000);
    let totals = Totals::default();
    std::thread::scope(|scope| {
        for seed in 0..N_RUNNERS {
            let totals = &totals;
            scope.spawn(move || {
                let config = ProptestConfig {
                    cases: u32::try_from(n_sequences / N_RUNNERS).unwrap(),
                    rng_seed: RngSeed::Fixed(seed),
                    failure_persistence: None,
                    max_shrink_iters: 3000,
                    ..ProptestConfig::default()
                };
                let run = TestRunner::new(config).run(&steps(), |steps| {
                    sequence(&steps, totals).map_err(TestCaseError::fail)?;
                    let n_done = totals.sequences.fetch_add(1, Ordering::Relaxed) + 1;
                    if n_done % REPORTED_EVERY == 0 && n_done < n_sequences {
                        println!("{n_done} of {n_sequences}: {}", totals.shown());
                    }
                    Ok(())
                });
                if let Err(failure) = run {
                    panic!("seed {seed}: {failure}");
                }
            });
        }
    });
    println!("{}", totals.shown());
}

/// What sequences did.
#[derive(Debug, Default)]
struct Totals {
    sequences: AtomicU64,
    steps: AtomicU64,
    crashes: AtomicU64,
    failures: AtomicU64,
    races: AtomicU64,
}

impl Totals {
    fn shown(&self) -> String {
        let n = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} sequences of {} steps, {} kills and power cuts, {} failing disks, {} races: 0 lost, 0 wrong, 0 refused, 0 left",
            n(&self.sequences),
            n(&self.steps),
            n(&self.crashes),
            n(&self.failures),
            n(&self.races)
        )
    }
}

fn sequence(steps: &[Step], totals: &Totals) -> Result<(), String> {
    let mut run = Run::new();
    for (idx, step) in steps.iter().enumerate() {
        run.step(step, totals).map_err(|wrong| format!("step {idx}: {wrong}"))?;
        totals.steps.fetch_add(1, Ordering::Relaxed);
    }
    run.finish()
}

/// Why something is refused that nothing disturbs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Refusal {
    Conflict,
    MissingPrevious,
    NotFound,
}

/// What was done, and what came of it.
#[derive(Debug, Clone)]
struct Done {
    /// What it does if it succeeds.
    effect: Effect,
    /// What it must be refused for, by the model before it.
    refusal: Option<Refusal>,
    error: Option<Arc<CheckpointError>>,
}

impl Done {
    fn why(&self) -> String {
        self.error.as_ref().map_or_else(|| "it succeeded".to_owned(), |error| error.to_string())
    }

    /// Whether it was refused for the reason that the model knows, or succeeded where it knows none.
    fn is_expected(&self) -> bool {
        match (self.refusal, self.error.as_deref()) {
            (None, None) => true,
            (Some(Refusal::Conflict), Some(error)) => matches!(error, CheckpointError::Conflict { .. }),
            (Some(Refusal::MissingPrevious), Some(error)) => {
                matches!(error, CheckpointError::MissingPrevious { .. })
            }
            (Some(Refusal::NotFound), Some(error)) => {
                matches!(error, CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. })
            }
            _ => false,
        }
    }

    /// Whether it succeeded, or was refused for what another process did at the same time.
    fn is_fair(&self) -> bool {
        self.error.as_deref().is_none_or(|error| {
            matches!(
                error,
                CheckpointError::Conflict { .. }
                    | CheckpointError::Changed { .. }
                    | CheckpointError::Collected { .. }
                    | CheckpointError::MissingPrevious { .. }
                    | CheckpointError::NotFound { .. }
                    | CheckpointError::NoStore { .. }
            )
        })
    }
}

/// A store on a disk, two processes that work on it, and what they know.
struct Run {
    disk: SimulatedDisk,
    processes: [CheckpointCompressor; 2],
    training: Training,
    model: Model,
    /// What may be back after a power cut: its deletion did not return, and it was gone.
    ghosts: Model,
}

impl Run {
    fn new() -> Self {
        let disk = SimulatedDisk::new();
        let processes = [open(&disk), open(&disk)];
        Self { disk, processes, training: Training::new(), model: Model::default(), ghosts: Model::default() }
    }

    fn step(&mut self, step: &Step, totals: &Totals) -> Result<(), String> {
        let count = |total: &AtomicU64| {
            total.fetch_add(1, Ordering::Relaxed);
        };
        let mut worker = self.worker(step.process, &step.action);
        let at = |n: u64| self.disk.n_steps() + n;
        let fault = match step.trouble {
            Trouble::None => None,
            Trouble::Killed(n) | Trouble::PowerCut(n, _) => Some(Fault::KilledAt(at(n))),
            Trouble::Fails(n, code) => Some(Fault::FailsAt(at(n), code)),
            Trouble::FailsFrom(n, code) => Some(Fault::FailsFrom(at(n), code)),
            Trouble::Other(n, ref action) => {
                let other = self.worker(1 - step.process, action);
                if self.race(worker, other, n)? {
                    count(&totals.races);
                }
                return Ok(());
            }
        };
        self.disk.set_fault(fault);
        let done = worker.work(&self.model, true);
        self.disk.set_fault(None);
        let done = done?;
        let reached = fault.is_some_and(|fault| self.disk.n_steps() > fault.step());
        match step.trouble {
            _ if !reached => return self.settle_calm(done),
            Trouble::Killed(_) => self.disk = self.disk.after_kill(),
            Trouble::PowerCut(_, seed) => self.disk = self.disk.after_power_cut(&mut Random(seed | 1)),
            _ => {
                count(&totals.failures);
                return self.settle_fault(&done, false);
            }
        }
        count(&totals.crashes);
        self.processes = [open(&self.disk), open(&self.disk)];
        self.settle_fault(&done, matches!(step.trouble, Trouble::PowerCut(..)))
    }

    fn worker(&mut self, process: usize, action: &Action) -> Worker {
        let tensors = match action {
            Action::Save(save) => {
                save.changes.iter().for_each(|change| self.training.apply(change));
                self.training.state()
            }
            Action::Compress(_) => self.training.state(),
            _ => Tensors::new(),
        };
        Worker { process: self.processes[process].clone(), action: action.clone(), tensors }
    }

    /// Nothing disturbed it: the store is what the model says.
    fn settle_calm(&mut self, mut done: Done) -> Result<(), String> {
        if !done.is_expected() {
            return Err(format!("{:?} was expected: {}", done.refusal, done.why()));
        }
        let store = open(&self.disk);
        if done.error.is_none() {
            place_of(&store, &mut done)?;
            for part in &done.effect.0 {
                if let Part::Save(key, entry) = part {
                    self.check_place(key, entry)?;
                }
            }
            let states = self.model.through(&done.effect.0).ok_or("it succeeded, and cannot have")?;
            self.model = states.into_iter().next_back().expect("the model before");
        }
        let keys = store.keys().map_err(|error| error.to_string())?;
        if !keys.iter().map(String::as_str).eq(self.model.keys()) {
            return Err(format!("there are {keys:?}, not {:?}", self.model.keys()));
        }
        for part in &done.effect.0 {
            if let (Part::Save(key, _) | Part::Keep(key), true) = (part, done.error.is_none()) {
                let loaded = store.load(key).map_err(|error| error.to_string())?;
                let saved = &self.model.get(key).ok_or("what was saved is gone")?.saved;
                if loaded.tensors != saved.checkpoint.tensors {
                    return Err(format!("`{key}` is another one"));
                }
                self.replace(&store, key)?;
            }
        }
        Ok(())
    }

    /// A rebase gives a checkpoint another generation.
    fn replace(&mut self, store: &CheckpointCompressor, key: &str) -> Result<(), String> {
        let manifest = store.manifest(key).map_err(|error| error.to_string())?;
        if let Some(entry) = self.model.entries.get_mut(key) {
            entry.place = Place::of(&manifest);
        }
        Ok(())
    }

    /// A save has its own step, or that of its key, or follows all that there are; and it is the last one.
    fn check_place(&self, key: &str, saved: &Entry) -> Result<(), String> {
        let known = || self.model.entries.values().map(|entry| &entry.place);
        let named = KEYS.iter().find(|(name, _)| *name == key).and_then(|(_, step)| *step);
        let own = saved.saved.checkpoint.step.or(named);
        let step = own.unwrap_or_else(|| known().map(|place| place.step).max().unwrap_or(0));
        // The highest step may be that of a checkpoint that is gone.
        let is_step = if own.is_some() { saved.place.step == step } else { saved.place.step >= step };
        if !is_step || saved.place.has_step != own.is_some() {
            return Err(format!("`{key}` has {:?}, not step {step}", saved.place));
        }
        match known().find(|place| place.sequence >= saved.place.sequence) {
            Some(place) => Err(format!("`{key}` has {:?}, and another one {place:?}", saved.place)),
            None => Ok(()),
        }
    }

    /// The disk failed: what is there now is what was, or what should have become of it.
    fn settle_fault(&mut self, done: &Done, is_power_cut: bool) -> Result<(), String> {
        let store = open(&self.disk);
        let mut done = done.clone();
        place_of(&store, &mut done)?;
        let states = match done.refusal {
            Some(_) => vec![self.model.clone()],
            None => self.model.through(&done.effect.0).ok_or("the model does not allow it")?,
        };
        let ghosts = if is_power_cut { std::mem::take(&mut self.ghosts) } else { Model::default() };
        let known = [states.clone(), vec![ghosts.clone()]].concat();
        let found = Model::found(&store, &known)?;
        let states = match is_power_cut {
            true => states.into_iter().map(|state| state.after_power_cut(&found, &ghosts)).collect(),
            false => states,
        };
        // What returned is done, but for what a save cleans up.
        let first = if done.error.is_none() { 1.min(states.len() - 1) } else { 0 };
        let possible = &states[first..];
        let is_possible = possible.iter().any(|state| found.is_between(state, state))
            || possible.windows(2).any(|pair| found.is_between(&pair[0], &pair[1]));
        if !is_possible {
            return Err(format!(
                "found {:?}, possible are {:?}; {}",
                found.keys(),
                possible.iter().map(Model::keys).collect::<Vec<_>>(),
                done.why()
            ));
        }
        for (key, entry) in &self.model.entries {
            if found.get(key).is_none() {
                self.ghosts.entries.insert(key.clone(), entry.clone());
            }
        }
        self.model = found;
        Ok(())
    }

    /// The other process works at a call of the disk from now. Returns whether there was one.
    fn race(&mut self, mut first: Worker, mut other: Worker, at: u64) -> Result<bool, String> {
        let result = Arc::new(Mutex::new(None));
        let (model, disk, theirs) = (self.model.clone(), self.disk.clone(), result.clone());
        self.disk.interrupt_after(at, move || {
            let done = other.work(&model, false).and_then(|mut done| {
                place_of(&open(&disk), &mut done)?;
                Ok(done)
            });
            *theirs.lock().unwrap() = Some(done);
        });
        let done = first.work(&self.model, false);
        let was_interrupted = !self.disk.no_interruption();
        let Some(other) = result.lock().unwrap().take() else {
            return match was_interrupted {
                true => Err("the other process panicked".to_owned()),
                false => self.settle_calm(done?).map(|()| false),
            };
        };
        let (mut done, other) = (done?, other.map_err(|wrong| format!("the other process: {wrong}"))?);
        for (who, done) in [("the first", &done), ("the other", &other)] {
            if !done.is_fair() {
                return Err(format!("{who} was refused without cause: {}", done.why()));
            }
        }
        let store = open(&self.disk);
        place_of(&store, &mut done)?;
        let parts = |done: &Done| if done.error.is_none() { done.effect.0.clone() } else { Vec::new() };
        let (first_parts, other_parts) = (parts(&done), parts(&other));
        let mut ways = vec![first_parts.clone()];
        // A save that was taken back was there for a moment, in which the other process deleted or rebased it.
        if let (Some(_), Some(save @ Part::Save(saved, _))) = (&done.error, done.effect.0.first())
            && other_parts
                .iter()
                .any(|part| matches!(part, Part::Delete(key) | Part::Keep(key) if key == saved))
        {
            ways.push(vec![save.clone()]);
        }
        // The other one came before a part, or after all of them.
        let orders = ways.iter().flat_map(|parts| {
            let other_parts = &other_parts;
            (0..=parts.len()).map(move |at| {
                let (before, after) = parts.split_at(at);
                before.iter().chain(other_parts).chain(after)
            })
        });
        let possible: Vec<Vec<Model>> = orders.filter_map(|order| self.model.through(order)).collect();
        let known: Vec<Model> = possible.iter().flatten().cloned().collect();
        let found = Model::found(&store, &known)?;
        let ends = possible.iter().filter_map(|states| states.last());
        let is_possible = if done.effect.retains() || other.effect.retains() {
            // A retention that is disturbed may keep more, and removes only what it would in some order.
            let is_deleted = |key: &str| {
                let mut parts = first_parts.iter().chain(&other_parts);
                parts.any(|part| matches!(part, Part::Delete(gone) if gone == key))
            };
            let mut keys = known.iter().flat_map(Model::keys);
            let is_in_some = |key: &str| ends.clone().any(|end| end.get(key).is_some());
            let is_gone_in_some = |key: &str| ends.clone().any(|end| end.get(key).is_none());
            keys.all(|key| match found.get(key) {
                Some(_) => is_in_some(key) || !is_deleted(key),
                None => is_gone_in_some(key),
            })
        } else {
            ends.clone().any(|end| found.same_as(end))
        };
        if !is_possible {
            return Err(format!(
                "found {:?}, possible are {:?}; the first: {}; the other: {}",
                found.keys(),
                possible.iter().filter_map(|states| states.last()).map(Model::keys).collect::<Vec<_>>(),
                done.why(),
                other.why()
            ));
        }
        self.model = found;
        Ok(true)
    }

    /// In the end everything that should be there is there, whole, and nothing else.
    fn finish(self) -> Result<(), String> {
        let text = |error: CheckpointError| error.to_string();
        let store = open(&self.disk);
        match store.gc(&GcOptions::now()) {
            Err(CheckpointError::NoStore { .. }) if self.model.entries.is_empty() => return Ok(()),
            cleaned => drop(cleaned.map_err(text)?),
        }
        let found = Model::found(&store, std::slice::from_ref(&self.model))?;
        if !found.same_as(&self.model) {
            return Err(format!("in the end there are {:?}, not {:?}", found.keys(), self.model.keys()));
        }
        let report = store.verify(None, &VerifyOptions::deep(), &|_| ()).map_err(text)?;
        if !report.is_intact() {
            return Err(format!("{:?}", report.damaged));
        }
        for key in self.model.keys() {
            // What a rebase pinned before it was killed stays until the next one of this key.
            if !store.manifest(key).map_err(text)?.pinned.is_empty() {
                store.rebase(key).map_err(text)?;
            }
        }
        // Rebasing leaves data to others that was counted before.
        store.gc(&GcOptions::now()).map_err(text)?;
        let (there, needed) = objects(&store).map_err(text)?;
        let temporary = temporary_len(&self.disk);
        let marks = store.storage().list("removed").map_err(|error| error.to_string())?;
        if there != needed || temporary > 0 || !marks.is_empty() {
            return Err(format!(
                "{} objects, {} needed, {temporary} temporary bytes, {} marks",
                there.len(),
                needed.len(),
                marks.len()
            ));
        }
        Ok(())
    }
}

/// The data objects that there are, and those that manifests list.
fn objects(store: &CheckpointCompressor) -> Result<(BTreeSet<String>, BTreeSet<String>), CheckpointError> {
    let there = store.storage().list("data")?.into_iter().map(|object| object.key).collect();
    let mut needed = BTreeSet::new();
    for key in store.keys()? {
        needed.extend(store.manifest(&key)?.kept_objects().map(str::to_owned));
    }
    Ok((there, needed))
}

/// Reads the places of what was saved, where it is there.
fn place_of(store: &CheckpointCompressor, done: &mut Done) -> Result<(), String> {
    for part in &mut done.effect.0 {
        let Part::Save(key, entry) = part else { continue };
        match store.manifest(key) {
            Ok(manifest) => {
                (entry.place, entry.is_acknowledged) = (Place::of(&manifest), done.error.is_none())
            }
            Err(CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

/// A process that does something.
struct Worker {
    process: CheckpointCompressor,
    action: Action,
    /// What it saves.
    tensors: Tensors,
}

impl Worker {
    /// Does it. What is read must be what the model says; what cannot be done is an error of the store.
    fn work(&mut self, model: &Model, is_alone: bool) -> Result<Done, String> {
        let mut done = Done { effect: Effect::default(), refusal: None, error: None };
        let result = match self.action.clone() {
            Action::Save(save) => self.save(&save, model, &mut done),
            action => self.work_on(&action, model, is_alone, &mut done),
        };
        match result {
            Ok(()) => {}
            // Where no checkpoint is, there need not be a store.
            Err(Wrong::Refused(error))
                if matches!(*error, CheckpointError::NoStore { .. })
                    && model.entries.is_empty()
                    && done.refusal.is_none() => {}
            Err(Wrong::Refused(error)) => done.error = Some(error),
            Err(Wrong::Content(what)) => return Err(what),
        }
        Ok(done)
    }

    fn save(&mut self, save: &Save, model: &Model, done: &mut Done) -> Result<(), Wrong> {
        let key = save.key.pick(model);
        let previous = save.previous.as_ref().map(|previous| previous.pick(model));
        let (n_files, mut metadata) = (if let How::Files(n) = save.how { n } else { 1 }, BTreeMap::new());
        if !matches!(save.how, How::Files(_)) {
            metadata.insert("tensors".to_owned(), self.tensors.len().into());
        }
        let saved = Arc::new(Saved::new(std::mem::take(&mut self.tensors), metadata, save.step, n_files));
        done.effect.0.push(Part::Save(key.clone(), Entry::new(saved.clone())));
        if save.config.retention.removes() {
            done.effect.0.push(Part::Retain(save.config.retention.clone(), Some(key.clone())));
        }
        let is_missing = |previous: &String| save.config.delta_enabled && model.get(previous).is_none();
        if model.get(&key).is_some() {
            done.refusal = Some(Refusal::Conflict);
        } else if previous.as_ref().is_some_and(is_missing) {
            done.refusal = Some(Refusal::MissingPrevious);
        }

        self.process.config = save.config.clone();
        let (store, previous) = (&self.process, previous.as_deref());
        let options = SaveOptions::default().with_previous(previous);
        let result = match save.how {
            How::Memory => store.save(&saved.checkpoint, &key, previous).map(drop),
            How::Changing => {
                store.save_view(&saved.checkpoint.view(), &key, &options.with_changing(true)).map(drop)
            }
            How::Background => {
                let handle = store.save_async(saved.checkpoint.clone(), &key, previous);
                return handle.wait().map(drop).map_err(Wrong::Refused);
            }
            How::Stopped(after) => {
                let (n_reports, stop) = (AtomicU64::new(0), Arc::new(AtomicBool::new(after == 0)));
                let progress = |_| {
                    if n_reports.fetch_add(1, Ordering::Relaxed) + 1 >= after {
                        stop.store(true, Ordering::Release);
                    }
                };
                let options = options.with_stop(stop.clone()).with_progress(&progress);
                match store.save_view(&saved.checkpoint.view(), &key, &options) {
                    Err(CheckpointError::Abandoned { .. }) if stop.load(Ordering::Acquire) => {
                        (done.effect, done.refusal) = (Effect::default(), None);
                        Ok(())
                    }
                    result => result.map(drop),
                }
            }
            How::Files(_) => {
                let names: Vec<String> =
                    (0..n_files).map(|part| format!("model-{part}.safetensors")).collect();
                let files = names.iter().zip(&saved.files);
                let files: Vec<_> = files.map(|(name, file)| (name.as_str(), file as &dyn ReadAt)).collect();
                store.save_files(&files, &key, save.step, &options).map(drop)
            }
        };
        Ok(result?)
    }

    fn work_on(
        &mut self,
        action: &Action,
        model: &Model,
        is_alone: bool,
        done: &mut Done,
    ) -> Result<(), Wrong> {
        let mut pick = |key: &Key| {
            let key = key.pick(model);
            let entry = model.get(&key).map(|entry| entry.saved.clone());
            if entry.is_none() {
                done.refusal = Some(Refusal::NotFound);
            }
            (key, entry)
        };
        let wrong = |what: &str, key: &str| Err(Wrong::Content(format!("{what} of `{key}` is another one")));
        let store = &mut self.process;
        match action {
            Action::Save(_) => unreachable!("is done elsewhere"),
            Action::Delete(key) => {
                let (key, _) = pick(key);
                done.effect.0.push(Part::Delete(key.clone()));
                store.delete(&key)?;
            }
            Action::Rebase(key) => {
                let (key, _) = pick(key);
                done.effect.0.push(Part::Keep(key.clone()));
                store.rebase(&key)?;
            }
            Action::Retain(retention) => {
                done.effect.0.push(Part::Retain(retention.clone(), None));
                store.config.retention = retention.clone();
                store.apply_retention()?;
            }
            Action::Collect => {
                let would_go = store.gc(&GcOptions::now().with_dry_run(true))?;
                let gone = store.gc(&GcOptions::now())?;
                let (there, needed) = objects(store)?;
                if is_alone && (would_go.removed != gone.removed || there != needed) {
                    return Err(Wrong::Content(format!(
                        "gc: {would_go:?}, {gone:?}, {there:?}, not {needed:?}"
                    )));
                }
            }
            Action::Load(key) => {
                let (key, saved) = pick(key);
                let loaded = store.load(&key)?;
                if saved.is_some_and(|saved| {
                    (&loaded.tensors, &loaded.metadata)
                        != (&saved.checkpoint.tensors, &saved.checkpoint.metadata)
                }) {
                    return wrong("the content", &key);
                }
            }
            Action::LoadTensor(key, tensor) => {
                let (key, saved) = pick(key);
                let tensors = saved.map(|saved| saved.checkpoint.tensors.clone()).unwrap_or_default();
                let names: Vec<&String> = tensors.keys().collect();
                let name = if names.is_empty() { "none" } else { tensor.get(&names).as_str() };
                if names.is_empty() {
                    done.refusal = Some(Refusal::NotFound);
                }
                if tensors.get(name) != Some(&store.load_tensor(&key, name)?) && !names.is_empty() {
                    return wrong("a tensor", &key);
                }
            }
            Action::LoadInto(key) => {
                let (key, saved) = pick(key);
                let tensors = saved.map(|saved| saved.checkpoint.tensors.clone()).unwrap_or_default();
                let mut buffers: Vec<_> = tensors
                    .iter()
                    .step_by(2)
                    .map(|(name, tensor)| (name, vec![1; tensor.data.len()]))
                    .collect();
                let mut borrowed: Vec<_> =
                    buffers.iter_mut().map(|(name, buffer)| (name.as_str(), buffer.as_mut_slice())).collect();
                store.load_into(&key, &mut borrowed)?;
                if buffers.iter().any(|(name, buffer)| tensors[*name].data != *buffer) {
                    return wrong("a tensor in a buffer", &key);
                }
            }
            Action::Export(key, part) => {
                let (key, saved) = pick(key);
                let part = saved.as_ref().map_or(0, |saved| part.index(saved.files.len()));
                let file = store.export(&key, part, Vec::new(), &|_| ())?;
                if saved.is_some_and(|saved| saved.files[part] != file) {
                    return wrong("a file", &key);
                }
            }
            Action::Verify { key, deep } => {
                let key = key.as_ref().map(|key| pick(key).0);
                let options = VerifyOptions { deep: *deep };
                let report = store.verify(key.as_deref(), &options, &|_| ())?;
                let n_expected = if key.is_some() { 1 } else { model.entries.len() };
                if is_alone && (!report.is_intact() || report.intact.len() != n_expected) {
                    return Err(Wrong::Content(format!("verify: {report:?}")));
                }
            }
            Action::Compress(previous) => {
                let previous = previous.as_ref().map(|previous| pick(previous).0);
                let tensors = std::mem::take(&mut self.tensors);
                let checkpoint = Checkpoint { tensors, step: Some(3), ..Checkpoint::new() };
                let compressed = store.compress(&checkpoint, previous.as_deref())?;
                if store.decompress(&compressed)? != checkpoint {
                    return wrong("a checkpoint in memory", previous.as_deref().unwrap_or_default());
                }
            }
            Action::List => {
                let listing = store.list()?;
                let latest = store.latest()?.map(|meta| meta.key);
                let keys: BTreeSet<&str> = listing.checkpoints.iter().map(|meta| meta.key.as_str()).collect();
                let is_whole = listing.unreadable.is_empty() && listing.foreign.is_empty();
                if is_alone && (keys != model.keys() || latest.as_deref() != model.newest() || !is_whole) {
                    return Err(Wrong::Content(format!("{listing:?}, latest {latest:?}")));
                }
            }
        }
        Ok(())
    }
}

/// Why an action did not give what it should.
enum Wrong {
    /// The store refused it.
    Refused(Arc<CheckpointError>),
    /// It gave something else.
    Content(String),
}

impl From<CheckpointError> for Wrong {
    fn from(error: CheckpointError) -> Self {
        Self::Refused(Arc::new(error))
    }
}

impl Key {
    fn pick(&self, model: &Model) -> String {
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
