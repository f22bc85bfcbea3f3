//! Deleting, retention, gc and rebase: nothing goes that a checkpoint needs, and all goes that none does.

use super::{Run, store};
use crate::folder::Folder;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{
    Checkpoint, CheckpointError, CompressorConfig, GcOptions, Retention, VerifyOptions,
};
use mithril::storage::{LocalStorage, MemoryStorage, StorageBackend};
use std::sync::Arc;

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

/// What lies beside the objects of a store, or has the names of its directories, is somebody's own.
#[test]
fn gc_touches_only_names_that_a_save_can_have_written() {
    let (store, memory) = store(CompressorConfig::default());
    store.save(&Run::new(7, 1, 0, 100).step(), "step_1", None).unwrap();
    let foreign = [
        "data/train.csv",
        "data/sub/x.bin",
        "data/0123456789abcdef.mckp",
        "removed/notes.txt",
        "manifests/Thumbs.db",
        "manifests/desktop.ini",
        "manifests/step_1.json~",
        "manifests/old/step_1.json",
    ];
    let ours = ["data/0123456789abcdef0123456789abcdef.mckp", "data/0123456789abcdef0123456789abcdef-2.mckp"];
    for name in foreign.iter().chain(&ours).chain(&["removed/0123456789abcdef0123456789abcdef"]) {
        memory.put_new(name, b"x").unwrap();
    }
    let listing = store.list().unwrap();
    assert_eq!((listing.checkpoints.len(), listing.unreadable.len()), (1, 0));
    assert_eq!(listing.foreign.len(), 4);
    assert!(store.verify(None, &VerifyOptions::deep(), &|_| ()).unwrap().is_intact());
    let mut removed = store.gc(&GcOptions::now()).unwrap().removed;
    removed.sort();
    assert_eq!(removed, [ours[1], ours[0]]);
    for name in foreign {
        memory.get(name, 1).unwrap();
    }
    assert_eq!(memory.list("removed").unwrap().len(), 2, "the mark may be that of a removal at work");
}

#[test]
fn a_place_where_nothing_was_saved_is_no_store() {
    let memory = MemoryStorage::new();
    let object = "data/0123456789abcdef0123456789abcdef.mckp";
    memory.put_new(object, b"x").unwrap();
    memory.put_new("manifests/Thumbs.db", b"x").unwrap();
    let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(memory.clone()));
    let refused = [
        store.gc(&GcOptions::now()).unwrap_err(),
        store.verify(None, &VerifyOptions::default(), &|_| ()).unwrap_err(),
        store.verify(Some("step_1"), &VerifyOptions::default(), &|_| ()).unwrap_err(),
        store.apply_retention().unwrap_err(),
        store.load("step_1").unwrap_err(),
        store.meta("step_1").unwrap_err(),
        store.delete("step_1").unwrap_err(),
        store.rebase("step_1").unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, CheckpointError::NoStore { .. }), "{error}");
    }
    assert_eq!(memory.list("").unwrap().len(), 2, "nothing was touched");
    // A run that starts asks what there is.
    assert!(!store.exists().unwrap() && store.latest().unwrap().is_none());
    assert!(store.keys().unwrap().is_empty() && store.list().unwrap().checkpoints.is_empty());
    let state = Run::new(8, 1, 0, 100).step();
    let error = store.save(&state, "step_2", Some("step_1")).unwrap_err();
    assert!(matches!(error, CheckpointError::MissingPrevious { .. }), "{error}");
    store.save(&state, "step_1", None).unwrap();
    store.gc(&GcOptions::now()).unwrap();
    assert!(memory.get(object, 1).is_err(), "of a save that was killed");
    // It stays a store when its last checkpoint is deleted.
    store.delete("step_1").unwrap();
    assert!(store.exists().unwrap());
    store.gc(&GcOptions::now()).unwrap();
    let error = store.load("step_1").unwrap_err();
    assert!(matches!(error, CheckpointError::NotFound { .. }), "{error}");
}

/// Things in a directory that cannot be read as a file, which would stop or hang whoever opened them.
#[cfg(unix)]
#[test]
fn pipes_directories_and_links_beside_the_objects_are_left_alone() {
    let folder = Folder::new("foreign-things");
    let root = folder.join("s");
    let open = || CheckpointCompressor::new(CompressorConfig::default(), Arc::new(LocalStorage::new(&root)));
    open().save(&Run::new(9, 1, 0, 100).step(), "step_1", None).unwrap();
    let outside = folder.write("outside.txt", b"precious");
    let object = "0123456789abcdef0123456789abcdef";
    for place in ["manifests/pipe.json", &format!("data/{object}-1.mckp"), "latest.json.pipe"] {
        let made = std::process::Command::new("mkfifo").arg(root.join(place)).status().unwrap();
        assert!(made.success());
    }
    std::fs::create_dir(root.join("manifests/directory.json")).unwrap();
    std::fs::create_dir(root.join(format!("data/{object}-2.mckp"))).unwrap();
    let link = |to: &std::path::Path, place: &str| std::os::unix::fs::symlink(to, root.join(place)).unwrap();
    link(&folder.join(""), "manifests/linked.json");
    link(&folder.join("nowhere"), "manifests/dangling.json");
    link(&outside, &format!("data/{object}.mckp"));
    let store = open();
    let listing = store.list().unwrap();
    assert_eq!((listing.checkpoints.len(), listing.unreadable.len()), (1, 0), "{:?}", listing.unreadable);
    for key in ["pipe", "directory", "dangling"] {
        assert!(store.load(key).is_err(), "{key}");
    }
    store.gc(&GcOptions::now()).unwrap();
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
    store.load("step_1").unwrap();
    // A broken manifest is another matter: its data cannot be told from garbage.
    folder.write("s/manifests/step_2.json", b"broken");
    assert!(matches!(store.gc(&GcOptions::now()).unwrap_err(), CheckpointError::InvalidFormat { .. }));
}
