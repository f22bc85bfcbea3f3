//! Random sequences of everything that can be done to a store, by two processes, with kills, power cuts, full disks and one
//! process at work in the middle of what the other does; against a model of the store.

use super::actions::{Action, KEYS, Step, Trouble, steps};
use super::model::{Entry, Model, Part, Place};
use super::n_cases;
use super::scenario::{open, temporary_len};
use super::simulated::{Fault, Random, SimulatedDisk};
use super::training::{Tensors, Training};
use super::worker::{Done, Worker, objects, place_of};
use crate::checkpoint::blocking::CheckpointCompressor;
use crate::checkpoint::{CheckpointError, GcOptions, VerifyOptions};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Runs at the same time, each with a seed of its own.
const N_RUNNERS: u64 = 4;

/// A run for a release takes long: it says every so often how far it came, so that a run that is ended tells what it did.
const REPORTED_EVERY: u64 = 1000;

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
