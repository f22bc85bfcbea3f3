//! Runs the suite of storage backends against a URL, then a whole checkpoint store in it.
//!
//! ```sh
//! storage_conformance s3://bucket/prefix endpoint=http://127.0.0.1:5000 allow_http=true
//! storage_conformance read http://127.0.0.1:8000/store KEY    # only reads, as over HTTP
//! ```

#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

#[path = "../tests/it/folder.rs"]
mod folder;
#[path = "../tests/it/samples.rs"]
mod samples;
#[path = "../tests/store/storage.rs"]
mod storage;

use mithril::Dtype;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, GcOptions, TensorData, VerifyOptions,
};
use mithril::storage::{StorageErrorKind, StorageOptions, open_with};
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments[0] == "read" {
        return read(&arguments[1], &arguments[2]);
    }
    let mut options = StorageOptions::default().with_retries(3, Duration::from_secs(20));
    for setting in &arguments[1..] {
        let (name, value) = setting.split_once('=').unwrap();
        options = options.with_client(name, value);
    }
    let backend = open_with(&arguments[0], &options).unwrap();
    storage::conforms(&*backend);
    let store = CheckpointCompressor::new(CompressorConfig::default(), backend);
    let state = |step: u64| {
        let mut random = samples::Random::new(step + 1);
        let mut bytes = samples::pattern("weights", Dtype::F32, 24 << 20, 3);
        bytes.iter_mut().step_by(4).for_each(|byte| *byte = random.byte() & 3);
        let large = TensorData::new(bytes, [6 << 20], Dtype::F32);
        let small = TensorData::new(vec![step as u8; 100], [100], Dtype::U8);
        Checkpoint::new().with_tensor("large", large).with_tensor("small", small)
    };
    for step in 0..4 {
        let previous = (step > 0).then(|| format!("step_{}", step - 1));
        store.save(&state(step), &format!("step_{step}"), previous.as_deref()).unwrap();
    }
    let conflict = store.save(&state(9), "step_2", None).unwrap_err();
    assert!(matches!(conflict, CheckpointError::Conflict { .. }), "{conflict}");
    store.delete("step_0").unwrap();
    store.rebase("step_2").unwrap();
    for step in 1..4 {
        assert!(store.load(&format!("step_{step}")).unwrap().tensors == state(step).tensors, "step {step}");
    }
    assert!(store.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap().is_intact());
    store.gc(&GcOptions::now()).unwrap();
    for step in 1..4 {
        store.delete(&format!("step_{step}")).unwrap();
    }
    // Deleting leaves young data in object stores, whose lists may lag.
    store.gc(&GcOptions::now()).unwrap();
    assert!(store.storage().list("data").unwrap().is_empty());
    println!("{}: conforms; a store in it works", arguments[0]);
}

fn read(url: &str, key: &str) {
    let backend = open_with(url, &StorageOptions::default()).unwrap();
    let missing = backend.get("manifests/nothing.json", 10).unwrap_err();
    assert_eq!(missing.kind(), StorageErrorKind::NotFound, "{missing}");
    let store = CheckpointCompressor::new(CompressorConfig::default(), backend);
    let loaded = store.load(key).unwrap();
    assert!(store.save(&loaded, "new", None).is_err(), "read-only");
    println!("{url}: `{key}` has {} tensors, {} bytes", loaded.tensors.len(), loaded.raw_len());
}
