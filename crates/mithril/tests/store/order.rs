//! The order of checkpoints: which is the newest, and which retention keeps.

use super::{Run, store};
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{Checkpoint, CheckpointError, CompressorConfig, Retention};
use mithril::storage::{MemoryStorage, StorageBackend};
use mithril_format::Digest;
use std::sync::Arc;

fn state() -> Checkpoint {
    Run::new(40, 1, 0, 100).step()
}

fn with_step(step: u64) -> Checkpoint {
    state().with_step(step)
}

fn open(memory: &MemoryStorage, retention: Retention) -> CheckpointCompressor {
    let config = CompressorConfig::default().with_retention(retention);
    CheckpointCompressor::new(config, Arc::new(memory.clone()))
}

fn latest(store: &CheckpointCompressor) -> String {
    store.latest().unwrap().unwrap().key
}

fn in_order(store: &CheckpointCompressor) -> Vec<String> {
    store.list().unwrap().checkpoints.into_iter().map(|meta| meta.key).collect()
}

/// The manifest of a key as builds wrote it that counted from the previous checkpoint, and did not say whether a step was
/// given.
fn make_old(memory: &MemoryStorage, key: &str, sequence: u64) {
    change(memory, key, |manifest| {
        manifest["sequence"] = sequence.into();
        manifest.as_object_mut().unwrap().remove("step_given").unwrap();
    });
}

fn change(memory: &MemoryStorage, key: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let store = open(memory, Retention::default());
    let mut manifest = serde_json::to_value(store.manifest(key).unwrap()).unwrap();
    change(&mut manifest);
    let json = manifest.to_string();
    let sum = Digest::of(json.as_bytes());
    memory.replace(&format!("manifests/{key}.json"), format!("{json}\nblake3 {sum}\n").as_bytes()).unwrap();
}

#[test]
fn retention_never_removes_what_was_just_saved_nor_the_newest() {
    let (store, _) = store(CompressorConfig::default().with_retention(Retention::last(2).and_every(4000)));
    for step in [8000, 9000, 10_000] {
        store.save(&state(), &format!("step_{step}"), None).unwrap();
    }
    assert_eq!(store.keys().unwrap(), ["step_10000", "step_8000", "step_9000"]);
    // A roll-back, below all that the newest ones have: nothing of it is lost.
    for (step, kept) in [
        (8100, ["retry_8100", "step_10000", "step_8000"].as_slice()),
        (8200, &["retry_8100", "retry_8200", "step_10000", "step_8000"]),
        (8300, &["retry_8200", "retry_8300", "step_10000", "step_8000"]),
    ] {
        store.save(&with_step(step), &format!("retry_{step}"), None).unwrap();
        assert_eq!(store.keys().unwrap(), kept, "{step}");
        assert_eq!(latest(&store), "step_10000", "{step}");
    }
    // Keys without a step come after everything that was saved before.
    store.save(&state(), "best", None).unwrap();
    assert_eq!((latest(&store), store.load("best").is_ok()), ("best".to_owned(), true));
    let handle = store.save_async(state(), "final", None);
    handle.wait().unwrap();
    assert_eq!(store.keys().unwrap(), ["best", "final", "step_8000"]);
    assert_eq!(latest(&store), "final");
    // They have no step of their own, so none that is a multiple of another.
    store.save(&state(), "step_12000", None).unwrap();
    for key in ["a", "b", "c"] {
        store.save(&state(), key, None).unwrap();
    }
    assert_eq!(store.keys().unwrap(), ["b", "c", "step_12000", "step_8000"]);
    assert!(store.apply_retention().unwrap().is_empty());
}

#[test]
fn a_key_without_a_step_takes_its_place_by_when_it_was_saved() {
    let (store, memory) = store(CompressorConfig::default());
    for key in ["step_100", "step_200", "best", "step_300", "final"] {
        let meta = store.save(&state(), key, None).unwrap();
        assert_eq!(meta.has_step, key.starts_with("step"), "{key}");
        assert_eq!(latest(&store), key);
    }
    assert_eq!(in_order(&store), ["step_100", "step_200", "best", "step_300", "final"]);
    // The same for other processes, against a previous one, and for a state that has been loaded.
    let other = open(&memory, Retention::default());
    let loaded = other.load("best").unwrap();
    assert_eq!(loaded.step, None);
    other.save(&loaded, "again", Some("step_100")).unwrap();
    assert_eq!(latest(&store), "again");
    assert_eq!(store.rebase("best").unwrap().step, 200);
    assert_eq!(in_order(&store), ["step_100", "step_200", "best", "step_300", "final", "again"]);
}

#[test]
fn a_step_that_was_deleted_holds_nothing_up() {
    let (store, _) = store(CompressorConfig::default());
    for key in ["step_1000000", "step_2000"] {
        store.save(&state(), key, None).unwrap();
    }
    assert_eq!(latest(&store), "step_1000000");
    store.delete("step_1000000").unwrap();
    for key in ["best", "step_3000"] {
        let meta = store.save(&state(), key, None).unwrap();
        assert!(meta.step <= 3000, "{key}");
        assert_eq!(latest(&store), key);
    }
}

