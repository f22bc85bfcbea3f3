//! Chains: what deltas, copies and keyframes cost, and how far they go.

use super::{Run, store};
use mithril::checkpoint::{CheckpointMeta, CompressorConfig, SaveOptions};
use mithril::container::EntryKind;

#[test]
fn frozen_tensors_cost_nothing_and_moved_ones_little() {
    let (store, memory) = store(CompressorConfig::default());
    let mut run = Run::new(1, 40, 38, 30_000);
    let first = store.save(&run.step(), "step_1", None).unwrap();
    let second = store.save(&run.step(), "step_2", Some("step_1")).unwrap();
    assert_eq!(second.kinds[&EntryKind::Copy].n_tensors, 38);
    assert_eq!(second.kinds[&EntryKind::Delta].n_tensors, 2);
    let moved = second.kinds[&EntryKind::Delta].stored_len;
    let manifest_len =
        mithril::storage::StorageBackend::get(&memory, "manifests/step_2.json", 1 << 20).unwrap().len();
    let per_frozen = (second.compressed_size - moved + manifest_len as u64) / 38;
    assert!(per_frozen <= 1024, "{per_frozen} bytes per frozen tensor");
    assert!(moved * 2 < first.compressed_size / 20, "{moved} of {}", first.compressed_size);
}

#[test]
fn what_a_checkpoint_needs_does_not_grow_with_the_run() {
    let (store, _) = store(CompressorConfig::default().with_chain(4, 10.0));
    let mut run = Run::new(2, 4, 2, 5_000);
    let mut states = vec![run.step()];
    store.save(&states[0], "step_0", None).unwrap();
    let mut depths = Vec::new();
    for step in 1..15 {
        states.push(run.step());
        let meta =
            store.save(&states[step], &format!("step_{step}"), Some(&format!("step_{}", step - 1))).unwrap();
        depths.push(meta.depth);
        // The first holds the frozen tensors; the others are the chain up to the last keyframe.
        let needed = store.manifest(&format!("step_{step}")).unwrap().needed().len();
        assert!(needed <= 1 + 4, "step {step} needs {needed} objects");
    }
    assert_eq!(depths[..9], [1, 2, 3, 4, 0, 1, 2, 3, 4]);
    for (step, state) in states.iter().enumerate() {
        assert_eq!(store.load(&format!("step_{step}")).unwrap().tensors, state.tensors, "step {step}");
    }
}

/// Bytes that a restore reads are within the bound: for runs of small, middling and large steps.
#[test]
fn restore_costs_are_bounded() {
    let (store, _) = store(CompressorConfig::default());
    for (number, size) in [1e-5, 1e-4, 1e-3, 1e-2].into_iter().enumerate() {
        let mut run = Run::new(5 + number as u64, 6, 1, 20_000);
        let mut previous: Option<String> = None;
        let mut n_deltas = 0;
        for step in 0..12 {
            let key = format!("run{number}/step_{step}");
            let meta = store.save(&run.step_by(size), &key, previous.as_deref()).unwrap();
            assert!(meta.depth <= 8);
            let tensors = store.manifest(&key).unwrap().tensors;
            let sums = tensors.iter().fold((0, 0), |(restore, full), tensor| {
                (restore + tensor.restore_len, full + tensor.full_len)
            });
            assert!(sums.0 as f64 <= 1.5 * sums.1 as f64, "{key}: {sums:?}");
            n_deltas += tensors.iter().filter(|tensor| tensor.kind == "delta").count();
            previous = Some(key);
        }
        assert!(n_deltas > 0, "steps of {size} are worth deltas");
    }
}

#[test]
fn without_grouping_numbers_go_to_a_general_compressor() {
    let mut run = Run::new(12, 2, 0, 60_000);
    let states = [run.step(), run.step()];
    let lens = [true, false].map(|grouping| {
        let (store, _) = store(CompressorConfig::default().with_byte_grouping(grouping));
        let full = store.save(&states[0], "step_1", None).unwrap();
        let delta = store.save(&states[1], "step_2", Some("step_1")).unwrap();
        assert_eq!(store.load("step_1").unwrap().tensors, states[0].tensors);
        assert_eq!(store.load("step_2").unwrap().tensors, states[1].tensors);
        [full.compressed_size, delta.compressed_size]
    });
    assert!(lens[0][0] * 11 < lens[1][0] * 10, "{lens:?}");
    assert!(lens[0][1] < lens[1][1], "{lens:?}");
}

#[test]
fn a_forced_chain_of_64_deltas_is_exact() {
    let (store, _) = store(CompressorConfig::default().with_chain(64, f64::INFINITY));
    let mut run = Run::new(7, 1, 0, 3_000);
    let mut metas: Vec<CheckpointMeta> = Vec::new();
    let mut state = run.step();
    for step in 0..=64 {
        let previous = metas.last().map(|meta| meta.key.clone());
        metas.push(store.save(&state, &format!("s{step}"), previous.as_deref()).unwrap());
        if step < 64 {
            state = run.step();
        }
    }
    assert_eq!(metas[64].depth, 64);
    assert_eq!(store.load("s64").unwrap().tensors, state.tensors);
}

#[test]
fn without_deltas_every_checkpoint_stands_alone() {
    let (store, _) = store(CompressorConfig::default().with_delta(false));
    let mut run = Run::new(8, 2, 1, 5_000);
    store.save(&run.step(), "step_1", None).unwrap();
    let state = run.step();
    let meta = store
        .save_view(&state.view(), "step_2", &SaveOptions::default().with_previous(Some("step_1")))
        .unwrap();
    assert_eq!((meta.depth, meta.base), (0, None));
    assert!(store.manifest("step_2").unwrap().needed().is_empty());
    store.delete("step_1").unwrap();
    assert_eq!(store.load("step_2").unwrap().tensors, state.tensors);
}

#[test]
fn threads_and_clones_give_the_same_bytes() {
    let digests: Vec<_> = [1, 2, 7]
        .into_iter()
        .map(|threads| {
            let (store, _) = store(CompressorConfig::default().with_threads(threads));
            let mut run = Run::new(11, 3, 1, 200_000);
            store.save(&run.step(), "step_1", None).unwrap();
            store.save(&run.step(), "step_2", Some("step_1")).unwrap();
            ["step_1", "step_2"].map(|key| store.manifest(key).unwrap().own()[0].digest)
        })
        .collect();
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
}
