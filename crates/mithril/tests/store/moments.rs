//! Deltas of master weights that start where the moments of their optimiser say that they went.

use super::{bf16_tensor, f32_tensor, store, weights};
use crate::samples::Random;
use mithril::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, GcOptions, Retention, VerifyOptions,
};
use mithril::container::{Bases, EntryKind, Reader, Salvage};
use mithril::storage::StorageBackend;

/// A run of AdamW with a gradient that is mostly noise.
struct Adam {
    layers: Vec<[Vec<f32>; 3]>,
    random: Random,
}

impl Adam {
    fn new(seed: u64, n_layers: u64, n: usize) -> Self {
        let layer = |layer| [weights(seed * 100 + layer, n), vec![0.0; n], vec![0.0; n]];
        Self { layers: (0..n_layers).map(layer).collect(), random: Random::new(seed) }
    }

    /// Goes some steps on.
    fn go_on(&mut self, n: usize) {
        for _ in 0..n {
            for [masters, firsts, seconds] in &mut self.layers {
                for ((w, m), v) in masters.iter_mut().zip(firsts).zip(seconds) {
                    let gradient = self.random.gaussian() * 1e-3;
                    *m = 0.9 * *m + 0.1 * gradient;
                    *v = 0.95 * *v + 0.05 * gradient * gradient;
                    *w -= 1e-4 * (*m / (v.sqrt() + 1e-8) + 0.1 * *w);
                }
            }
        }
    }

    /// The state after some more steps: bf16 weights, masters and both moments.
    fn steps(&mut self, n: usize) -> Checkpoint {
        self.go_on(n);
        let mut state = Checkpoint::new();
        for (layer, [masters, firsts, seconds]) in self.layers.iter().enumerate() {
            state = state
                .with_tensor(format!("model.layers.{layer}.weight"), bf16_tensor(masters))
                .with_tensor(format!("master.layers.{layer}.weight"), f32_tensor(masters))
                .with_tensor(format!("optimizer.exp_avg.layers.{layer}.weight"), f32_tensor(firsts))
                .with_tensor(format!("optimizer.exp_avg_sq.layers.{layer}.weight"), f32_tensor(seconds));
        }
        state
    }
}

/// The state after some more steps as `torch.optim` has it: weights by name, moments by the number of the parameter, in
/// another order than that of the names.
fn numbered(run: &mut Adam, n: usize) -> Checkpoint {
    run.go_on(n);
    let n_layers = run.layers.len();
    let mut state = Checkpoint::new();
    for (layer, [masters, firsts, seconds]) in run.layers.iter().enumerate() {
        // Two tensors of each block, of which the second is the first parameter.
        let (block, part) = (layer / 2, ["attention", "mlp"][layer % 2]);
        let number = (n_layers - 2 - 2 * block) + (1 - layer % 2);
        state = state
            .with_tensor(format!("master.blocks.{block}.{part}.weight"), f32_tensor(masters))
            .with_tensor(format!("optimizer.state.{number}.exp_avg"), f32_tensor(firsts))
            .with_tensor(format!("optimizer.state.{number}.exp_avg_sq"), f32_tensor(seconds))
            .with_tensor(format!("optimizer.state.{number}.step"), f32_tensor(&[number as f32]));
    }
    state.with_tensor("master.running_mean", f32_tensor(&weights(n as u64, run.layers[0][0].len())))
}

#[test]
fn moments_that_are_numbered_are_found_by_where_the_weights_went() {
    let config = CompressorConfig::default().with_chain(8, 10.0);
    let lens = [false, true].map(|from_moments| {
        let mut run = Adam::new(3, 24, 6_000);
        let (store, _) = store(config.clone().with_from_moments(from_moments));
        store.save(&numbered(&mut run, 20), "step_0", None).unwrap();
        let state = numbered(&mut run, 1);
        store.save(&state, "step_1", Some("step_0")).unwrap();
        assert_eq!(store.load("step_1").unwrap().tensors, state.tensors);
        let tensors = store.manifest("step_1").unwrap().tensors;
        tensors
            .iter()
            .filter(|tensor| tensor.name.ends_with("weight"))
            .map(|tensor| tensor.stored_len)
            .collect::<Vec<_>>()
    });
    for (layer, (alone, from_moments)) in lens[0].iter().zip(&lens[1]).enumerate() {
        assert!(from_moments * 2 < *alone, "weight {layer}: {from_moments} and {alone} bytes");
    }
}

