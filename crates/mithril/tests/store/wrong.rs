//! Missing and wrong objects, damaged manifests, names that are none: refused by name, never wrong bytes.

use super::{Run, store};
use crate::folder::Folder;
use crate::samples::Random;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, SaveOptions, TensorData, VerifyOptions,
};
use mithril::storage::{LocalStorage, StorageBackend};
use mithril::{Dtype, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_save_that_is_no_longer_wanted_leaves_nothing() {
    let (store, memory) = store(CompressorConfig::default());
    let checkpoint = Run::new(2, 2, 1, 3_000).step();
    let stop = Arc::new(AtomicBool::new(false));
    // Told while it is at work: by then some bytes are done.
    let told = |_| stop.store(true, Ordering::Release);
    let options = SaveOptions::default().with_progress(&told).with_stop(stop.clone());
    let error = store.save_view(&checkpoint.view(), "step", &options).unwrap_err();
    assert!(matches!(error, CheckpointError::Abandoned { .. }), "{error}");
    assert!(memory.list("").unwrap().is_empty() && store.list().unwrap().checkpoints.is_empty());
    store.save(&checkpoint, "step", None).unwrap();
}

#[test]
fn every_missing_member_of_a_chain_is_named() {
    for missing in 0..4 {
        let (store, memory) = store(CompressorConfig::default());
        let mut run = Run::new(1, 2, 1, 3_000);
        let mut objects = Vec::new();
        for step in 0..4 {
            let previous = (step > 0).then(|| format!("step_{}", step - 1));
            store.save(&run.step(), &format!("step_{step}"), previous.as_deref()).unwrap();
            objects.push(store.manifest(&format!("step_{step}")).unwrap().own()[0].clone());
        }
        memory.delete(&objects[missing].object).unwrap();
        for step in 0..4 {
            let loaded = store.load(&format!("step_{step}"));
            if step < missing {
                loaded.unwrap();
                continue;
            }
            let error = loaded.unwrap_err();
            let CheckpointError::MissingBase { needed_by, base_key, object, digest } = &error else {
                panic!("{error}")
            };
            assert_eq!((needed_by, base_key), (&format!("step_{step}"), &format!("step_{missing}")));
            assert_eq!((object, *digest), (&objects[missing].object, objects[missing].container));
            assert_eq!(error.kind(), ErrorKind::Base);
        }
        let newest = store.latest().unwrap().map(|meta| meta.step);
        assert_eq!(newest, missing.checked_sub(1).map(|step| step as u64));
        let error = store.save(&run.step(), "step_9", Some("step_3")).unwrap_err();
        assert!(matches!(error, CheckpointError::MissingBase { .. }), "{error}");
    }
}

#[test]
fn another_base_of_the_same_shape_is_refused_before_any_byte() {
    let (store, memory) = store(CompressorConfig::default());
    let mut run = Run::new(2, 2, 0, 3_000);
    store.save(&run.step(), "step_0", None).unwrap();
    store.save(&run.step(), "step_1", Some("step_0")).unwrap();
    store.save(&Run::new(3, 2, 0, 3_000).step(), "other", None).unwrap();
    let (right, wrong) = (
        store.manifest("step_0").unwrap().own()[0].object.clone(),
        store.manifest("other").unwrap().own()[0].object.clone(),
    );
    memory.replace(&right, &memory.get(&wrong, 1 << 30).unwrap()).unwrap();
    let error = store.load("step_1").unwrap_err();
    assert!(matches!(error, CheckpointError::BaseMismatch { .. }), "{error}");
    let mut out = vec![7; 6_000];
    store.load_into("step_1", &mut [("layer.0.weight", &mut out)]).unwrap_err();
    assert!(out.iter().all(|&byte| byte == 7), "nothing was written");
}

#[test]
fn a_flipped_bit_anywhere_never_gives_other_tensors() {
    let (store, memory) = store(CompressorConfig::default());
    let mut run = Run::new(4, 3, 1, 300);
    store.save(&run.step(), "step_0", None).unwrap();
    let state = run.step();
    store.save(&state, "step_1", Some("step_0")).unwrap();
    let mut random = Random::new(99);
    for object in [memory.list("data").unwrap(), memory.list("manifests").unwrap()].concat() {
        let intact = memory.get(&object.key, 1 << 30).unwrap();
        for byte in 0..intact.len() {
            let mut damaged = intact.clone();
            damaged[byte] ^= 1 << random.below(8);
            memory.replace(&object.key, &damaged).unwrap();
            if let Ok(loaded) = store.load("step_1") {
                assert_eq!(loaded.tensors, state.tensors, "byte {byte} of {}", object.key);
            }
            if byte % 16 == 0 {
                let report = store.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap();
                assert!(!report.is_intact(), "byte {byte} of {} is not noticed", object.key);
            }
        }
        memory.replace(&object.key, &intact).unwrap();
    }
}

#[test]
fn manifests_cut_off_anywhere_are_refused() {
    let (store, memory) = store(CompressorConfig::default());
    store.save(&Run::new(5, 1, 0, 100).step(), "step_0", None).unwrap();
    let intact = memory.get("manifests/step_0.json", 1 << 20).unwrap();
    for len in 0..intact.len() {
        memory.replace("manifests/step_0.json", &intact[..len]).unwrap();
        let error = store.load("step_0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn compressed_manifests_that_lie_are_refused_for_the_right_reason() {
    let (store, memory) = store(CompressorConfig::default());
    store.save(&Run::new(5, 1, 0, 100).step(), "step_0", None).unwrap();
    let intact = memory.get("manifests/step_0.json", 1 << 20).unwrap();
    assert!(intact.starts_with(b"MMFT"));
    // The digest is made right, so that what it covers is looked at: a length, the coder, a length, a zstd frame.
    let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut coded = intact[36..].to_vec();
        change(&mut coded);
        let sum = mithril_format::Digest::of(&coded);
        memory.replace("manifests/step_0.json", &[b"MMFT".as_slice(), &sum.0, &coded].concat()).unwrap();
        store.load("step_0").unwrap_err()
    };
    let refusals = [
        (refusal(&|coded| coded[..4].fill(255)), ErrorKind::Corrupt),
        (refusal(&|coded| coded[0] ^= 1), ErrorKind::Corrupt),
        (refusal(&|coded| coded[4] = 8), ErrorKind::Unsupported),
        (refusal(&|coded| coded.push(0)), ErrorKind::Corrupt),
        (refusal(&|coded| coded.truncate(3)), ErrorKind::Corrupt),
    ];
    for (error, kind) in refusals {
        assert_eq!(error.kind(), kind, "{error}");
    }
    // The frame names a dictionary; another id is named in the refusal.
    assert_eq!(intact[40], 9);
    let id = u16::from_le_bytes([intact[50], intact[51]]);
    let error = refusal(&|coded| coded[14] ^= 1);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(format!("{error:?}").contains(&(id ^ 1).to_string()), "{error:?}");
}

#[test]
fn manifests_of_later_versions_name_both_versions() {
    let (store, memory) = store(CompressorConfig::default());
    store.save(&Run::new(5, 1, 0, 100).step(), "step_0", None).unwrap();
    let text = serde_json::to_string(&store.manifest("step_0").unwrap()).unwrap();
    let json = text.replacen(r#""version":1"#, r#""version":7"#, 1);
    let sum = mithril_format::Digest::of(json.as_bytes());
    memory.replace("manifests/step_0.json", format!("{json}\nblake3 {sum}\n").as_bytes()).unwrap();
    let error = store.load("step_0").unwrap_err();
    assert!(matches!(error, CheckpointError::UnsupportedVersion { found: 7, supported: 1, .. }), "{error}");
}

#[test]
fn bad_names_shapes_and_keys_change_nothing() {
    let (store, memory) = store(CompressorConfig::default());
    let tensor = TensorData::new(vec![0; 8], [2], Dtype::F32);
    let check = |checkpoint: &Checkpoint, key: &str, previous: Option<&str>| {
        let error = store.save(checkpoint, key, previous).unwrap_err();
        assert!(memory.list("data").unwrap().is_empty() && memory.list("manifests").unwrap().is_empty());
        error
    };
    for name in ["__metadata__", &"n".repeat(65_536)] {
        let error = check(&Checkpoint::new().with_tensor(name, tensor.clone()), "k", None);
        assert!(matches!(error, CheckpointError::UnsafeName { .. }), "{error}");
    }
    for key in ["", "..", "/etc/passwd", "a/../../b", "a\0", &"k".repeat(300)] {
        let error = check(&Checkpoint::new(), key, None);
        assert!(matches!(error, CheckpointError::UnsafeName { .. }), "{error}");
    }
    let short = TensorData::new(vec![0; 7], [2], Dtype::F32);
    let error = check(&Checkpoint::new().with_tensor("t", short), "k", None);
    assert!(matches!(error, CheckpointError::ShapeMismatch { .. }), "{error}");
    let huge = TensorData::new(vec![], [1 << 40, 1 << 40], Dtype::F32);
    check(&Checkpoint::new().with_tensor("t", huge), "k", None);
    let quantised = TensorData::new(vec![0; 18], [32], Dtype::Q4_0);
    let error = check(&Checkpoint::new().with_tensor("t", quantised), "k", None);
    assert!(matches!(error, CheckpointError::UnsupportedDtype { .. }), "{error}");
    let error = check(&Checkpoint::new(), "k", Some("not there"));
    assert!(matches!(error, CheckpointError::MissingPrevious { .. }), "{error}");
}

#[test]
fn tensors_of_any_name_come_back_from_a_store() {
    let names = ["/dense/kernel", "..", "../up", "a/../b", "", "a\0b", "back\\..", &"n".repeat(60_000)];
    let saved = |add: f32| {
        names.iter().enumerate().fold(Checkpoint::new(), |checkpoint, (number, name)| {
            let numbers =
                (0..90u16).flat_map(|i| ((f32::from(i) * 0.3).sin() + add + number as f32).to_le_bytes());
            checkpoint.with_tensor(*name, TensorData::new(numbers.collect::<Vec<u8>>(), [90], Dtype::F32))
        })
    };
    let (store, _) = store(CompressorConfig::default());
    store.save(&saved(0.0), "one", None).unwrap();
    store.save(&saved(1e-4), "two", Some("one")).unwrap();
    for (key, add) in [("one", 0.0), ("two", 1e-4)] {
        assert_eq!(store.load(key).unwrap().tensors, saved(add).tensors);
    }
}

/// Keys of checkpoints and of objects are made of anything; whatever is accepted stays inside of the store.
#[test]
fn a_thousand_crafted_names_stay_inside_of_the_store() {
    const PIECES: &[&str] = &[
        "..",
        "/",
        "//",
        "\\",
        "\0",
        ".",
        "~",
        "%2e%2e",
        "C:",
        "CON",
        "nul",
        "a",
        "step_1",
        " ",
        "é",
        "\n",
        "-",
        "~2e",
        "..;",
        "file://",
        "latest.json",
        "data",
        "manifests",
        ".tmp",
        "/etc/passwd",
    ];
    let folder = Folder::new("crafted-names");
    let root = folder.join("above/store");
    let storage = LocalStorage::new(root.join("objects"));
    let local = Arc::new(LocalStorage::new(root.join("run")));
    let store = CheckpointCompressor::new(CompressorConfig::default(), local);
    let state = Run::new(1, 1, 0, 10).step();
    let mut random = Random::new(22);
    let (mut n_keys, mut n_objects) = (0, 0);
    for number in 0..1000 {
        let mut name: String =
            (0..1 + random.byte() % 5).map(|_| PIECES[usize::from(random.byte()) % PIECES.len()]).collect();
        if number % 50 == 0 {
            name = name.repeat(20_000);
        }
        if number % 4 == 0 {
            n_keys += u32::from(store.save(&state, &name, None).is_ok());
        } else {
            n_objects += u32::from(storage.put_new(&name, b"x").is_ok());
        }
    }
    let mut directories = vec![folder.join("")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.starts_with(&root) || root.starts_with(&path), "{} lies outside", path.display());
            if path.is_dir() {
                directories.push(path);
            }
        }
    }
    let listed = store.list().unwrap();
    assert!(n_keys > 10 && n_objects > 10, "{n_keys} keys and {n_objects} objects were accepted");
    for meta in &listed.checkpoints {
        assert_eq!(store.load(&meta.key).unwrap().tensors, state.tensors, "{:?}", meta.key);
    }
    println!("1000 crafted names: {} accepted, 0 outside of the store", n_keys + n_objects);
}
