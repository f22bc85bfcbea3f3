//! `mithril verify`.

use crate::{Directory, check_done, demo_model, f32_bytes, json, nine_tensors, run, text};

#[test]
fn intact_files_of_every_kind_pass() {
    let directory = Directory::new("verify-intact");
    let model = demo_model(&directory);
    let raw = directory.write("raw.bin", &f32_bytes(10_000, 1));
    check_done(&run(&["compress", &model, &raw, "--digests"]));
    let files =
        ["model.safetensors.mckp", "raw.bin.mthf", "model.safetensors"].map(|name| directory.path(name));
    let output = run(&["verify", &files[0], &files[1], &files[2]]);
    let stdout = check_done(&output);
    assert_eq!(stdout.lines().filter(|line| line.contains(": intact, ")).count(), 3, "{stdout}");
    assert!(stdout.contains("carry no checksums"), "{stdout}");
    let report = json(&run(&["verify", &files[0], "--json"]));
    assert_eq!(report["intact"], true);
    assert_eq!(report["files"][0]["n_decoded"], 9);
}

#[test]
fn entropy_coded_weights_are_decoded() {
    let directory = Directory::new("verify-ecq");
    let golden = |name: &str| format!("{}/../../golden/ecq/{name}", env!("CARGO_MANIFEST_DIR"));
    let converted = golden("v0_1_0_gguf_q4_k.safetensors");
    let output = run(&["verify", &converted]);
    let stdout = check_done(&output);
    assert!(stdout.contains("coded matrices decoded, and the file that they were made of"), "{stdout}");
    let model = demo_model(&directory);
    check_done(&run(&["quantize", &model, "--bpw", "4", "-o", &directory.path("ecq")]));
    let own = directory.path("ecq/model.safetensors");
    assert!(check_done(&run(&["verify", &own])).contains("coded matrices decoded"));
    for (name, path) in [("own", own), ("converted", converted)] {
        let mut bytes = std::fs::read(path).unwrap();
        let header_end = 8 + usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..header_end]).unwrap();
        let (_, blocks) =
            header.as_object().unwrap().iter().find(|(name, _)| name.ends_with(".compressed")).unwrap();
        let end = usize::try_from(blocks["data_offsets"][1].as_u64().unwrap()).unwrap();
        bytes[header_end + end - 20] ^= 0x10;
        let damaged = directory.write(&format!("{name}.safetensors"), &bytes);
        let output = run(&["verify", &damaged]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(text(&output.stdout).contains("damaged, 1 problem"), "{}", text(&output.stdout));
    }
}

#[test]
fn every_damaged_byte_of_a_small_container_is_found() {
    let directory = Directory::new("verify-bytes");
    let model = directory.write(
        "small.safetensors",
        &crate::safetensors(&[
            ("w", "F32", &[40], &f32_bytes(40, 3)),
            ("v", "F32", &[30], &f32_bytes(30, 4)),
        ]),
    );
    check_done(&run(&["compress", &model]));
    let packed = directory.read("small.safetensors.mckp");
    // Some bytes of every part, as each costs a process; the library's tests flip every bit.
    for at in (0..packed.len()).step_by(packed.len() / 40) {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x10;
        let path = directory.write("damaged.mckp", &damaged);
        let output = run(&["verify", &path]);
        assert_eq!(output.status.code(), Some(1), "byte {at} of {}: {}", packed.len(), text(&output.stdout));
    }
}

#[test]
fn all_damaged_tensors_are_listed_and_intact_files_still_checked() {
    let directory = Directory::new("verify-damaged");
    let model = nine_tensors(&directory);
    check_done(&run(&["compress", &model]));
    let good = directory.path("model.safetensors.mckp");
    let mut packed = directory.read("model.safetensors.mckp");
    for at in [packed.len() / 4, packed.len() * 3 / 4] {
        packed[at] ^= 0x40;
    }
    let bad = directory.write("bad.mckp", &packed);
    let output = run(&["verify", &bad, &good]);
    assert_eq!(output.status.code(), Some(1));
    let stdout = text(&output.stdout);
    assert!(
        stdout.contains("damaged, 2 problems\n  tensor `") && stdout.contains("mckp: intact"),
        "{stdout}"
    );
    let report = json(&run(&["verify", &bad, &directory.path("missing"), "--json"]));
    assert_eq!(report["intact"], false);
    assert_eq!(report["files"][0]["problems"].as_array().unwrap().len(), 2);
    assert!(report["files"][1]["problems"][0].as_str().unwrap().contains("no such file"));
}
