//! `mithril bench`.

use crate::{Directory, bf16_bytes, check_done, check_refused, f32_bytes, npy, run, safetensors};
use serde_json::Value;

fn model(directory: &Directory) -> String {
    let (matrix, bias) = (bf16_bytes(256 * 100, 1), f32_bytes(100, 2));
    let ids: Vec<u8> = (0..40i64).flat_map(i64::to_le_bytes).collect();
    let tensors: [(&str, &str, &[u64], &[u8]); 4] = [
        ("matrix", "BF16", &[256, 100], &matrix),
        ("bias", "F32", &[100], &bias),
        ("ids", "I64", &[1, 40], &ids),
        ("nothing", "F32", &[0, 4], &[]),
    ];
    directory.write("model.safetensors", &safetensors(&tensors))
}

fn check_row(row: &Value) {
    assert_eq!(row["exact"], true);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("number in {row}"));
    assert!(number(&row["compressed_bytes"]) > 0.0);
    assert!((0.1..1.5).contains(&number(&row["ratio"])), "{row}");
    assert!((1.0..20.0).contains(&number(&row["bits_per_element"])), "{row}");
    for direction in ["encode", "decode"] {
        for key in ["process_cpu_gb_s", "wall_gb_s", "x_memcpy"] {
            assert!(number(&row[direction][key]) > 0.0, "{direction} {key} in {row}");
        }
    }
}

#[test]
fn json_has_every_figure_of_every_row() {
    let directory = Directory::new("bench-json");
    let model = model(&directory);
    let output = run(&["bench", &model, "--against", "zstd,lz4,brotli:2", "--repeat", "2", "--json"]);
    let report: Value = serde_json::from_str(check_done(&output)).unwrap();
    assert_eq!(report["effort"], "fast");
    assert_eq!(report["threads"], 1);
    assert_eq!(report["clock"], "thread_cpu");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let file = &report["files"][0];
    assert_eq!(file["file"], model.as_str());
    assert_eq!(file["n_tensors"], 4);
    assert_eq!(file["dtypes"], serde_json::json!(["BF16", "F32", "I64"]));
    assert_eq!(file["raw_bytes"], 256 * 100 * 2 + 100 * 4 + 40 * 8);
    assert_eq!(file["n_elements"], 256 * 100 + 100 + 40);
    assert!(file["memcpy"]["thread_cpu_gb_s"].as_f64().unwrap() > 0.0);
    let rows = file["rows"].as_array().unwrap();
    let names: Vec<(&str, Option<bool>)> =
        rows.iter().map(|row| (row["codec"].as_str().unwrap(), row["checksums"].as_bool())).collect();
    let expected = [
        ("mithril fast", Some(true)),
        ("mithril fast", Some(false)),
        ("zstd 1", None),
        ("zstd 3", None),
        ("lz4", None),
        ("brotli 2", None),
    ];
    assert_eq!(names, expected);
    for row in rows {
        assert_eq!(row["rounds"], 2);
        check_row(row);
    }
}

#[test]
fn table_has_a_row_with_and_one_without_checksums() {
    let directory = Directory::new("bench-table");
    let output = run(&["bench", &model(&directory), "--repeat", "1"]);
    let stdout = check_done(&output);
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    assert!(rows.contains(&vec!["mithril", "fast", "on"]), "{stdout}");
    assert!(rows.contains(&vec!["mithril", "fast", "off"]), "{stdout}");
    let output = run(&["bench", &model(&directory), "--repeat", "1", "--no-checksum"]);
    assert!(!check_done(&output).contains("  on  "));
}

#[test]
fn several_threads_and_several_files_are_measured_on_the_wall() {
    let directory = Directory::new("bench-threads");
    let raw = directory.write("weights.bin", &bf16_bytes(200_000, 3));
    let array = directory.write("array.npy", &npy(&f32_bytes(5000, 4)));
    let output =
        run(&["bench", &raw, &array, "--dtype", "bf16", "--threads", "2", "--repeat", "1", "--json"]);
    let report: Value = serde_json::from_str(check_done(&output)).unwrap();
    assert_eq!(report["clock"], "wall");
    assert_eq!(report["files"][0]["dtypes"], serde_json::json!(["BF16"]));
    assert_eq!(report["files"][1]["dtypes"], serde_json::json!(["F32"]));
    assert_eq!(report["files"][1]["n_elements"], 5000);
    for row in report["files"][0]["rows"].as_array().unwrap() {
        assert_eq!(row["threads"], 2);
        assert!(row["encode"]["thread_cpu_gb_s"].is_null());
    }
}

#[test]
fn any_model_file_is_measured_by_its_tensors_and_others_as_bytes() {
    let directory = Directory::new("bench-kinds");
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mithril-format/tests/fixtures");
    let other = directory.write("weights.bin", &f32_bytes(5000, 6));
    for (file, dtype) in [
        (fixtures.join("checkpoint.pt").display().to_string(), "F32"),
        (fixtures.join("tiny.gguf").display().to_string(), "F32"),
        (other, "BYTES"),
    ] {
        let output = run(&["bench", &file, "--repeat", "1", "--json"]);
        let report: Value = serde_json::from_str(check_done(&output)).unwrap();
        let dtypes = report["files"][0]["dtypes"].as_array().unwrap();
        assert!(dtypes.iter().any(|found| found == dtype), "{file}: {dtypes:?}");
    }
}

#[test]
fn files_that_cannot_be_measured_are_refused_with_the_reason() {
    let directory = Directory::new("bench-refused");
    check_refused(&run(&["bench", &directory.path("missing.safetensors")]), 1, "no such file");
    check_refused(&run(&["bench", &directory.write("empty.bin", &[]), "--dtype", "f32"]), 1, "holds no data");
    let cut = &safetensors(&[("w", "F32", &[4], &[0; 16])])[..70];
    check_refused(&run(&["bench", &directory.write("cut.safetensors", cut)]), 1, "tensor `w`");
    let overlapping = br#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}"#;
    let overlapping = [&(overlapping.len() as u64).to_le_bytes()[..], overlapping, &[0; 8]].concat();
    check_refused(
        &run(&["bench", &directory.write("overlap.safetensors", &overlapping)]),
        1,
        "overlap at offset",
    );
    let short = &npy(&f32_bytes(10, 5))[..150];
    check_refused(&run(&["bench", &directory.write("short.npy", short)]), 1, "does not fit 22 bytes");
}

#[test]
fn whole_files_are_measured_beside_plain_copying() {
    let directory = Directory::new("bench-file");
    let model = model(&directory);
    let scratch = directory.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let output = run(&["bench", &model, "--repeat", "2", "--file", "--scratch", &scratch, "--json"]);
    let report: Value = serde_json::from_str(check_done(&output)).unwrap();
    let whole = &report["files"][0]["whole_file"];
    assert_eq!(whole["rounds"], 2);
    assert!(whole["packed_bytes"].as_u64().unwrap() > 0);
    for direction in ["compress", "decompress", "copy_like_compress", "copy_like_decompress"] {
        assert!(whole[direction]["x_memory"].as_f64().unwrap() > 0.0, "{direction} in {whole}");
    }
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "nothing is left");
    check_refused(&run(&["bench", &model, "--scratch", &scratch]), 2, "--file");
}