#[test]
fn moments_of_others_cost_nothing_but_time() {
    let config = CompressorConfig::default().with_chain(8, 10.0);
    let sizes = [false, true].map(|from_moments| {
        let (mut run, mut other) = (Adam::new(3, 4, 6_000), Adam::new(4, 4, 6_000));
        let (store, _) = store(config.clone().with_from_moments(from_moments));
        let mut mixed = |n: usize| {
            let (mut state, moments) = (numbered(&mut run, n), numbered(&mut other, n));
            for (name, tensor) in moments.tensors {
                if name.starts_with("optimizer.") {
                    state.tensors.insert(name, tensor);
                }
            }
            state
        };
        store.save(&mixed(20), "step_0", None).unwrap();
        let state = mixed(1);
        let meta = store.save(&state, "step_1", Some("step_0")).unwrap();
        assert_eq!(store.load("step_1").unwrap().tensors, state.tensors);
        meta.compressed_size
    });
    assert!(sizes[1] <= sizes[0] + 100, "{sizes:?}");
}

fn masters_len(manifest: &mithril::checkpoint::Manifest) -> u64 {
    let masters = manifest.tensors.iter().filter(|tensor| tensor.name.starts_with("master."));
    masters.map(|tensor| tensor.stored_len).sum()
}

#[test]
fn masters_shrink_and_come_back() {
    for (n_steps, at_most) in [(1, 0.35), (5, 0.95)] {
        let mut run = Adam::new(3, 3, 20_000);
        let states = [run.steps(20), run.steps(n_steps), run.steps(n_steps)];
        let lens = [false, true].map(|from_moments| {
            let config = CompressorConfig::default().with_chain(8, 10.0).with_from_moments(from_moments);
            let (store, _) = store(config);
            store.save(&states[0], "step_0", None).unwrap();
            let manifests = [1, 2].map(|i: usize| {
                let key = format!("step_{i}");
                store.save(&states[i], &key, Some(&format!("step_{}", i - 1))).unwrap();
                store.manifest(&key).unwrap()
            });
            for (i, state) in states.iter().enumerate() {
                assert_eq!(store.load(&format!("step_{i}")).unwrap().tensors, state.tensors, "step {i}");
            }
            for name in ["master.layers.1.weight", "model.layers.2.weight"] {
                assert_eq!(store.load_tensor("step_2", name).unwrap(), states[2].tensors[name]);
            }
            assert!(store.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap().is_intact());
            manifests.iter().map(masters_len).sum::<u64>()
        });
        assert!((lens[1] as f64) < at_most * lens[0] as f64, "{n_steps} steps: {lens:?}");
    }
}

#[test]
fn what_the_moments_need_is_kept() {
    let retention = Retention::last(1);
    let config = CompressorConfig::default().with_chain(8, 10.0).with_from_moments(true);
    let (store, memory) = store(config.with_retention(retention));
    let mut run = Adam::new(5, 2, 8_000);
    store.save(&run.steps(10), "step_1", None).unwrap();
    store.save(&run.steps(1), "step_2", Some("step_1")).unwrap();
    let last = run.steps(1);
    store.save(&last, "step_3", Some("step_2")).unwrap();
    store.gc(&GcOptions::now()).unwrap();
    assert_eq!(store.list().unwrap().checkpoints.len(), 1);
    assert_eq!(store.load("step_3").unwrap().tensors, last.tensors);
    // Without the objects that hold the moments, the error names what is missing.
    let needed = store.manifest("step_3").unwrap().needed()[0].object.clone();
    memory.delete(&needed).unwrap();
    let missing = store.load("step_3").unwrap_err();
    assert!(matches!(missing, CheckpointError::MissingBase { .. }), "{missing}");
}

