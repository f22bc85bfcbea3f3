//! What every storage backend must do, as one suite that each of them runs.

use crate::folder::Folder;
use crate::samples::Random;
use mithril::storage::{LocalStorage, MemoryStorage, StorageBackend, StorageErrorKind, open};
use std::io::Write;
use std::time::Duration;

/// Everything that a store asks of a backend. `backend` is empty, and has something under it that no other test uses.
pub(crate) fn conforms(backend: &dyn StorageBackend) {
    whole_objects(backend);
    large_objects(backend);
    conditional_create(backend);
    conditional_change(backend);
    lists(backend);
    bad_keys(backend);
}

fn whole_objects(backend: &dyn StorageBackend) {
    assert_eq!(backend.get("data/a", 10).unwrap_err().kind(), StorageErrorKind::NotFound);
    assert_eq!(backend.open("data/a").err().unwrap().kind(), StorageErrorKind::NotFound);
    backend.put_new("data/a", b"first").unwrap();
    assert_eq!(backend.get("data/a", 5).unwrap(), b"first");
    assert_eq!(backend.get("data/a", 4).unwrap_err().kind(), StorageErrorKind::TooLarge);
    backend.replace("data/a", b"second").unwrap();
    assert_eq!(backend.get("data/a", 100).unwrap(), b"second");
    backend.put_new("data/empty", b"").unwrap();
    assert_eq!(backend.get("data/empty", 0).unwrap(), b"");
    let error = backend.put_new("data/a", b"third").unwrap_err();
    assert_eq!(error.kind(), StorageErrorKind::AlreadyExists, "{error}");
    assert_eq!(error.key(), "data/a");
    assert!(error.to_string().contains(backend.location()), "{error}");
    assert_eq!(backend.get("data/a", 100).unwrap(), b"second");
    backend.delete("data/a").unwrap();
    backend.delete("data/a").unwrap();
    backend.delete("data/empty").unwrap();
    assert_eq!(backend.get("data/a", 10).unwrap_err().kind(), StorageErrorKind::NotFound);
}

/// Written in odd pieces, larger than a part of an upload; read in odd ranges.
fn large_objects(backend: &dyn StorageBackend) {
    let mut random = Random::new(7);
    let bytes = random.bytes((17 << 20) + 12345);
    let mut writer = backend.create("data/large").unwrap();
    for piece in bytes.chunks(777_777) {
        writer.write_all(piece).unwrap();
    }
    assert!(backend.list("data").unwrap().is_empty(), "nothing is there before it is finished");
    writer.finish().unwrap();
    let object = backend.open("data/large").unwrap();
    assert_eq!(object.size().unwrap(), bytes.len() as u64);
    for (start, len) in [(0, 1), (0, 4096), ((8 << 20) - 3, 7), (bytes.len() - 9, 9), (5, 9 << 20), (3, 0)] {
        let mut out = vec![0; len];
        object.read_exact_at(start as u64, &mut out).unwrap();
        assert!(out == bytes[start..start + len], "{len} bytes at {start}");
    }
    let mut out = [0; 10];
    assert!(object.read_exact_at(bytes.len() as u64 - 9, &mut out).is_err());
    // One that is dropped leaves nothing; one of a key that is there is refused or, where only small objects can be,
    // replaces nothing that anybody reads under this name.
    let mut dropped = backend.create("data/dropped").unwrap();
    dropped.write_all(&bytes[..9 << 20]).unwrap();
    drop(dropped);
    let mut dropped = backend.create("data/dropped").unwrap();
    dropped.write_all(b"few").unwrap();
    drop(dropped);
    let keys: Vec<_> =
        backend.list("data").unwrap().into_iter().map(|object| (object.key, object.len)).collect();
    assert_eq!(keys, [("data/large".to_owned(), bytes.len() as u64)]);
    assert_eq!(backend.remove_leftovers(&["", "data"], Duration::ZERO).unwrap(), 0);
    backend.delete("data/large").unwrap();
}

