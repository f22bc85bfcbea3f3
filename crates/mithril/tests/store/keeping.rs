//! Deleting, retention, gc and rebase: nothing goes that a checkpoint needs, and all goes that none does.

use super::{Run, store};
use mithril::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, GcOptions, Retention, VerifyOptions,
};
use mithril::storage::StorageBackend;

#[test]
fn a_deleted_base_is_kept_as_long_as_it_is_needed() {
    let (store, memory) = store(CompressorConfig::default());
    let mut run = Run::new(1, 3, 1, 10_000);
    let states: Vec<Checkpoint> = (0..4).map(|_| run.step()).collect();
    for (step, state) in states.iter().enumerate() {
        let previous = step.checked_sub(1).map(|before| format!("step_{before}"));
        store.save(state, &format!("step_{step}"), previous.as_deref()).unwrap();
    }
    store.delete("step_0").unwrap();
    store.delete("step_1").unwrap();
    assert!(matches!(store.load("step_0").unwrap_err(), CheckpointError::NotFound { .. }));
    assert_eq!(store.load("step_3").unwrap().tensors, states[3].tensors);
    assert_eq!(store.load("step_2").unwrap().tensors, states[2].tensors);
    assert_eq!(memory.list("data").unwrap().len(), 4);
    assert!(store.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap().is_intact());
    store.delete("step_2").unwrap();
    store.delete("step_3").unwrap();
    assert!(memory.list("data").unwrap().is_empty());
    assert!(matches!(store.delete("step_3").unwrap_err(), CheckpointError::NotFound { .. }));
}

#[test]
fn rebase_makes_a_checkpoint_independent() {
    let (store, memory) = store(CompressorConfig::default());
    let mut run = Run::new(2, 3, 1, 10_000);
    let states: Vec<Checkpoint> = (0..4).map(|_| run.step()).collect();
    for (step, state) in states.iter().enumerate() {
        let previous = step.checked_sub(1).map(|before| format!("step_{before}"));
        store.save(state, &format!("step_{step}"), previous.as_deref()).unwrap();
    }
    let before = store.meta("step_2").unwrap();
    let meta = store.rebase("step_2").unwrap();
    assert_eq!((meta.depth, meta.base, meta.step), (0, None, 2));
    assert_eq!(meta.signature, before.signature);
    assert!(store.manifest("step_2").unwrap().needed().is_empty());
    store.delete("step_0").unwrap();
    store.delete("step_1").unwrap();
    for step in [2, 3] {
        assert_eq!(store.load(&format!("step_{step}")).unwrap().tensors, states[step].tensors);
    }
    store.rebase("step_3").unwrap();
    assert_eq!(memory.list("data").unwrap().len(), 2, "what nobody needs is gone");
    assert_eq!(store.load("step_3").unwrap().tensors, states[3].tensors);
}

#[test]
fn retention_keeps_the_last_every_nth_and_the_named() {
    let retention = Retention::last(2).and_every(5).and_key("step_3");
    let (store, _) = store(CompressorConfig::default().with_retention(retention));
    let mut run = Run::new(3, 2, 1, 4_000);
    let mut states = Vec::new();
    for step in 0..13u64 {
        states.push(run.step());
        let previous = step.checked_sub(1).map(|before| format!("step_{before}"));
        store.save(&states[step as usize], &format!("step_{step}"), previous.as_deref()).unwrap();
    }
    let keys: Vec<u64> = store.list().unwrap().checkpoints.iter().map(|meta| meta.step).collect();
    assert_eq!(keys, [0, 3, 5, 10, 11, 12]);
    for step in keys {
        assert_eq!(store.load(&format!("step_{step}")).unwrap().tensors, states[step as usize].tensors);
    }
}

#[test]
fn gc_removes_what_nobody_lists_and_leaves_the_young() {
    let (store, memory) = store(CompressorConfig::default());
    store.save(&Run::new(4, 1, 0, 1000).step(), "step_1", None).unwrap();
    memory.put_new("data/00000000000000000000000000000001.mckp", b"orphan").unwrap();
    let report = store.gc(&GcOptions::default()).unwrap();
    assert_eq!((report.removed.len(), report.too_young.len()), (0, 1));
    let report = store.gc(&GcOptions::now().with_dry_run(true)).unwrap();
    assert_eq!((report.removed.len(), report.removed_len), (1, 6));
    assert_eq!(memory.list("data").unwrap().len(), 2);
    store.gc(&GcOptions::now()).unwrap();
    assert_eq!(memory.list("data").unwrap().len(), 1);
    assert!(memory.list("removed").unwrap().is_empty());
    store.load("step_1").unwrap();
}

#[test]
fn gc_removes_nothing_while_a_manifest_cannot_be_read() {
    let (store, memory) = store(CompressorConfig::default());
    store.save(&Run::new(5, 1, 0, 1000).step(), "step_1", None).unwrap();
    let mut bytes = memory.get("manifests/step_1.json", 1 << 20).unwrap();
    bytes[40] ^= 1;
    memory.replace("manifests/step_1.json", &bytes).unwrap();
    let error = store.gc(&GcOptions::now()).unwrap_err();
    assert!(matches!(error, CheckpointError::ChecksumMismatch { .. }), "{error}");
    assert_eq!(memory.list("data").unwrap().len(), 1);
    let listing = store.list().unwrap();
    assert_eq!((listing.checkpoints.len(), listing.unreadable.len()), (0, 1));
    assert!(!store.verify(None, &VerifyOptions::default(), &|_| ()).unwrap().is_intact());
}

#[test]
fn the_newest_is_the_one_with_the_highest_step_whatever_the_clock_says() {
    let (store, memory) = store(CompressorConfig::default());
    let state = Run::new(6, 1, 0, 100).step();
    for key in ["step_30", "step_10", "step_20"] {
        store.save(&state, key, None).unwrap();
    }
    assert_eq!(store.latest().unwrap().unwrap().key, "step_30");
    let pointer = String::from_utf8(memory.get("latest.json", 1000).unwrap()).unwrap();
    assert!(pointer.contains("step_20"), "{pointer}");
    // A pointer is advice: without it, or with a wrong one, nothing changes.
    memory.replace("latest.json", b"no JSON").unwrap();
    assert_eq!(store.latest().unwrap().unwrap().key, "step_30");
    // One whose data is gone is not the newest.
    let object = store.manifest("step_30").unwrap().own()[0].object.clone();
    memory.delete(&object).unwrap();
    assert_eq!(store.latest().unwrap().unwrap().key, "step_20");
}
