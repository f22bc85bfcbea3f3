//! `mithril gpu`, on whatever device there is.

use crate::{Directory, bf16_bytes, check_done, check_refused, demo_model, json, run, safetensors};

#[test]
fn the_device_is_named_with_its_limits() {
    let text = run(&["gpu", "info"]);
    assert!(check_done(&text).contains("workgroup memory"));
    let facts = json(&run(&["gpu", "info", "--json"]));
    assert!(facts["workgroup_invocations"].as_u64().unwrap() >= 256);
}

#[test]
fn containers_and_df11_decode_to_the_same_bits() {
    let directory = Directory::new("gpu");
    let weight = bf16_bytes(64 * 300, 1);
    let file = safetensors(&[("up.weight", "BF16", &[64, 300], &weight)]);
    let model = directory.write("model.safetensors", &file);
    let (packed, coded) = (directory.path("model.mckp"), directory.path("coded"));
    check_done(&run(&["compress", &model, "-o", &packed]));
    check_done(&run(&["convert", &model, "--to", "df11", "-o", &coded]));
    for file in [&packed, &coded] {
        let report = json(&run(&["gpu", "verify", file, "--json"]));
        assert_eq!(report["equal"], true, "{file}");
        assert!(report["blocks_on_gpu"].as_u64().unwrap() > 0, "{file}");
    }
    let table = run(&["gpu", "bench", &packed]);
    assert!(check_done(&table).contains("GPU GB/s"));
}

#[test]
fn damage_and_other_files_are_refused() {
    let directory = Directory::new("gpu-refused");
    let model = demo_model(&directory);
    check_refused(&run(&["gpu", "verify", &model]), 1, "no container");
    let packed = directory.path("demo.mckp");
    check_done(&run(&["compress", &model, "-o", &packed]));
    let mut bytes = directory.read("demo.mckp");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = directory.write("damaged.mckp", &bytes);
    assert_eq!(run(&["gpu", "verify", &damaged]).status.code(), Some(1));
}
