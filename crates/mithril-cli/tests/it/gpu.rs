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
fn whatever_holds_coded_tensors_is_verified() {
    let directory = Directory::new("gpu-coded");
    let model = demo_model(&directory);
    let path = |name: &str| directory.path(name);
    check_done(&run(&["quantize", &model, "--bpw", "4", "-o", &path("ecq")]));
    check_done(&run(&["compress", &model, "--to", "safetensors", "-o", &path("framed.safetensors")]));
    let bytes = directory.write("bytes", &bf16_bytes(40_000, 3));
    check_done(&run(&["compress", &bytes, "--dtype", "bf16", "-o", &path("bytes.mthf")]));
    let golden = |name: &str| format!("{}/../../golden/ecq/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = [
        path("ecq"),
        path("framed.safetensors"),
        path("bytes.mthf"),
        golden("v0_1_0_mlx_affine4_g64_256.safetensors"),
        golden("v0_1_0_gguf_q4_k.safetensors"),
        golden("v0_1_0_bf16_fixed12.safetensors"),
    ];
    for file in &files {
        let report = json(&run(&["gpu", "verify", file, "--json"]));
        assert_eq!(report["equal"], true, "{file}");
        assert!(report["blocks_on_gpu"].as_u64().unwrap() > 0, "{file}: {report}");
    }
    let mut weights = directory.read("ecq/model.safetensors");
    let header_end = 8 + usize::try_from(u64::from_le_bytes(*weights.first_chunk().unwrap())).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&weights[8..header_end]).unwrap();
    let (_, blocks) =
        header.as_object().unwrap().iter().find(|(name, _)| name.ends_with(".compressed")).unwrap();
    let end = usize::try_from(blocks["data_offsets"][1].as_u64().unwrap()).unwrap();
    weights[header_end + end - 500] ^= 0x10;
    let damaged = directory.write("damaged.safetensors", &weights);
    assert_eq!(run(&["gpu", "verify", &damaged]).status.code(), Some(1));
}

#[test]
fn damage_and_other_files_are_refused() {
    let directory = Directory::new("gpu-refused");
    let model = demo_model(&directory);
    check_refused(&run(&["gpu", "verify", &model]), 1, "no container, frame, or file of coded weights");
    let packed = directory.path("demo.mckp");
    check_done(&run(&["compress", &model, "-o", &packed]));
    let mut bytes = directory.read("demo.mckp");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = directory.write("damaged.mckp", &bytes);
    assert_eq!(run(&["gpu", "verify", &damaged]).status.code(), Some(1));
}
