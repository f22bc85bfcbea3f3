//! `mithril estimate`.

use crate::{Directory, bf16_bytes, check_done, check_refused, f32_bytes, json, run, safetensors};

#[test]
fn prediction_is_close_and_reads_little() {
    let directory = Directory::new("estimate-close");
    let (matrix, other) = (bf16_bytes(2000 * 1000, 1), f32_bytes(500 * 1000, 2));
    let tensors: [(&str, &str, &[u64], &[u8]); 3] = [
        ("matrix", "BF16", &[2000, 1000], &matrix),
        ("tied", "BF16", &[2000, 1000], &matrix),
        ("other", "F32", &[500, 1000], &other),
    ];
    let model = directory.write("model.safetensors", &safetensors(&tensors));
    for effort in ["fast", "balanced"] {
        let output = run(&["estimate", &model, "--check", "--json", "--effort", effort]);
        check_done(&output);
        let file = &json(&output)["files"][0];
        let number = |key: &str| file[key].as_f64().unwrap();
        assert!(number("sampled_bytes") <= number("raw_bytes") / 50.0, "{file}");
        assert!(number("off_by").abs() < 0.02, "{effort}: {}", number("off_by"));
        assert_eq!(file["tensors"][1]["kind"], "ref");
        assert!(number("cpu_seconds") > 0.0);
    }
    assert_eq!(directory.names(), ["model.safetensors"]);
}

#[test]
fn roundings_of_wider_tensors_are_derived() {
    let directory = Directory::new("estimate-derived");
    let (wide, short_wide) = (f32_bytes(300 * 400, 3), f32_bytes(400, 4));
    // What rounding gives is what the command itself derives, so any file of both will do.
    let round = |wide: &[u8]| -> Vec<u8> {
        let words = wide.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let rounded = words.map(|word| u16::try_from((word + 0x7fff + (word >> 16 & 1)) >> 16).unwrap());
        rounded.flat_map(u16::to_le_bytes).collect()
    };
    let (narrow, short_narrow) = (round(&wide), round(&short_wide));
    let tensors: [(&str, &str, &[u64], &[u8]); 4] = [
        ("model.weight", "BF16", &[300, 400], &narrow),
        ("model.bias", "BF16", &[400], &short_narrow),
        ("master.weight", "F32", &[300, 400], &wide),
        ("master.bias", "F32", &[400], &short_wide),
    ];
    let model = directory.write("model.safetensors", &safetensors(&tensors));
    let output = run(&["estimate", &model, "--check", "--json"]);
    check_done(&output);
    let file = &json(&output)["files"][0];
    assert_eq!(file["tensors"][0]["kind"], "derived");
    assert_eq!(file["tensors"][1]["kind"], "derived");
    assert_eq!(file["tensors"][2]["kind"], "full");
    assert!(file["off_by"].as_f64().unwrap().abs() < 0.02, "{file}");
}

#[test]
fn tables_have_a_row_for_each_tensor_and_file() {
    let directory = Directory::new("estimate-table");
    let model = crate::demo_model(&directory);
    let output = run(&["estimate", &model, "--tensors"]);
    let table = check_done(&output);
    assert_eq!(table.lines().count(), 1 + 9 + 1 + 2, "{table}");
    let words = directory.write("words.txt", b"not a model");
    check_refused(&run(&["estimate", &words]), 1, "words.txt");
}