fn conditional_create(backend: &dyn StorageBackend) {
    let winners: Vec<usize> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                scope.spawn(move || {
                    backend.put_new("manifests/one", &[writer as u8; 100]).is_ok().then_some(writer)
                })
            })
            .collect();
        writers.into_iter().filter_map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(winners.len(), 1, "one of eight writers wins");
    assert_eq!(backend.get("manifests/one", 100).unwrap(), [winners[0] as u8; 100]);
    let mut late = backend.create("manifests/one").unwrap();
    late.write_all(b"late").unwrap();
    assert_eq!(late.finish().unwrap_err().kind(), StorageErrorKind::AlreadyExists);
    backend.delete("manifests/one").unwrap();
}

/// What is changed is what was read.
fn conditional_change(backend: &dyn StorageBackend) {
    let refused = |before: &[u8], after: Option<&[u8]>| {
        let error = backend.exchange("manifests/one", before, after).unwrap_err();
        assert_eq!(error.kind(), StorageErrorKind::Changed, "{error}");
    };
    refused(b"", Some(b"one"));
    refused(b"one", None);
    backend.put_new("manifests/one", b"one").unwrap();
    refused(b"two", Some(b"three"));
    refused(b"on", None);
    refused(b"", None);
    backend.exchange("manifests/one", b"one", Some(b"number two")).unwrap();
    assert_eq!(backend.get("manifests/one", 100).unwrap(), b"number two");
    refused(b"one", Some(b"three"));
    refused(b"one", None);
    backend.exchange("manifests/one", b"number two", None).unwrap();
    assert_eq!(backend.get("manifests/one", 100).unwrap_err().kind(), StorageErrorKind::NotFound);
}

fn lists(backend: &dyn StorageBackend) {
    assert!(backend.list("nothing").unwrap().is_empty());
    let names = ["manifests/b", "manifests/a~2f1.json", "manifests/deep/er", "manifest", "other/x"];
    for name in names {
        backend.put_new(name, name.as_bytes()).unwrap();
    }
    let listed: Vec<_> = backend.list("manifests").unwrap().into_iter().map(|object| object.key).collect();
    assert_eq!(listed, ["manifests/a~2f1.json", "manifests/b", "manifests/deep/er"]);
    assert!(backend.list("manifests").unwrap().iter().all(|object| object.len == object.key.len() as u64));
    assert_eq!(backend.list("").unwrap().len(), names.len(), "all of them without a directory");
    names.iter().for_each(|name| backend.delete(name).unwrap());
    assert!(backend.list("manifests").unwrap().is_empty());
}

fn bad_keys(backend: &dyn StorageBackend) {
    for key in ["", "/a", "a/", "../a", "a/../b", "a//b", ".a", "a b", "a\0", "a\\b", &"x".repeat(300)] {
        assert_eq!(
            backend.put_new(key, b"x").unwrap_err().kind(),
            StorageErrorKind::InvalidArgument,
            "{key:?}"
        );
        assert!(backend.create(key).is_err(), "{key:?}");
    }
}

#[test]
fn memory_conforms() {
    conforms(&MemoryStorage::new());
}

#[test]
fn local_files_conform() {
    let folder = Folder::new("storage");
    conforms(&LocalStorage::new(folder.join("not/there/yet")));
    conforms(&*open(&format!("local://{}", folder.join("url").display())).unwrap());
}

