//! Files that change while they are saved: refused, and nothing is left of the save.

use super::{store, weights};
use crate::folder::Folder;
use mithril::ReadAt;
use mithril::checkpoint::{CompressorConfig, SaveOptions};
use mithril::pack::Source;
use mithril::storage::StorageBackend;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A safetensors file of one tensor.
fn model(seed: u64) -> Vec<u8> {
    let data: Vec<u8> = weights(seed, 100_000).iter().flat_map(|value| value.to_le_bytes()).collect();
    let header = format!(r#"{{"w":{{"dtype":"F32","shape":[100000],"data_offsets":[0,{}]}}}}"#, data.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Writes a file anew in its place and puts the time of its last write back, until the file system's clock has moved on.
fn rewrite(path: &Path, bytes: &[u8]) {
    let file = File::open(path).unwrap();
    let before = file.metadata().unwrap();
    while mithril::check_unchanged(&before, &file).is_ok() {
        let mut file = File::options().write(true).open(path).unwrap();
        file.write_all(bytes).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
    }
}

#[test]
fn a_file_that_changes_while_it_is_saved_is_refused() {
    let folder = Folder::new("changing");
    let paths =
        [folder.write("model.safetensors", &model(1)), folder.write("optimizer.safetensors", &model(2))];
    // The first one also while the second is read: together they would be a state that never was.
    for changing in &paths {
        let (store, memory) = store(CompressorConfig::default().with_threads(1));
        let sources = paths.each_ref().map(|path| Source::open(path).unwrap());
        let names = ["model.safetensors", "optimizer.safetensors"];
        let files: Vec<(&str, &dyn ReadAt)> =
            names.into_iter().zip(sources.iter().map(|source| source as &dyn ReadAt)).collect();
        let is_changed = AtomicBool::new(false);
        let change = |_| {
            if !is_changed.swap(true, Ordering::Relaxed) {
                rewrite(changing, &model(3));
            }
        };
        let options = SaveOptions::default().with_progress(&change);
        let error = store.save_files(&files, "step_1", None, &options).unwrap_err();
        let name = changing.file_name().unwrap().to_str().unwrap();
        assert!(error.to_string().contains(&format!("cannot read `{name}`: it changed")), "{error}");
        assert!(is_changed.into_inner());
        assert!(memory.list("").unwrap().is_empty(), "nothing is left of it");

        let sources = paths.each_ref().map(|path| Source::open(path).unwrap());
        store
            .save_files(&[("model.safetensors", &sources[0])], "step_1", None, &SaveOptions::default())
            .unwrap();
    }
}
