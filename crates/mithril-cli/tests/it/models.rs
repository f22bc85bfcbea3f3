//! `mithril compress` and `decompress` of model files.

use crate::{
    Directory, base_and_tuned, bf16_bytes, check_done, check_refused, demo_model, json, run, run_with_stdin,
    safetensors, text,
};

#[test]
fn model_comes_back_byte_for_byte_at_every_effort_and_alignment() {
    let directory = Directory::new("models-round");
    let source = demo_model(&directory);
    let raw = directory.read("model.safetensors");
    let packed = directory.path("model.safetensors.mckp");
    let mut lens = Vec::new();
    for (effort, alignment) in [("fast", "64"), ("balanced", "4096"), ("max", "64")] {
        let output =
            run(&["compress", &source, "--effort", effort, "--alignment", alignment, "--digests", "--force"]);
        assert_eq!(check_done(&output), "");
        assert!(text(&output.stderr).contains("tensors"), "{}", text(&output.stderr));
        lens.push(directory.read("model.safetensors.mckp").len());
        check_done(&run(&["decompress", &packed, "-o", &directory.path("back.safetensors"), "--force"]));
        assert!(directory.read("back.safetensors") == raw, "{effort}");
    }
    assert!(lens[0] < raw.len() * 9 / 10 && lens[2] < lens[0], "{lens:?}");
    assert_eq!(
        directory.names(),
        ["back.safetensors", "model.safetensors", "model.safetensors.mckp"],
        "no temporary file is left"
    );
}

#[test]
fn threads_and_ways_of_writing_give_the_same_container() {
    let directory = Directory::new("models-same");
    let source = demo_model(&directory);
    check_done(&run(&["compress", &source, "--threads", "1"]));
    let packed = directory.read("model.safetensors.mckp");
    let to_stdout = run(&["compress", &source, "--threads", "3", "-o", "-"]);
    assert!(to_stdout.stdout == packed);
    let raw = directory.read("model.safetensors");
    let back = run(&["decompress", &directory.path("model.safetensors.mckp"), "-o", "-"]);
    assert!(back.stdout == raw);
    // Through pipes both ways: what must be read at random is kept aside.
    let piped = run_with_stdin(&["compress", "-"], &raw);
    assert_eq!(piped.status.code(), Some(0), "{}", text(&piped.stderr));
    let back = run_with_stdin(&["decompress", "-"], &piped.stdout);
    assert!(back.stdout == raw);
}

#[test]
fn many_files_get_one_line_each_and_a_total() {
    let directory = Directory::new("models-many");
    let first = demo_model(&directory);
    let weights = bf16_bytes(10_000, 3);
    let second = directory.write("second.safetensors", &safetensors(&[("w", "BF16", &[100, 100], &weights)]));
    let third = directory.write("notes.txt", b"plain words, plain words, plain words");
    std::fs::create_dir(directory.path("packed")).unwrap();
    let output = run(&["compress", &first, &second, &third, "-o", &directory.path("packed")]);
    check_done(&output);
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[3].starts_with("3 of 3 files: "));
    let names = ["model.safetensors.mckp", "second.safetensors.mckp", "notes.txt.mthf"];
    let packed: Vec<String> = names.iter().map(|name| directory.path(&format!("packed/{name}"))).collect();
    std::fs::create_dir(directory.path("back")).unwrap();
    let mut arguments = vec!["decompress"];
    arguments.extend(packed.iter().map(String::as_str));
    let back = directory.path("back");
    arguments.extend(["-o", &back, "--json"]);
    let output = run(&arguments);
    check_done(&output);
    assert_eq!(json(&output)["files"].as_array().unwrap().len(), 3);
    for name in ["model.safetensors", "second.safetensors", "notes.txt"] {
        assert!(directory.read(&format!("back/{name}")) == directory.read(name), "{name}");
    }
    check_refused(&run(&["compress", &first, &second, "-o", "one"]), 2, "several files cannot all become");
}

#[test]
fn a_file_that_fails_does_not_keep_the_others_from_being_done() {
    let directory = Directory::new("models-some");
    let good = demo_model(&directory);
    let missing = directory.path("missing.safetensors");
    let output = run(&["compress", &missing, &good]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("no such file") && stderr.contains("1 of 2 files: "), "{stderr}");
    assert_eq!(directory.names(), ["model.safetensors", "model.safetensors.mckp"]);
}

