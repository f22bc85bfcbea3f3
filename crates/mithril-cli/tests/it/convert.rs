//! `mithril convert`, `merge` and `diagnose`.

use crate::{Directory, bf16_bytes, check_done, check_refused, run, safetensors, text};

/// A small model: two layers and a norm.
fn model(seed: u64) -> Vec<u8> {
    let (up, down, norm) =
        (bf16_bytes(64 * 48, seed), bf16_bytes(48 * 64, seed + 1), bf16_bytes(64, seed + 2));
    safetensors(&[
        ("down.weight", "BF16", &[48, 64], &down),
        ("norm.weight", "BF16", &[64], &norm),
        ("up.weight", "BF16", &[64, 48], &up),
    ])
}

fn json(output: &std::process::Output) -> serde_json::Value {
    serde_json::from_str(check_done(output)).unwrap()
}

#[test]
fn models_go_to_df11_and_back() {
    let directory = Directory::new("convert");
    let model_path = directory.write("model.safetensors", &model(1));
    let (coded, plain) = (directory.path("coded"), directory.path("plain"));
    let output = run(&["convert", &model_path, "--to", "df11", "-o", &coded]);
    assert_eq!(check_done(&output), "");
    let told = text(&output.stderr);
    assert!(told.contains("2 modules, 12416 -> ") && told.contains("512 threads per block"), "{told}");
    let report = json(&run(&["convert", &coded, "--to", "safetensors", "-o", &plain, "--json"]));
    assert_eq!(report["components"][0]["n_modules"], 2);
    assert_eq!(report["components"][0]["raw_bytes"], 12416);
    assert!(directory.read("plain/model.safetensors") == model(1));
    assert_eq!(directory.names(), ["coded", "model.safetensors", "plain"]);
    let output = run(&["compare", &coded, &plain]);
    assert_eq!(check_done(&output), "3 tensors are equal, bit for bit\n");
    let other = directory.write("other.safetensors", &model(9));
    let output = run(&["compare", &coded, &other]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("down.weight: bits differ"), "{}", text(&output.stdout));
    assert_eq!(json(&run(&["diff", &coded, &model_path, "--json"]))["equal"], true);
}

#[test]
fn parts_are_merged() {
    let directory = Directory::new("merge");
    let model_path = directory.write("model.safetensors", &model(2));
    let (one, two, merged) = (directory.path("one"), directory.path("two"), directory.path("merged"));
    let convert = |blocks: &str, part: &str| {
        check_done(&run(&["convert", &model_path, "--to", "df11", "-o", part, "--blocks", blocks]));
    };
    convert("0:1", &one);
    convert("1:2", &two);
    let report = json(&run(&["merge", &two, &one, "-o", &merged, "--save-single-file", "--json"]));
    assert_eq!(report["n_modules"], 2);
    let whole = directory.path("whole");
    check_done(&run(&["convert", &model_path, "--to", "df11", "-o", &whole, "--save-single-file"]));
    assert!(directory.read("merged/model.safetensors") == directory.read("whole/model.safetensors"));
    assert!(directory.read("merged/config.json") == directory.read("whole/config.json"));
    check_refused(
        &run(&["merge", &one, "-o", &directory.path("x")]),
        1,
        "the part with the last module is missing",
    );
}

#[test]
fn diagnosis_is_in_the_exit_code() {
    let directory = Directory::new("diagnose");
    let model_path = directory.write("model.safetensors", &model(3));
    let coded = directory.path("coded");
    check_done(&run(&["convert", &model_path, "--to", "df11", "-o", &coded]));
    let report = json(&run(&["diagnose", &coded, "--json"]));
    assert_eq!((&report["fits"], &report["threads_per_block"]), (&true.into(), &512.into()));
    let demand = report["shared_memory"].as_u64().unwrap();
    assert!(demand > 2052 && report["modules"][0]["shared_memory"] == demand, "{report}");
    let output = run(&["diagnose", &coded, "--shared-memory", &(demand - 1).to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("bytes of shared memory") && text(&output.stderr).contains("\nhint: ")
    );
    assert!(text(&output.stdout).contains("largest workgroup"));
    let output = run(&["diagnose", &coded, "--vram", "1e3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("device memory"));
    check_done(&run(&["diagnose", &coded, "--vram", "1e9"]));
}

#[test]
fn wrong_conversions_leave_nothing_behind() {
    let directory = Directory::new("convert-wrong");
    let model_path = directory.write("model.safetensors", &model(4));
    let wide = directory.write("wide.safetensors", &safetensors(&[("a.weight", "F32", &[1, 1], &[0; 4])]));
    let coded = directory.path("coded");
    let refused = |arguments: &[&str], exit_code: i32, message: &str| {
        let output = run(&[&["convert"], arguments, &["-o", &coded]].concat());
        check_refused(&output, exit_code, message);
        assert_eq!(directory.names(), ["model.safetensors", "wide.safetensors"]);
    };
    refused(&[&wide, "--to", "df11"], 1, "no BF16 matrices");
    refused(&[&model_path, "--to", "zip"], 2, "invalid value 'zip'");
    refused(&[&model_path, "--to", "df11", "--threads-per-block", "100"], 2, "no kernel has 100 threads");
    refused(&[&model_path, "--to", "df11", "--blocks", "3"], 2, "expected LO:HI");
    refused(&[&model_path, "--to", "df11", "--component", "vae"], 2, "no component `vae`");
    refused(&[&model_path, "--to", "df11", "--pattern", "("], 2, "pattern `(`");
    refused(&[&directory.path("missing"), "--to", "df11"], 1, "cannot read");
    std::fs::create_dir(&coded).unwrap();
    directory.write("coded/mine", b"mine");
    let output = run(&["convert", &model_path, "--to", "df11", "-o", &coded]);
    check_refused(&output, 2, "exists already");
}

#[test]
fn a_model_of_another_kind_is_called_by_its_kind() {
    let directory = Directory::new("convert-kind");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../mithril-format/tests/fixtures/tiny.gguf");
    let model = directory.write("tiny.gguf", &std::fs::read(fixture).unwrap());
    for verb in [&["convert", &model, "--to", "df11"][..], &["quantize", &model, "--bpw", "4"]] {
        let refused = run(&[verb, &["-o", &directory.path("out")]].concat());
        check_refused(&refused, 1, "tiny.gguf` is a GGUF file, and a safetensors file is wanted");
        assert_eq!(text(&refused.stderr).matches("tiny.gguf").count(), 1, "{}", text(&refused.stderr));
    }
    assert_eq!(directory.names(), ["tiny.gguf"]);
}
