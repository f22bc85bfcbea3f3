//! Every step of the scenario: killed there, out of power there, failing there.

use super::n_cases;
use super::scenario::{Knowledge, open, run};
use super::simulated::{Fault, Random, SimulatedDisk};
use crate::checkpoint::blocking::CheckpointCompressor;
use crate::checkpoint::{CheckpointError, CompressorConfig, SaveOptions};
use crate::storage::MemoryStorage;
use mithril_format::ReadAt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;

fn n_steps() -> u64 {
    let disk = SimulatedDisk::new();
    run(&disk).1.unwrap();
    disk.n_steps()
}

#[test]
fn killed_at_every_step_nothing_is_lost_or_torn() {
    for step in 0..n_steps() {
        let disk = SimulatedDisk::new();
        disk.set_fault(Some(Fault::KilledAt(step)));
        let (known, _) = run(&disk);
        assert!(disk.n_steps() >= step, "step {step} is reached");
        let found = disk.after_kill();
        known.check(&found).unwrap_or_else(|wrong| panic!("killed at step {step}: {wrong}"));
    }
}

#[test]
fn out_of_power_at_every_step_nothing_is_lost_or_torn() {
    let n_steps = n_steps();
    let n_images = n_cases(3, 10_000_u64.div_ceil(n_steps));
    for step in 0..=n_steps {
        let disk = SimulatedDisk::new();
        disk.set_fault(Some(Fault::KilledAt(step)));
        let (known, _) = run(&disk);
        for image in 0..n_images {
            let mut random = Random((step * 1_000_003 + image) * 2 + 1);
            let found = disk.after_power_cut(&mut random);
            known.check(&found).unwrap_or_else(|wrong| panic!("step {step}, image {image}: {wrong}"));
        }
    }
    println!("{} power-cut images of {n_steps} steps: 0 lost, 0 torn", (n_steps + 1) * n_images);
}

/// What a killed process left unsynced must not take down what the next one acknowledged.
#[test]
fn killed_at_every_step_and_out_of_power_after_the_next_save_nothing_is_lost() {
    for step in 0..n_steps() {
        let disk = SimulatedDisk::new();
        disk.set_fault(Some(Fault::KilledAt(step)));
        let (killed, _) = run(&disk);
        let found = disk.after_kill();
        let mut known = Knowledge { acknowledged: killed.acknowledged, ..Knowledge::default() };
        known.save(&open(&found), "after", super::state(77), None).unwrap();
        for image in 0..20 {
            let mut random = Random((step * 1_000_003 + image) * 2 + 1);
            let wrong = known.check(&found.after_power_cut(&mut random)).err();
            assert_eq!(wrong, None, "killed at step {step}, image {image}");
        }
    }
}

/// The tests above would find it.
#[test]
fn without_syncs_of_directories_checkpoints_are_lost() {
    let disk = SimulatedDisk::ignoring_directory_syncs();
    let (known, result) = run(&disk);
    result.unwrap();
    let lost = |seed: u64| known.check(&disk.after_power_cut(&mut Random(2 * seed + 1))).is_err();
    assert!((0..20).any(lost));
}

#[test]
fn every_failing_step_is_reported_with_its_reason_and_loses_nothing() {
    let n_steps = n_steps();
    for (code, reason) in
        [(ENOSPC, "No space"), (EIO, "Input/output"), (EROFS, "Read-only"), (EDQUOT, "quota")]
    {
        for step in 0..n_steps {
            for fault in [Fault::FailsAt(step, code), Fault::FailsFrom(step, code)] {
                let disk = SimulatedDisk::new();
                disk.set_fault(Some(fault));
                let (known, result) = run(&disk);
                disk.set_fault(None);
                match result {
                    // What failed did not matter: cleaning up, or the pointer to the newest.
                    Ok(()) => {}
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains(reason), "{fault:?}: {text}");
                        assert!(text.contains("/store"), "{fault:?}: {text}");
                    }
                }
                check_after(&known, &disk, fault);
            }
        }
    }
}

fn check_after(known: &Knowledge, disk: &SimulatedDisk, fault: Fault) {
    known.check(disk).unwrap_or_else(|wrong| panic!("{fault:?}: {wrong}"));
    // What failed has cleaned up, or gc has: at most the checkpoints that are there take room.
    let len = disk.len();
    assert!(len < 64 << 10, "{fault:?}: {len} bytes are left");
    let found = disk.after_power_cut(&mut Random(3));
    known.check(&found).unwrap_or_else(|wrong| panic!("{fault:?}, then a power cut: {wrong}"));
}

/// A source that fails or panics at its n-th read.
#[derive(Debug)]
struct BadSource {
    bytes: Vec<u8>,
    left: AtomicU64,
    panics: bool,
}

impl ReadAt for BadSource {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            assert!(!self.panics, "the source panics");
            return Err(io::Error::other("the source fails"));
        }
        self.bytes.read_exact_at(offset, out)
    }
}

#[test]
fn a_source_that_fails_or_panics_anywhere_is_an_error_and_commits_nothing() {
    let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(MemoryStorage::new()));
    store.save(&super::state(1), "good", None).unwrap();
    let file = store.export("good", 0, Vec::new(), &|_| ()).unwrap();
    for panics in [false, true] {
        let mut n_failed = 0;
        for left in 0.. {
            let source = BadSource { bytes: file.clone(), left: AtomicU64::new(left), panics };
            let files: [(&str, &dyn ReadAt); 1] = [("model.safetensors", &source)];
            let options = SaveOptions::default().with_previous(Some("good"));
            let key = format!("bad_{panics}_{left}");
            let Err(error) = store.save_files(&files, &key, None, &options) else { break };
            n_failed += 1;
            match panics {
                true => assert!(matches!(error, CheckpointError::Panicked { .. }), "{error}"),
                false => assert!(error.to_string().contains("the source fails"), "{error}"),
            }
            assert!(error.to_string().contains(&key), "{error}");
            assert!(store.load(&key).is_err());
        }
        assert!(n_failed >= 4, "{n_failed} reads");
    }
    assert_eq!(store.storage().list("data").unwrap().len(), 3, "data of failed saves is gone");
}