#[test]
fn dry_run_tells_the_size_and_writes_nothing() {
    let directory = Directory::new("models-dry");
    let source = demo_model(&directory);
    let dry = run(&["compress", &source, "--dry-run", "--json"]);
    check_done(&dry);
    assert_eq!(directory.names(), ["model.safetensors"]);
    check_done(&run(&["compress", &source]));
    let packed = directory.read("model.safetensors.mckp");
    let report = &json(&dry)["files"][0];
    // The name of the output stands nowhere in it, so both are equally long.
    assert_eq!(report["stored_bytes"], packed.len());
    assert_eq!(report["format"], "safetensors");
    let tensors = report["tensors"].as_array().unwrap();
    assert_eq!(tensors.iter().filter(|tensor| tensor["kind"] == "derived").count(), 2);
}

#[test]
fn delta_needs_its_base_and_finds_it_beside_the_file() {
    let directory = Directory::new("models-delta");
    let (base, tuned) = base_and_tuned(&directory);
    let alone = run(&["compress", &tuned, "--dry-run", "--json"]);
    let output = run(&["compress", &tuned, "--base", &base, "--json"]);
    check_done(&output);
    let report = &json(&output)["files"][0];
    let kinds: Vec<&str> =
        report["tensors"].as_array().unwrap().iter().map(|tensor| tensor["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"copy") && !kinds.contains(&"full"), "{kinds:?}");
    let stored = |report: &serde_json::Value| report["files"][0]["stored_bytes"].as_u64().unwrap();
    assert!(stored(&json(&output)) < stored(&json(&alone)) / 4);

    let packed = directory.path("tuned.safetensors.mckp");
    let back = directory.path("back.safetensors");
    check_done(&run(&["decompress", &packed, "-o", &back]));
    assert!(directory.read("back.safetensors") == directory.read("tuned.safetensors"));
    check_done(&run(&["verify", &packed, "--deep"]));

    std::fs::rename(&base, directory.path("elsewhere.safetensors")).unwrap();
    let output = run(&["decompress", &packed, "-o", &back, "--force"]);
    check_refused(&output, 1, "needs base `base.safetensors`: 2 of its tensors are stored against it");
    assert!(text(&output.stderr).ends_with("hint: `--base PATH` names the model that it was made against\n"));
    assert_eq!(run(&["verify", &packed]).status.code(), Some(0), "its own bytes are intact");
    assert_eq!(run(&["verify", &packed, "--deep"]).status.code(), Some(1));
    let elsewhere = directory.path("elsewhere.safetensors");
    check_done(&run(&["decompress", &packed, "-o", &back, "--force", "--base", &elsewhere]));
    check_done(&run(&["verify", &packed, "--deep", "--base", &elsewhere]));
    // A base with other bytes is refused before anything is written.
    let other = directory.path("tuned.safetensors");
    check_refused(&run(&["decompress", &packed, "-o", &back, "--force", "--base", &other]), 1, "base tensor");
    assert!(
        directory.read("back.safetensors") == directory.read("tuned.safetensors"),
        "old output untouched"
    );
}

#[test]
fn packing_as_safetensors_comes_back_byte_for_byte() {
    let directory = Directory::new("models-framed");
    let source = demo_model(&directory);
    check_done(&run(&["compress", &source, "--to", "safetensors"]));
    let framed = directory.path("model.safetensors.mithril.safetensors");
    let len = std::fs::metadata(&framed).unwrap().len();
    assert!(len < std::fs::metadata(&source).unwrap().len());
    check_done(&run(&["compare", &source, &framed]));
    assert!(check_done(&run(&["verify", &framed])).contains("9 tensors decoded"));
    let mut damaged = std::fs::read(&framed).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let output = run(&["verify", &directory.write("damaged", &damaged)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("tensor `"), "{}", text(&output.stdout));
    check_done(&run(&["decompress", &framed, "-o", &directory.path("back")]));
    assert!(directory.read("back") == directory.read("model.safetensors"));
}

#[test]
fn directory_comes_back_with_every_file() {
    let directory = Directory::new("models-tree");
    std::fs::create_dir_all(directory.path("repo/nested")).unwrap();
    let model = demo_model(&directory);
    std::fs::copy(&model, directory.path("repo/model-00001-of-00001.safetensors")).unwrap();
    std::fs::write(directory.path("repo/config.json"), br#"{"layers": 6}"#).unwrap();
    std::fs::write(directory.path("repo/nested/vocab.txt"), b"a\nb\n").unwrap();
    let repo = directory.path("repo");
    let output = run(&["compress", &repo]);
    check_done(&output);
    assert!(text(&output.stderr).contains("3 files"), "{}", text(&output.stderr));
    let output = run(&["decompress", &directory.path("repo.mckp"), "-o", &directory.path("back")]);
    check_done(&output);
    for name in ["model-00001-of-00001.safetensors", "config.json", "nested/vocab.txt"] {
        assert!(directory.read(&format!("back/{name}")) == directory.read(&format!("repo/{name}")), "{name}");
    }
    let dry = json(&run(&["compress", &repo, "--dry-run", "--json"]));
    let real = json(&run(&["compress", &repo, "--json", "-o", &directory.path("again")]));
    assert_eq!(dry["stored_bytes"], real["stored_bytes"]);
    check_done(&run(&["compress", &repo, "--to", "safetensors"]));
    let shard = "model-00001-of-00001.safetensors";
    let framed = directory.read(&format!("repo.mithril/{shard}"));
    assert!(framed.len() < directory.read(&format!("repo/{shard}")).len());
    check_done(&run(&["decompress", &directory.path("repo.mithril"), "-o", &directory.path("unframed")]));
    for name in [shard, "config.json", "nested/vocab.txt"] {
        assert!(
            directory.read(&format!("unframed/{name}")) == directory.read(&format!("repo/{name}")),
            "{name}"
        );
    }
    check_refused(&run(&["compress", &repo, "-o", "-"]), 2, "cannot go to stdout");
}

#[test]
fn damaged_models_and_containers_are_refused_and_leave_nothing_behind() {
    let directory = Directory::new("models-damaged");
    let source = demo_model(&directory);
    let raw = directory.read("model.safetensors");
    let cut = directory.write("cut.safetensors", &raw[..raw.len() - 7]);
    check_refused(&run(&["compress", &cut]), 1, "cut.safetensors");
    check_done(&run(&["compress", &source]));
    let packed = directory.read("model.safetensors.mckp");
    std::fs::remove_file(directory.path("model.safetensors.mckp")).unwrap();
    let out = directory.path("out");
    for len in [4, 100, packed.len() / 2, packed.len() - 1] {
        let path = directory.write("damaged.mckp", &packed[..len]);
        check_refused(&run(&["decompress", &path, "-o", &out]), 1, "damaged.mckp");
    }
    let mut flipped = packed.clone();
    flipped[packed.len() / 2] ^= 4;
    let path = directory.write("damaged.mckp", &flipped);
    let output = run(&["decompress", &path, "-o", &out]);
    check_refused(&output, 1, "tensor `");
    assert!(text(&output.stderr).contains("hint: `mithril verify` lists what is damaged"));
    assert_eq!(directory.names(), ["cut.safetensors", "damaged.mckp", "model.safetensors"]);
    check_refused(&run(&["decompress", &path, "-o", "-", "--json"]), 2, "cannot both go to stdout");
}

#[test]
fn every_kind_of_model_file_comes_back_and_compares_equal_when_packed() {
    let directory = Directory::new("models-kinds");
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mithril-format/tests/fixtures");
    for (name, kind) in [
        ("tiny.gguf", "GGUF"),
        ("checkpoint.pt", "PyTorch"),
        ("legacy.pt", "PyTorch before 1.6"),
        ("arrays.npz", "npz"),
        ("tiny.onnx", "ONNX"),
    ] {
        // A version, and a graph with one tensor of 64 bytes.
        let onnx = [&[0x08, 8, 0x3a, 72, 0x2a, 70, 0x08, 16, 0x10, 1, 0x4a, 64][..], &[5; 64]].concat();
        let raw = std::fs::read(fixtures.join(name)).unwrap_or(onnx);
        let source = directory.write(name, &raw);
        assert_eq!(json(&run(&["inspect", &source, "--json"]))["kind"], kind);
        check_done(&run(&["compress", &source]));
        let packed = directory.path(&format!("{name}.mckp"));
        check_done(&run(&["compare", &source, &packed]));
        check_done(&run(&["decompress", &packed, "-o", &directory.path("back"), "--force"]));
        assert!(directory.read("back") == raw, "{name}");
    }
    let whole = std::fs::read(fixtures.join("legacy.pt")).unwrap();
    let cut = directory.write("cut.pt", &whole[..whole.len() - 4]);
    let refused = run(&["compress", &cut]);
    check_refused(&refused, 1, "cut off");
    check_refused(&refused, 1, "hint: `--dtype bytes` compresses it as bytes");
}
