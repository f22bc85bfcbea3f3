//! `mithril inspect` of models.

use crate::{Directory, base_and_tuned, check_done, check_refused, demo_model, json, run, text};
use serde_json::Value;

#[test]
fn container_is_described_tensor_by_tensor() {
    let directory = Directory::new("inspect-container");
    let source = demo_model(&directory);
    check_done(&run(&["compress", &source]));
    let packed = directory.path("model.safetensors.mckp");
    let report = json(&run(&["inspect", &packed, "--json"]));
    assert_eq!(report["kind"], "container");
    assert_eq!(report["header"]["original"]["name"], "model.safetensors");
    assert_eq!(report["file_bytes"], directory.read("model.safetensors.mckp").len());
    let plain = json(&run(&["inspect", &source, "--json"]));
    assert_eq!(plain["kind"], "safetensors");
    let tensors = report["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 9);
    for (packed, plain) in tensors.iter().zip(plain["tensors"].as_array().unwrap()) {
        for key in ["name", "dtype", "shape", "raw_bytes"] {
            assert_eq!(packed[key], plain[key]);
        }
        assert_eq!(plain["stored_bytes"], Value::Null);
        let blocks: u64 =
            packed["blocks"].as_array().unwrap().iter().map(|kind| kind["n_blocks"].as_u64().unwrap()).sum();
        assert!(blocks > 0 || packed["kind"] == "derived", "{packed}");
        let bits = packed["stored_bytes"].as_f64().unwrap() * 8.0;
        let elements: f64 = packed["shape"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).product();
        assert!((packed["bits_per_element"].as_f64().unwrap() - bits / elements).abs() < 1e-9);
    }
}

#[test]
fn tree_sums_up_branches_and_lists_are_sorted() {
    let directory = Directory::new("inspect-tree");
    let (base, _) = base_and_tuned(&directory);
    check_done(&run(&["compress", &base]));
    let packed = directory.path("base.safetensors.mckp");
    let output = run(&["inspect", &packed]);
    let tree = check_done(&output);
    let branch = tree.lines().find(|line| line.starts_with("layer.0")).unwrap();
    assert!(branch.contains(&(256 * 512 * 2 + 512 * 4).to_string()), "{tree}");
    assert!(tree.lines().any(|line| line.starts_with("  matrix ")), "{tree}");
    for (sort, first) in [("size", "layer.0.matrix"), ("ratio", "layer.0.bias"), ("bits", "layer.0.bias")] {
        let output = run(&["inspect", &packed, "--sort", sort]);
        let list = check_done(&output);
        let at = |name: &str| list.find(&format!("\n{name}")).unwrap();
        let other = if first == "layer.0.bias" { "layer.0.matrix" } else { "layer.0.bias" };
        assert!(at(first) < at(other), "{sort}: {list}");
    }
}

#[test]
fn page_stands_alone_and_shows_the_changes_of_a_delta() {
    let directory = Directory::new("inspect-page");
    let (base, tuned) = base_and_tuned(&directory);
    check_done(&run(&["compress", &tuned, "--base", &base]));
    let packed = directory.path("tuned.safetensors.mckp");
    let page = directory.path("report.html");
    check_done(&run(&["inspect", &packed, "--html", &page]));
    let html = String::from_utf8(directory.read("report.html")).unwrap();
    assert!(html.starts_with("<!doctype html>") && !html.contains("/*DATA*/null"));
    for part in ["http://", "https://", "src="] {
        assert!(!html.contains(part), "{part}");
    }
    let data = html.split("const report = ").nth(1).unwrap().lines().next().unwrap().trim_end_matches(';');
    let report: Value = serde_json::from_str(data).unwrap();
    let matrix = &report["tensors"][0];
    assert_eq!(matrix["name"], "layer.0.matrix");
    assert_eq!(matrix["fields"]["mantissa_bits"], 7);
    assert!((6.0..7.001).contains(&matrix["fields"]["mantissa"].as_f64().unwrap()));
    assert_eq!(matrix["changes"]["what"], "share of changed elements");
    let parts: Vec<f64> =
        matrix["changes"]["parts"].as_array().unwrap().iter().map(|part| part.as_f64().unwrap()).collect();
    assert!(parts[0] > 0.0 && parts[95] == 0.0, "{parts:?}");
    // Without its base, the map is of bits.
    std::fs::remove_file(base).unwrap();
    check_refused(&run(&["inspect", &packed, "--html", &page]), 2, "exists already");
    check_done(&run(&["inspect", &packed, "--html", &page, "--force"]));
    assert!(
        String::from_utf8(directory.read("report.html")).unwrap().contains("bits per element of each block")
    );
}

#[test]
fn damaged_indexes_are_refused() {
    let directory = Directory::new("inspect-damaged");
    let source = demo_model(&directory);
    check_done(&run(&["compress", &source]));
    let mut packed = directory.read("model.safetensors.mckp");
    let at = packed.len() - 120;
    packed[at] ^= 1;
    let path = directory.write("damaged.mckp", &packed);
    let output = run(&["inspect", &path]);
    check_refused(&output, 1, "index");
    assert!(text(&output.stderr).contains("`mithril repair`"));
    check_refused(&run(&["inspect", &directory.path("missing")]), 1, "no such file");
}
