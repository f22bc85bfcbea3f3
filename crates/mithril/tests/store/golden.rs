//! Stores that earlier versions wrote: their checkpoints come back for ever, byte for byte.

use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{CompressorConfig, Manifest, VerifyOptions};
use mithril::storage::LocalStorage;
use std::fs;
use std::path::Path;
use std::sync::Arc;

#[test]
fn golden_stores_restore_to_their_inputs() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/stores");
    let mut n_files = 0;
    for version in fs::read_dir(golden).unwrap() {
        let root = version.unwrap().path();
        let store =
            CheckpointCompressor::new(CompressorConfig::default(), Arc::new(LocalStorage::new(&root)));
        let listing = store.list().unwrap();
        assert!(listing.unreadable.is_empty() && !listing.checkpoints.is_empty());
        for meta in &listing.checkpoints {
            let manifest = store.manifest(&meta.key).unwrap();
            for (part, object) in manifest.own().iter().enumerate() {
                let name = object.file.as_ref().unwrap();
                let restored = store.export(&meta.key, part, Vec::new(), &|_| ()).unwrap();
                assert!(
                    restored == fs::read(root.join("expected").join(name)).unwrap(),
                    "{}: {name}",
                    meta.key
                );
                n_files += 1;
            }
        }
        assert!(store.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap().is_intact());
    }
    assert!(n_files >= 4);
}

/// What this version writes of a manifest is what the first one wrote, byte for byte, and may be compressed.
#[test]
fn golden_manifests_are_written_as_they_were() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/stores/v0_1_0/manifests");
    for (key, name) in
        [("step_1", "step_1.json"), ("step_2", "step_2.json"), ("run 1/both", "run~201~2fboth.json")]
    {
        let bytes = fs::read(golden.join(name)).unwrap();
        let manifest = Manifest::parse(key, name, &bytes).unwrap();
        let json = serde_json::to_string(&manifest).unwrap();
        let sum = mithril_format::Digest::of(json.as_bytes());
        assert!(format!("{json}\nblake3 {sum}\n").into_bytes() == bytes, "{key}");
        let written = manifest.write();
        assert!(2 * written.len() < bytes.len(), "{key}: {} and {} bytes", written.len(), bytes.len());
        assert!(Manifest::parse(key, name, &written).unwrap() == manifest, "{key}");
        let error = Manifest::parse("another", name, &bytes).unwrap_err();
        assert!(error.to_string().contains("another key"), "{error}");
    }
}
