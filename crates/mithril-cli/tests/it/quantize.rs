//! `mithril quantize`: lossy, told as such, and refused where it cannot be done.

use crate::{Directory, check_done, check_refused, f32_bytes, json, run, safetensors, text};

/// A directory with a model of two matrices, an embedding and a norm.
fn model(directory: &Directory) -> String {
    let path = directory.path("model");
    std::fs::create_dir(&path).unwrap();
    let (up, down) = (f32_bytes(128 * 256, 1), f32_bytes(256 * 128, 2));
    let (embedding, norm) = (f32_bytes(300 * 64, 3), f32_bytes(256, 4));
    let file = safetensors(&[
        ("down.weight", "F32", &[256, 128], &down),
        ("embed.weight", "F32", &[300, 64], &embedding),
        ("norm.weight", "F32", &[256], &norm),
        ("up.weight", "F32", &[128, 256], &up),
    ]);
    directory.write("model/model.safetensors", &file);
    directory.write("model/config.json", b"{}");
    path
}

#[test]
fn the_examples_of_its_help_work() {
    let directory = Directory::new("quantize-examples");
    model(&directory);
    let moments: Vec<u8> = (0..256).flat_map(|at: u16| (1.0 + f32::from(at % 7)).to_le_bytes()).collect();
    let calibration = safetensors(&[("up.weight", "F32", &[256], &moments)]);
    directory.write("moments.safetensors", &calibration);
    let output = run(&["quantize", "--help"]);
    let help = check_done(&output);
    let examples = help.split("Examples:\n").nth(1).unwrap();
    let mut n_run = 0;
    for line in examples.lines().filter(|line| line.trim_start().starts_with("mithril ")) {
        let place = |word: &str| match word {
            "model" | "model-ecq" | "model-back" | "moments.safetensors" => directory.path(word),
            _ => word.to_owned(),
        };
        let mut words: Vec<String> = line.split_whitespace().skip(1).map(place).collect();
        // Three of them write the same directory.
        words.push("--force".to_owned());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = run(&words);
        assert_eq!(check_done(&output), "", "{line}");
        n_run += 1;
    }
    assert_eq!(n_run, 4, "{help}");
    let back = directory.read("model-back/model.safetensors").len();
    let data = 4 * (2 * 128 * 256 + 300 * 64 + 256);
    assert!(
        (data..data + 1000).contains(&back),
        "{back} bytes: a header, and four tensors as large as they were"
    );
}

