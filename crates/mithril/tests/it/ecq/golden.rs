//! Golden entropy-coded files give the files and weights that they were made of.

use crate::folder::Folder;
use crate::sha256::sha256;
use mithril::convert::OutputDirectory;
use mithril::convert::ecq::{self, EcqFile, SourceFormat};
use mithril::inference::EntropyCodedLinear;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(path)
}

fn index() -> serde_json::Map<String, Value> {
    let index: Value = serde_json::from_slice(&std::fs::read(golden("index.json")).unwrap()).unwrap();
    index["ecq"].as_object().unwrap().clone()
}

/// The original file, or the weights of all matrices as singles, one behind the other in the order of their names.
fn restore(folder: &Folder, name: &str) -> Vec<u8> {
    let path = golden(&format!("ecq/{name}"));
    let file = EcqFile::open(&path).unwrap().unwrap();
    let Some(source) = file.source() else {
        let mut names: Vec<&str> = file.matrices().collect();
        names.sort_unstable();
        let weights = |name: &str| {
            let matrix = EntropyCodedLinear::from_file(&file, name).unwrap();
            matrix.decode_rows(0..matrix.rows()).unwrap()
        };
        return names.into_iter().flat_map(weights).flat_map(f32::to_le_bytes).collect();
    };
    let format = if source.name.ends_with(".gguf") { SourceFormat::Gguf } else { SourceFormat::Safetensors };
    let back = folder.join(name);
    ecq::decode(&path, format, OutputDirectory::create(&back, false).unwrap(), 1, &|_| ()).unwrap();
    std::fs::read(back.join(&source.name)).unwrap()
}

#[test]
fn golden_ecq_files_restore_to_their_inputs() {
    let folder = Folder::new("ecq-golden");
    let index = index();
    assert!(index.len() >= 16, "only {} files", index.len());
    for (name, entry) in index {
        let restored = restore(&folder, &name);
        assert_eq!(entry["raw_len"], restored.len(), "{name}");
        assert_eq!(entry["sha256"], sha256(&restored).as_str(), "{name}");
    }
}

#[test]
fn every_golden_ecq_file_is_in_the_index() {
    let files = std::fs::read_dir(golden("ecq")).unwrap();
    let files: BTreeSet<String> =
        files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(files, index().keys().cloned().collect());
}