#[test]
fn the_digits_of_a_metric_are_no_step() {
    let (store, _) = store(CompressorConfig::default().with_retention(Retention::last(2)));
    let keys = ["epoch=2-val_loss=0.31", "epoch=3-val_loss=0.25", "epoch=4-val_loss=0.20", "step_7.pt"];
    for key in keys {
        store.save(&state(), key, None).unwrap();
        assert_eq!(latest(&store), key);
    }
    assert_eq!(in_order(&store), keys[2..]);
}

#[test]
fn saves_are_numbered_whatever_has_become_of_the_pointer() {
    let memory = MemoryStorage::new();
    let save = |key: &str| {
        let store = open(&memory, Retention::default());
        store.save(&state(), key, None).unwrap();
        assert_eq!(latest(&store), key);
        store.manifest(key).unwrap().sequence
    };
    assert_eq!([save("z"), save("y"), save("x")], [0, 1, 2]);
    let pointer = memory.get("latest.json", 1 << 16).unwrap();
    assert_eq!(save("w"), 3);
    // The save of `w` was killed before it could change the pointer.
    memory.replace("latest.json", &pointer).unwrap();
    assert_eq!(save("v"), 4);
    memory.delete("latest.json").unwrap();
    assert_eq!(save("u"), 5);
    let old = br#"{"key":"u","step":0,"generation":"00000000000000000000000000000000"}"#;
    let hostile = br#"{"key":"s","step":0,"generation":"","sequence":18446744073709551615,"highest_step":9}"#;
    for (at, wrong) in [&b"no JSON"[..], old, hostile, &[b' '; 1 << 17]].into_iter().enumerate() {
        memory.replace("latest.json", wrong).unwrap();
        assert_eq!(save(["t", "s", "r", "q"][at]), 6 + at as u64);
    }
    // What it names is deleted: numbers go on.
    open(&memory, Retention::default()).delete("q").unwrap();
    assert_eq!(save("p"), 10);
    assert_eq!(save("o"), 11);
}

#[test]
fn stores_of_earlier_builds_keep_their_order() {
    let memory = MemoryStorage::new();
    let store = open(&memory, Retention::default());
    // Two chains: the second was started anew, and its numbers with it.
    for (step, sequence) in [(1, 0), (2, 1), (3, 2), (4, 0), (5, 1)] {
        let key = format!("step_{step}");
        store.save(&state(), &key, None).unwrap();
        make_old(&memory, &key, sequence);
    }
    memory.replace("latest.json", br#"{"key":"step_5","step":5,"generation":"0"}"#).unwrap();
    let store = open(&memory, Retention::last(3));
    assert_eq!(latest(&store), "step_5");
    store.save(&state(), "final", None).unwrap();
    assert_eq!(latest(&store), "final");
    // The steps say which of the old ones were saved last: their numbers would say 3.
    assert_eq!(store.keys().unwrap(), ["final", "step_4", "step_5"]);
    for key in ["step_6", "last"] {
        store.save(&state(), key, None).unwrap();
    }
    assert_eq!(in_order(&store), ["final", "step_6", "last"]);
}

#[test]
fn the_word_for_the_newest_is_no_key() {
    let (store, memory) = store(CompressorConfig::default());
    let error = store.save(&state(), "latest", None).unwrap_err();
    assert!(matches!(error, CheckpointError::UnsafeName { .. }), "{error}");
    assert!(error.to_string().contains("stands for the newest"), "{error}");
    assert!(memory.list("").unwrap().is_empty());
    // One that an earlier build saved is read and deleted as any other.
    store.save(&state(), "latesu", None).unwrap();
    let mut manifest = serde_json::to_value(store.manifest("latesu").unwrap()).unwrap();
    manifest["key"] = "latest".into();
    let json = manifest.to_string();
    let sum = Digest::of(json.as_bytes());
    memory.put_new("manifests/latest.json", format!("{json}\nblake3 {sum}\n").as_bytes()).unwrap();
    assert_eq!(store.load("latest").unwrap().tensors, state().tensors);
    store.delete("latest").unwrap();
    assert!(store.load("latesu").is_ok());
}

#[test]
fn the_time_of_a_save_orders_nothing() {
    let (store, memory) = store(CompressorConfig::default());
    for key in ["step_1", "step_2", "step_3"] {
        let meta = store.save(&state(), key, None).unwrap();
        assert!(
            meta.saved.as_deref().is_some_and(|saved| saved > "2025-01-01T00:00:00Z"),
            "{:?}",
            meta.saved
        );
        assert_eq!(store.manifest(key).unwrap().saved, meta.saved);
    }
    change(&memory, "step_1", |manifest| manifest["saved"] = "9999-12-31T23:59:59Z".into());
    change(&memory, "step_2", |manifest| manifest["saved"] = "1970-01-01T00:00:00Z".into());
    change(&memory, "step_3", |manifest| _ = manifest.as_object_mut().unwrap().remove("saved").unwrap());
    let checkpoints = store.list().unwrap().checkpoints;
    let times: Vec<_> = checkpoints.iter().map(|meta| (meta.key.as_str(), meta.saved.as_deref())).collect();
    let (last, first) = ("9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z");
    assert_eq!(times, [("step_1", Some(last)), ("step_2", Some(first)), ("step_3", None)]);
    assert_eq!(latest(&store), "step_3");
    // It is printed, so it is nothing but a time.
    change(&memory, "step_3", |manifest| manifest["saved"] = "1970-01-01T00:00:0\u{1b}Z".into());
    assert!(matches!(store.manifest("step_3").unwrap_err(), CheckpointError::InvalidFormat { .. }));
}
