//! `mithril repair`.

use crate::{Directory, check_done, check_refused, demo_model, json, nine_tensors, run, text};

/// A model packed, and its bytes.
fn packed(directory: &Directory) -> Vec<u8> {
    let model = nine_tensors(directory);
    check_done(&run(&["compress", &model]));
    directory.read("model.safetensors.mckp")
}

#[test]
fn container_without_its_end_is_saved_whole() {
    let directory = Directory::new("repair-end");
    let packed = packed(&directory);
    let mut flipped = packed.clone();
    let at = packed.len() - 100;
    flipped[at] ^= 1;
    for damaged in [&packed[..packed.len() - 1], &packed[..packed.len() - 90], &flipped] {
        let path = directory.write("damaged.mckp", damaged);
        assert_eq!(run(&["verify", &path]).status.code(), Some(1));
        let saved = directory.path("saved.mckp");
        let output = run(&["repair", &path, "-o", &saved, "--force"]);
        assert_eq!(check_done(&output), "", "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("9 tensors saved, 0 lost"), "{}", text(&output.stderr));
        check_done(&run(&["verify", &saved]));
        let back = directory.path("back.safetensors");
        check_done(&run(&["decompress", &saved, "-o", &back, "--force"]));
        assert!(directory.read("back.safetensors") == directory.read("model.safetensors"));
    }
}

#[test]
fn damaged_tensors_are_named_and_the_others_saved() {
    let directory = Directory::new("repair-some");
    let packed = packed(&directory);
    let middle = packed.len() / 2;
    for without_index in [false, true] {
        let mut damaged = packed.clone();
        damaged[middle] ^= 0x20;
        if without_index {
            damaged.truncate(packed.len() - 50);
        }
        let path = directory.write("damaged.mckp", &damaged);
        let saved = directory.path("saved.mckp");
        let output = run(&["repair", &path, "-o", &saved, "--json", "--force"]);
        assert_eq!(output.status.code(), Some(1));
        let report = json(&output);
        assert_eq!(report["index_lost"], without_index);
        assert_eq!(report["restores_the_original"], false);
        let lost = report["lost"].as_array().unwrap();
        assert_eq!((lost.len(), report["saved"].as_array().unwrap().len()), (1, 8), "{report}");
        let name = lost[0]["name"].as_str().unwrap();
        check_done(&run(&["verify", &saved]));
        // Everything but the lost one is equal to the original.
        let report = json(&run(&["compare", &directory.path("model.safetensors"), &saved, "--json"]));
        for tensor in report["tensors"].as_array().unwrap() {
            let expected = if tensor["name"] == name { "only in a" } else { "equal" };
            assert_eq!(tensor["outcome"], expected, "{tensor}");
        }
        check_refused(&run(&["decompress", &saved, "-o", &directory.path("back")]), 1, "is no packed file");
    }
}

#[test]
fn intact_tensors_can_be_saved_as_safetensors() {
    let directory = Directory::new("repair-safetensors");
    let packed = packed(&directory);
    let mut damaged = packed.clone();
    damaged[packed.len() / 2] ^= 0x20;
    let path = directory.write("damaged.mckp", &damaged);
    let saved = directory.path("saved.safetensors");
    let output = run(&["repair", &path, "-o", &saved, "--to", "safetensors"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("lost: `"), "{}", text(&output.stderr));
    let report = json(&run(&["compare", &directory.path("model.safetensors"), &saved, "--json"]));
    let outcomes: Vec<&str> = report["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| tensor["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "equal").count(), 8, "{outcomes:?}");
}

#[test]
fn any_damage_leaves_what_it_did_not_touch() {
    let directory = Directory::new("repair-any");
    let packed = packed(&directory);
    let saved = directory.path("saved.mckp");
    // Wiped stretches of 64 bytes at many places, the front and the end among them.
    for at in (0..packed.len()).step_by(packed.len() / 12) {
        let mut damaged = packed.clone();
        let end = (at + 64).min(packed.len());
        damaged[at..end].fill(0);
        let path = directory.write("damaged.mckp", &damaged);
        let output = run(&["repair", &path, "-o", &saved, "--force", "--json"]);
        let report = json(&output);
        let n_saved = report["saved"].as_array().unwrap().len();
        assert!(n_saved >= 8, "byte {at}: {report}");
        check_done(&run(&["verify", &saved]));
    }
}

#[test]
fn what_holds_no_tensor_is_refused() {
    let directory = Directory::new("repair-nothing");
    let words = directory.write("words.txt", b"MCKP, but nothing else");
    let out = directory.path("out.mckp");
    check_refused(&run(&["repair", &words, "-o", &out]), 1, "nothing is left to be saved");
    let packed = packed(&directory);
    let good = directory.write("good.mckp", &packed);
    directory.write("out.mckp", b"precious");
    check_refused(&run(&["repair", &good, "-o", &out]), 2, "exists already");
    assert_eq!(directory.read("out.mckp"), b"precious");
}

#[test]
fn tensors_that_were_made_from_a_lost_one_are_lost_with_it() {
    let directory = Directory::new("repair-derived");
    let model = demo_model(&directory);
    check_done(&run(&["compress", &model]));
    let mut packed = directory.read("model.safetensors.mckp");
    // Inside of `attention.query.weight.f32`, whose rounding another tensor is.
    packed[100_000] ^= 1;
    let path = directory.write("damaged.mckp", &packed);
    let report = json(&run(&["repair", &path, "-o", &directory.path("saved.mckp"), "--json"]));
    let lost: Vec<&str> =
        report["lost"].as_array().unwrap().iter().map(|lost| lost["name"].as_str().unwrap()).collect();
    assert_eq!(lost, ["attention.query.weight.f32", "attention.query.weight.bf16"]);
    check_done(&run(&["verify", &directory.path("saved.mckp")]));
}
