//! `mithril compare` and `mithril diff`.

use crate::{
    Directory, base_and_tuned, check_done, check_refused, demo_model, f32_bytes, json, run, safetensors, text,
};

#[test]
fn packed_model_compares_equal_to_its_source() {
    let directory = Directory::new("pair-equal");
    let model = demo_model(&directory);
    check_done(&run(&["compress", &model]));
    let packed = directory.path("model.safetensors.mckp");
    assert_eq!(check_done(&run(&["compare", &model, &packed])), "9 tensors are equal, bit for bit\n");
    assert_eq!(json(&run(&["compare", &packed, &model, "--json"]))["equal"], true);
    assert_eq!(check_done(&run(&["diff", &model, &packed])), "9 tensors: 9 are equal\n");
}

#[test]
fn differences_are_named_counted_and_measured() {
    let directory = Directory::new("pair-apart");
    let (base, tuned) = base_and_tuned(&directory);
    let output = run(&["compare", &base, &tuned]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stdout),
        "layer.0.matrix: bits differ from byte 1000 on\n1 of 2 tensors are not equal\n"
    );
    assert!(output.stderr.is_empty());
    let output = run(&["diff", &base, &tuned, "--json"]);
    check_done(&output);
    let matrix = &json(&output)["tensors"][0];
    assert_eq!((&matrix["n_changed"], &matrix["n_elements"]), (&600.into(), &(256 * 512).into()));
    assert_eq!(matrix["max_ulp"], 1);
    assert!(matrix["max_abs"].as_f64().unwrap() > 0.0);
    let output = run(&["diff", &base, &tuned]);
    let table = check_done(&output);
    assert!(table.contains("0.4578 %") && table.ends_with("2 tensors: 1 are equal, 1 differ\n"), "{table}");
}

#[test]
fn names_types_and_shapes_that_differ_are_told() {
    let directory = Directory::new("pair-types");
    let data = f32_bytes(12, 5);
    let a =
        safetensors(&[("x", "F32", &[12], &data), ("gone", "F32", &[12], &data), ("y", "F32", &[12], &data)]);
    let b = safetensors(&[
        ("x", "F32", &[3, 4], &data),
        ("new", "F32", &[12], &data),
        ("y", "I32", &[12], &data),
    ]);
    let (a, b) = (directory.write("a.safetensors", &a), directory.write("b.safetensors", &b));
    let output = run(&["compare", &a, &b]);
    assert_eq!(output.status.code(), Some(1));
    let stdout = text(&output.stdout);
    for line in [
        "x: F32 [12] against F32 [3, 4]\n",
        "y: F32 [12] against I32 [12]\n",
        "gone: only in the first\n",
        "new: only in the second\n",
        "4 of 4 tensors are not equal\n",
    ] {
        assert!(stdout.contains(line), "{line} in {stdout}");
    }
    check_refused(&run(&["compare", &a, &directory.path("missing")]), 1, "no such file");
    let text_file = directory.write("words.txt", b"not a model");
    check_refused(&run(&["diff", &a, &text_file]), 1, "words.txt");
}
