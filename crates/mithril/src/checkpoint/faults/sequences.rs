//! Random sequences of everything that can be done to a store, with kills and power cuts, against a model of it.

use super::scenario::{Knowledge, open};
use super::simulated::{Fault, Random, SimulatedDisk};
use super::{n_cases, state_of};
use crate::checkpoint::{GcOptions, VerifyOptions};
use std::collections::BTreeSet;

/// Things done in a sequence.
const N_OPERATIONS: u64 = 50;

/// A run for a release takes long: it says every so often how far it came, so that a run that is ended tells what it did.
const REPORTED_EVERY: u64 = 500;

#[test]
fn random_sequences_agree_with_the_model() {
    let n_sequences = n_cases(150, 10_000);
    let mut n_faults = 0;
    for seed in 0..n_sequences {
        n_faults += sequence(seed).unwrap_or_else(|wrong| panic!("sequence {seed}: {wrong}"));
        let n_done = seed + 1;
        if n_done % REPORTED_EVERY == 0 && n_done < n_sequences {
            println!(
                "{n_done} of {n_sequences} sequences, {n_faults} kills and power cuts: 0 lost, 0 leaked"
            );
        }
    }
    println!(
        "{n_sequences} sequences of {N_OPERATIONS} operations with {n_faults} kills and power cuts: 0 lost, 0 leaked"
    );
}

/// The values that the tensors of a run have one after the other.
#[derive(Default)]
struct Values {
    now: [u64; 3],
    /// Values that there have been.
    n_seen: [u64; 3],
}

impl Values {
    /// Each tensor stays as it is, gets a value that it never had, or returns to one that it had; so does the flag, which
    /// has few.
    fn next(&mut self, random: &mut Random) -> [u64; 3] {
        for (now, n_seen) in self.now.iter_mut().zip(&mut self.n_seen) {
            match random.below(8) {
                0..=2 => {}
                3 | 4 => {
                    *n_seen += 1;
                    *now = *n_seen;
                }
                _ => *now = random.below(*n_seen + 1),
            }
        }
        let [weight, moment, flag] = self.now;
        [weight, moment, flag % 3]
    }
}

fn sequence(seed: u64) -> Result<u64, String> {
    let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
    let mut disk = SimulatedDisk::new();
    let mut store = open(&disk);
    let mut known = Knowledge::default();
    let mut n_faults = 0;
    let mut values = Values::default();
    for operation in 0..N_OPERATIONS {
        let keys: Vec<String> = known.acknowledged.keys().cloned().collect();
        let some_key =
            |random: &mut Random| (!keys.is_empty()).then(|| keys[random.index(keys.len())].clone());
        if random.below(6) == 0 {
            disk.set_fault(Some(Fault::KilledAt(disk.n_steps() + random.below(40))));
        }
        let result = match (random.below(10), some_key(&mut random)) {
            (0..=4, previous) => {
                let key = format!("step_{operation}");
                known.save(&store, &key, state_of(values.next(&mut random)), previous.as_deref())
            }
            (5, Some(key)) => known.delete(&store, &key),
            (6, Some(key)) => store.rebase(&key).map(|_| ()),
            (7, _) => store.gc(&GcOptions::now()).map(|_| ()),
            (8, Some(key)) => store.load(&key).map(|loaded| {
                assert_eq!(loaded.tensors, known.acknowledged[&key].tensors);
            }),
            _ => Ok(()),
        };
        let killed = result.is_err() || disk.n_steps() > 0 && random.below(12) == 0;
        if killed {
            n_faults += 1;
            // A process that is killed, or a machine: found by the next one.
            disk = match random.below(2) {
                0 => disk.after_kill(),
                _ => disk.after_power_cut(&mut random),
            };
            store = open(&disk);
            known.check(&disk)?;
            settle(&store, &mut known)?;
        }
        disk.set_fault(None);
    }
    finish(&disk, &known)?;
    Ok(n_faults)
}

/// What was in doubt is there or not from now on.
fn settle(
    store: &crate::checkpoint::blocking::CheckpointCompressor,
    known: &mut Knowledge,
) -> Result<(), String> {
    for (key, checkpoint) in std::mem::take(&mut known.in_doubt) {
        if store.load(&key).is_ok() {
            known.acknowledged.insert(key, checkpoint);
        }
    }
    Ok(())
}

/// In the end everything that should be there is there, and nothing else.
fn finish(disk: &SimulatedDisk, known: &Knowledge) -> Result<(), String> {
    let store = open(disk);
    store.gc(&GcOptions::now()).map_err(|error| error.to_string())?;
    let listing = store.list().map_err(|error| error.to_string())?;
    let keys: BTreeSet<&str> = listing.checkpoints.iter().map(|meta| meta.key.as_str()).collect();
    let expected: BTreeSet<&str> = known.acknowledged.keys().map(String::as_str).collect();
    if keys != expected || !listing.unreadable.is_empty() {
        return Err(format!("listed {keys:?}, expected {expected:?}"));
    }
    let report = store.verify(None, &VerifyOptions::deep(), &|_| ()).map_err(|error| error.to_string())?;
    if !report.is_intact() {
        return Err(format!("{:?}", report.damaged));
    }
    let mut needed = BTreeSet::new();
    for key in keys {
        let mut manifest = store.manifest(key).map_err(|error| error.to_string())?;
        // What a rebase pinned before it was killed stays until the next one of this key.
        if !manifest.pinned.is_empty() {
            store.rebase(key).map_err(|error| error.to_string())?;
            manifest = store.manifest(key).map_err(|error| error.to_string())?;
        }
        needed.extend(manifest.objects.into_iter().map(|object| object.object));
    }
    // Rebasing leaves data to others that were counted before.
    store.gc(&GcOptions::now()).map_err(|error| error.to_string())?;
    let there: BTreeSet<String> = store
        .storage()
        .list("data")
        .map_err(|error| error.to_string())?
        .into_iter()
        .map(|object| object.key)
        .collect();
    let temporary = super::scenario::temporary_len(disk);
    if there != needed || temporary > 0 {
        return Err(format!("{} objects, {} needed, {temporary} temporary bytes", there.len(), needed.len()));
    }
    Ok(())
}
