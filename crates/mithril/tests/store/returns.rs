//! Tensors that return to an earlier value: flags, masks, weights that were swapped or rolled back.

use super::{f32_tensor, store, weights};
use crate::samples::Random;
use mithril::Dtype;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{Checkpoint, CompressorConfig, GcOptions, TensorData, VerifyOptions};
use mithril::container::{Bases, Model, Reader};
use mithril::pack::{PackOptions, pack, unpack};
use std::collections::BTreeMap;

/// Numbers that moved so many times, each time by a little.
fn moved(seed: u64, times: u64, n: usize) -> Vec<f32> {
    let mut values = weights(seed, n);
    let mut random = Random::new(seed + 17);
    for _ in 0..times {
        values.iter_mut().for_each(|value| *value += random.gaussian() * 1e-4);
    }
    values
}

/// All ways to read a checkpoint give what was saved.
fn check(store: &CheckpointCompressor, key: &str, expected: &Checkpoint) {
    assert!(store.load(key).unwrap_or_else(|error| panic!("{error}")).tensors == expected.tensors, "{key}");
    let exported = store.export(key, 0, Vec::new(), &|_| ()).unwrap();
    let as_one = store.export_safetensors(key, Vec::new(), &|_| ()).unwrap();
    assert!(exported == as_one, "{key}");
    for (name, tensor) in &expected.tensors {
        assert!(store.load_tensor(key, name).unwrap() == *tensor, "{key}: {name}");
    }
    for options in [VerifyOptions::default(), VerifyOptions::deep()] {
        let report = store.verify(Some(key), &options, &|_| ()).unwrap();
        assert!(report.is_intact(), "{key}: {:?}", report.damaged);
    }
}

#[test]
fn a_flag_that_returns_while_weights_hold_an_old_object_comes_back() {
    for depth in [1, 2, 8] {
        let (store, _) = store(CompressorConfig::default().with_chain(depth, 10.0));
        let mut saved: Vec<(String, Checkpoint)> = Vec::new();
        for (step, (flag, times)) in [(0, 0), (0, 1), (1, 1), (0, 1), (0, 1), (0, 2)].into_iter().enumerate()
        {
            let state = Checkpoint::new()
                .with_tensor("w", f32_tensor(&moved(1, times, 4096)))
                .with_tensor("flag", f32_tensor(&[flag as f32; 16]));
            let (key, previous) = (format!("step_{step}"), saved.last().map(|(key, _)| key.clone()));
            store.save(&state, &key, previous.as_deref()).unwrap();
            saved.push((key, state));
        }
        for (key, state) in &saved {
            check(&store, key, state);
        }
        for (key, state) in saved.iter().rev() {
            store.rebase(key).unwrap();
            check(&store, key, state);
        }
    }
}

/// Tensors that stay, move, go back to any value that they had, swap values with others, come and go: what was saved comes
/// back, by every way to read it, whatever was deleted or made independent before.
#[test]
fn random_values_that_return_come_back() {
    for seed in 0..40 {
        let mut random = Random::new(seed + 1);
        let config = CompressorConfig::default().with_chain([1, 2, 3, 8][seed as usize % 4], 10.0);
        let (store, _) = store(config.with_threads(1));
        let mut saved: BTreeMap<String, Checkpoint> = BTreeMap::new();
        let mut times = [0u64; 5];
        for step in 0..14 {
            let mut state = Checkpoint::new().with_step(step);
            for (number, times) in times.iter_mut().enumerate() {
                match random.below(8) {
                    0..=2 => {}
                    3 | 4 => *times += 1,
                    _ => *times = random.below(*times + 1),
                }
                // Two of them have the same values, so that one may be a copy of another's earlier one.
                let values = moved([1, 1, 2, 3, 4][number], *times, [400, 400, 400, 16, 64][number]);
                if random.below(8) > 0 {
                    state = state.with_tensor(format!("t{number}"), f32_tensor(&values));
                }
            }
            let keys: Vec<&String> = saved.keys().collect();
            let last = keys.last().map(|key| (*key).clone());
            let other = (!keys.is_empty()).then(|| keys[random.below(keys.len() as u64) as usize].clone());
            let previous = if random.below(4) == 0 { other.clone() } else { last };
            let key = format!("step_{step:02}");
            store.save(&state, &key, previous.as_deref()).unwrap_or_else(|error| panic!("{seed}: {error}"));
            saved.insert(key, state);
            match (random.below(6), other) {
                (0, Some(key)) => {
                    store.delete(&key).unwrap();
                    saved.remove(&key);
                }
                (1, Some(key)) => _ = store.rebase(&key).unwrap(),
                (2, _) => _ = store.gc(&GcOptions::now()).unwrap(),
                _ => {}
            }
        }
        for (key, state) in &saved {
            check(&store, key, state);
        }
    }
}