#[test]
fn its_report_tells_the_error_in_words_and_in_json() {
    let directory = Directory::new("quantize-report");
    let model = model(&directory);
    let out = directory.path("out");
    let told = run(&["quantize", &model, "--like", "affine4-g64", "-o", &out, "--keep", "embed"]);
    assert_eq!(check_done(&told), "");
    let told = text(&told.stderr);
    for words in ["lossy: ", " dB at ", "over 2 matrices", "2 tensors stay", "worst tensors", "affine4-g64"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let report =
        json(&run(&["quantize", &model, "--bpw", "3.75", "-o", &out, "--json", "--force", "--threads", "1"]));
    assert_eq!(report["lossy"], true);
    let bits = report["bits_per_weight"].as_f64().unwrap();
    assert!((3.6..3.8).contains(&bits), "{bits} bits");
    assert_eq!(report["tensors"].as_array().unwrap().len(), 3);
    assert_eq!(report["references"].as_array().unwrap().len(), 8);
    for tensor in report["tensors"].as_array().unwrap() {
        let snr_db = tensor["snr_db"].as_f64().unwrap();
        assert!((18.0..24.0).contains(&snr_db), "{tensor}");
    }
    let (raw, coded) = (report["raw_bytes"].as_u64().unwrap(), report["coded_bytes"].as_u64().unwrap());
    assert!(coded * 7 < raw, "{raw} -> {coded}");
    let inspected = run(&["inspect", &directory.path("out/model.safetensors")]);
    assert!(check_done(&inspected).contains("compressed"), "{}", text(&inspected.stdout));
}

#[test]
fn matrices_that_cannot_be_quantised_are_named() {
    let directory = Directory::new("quantize-kept");
    let mut broken = f32_bytes(64 * 128, 5);
    broken[400..404].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let good = f32_bytes(64 * 128, 6);
    let file = safetensors(&[
        ("broken.weight", "F32", &[64, 128], &broken),
        ("good.weight", "F32", &[64, 128], &good),
    ]);
    let model = directory.write("model.safetensors", &file);
    let output = run(&["quantize", &model, "--snr", "20.5", "-o", &directory.path("out")]);
    check_done(&output);
    let told = text(&output.stderr);
    assert!(told.contains("kept: `broken.weight`: it has weights that are no numbers"), "{told}");
    let report = json(&run(&["quantize", &model, "--snr", "20.5", "-o", &directory.path("out2"), "--json"]));
    assert_eq!(report["tensors"][0]["kept"], "it has weights that are no numbers");
    let out = directory.path("out3");
    let check = |name: &str, weights: &[u8], reason: &str| {
        let shape = [64, weights.len() as u64 / 256];
        let alone = directory.write("alone.safetensors", &safetensors(&[(name, "F32", &shape, weights)]));
        check_refused(&run(&["quantize", &alone, "--bpw", "4", "-o", &out]), 1, reason);
    };
    check("b", &broken, "`b` cannot be quantised: it has weights that are no numbers");
    check("zeros", &[0; 64 * 256], "`zeros` cannot be quantised: its weights are all zero");
    check("tiny", &1e-40f32.to_le_bytes().repeat(64 * 64), "too small for a step");
    check("short", &good[..64 * 64], "no matrices of floats");
    assert!(!std::path::Path::new(&out).exists());
}

#[test]
fn bad_input_is_refused_and_leaves_nothing() {
    let directory = Directory::new("quantize-refused");
    let model = model(&directory);
    let out = directory.path("out");
    let text_file = directory.write("text.safetensors", b"not a model");
    let numbers = directory.write("sensitivities.json", b"{\"up.weight\": \"much\"}");
    let calibration =
        directory.write("short.safetensors", &safetensors(&[("up.weight", "F32", &[2], &[0; 8])]));
    let cases: [(&[&str], i32, &str); 10] = [
        (&["quantize", &model, "-o", &out], 2, "--bpw"),
        (&["quantize", &model, "--bpw", "3", "--snr", "20", "-o", &out], 2, "cannot be used with"),
        (&["quantize", &model, "--bpw", "3"], 2, "--output"),
        (&["quantize", &model, "--like", "int4", "-o", &out], 2, "no format is named `int4`"),
        (&["quantize", &model, "--bpw", "12", "-o", &out], 2, "a target of 12"),
        (&["quantize", &model, "--bpw", "NaN", "-o", &out], 2, "a target of NaN"),
        (&["quantize", &directory.path("none"), "--bpw", "3", "-o", &out], 1, "none"),
        (&["quantize", &text_file, "--bpw", "3", "-o", &out], 1, "text.safetensors"),
        (
            &["quantize", &model, "--bpw", "3", "-o", &out, "--sensitivities", &numbers],
            2,
            "no object of numbers",
        ),
        (
            &["quantize", &model, "--bpw", "3", "-o", &out, "--calibration", &calibration],
            1,
            "256 mean squares",
        ),
    ];
    for (arguments, exit_code, message) in cases {
        check_refused(&run(arguments), exit_code, message);
        assert!(!std::path::Path::new(&out).exists(), "{arguments:?} left something behind");
    }
    std::fs::create_dir(&out).unwrap();
    directory.write("out/mine.txt", b"mine");
    let output = run(&["quantize", &model, "--bpw", "3", "-o", &out]);
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(directory.read("out/mine.txt"), b"mine");
}
