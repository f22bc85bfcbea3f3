//! Golden frames decode to what they were made of, and rejected ones are refused for the right reason.

use super::inputs::V0_1_0;
use super::sha256::sha256;
use super::{decode, error_kind, error_name, repository};
use serde_json::Value;
use std::collections::BTreeSet;

fn index() -> Value {
    let bytes = std::fs::read(repository("golden/index.json")).expect("golden/index.json is there");
    serde_json::from_slice(&bytes).expect("golden/index.json is JSON")
}

/// Names of the frames in a directory.
fn files(directory: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(repository(directory)).expect("directory of golden files");
    let names =
        entries.map(|entry| entry.expect("entry of a directory").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".mthf")).collect()
}

fn keys(section: &Value) -> BTreeSet<String> {
    section.as_object().into_iter().flat_map(|section| section.keys().cloned()).collect()
}

#[test]
fn golden_frames_decode_to_their_inputs() {
    let index = index();
    for (name, input) in V0_1_0 {
        let file = format!("v0_1_0_{name}.mthf");
        let frame = std::fs::read(repository("golden").join(&file)).unwrap();
        let raw = decode(&frame).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(raw == input(), "{file} decodes to other bytes than its input");
        assert_eq!(index["frames"][&file]["raw_len"].as_u64(), Some(raw.len() as u64), "{file}");
        assert_eq!(index["frames"][&file]["sha256"].as_str(), Some(&*sha256(&raw)), "{file}");
    }
}

#[test]
fn every_golden_frame_has_an_input_and_an_entry_in_the_index() {
    let inputs: BTreeSet<String> = V0_1_0.iter().map(|(name, _)| format!("v0_1_0_{name}.mthf")).collect();
    assert_eq!(files("golden"), inputs);
    assert_eq!(keys(&index()["frames"]), inputs);
}

#[test]
fn rejected_frames_are_refused_for_the_right_reason() {
    let index = index();
    assert_eq!(files("golden/rejected"), keys(&index["rejected"]));
    for (file, expected) in index["rejected"].as_object().unwrap() {
        let frame = std::fs::read(repository("golden/rejected").join(file)).unwrap();
        let error = decode(&frame).expect_err(file);
        assert_eq!(expected["kind"].as_str(), Some(error_kind(&error)), "{file}: {error}");
        assert_eq!(expected["error"].as_str(), Some(&*error_name(&error)), "{file}: {error}");
    }
}

#[test]
fn golden_frames_cut_short_are_refused() {
    for (name, _) in V0_1_0 {
        let frame = std::fs::read(repository(&format!("golden/v0_1_0_{name}.mthf"))).unwrap();
        let step = (frame.len() / 50).max(1);
        for len in (0..frame.len()).step_by(step) {
            let error = decode(&frame[..len]).expect_err(name);
            assert_eq!(error_kind(&error), "truncated", "{name} cut to {len} bytes: {error}");
        }
    }
}
