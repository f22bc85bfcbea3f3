//! Files that numpy, torch, safetensors and gguf have written: the readers find what those libraries put there.
//!
//! `tools/make_fixtures.py` writes the files, and `expected.json` from what the libraries hold in memory.

use crate::repository;
use mithril_format::source::{Kind, detect, tensors};
use mithril_format::{ReadAt, pt};
use serde_json::Value;
use std::fs;

const FIXTURES: &str = "crates/mithril-format/tests/fixtures";

/// Every fixture with the tensors it holds, and its bytes.
fn fixtures() -> Vec<(String, Value, Vec<u8>)> {
    let text = fs::read_to_string(repository(FIXTURES).join("expected.json")).expect("fixtures are there");
    let expected: serde_json::Map<String, Value> = serde_json::from_str(&text).expect("an object");
    let read = |name: &String| fs::read(repository(FIXTURES).join(name)).expect("fixtures are there");
    expected.into_iter().map(|(name, tensors)| (name.clone(), tensors, read(&name))).collect()
}

fn kind_of(name: &str) -> Kind {
    match name.rsplit_once('.') {
        Some((_, "safetensors")) => Kind::Safetensors,
        Some((_, "npy")) => Kind::Npy,
        Some((_, "npz")) => Kind::Npz,
        Some((_, "pt")) => Kind::Torch,
        Some((_, "gguf")) => Kind::Gguf,
        other => panic!("no kind for {other:?}"),
    }
}

#[test]
fn readers_find_what_the_libraries_have_written() {
    for (name, expected, file) in fixtures() {
        let kind = detect(&file).unwrap();
        assert_eq!(kind, kind_of(&name), "{name}");
        let mut found: Vec<Value> = Vec::new();
        for tensor in tensors(kind, &file).unwrap() {
            let bytes = file.slice(tensor.bytes.clone()).unwrap();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            found.push(serde_json::json!({
                "name": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape, "bytes": hex,
            }));
        }
        let mut expected = expected.as_array().unwrap().clone();
        let by_name = |a: &Value, b: &Value| a["name"].as_str().cmp(&b["name"].as_str());
        expected.sort_by(by_name);
        found.sort_by(by_name);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn views_of_a_shared_storage_keep_their_names_and_places() {
    let file = fs::read(repository(FIXTURES).join("odd.pt")).unwrap();
    let checkpoint = pt::read(&file).unwrap();
    let view = |name: &str| checkpoint.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let floats = |name: &str| -> Option<Vec<f32>> {
        let bytes = file.slice(view(name).bytes.clone()?)?;
        Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    };
    assert_eq!(floats("base"), Some(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    assert_eq!(floats("row"), Some(vec![3.0, 4.0, 5.0]));
    assert_eq!((view("turned").shape.as_slice(), &view("turned").bytes), (&[3, 2][..], &None));
    assert_eq!(view("part").shape, [3]);
    assert_eq!(view("part").bytes.clone().map(|bytes| bytes.end - bytes.start), Some(6));
}

#[test]
fn a_checkpoint_of_the_old_layout_is_read() {
    let file = fs::read(repository(FIXTURES).join("legacy.pt")).unwrap();
    assert_eq!(detect(&file), Some(Kind::TorchLegacy));
    let found = tensors(Kind::TorchLegacy, &file).unwrap();
    assert!(!found.is_empty());
    assert!(found.iter().all(|tensor| tensor.bytes.end <= file.len() as u64));
}

#[test]
fn metadata_of_a_model_are_read() {
    let file = fs::read(repository(FIXTURES).join("tiny.gguf")).unwrap();
    let metadata = mithril_format::gguf::metadata(&file).unwrap();
    assert_eq!(metadata["general.name"], "tiny");
    assert_eq!(metadata["llama.context_length"], 128);
    assert_eq!(metadata["tokenizer.ggml.tokens"], serde_json::json!(["<s>", "a", "b"]));
    assert_eq!(metadata["tokenizer.ggml.scores"], serde_json::json!([0.0, -1.0, -2.0]));
    let file = fs::read(repository(FIXTURES).join("arrays.safetensors")).unwrap();
    let metadata = mithril_format::safetensors::metadata(&file).unwrap();
    assert_eq!(metadata.get("format").map(String::as_str), Some("np"));
}

#[test]
fn files_that_are_cut_off_never_give_bytes_behind_their_end() {
    for (name, _, file) in fixtures() {
        let kind = kind_of(&name);
        for len in 0..file.len() {
            let cut = &file[..len];
            // What is whole up to there may still be read.
            if let Ok(found) = tensors(kind, &cut) {
                assert!(found.iter().all(|tensor| tensor.bytes.end <= len as u64), "{name} cut to {len}");
                assert!(found.windows(2).all(|pair| pair[0].bytes.end <= pair[1].bytes.start));
            }
            detect(&cut);
        }
    }
}

#[test]
fn damage_of_any_byte_gives_an_error_or_tensors_inside_the_file() {
    for (name, _, file) in fixtures() {
        let kind = kind_of(&name);
        let mut damaged = file.clone();
        for at in 0..file.len() {
            for change in [0x01, 0x80, 0xff] {
                damaged[at] ^= change;
                if let Ok(found) = tensors(kind, &damaged) {
                    let inside = |range: &std::ops::Range<u64>| {
                        range.start <= range.end && range.end <= file.len() as u64
                    };
                    assert!(found.iter().all(|tensor| inside(&tensor.bytes)), "{name} changed at {at}");
                    assert!(found.windows(2).all(|pair| pair[0].bytes.end <= pair[1].bytes.start));
                }
                damaged[at] ^= change;
            }
        }
    }
}

#[test]
fn the_fixtures_are_small() {
    let folder = fs::read_dir(repository(FIXTURES)).unwrap();
    let total: u64 = folder.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(total < 50_000, "{total} bytes");
}