#[test]
fn moments_that_are_no_numbers_or_tied_do_no_harm() {
    let strange = |scale: f32| {
        let mut masters = weights(9, 6_000);
        masters.iter_mut().for_each(|w| *w += scale * 1e-5);
        let mut firsts: Vec<f32> = masters.iter().map(|w| w * scale).collect();
        let mut seconds: Vec<f32> = masters.iter().map(|w| w * w).collect();
        for (i, value) in [f32::NAN, f32::INFINITY, -1.0, 1e-40, -0.0, f32::MAX].into_iter().enumerate() {
            (firsts[7 * i], seconds[11 * i], masters[13 * i]) = (value, -value, value);
        }
        Checkpoint::new()
            .with_tensor("w", f32_tensor(&masters))
            .with_tensor("w.exp_avg", f32_tensor(&firsts))
            .with_tensor("w.exp_avg_sq", f32_tensor(&seconds))
            .with_tensor("b", f32_tensor(&weights(1, 500)))
            .with_tensor("b.exp_avg", f32_tensor(&[0.0; 500]))
            .with_tensor("b.exp_avg_sq", f32_tensor(&[0.0; 500]))
    };
    let (store, _) = store(CompressorConfig::default().with_from_moments(true));
    let (first, second) = (strange(1.0), strange(2.0));
    store.save(&first, "step_1", None).unwrap();
    store.save(&second, "step_2", Some("step_1")).unwrap();
    assert_eq!(store.load("step_1").unwrap().tensors, first.tensors);
    assert_eq!(store.load("step_2").unwrap().tensors, second.tensors);
}

/// The container of a save whose masters start from moments, with one that is damaged.
#[test]
fn repair_names_masters_whose_moments_are_lost() {
    let (store, memory) = store(CompressorConfig::default().with_chain(8, 10.0).with_from_moments(true));
    let mut run = Adam::new(6, 2, 8_000);
    store.save(&run.steps(10), "step_1", None).unwrap();
    store.save(&run.steps(1), "step_2", Some("step_1")).unwrap();
    let object = store.manifest("step_2").unwrap().own()[0].object.clone();
    let mut bytes = memory.get(&object, 1 << 30).unwrap();
    let reader = Reader::open(bytes.clone()).unwrap();
    let master = reader.find("master.layers.0.weight").unwrap();
    let [first, _] = reader.entries()[master].step().expect("a step").moments;
    assert_eq!(reader.entries()[master].kind(), EntryKind::Delta);
    assert!(reader.open_tensor(master, &Bases::none()).is_err());
    let frame = reader.directory().frame(first).unwrap();
    bytes[usize::try_from(frame.offset + frame.len / 2).unwrap()] ^= 1;
    let lost = |bytes: &Vec<u8>| -> Vec<String> {
        let salvage = Salvage::examine(bytes, 1, &|_| ()).unwrap();
        let (repaired, _) = salvage.write(bytes, Vec::new(), &|_| ()).unwrap();
        Reader::open(repaired).expect("a container");
        salvage.lost().iter().filter_map(|lost| lost.name.clone()).collect()
    };
    let by_index = lost(&bytes);
    assert!(by_index.contains(&reader.entries()[first].name), "{by_index:?}");
    assert!(by_index.contains(&"master.layers.0.weight".to_owned()), "{by_index:?}");
    assert!(!by_index.contains(&"master.layers.1.weight".to_owned()), "{by_index:?}");
    // Without the index, nobody knows the steps.
    bytes.truncate(bytes.len() - 30);
    let by_scanning = lost(&bytes);
    assert!(by_scanning.contains(&"master.layers.1.weight".to_owned()), "{by_scanning:?}");
}