/// Of several that change what they have read, one succeeds at a time.
#[test]
fn changes_at_the_same_time_are_all_counted() {
    const N_CHANGES: usize = 25;
    let folder = Folder::new("storage-changes");
    let memory = MemoryStorage::new();
    // Each has a handle of its own, as processes have.
    let handles: [Vec<Box<dyn StorageBackend>>; 2] = [
        (0..4).map(|_| Box::new(LocalStorage::new(folder.join(""))) as Box<dyn StorageBackend>).collect(),
        (0..4).map(|_| Box::new(memory.clone()) as Box<dyn StorageBackend>).collect(),
    ];
    for handles in handles {
        handles[0].put_new("manifests/count", b"0").unwrap();
        std::thread::scope(|scope| {
            for handle in &handles {
                scope.spawn(move || {
                    let mut n_left = N_CHANGES;
                    while n_left > 0 {
                        let before = handle.get("manifests/count", 100).unwrap();
                        let n: usize = std::str::from_utf8(&before).unwrap().parse().unwrap();
                        let after = (n + 1).to_string();
                        match handle.exchange("manifests/count", &before, Some(after.as_bytes())) {
                            Ok(()) => n_left -= 1,
                            Err(error) => assert_eq!(error.kind(), StorageErrorKind::Changed, "{error}"),
                        }
                    }
                });
            }
        });
        let count = handles[0].get("manifests/count", 100).unwrap();
        assert_eq!(count, (4 * N_CHANGES).to_string().as_bytes());
    }
}

#[test]
fn a_mark_counts_as_long_as_its_maker_is_there() {
    let folder = Folder::new("storage-marks");
    let [maker, other] = [0; 2].map(|_| LocalStorage::new(folder.join("")));
    let life = maker.put_mark("removed/0123456789abcdef0123456789abcdef", b"data/a").unwrap();
    let mark = other.list("removed").unwrap().remove(0);
    assert_eq!(other.get(&mark.key, 100).unwrap(), b"data/a");
    assert!(!other.remove_dead_mark(&mark).unwrap());
    drop(life);
    assert!(other.remove_dead_mark(&mark).unwrap());
    assert!(other.list("removed").unwrap().is_empty());
}

#[test]
fn leftovers_of_killed_writers_are_removed_and_not_listed() {
    let folder = Folder::new("storage-leftovers");
    let storage = LocalStorage::new(folder.join(""));
    storage.put_new("data/a", b"a").unwrap();
    folder.write("data/.b.mckp.0123456789abcdef0123456789abcdef.tmp", b"half");
    folder.write("data/below/.b.mckp.0123456789abcdef0123456789abcdef.tmp", b"another's");
    folder.write(".b.mckp.0123456789abcdef0123456789abcdef.tmp", b"another's");
    assert_eq!(storage.list("data").unwrap().len(), 1);
    let mut live = storage.create("data/c").unwrap();
    live.write_all(b"live").unwrap();
    // Nobody holds its lock, but it may be the file of another machine.
    assert_eq!(storage.remove_leftovers(&["data"], Duration::from_secs(3600)).unwrap(), 0);
    assert!(folder.join("data/.b.mckp.0123456789abcdef0123456789abcdef.tmp").exists());
    let old = std::time::SystemTime::now() - Duration::from_secs(3700);
    let left = std::fs::File::options()
        .write(true)
        .open(folder.join("data/.b.mckp.0123456789abcdef0123456789abcdef.tmp"))
        .unwrap();
    left.set_modified(old).unwrap();
    assert_eq!(storage.remove_leftovers(&["data"], Duration::from_secs(3600)).unwrap(), 4);
    assert_eq!(storage.remove_leftovers(&["data"], Duration::ZERO).unwrap(), 0, "one is at work");
    for other in ["data/below", ""] {
        assert!(folder.join(other).join(".b.mckp.0123456789abcdef0123456789abcdef.tmp").exists(), "{other}");
    }
    live.finish().unwrap();
    assert_eq!(storage.get("data/c", 4).unwrap(), b"live");
}

#[test]
fn urls_that_lead_nowhere_are_refused() {
    for url in ["", "local://", "ftp://x/y", "memory://name"] {
        assert_eq!(open(url).unwrap_err().kind(), StorageErrorKind::InvalidArgument, "{url:?}");
    }
    let error = open("ftp://host/x").unwrap_err().to_string();
    assert!(error.contains("ftp://host/x") && error.contains("s3"), "{error}");
}