/// A base that lists a tensor is not one that holds it: what can be read with what was given is found, in whatever order.
#[test]
fn a_base_that_cannot_be_resolved_is_passed_over() {
    let file = |values: &[f32]| {
        let (store, _) = store(CompressorConfig::default());
        store.save(&Checkpoint::new().with_tensor("w", f32_tensor(values)), "file", None).unwrap();
        store.export("file", 0, Vec::new(), &|_| ()).unwrap()
    };
    let [first, second] = [0, 1].map(|times| file(&moved(5, times, 5000)));
    let packed = |file: &Vec<u8>, bases: Bases| {
        let options = PackOptions::default().with_digests(true).with_bases(bases);
        pack(file, Vec::new(), &options, &|_| ()).unwrap().0
    };
    let open = |bytes: &[u8], bases: Bases| Model::open("base", Box::new(bytes.to_vec()), bases).unwrap();
    let full = packed(&first, Bases::none());
    let delta = packed(&second, Bases::new([open(&full, Bases::none())]));
    // Mentions of the second state: against a delta, which needs the first, and the same values in full.
    let target = packed(&second, Bases::new([open(&delta, Bases::new([open(&full, Bases::none())]))]));
    let in_full = packed(&second, Bases::none());
    let reader = Reader::open(target).unwrap();
    let lame = || open(&delta, Bases::none());
    for models in [vec![lame(), open(&in_full, Bases::none())], vec![open(&in_full, Bases::none()), lame()]] {
        let restored = unpack(&reader, Vec::new(), &Bases::new(models), 1, &|_| ()).unwrap().0;
        assert!(restored == second);
    }
    let error = unpack(&reader, Vec::new(), &Bases::new([lame()]), 1, &|_| ()).unwrap_err();
    assert_eq!(error.kind(), mithril::ErrorKind::Base, "{error}");
    assert!(error.to_string().contains("`base` lists it, but"), "{error}");
}

/// A rounded copy belongs to the save that made it, also where the tensor that it follows from was saved before.
#[test]
fn a_rounded_copy_of_a_frozen_tensor_stays_while_both_are_frozen() {
    let values = moved(1, 0, 400);
    let master = f32_tensor(&values);
    let halves = master.data.chunks(4).flat_map(|bytes| {
        let bits = u32::from_le_bytes(bytes.try_into().unwrap());
        (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16).to_le_bytes()
    });
    let rounded = TensorData::new(halves.collect::<Vec<u8>>(), [400], Dtype::Bf16);
    let alone = Checkpoint::new().with_tensor("master", master);
    let both = alone.clone().with_tensor("rounded", rounded);
    let (store, _) = store(CompressorConfig::default());
    store.save(&alone, "step_0", None).unwrap();
    for (step, previous) in [(1, "step_0"), (2, "step_1"), (3, "step_2")] {
        let key = format!("step_{step}");
        store.save(&both, &key, Some(previous)).unwrap();
        check(&store, &key, &both);
    }
    store.delete("step_1").unwrap();
    store.gc(&GcOptions::now()).unwrap();
    check(&store, "step_3", &both);
}
