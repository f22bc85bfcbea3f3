//! `mithril compress`, `decompress` and `inspect`.

use crate::{
    Directory, bf16_bytes, check_done, check_refused, command, f32_bytes, npy, run, run_with_stdin, text,
};
use serde_json::Value;
use std::io::Read;
use std::process::Stdio;

#[test]
fn files_come_back_bit_for_bit() {
    let directory = Directory::new("pack-files");
    // Longer than the stream's batch, so that blocks are cut and written on the way.
    let raw = bf16_bytes(5_000_000, 1);
    let source = directory.write("weights.bin", &raw);
    for (effort, threads) in [("fast", "1"), ("balanced", "2")] {
        let output = run(&[
            "compress",
            &source,
            "--dtype",
            "bf16",
            "--effort",
            effort,
            "--threads",
            threads,
            "--force",
        ]);
        assert_eq!(check_done(&output), "");
        assert!(text(&output.stderr).contains("10000000 -> "), "{}", text(&output.stderr));
        assert!(directory.read("weights.bin.mthf").len() < raw.len() * 3 / 4);
        let output =
            run(&["decompress", &directory.path("weights.bin.mthf"), "--threads", threads, "--force"]);
        assert_eq!(check_done(&output), "");
        assert!(directory.read("weights.bin") == raw);
    }
    assert_eq!(directory.names(), ["weights.bin", "weights.bin.mthf"], "no temporary file is left");
}

#[test]
fn pipes_give_the_same_bytes_as_files() {
    let directory = Directory::new("pack-pipes");
    let raw = f32_bytes(50_000, 2);
    let source = directory.write("weights.bin", &raw);
    check_done(&run(&["compress", &source, "--dtype", "f32"]));
    let packed = run_with_stdin(&["compress", "-", "--dtype", "f32"], &raw);
    assert_eq!(packed.status.code(), Some(0), "{}", text(&packed.stderr));
    assert!(packed.stdout == directory.read("weights.bin.mthf"));
    let restored = run_with_stdin(&["decompress", "-"], &packed.stdout);
    assert_eq!(restored.status.code(), Some(0));
    assert!(restored.stdout == raw);
    let restored = run(&["decompress", &directory.path("weights.bin.mthf"), "-o", "-"]);
    assert!(restored.stdout == raw);
}

#[test]
fn empty_and_odd_inputs_come_back() {
    for raw in [&[][..], &[7], &[1, 2, 3]] {
        let packed = run_with_stdin(&["compress", "-", "--dtype", "bf16"], raw);
        assert_eq!(packed.status.code(), Some(0), "{}", text(&packed.stderr));
        assert_eq!(run_with_stdin(&["decompress", "-"], &packed.stdout).stdout, raw);
    }
}

#[test]
fn npy_file_comes_back_with_its_header_and_is_coded_by_its_dtype() {
    let directory = Directory::new("pack-npy");
    let file = npy(&f32_bytes(40_000, 3));
    let source = directory.write("array.npy", &file);
    check_done(&run(&["compress", &source]));
    let packed = directory.path("array.npy.mckp");
    let info: Value = serde_json::from_str(check_done(&run(&["inspect", &packed, "--json"]))).unwrap();
    assert_eq!(info["tensors"][0]["dtype"], "F32");
    check_done(&run(&["decompress", &packed, "-o", &directory.path("back.npy")]));
    assert!(directory.read("back.npy") == file);
}

#[test]
fn existing_output_is_kept_unless_forced() {
    let directory = Directory::new("pack-existing");
    let source = directory.write("weights.bin", &f32_bytes(1000, 4));
    let packed = directory.write("weights.bin.mthf", b"precious");
    let output = run(&["compress", &source, "--dtype", "f32"]);
    check_refused(&output, 2, "exists already");
    assert!(text(&output.stderr).ends_with("\n\nhint: `--force` replaces it, `-o` names another\n"));
    assert_eq!(directory.read("weights.bin.mthf"), b"precious");
    check_done(&run(&["compress", &source, "--dtype", "f32", "--force"]));
    check_refused(&run(&["decompress", &packed]), 2, "exists already");
    assert_eq!(directory.names(), ["weights.bin", "weights.bin.mthf"]);
}

#[test]
fn damaged_frames_are_refused_and_leave_nothing_behind() {
    let directory = Directory::new("pack-damaged");
    let packed = run_with_stdin(&["compress", "-", "--dtype", "f32"], &f32_bytes(30_000, 5)).stdout;
    let out = directory.path("out.bin");
    for cut in [0, 3, 20, packed.len() / 2, packed.len() - 1] {
        let path = directory.write("cut.mthf", &packed[..cut]);
        let output = run(&["decompress", &path, "-o", &out]);
        check_refused(&output, 1, "cut.mthf");
        check_refused(&run(&["inspect", &path]), 1, "cut.mthf");
    }
    let output = run(&["decompress", &directory.write("cut.mthf", &packed[..packed.len() / 2]), "-o", &out]);
    assert!(text(&output.stderr).contains("file ends early"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).ends_with("\n\nhint: the file is incomplete; fetch it again\n"));
    let mut flipped = packed.clone();
    flipped[packed.len() / 2] ^= 1;
    check_refused(
        &run(&["decompress", &directory.write("cut.mthf", &flipped), "-o", &out]),
        1,
        "block 0 at offset",
    );
    assert_eq!(directory.names(), ["cut.mthf"]);
}

#[test]
fn other_files_are_refused_with_a_hint() {
    let directory = Directory::new("pack-other");
    let model = directory.write("model.safetensors", b"anything");
    let other = directory.write("other.mthf", b"PK\x03\x04 is no frame at all, but long enough for one");
    for verb in ["decompress", "inspect"] {
        let output = run(&[verb, &other]);
        check_refused(&output, 1, "not a mithril frame");
        assert!(text(&output.stderr).contains("\n\nhint: "));
    }
    check_refused(&run(&["compress", &directory.path("missing.bin")]), 1, "no such file");
    check_refused(&run(&["decompress", &directory.path("missing.mthf")]), 1, "no such file");
    check_refused(&run(&["decompress", &model]), 2, "the output has no name");
    check_refused(&run(&["verify", &directory.0.display().to_string()]), 1, "it is a directory");
    let nowhere = directory.path("no/such/directory/out");
    check_refused(&run(&["compress", &other, "-o", &nowhere]), 2, "cannot write");
    assert_eq!(directory.names(), ["model.safetensors", "other.mthf"]);
}

#[test]
fn inspect_tells_dtype_sizes_and_blocks() {
    let packed = run_with_stdin(&["compress", "-", "--dtype", "bf16"], &bf16_bytes(100_000, 6)).stdout;
    let output = run_with_stdin(&["inspect", "-"], &packed);
    let stdout = check_done(&output);
    for part in ["BF16", "200000 bytes", "one per block", &format!("{} bytes", packed.len())] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    let output = run_with_stdin(&["inspect", "-", "--json"], &packed);
    let info: Value = serde_json::from_str(check_done(&output)).unwrap();
    assert_eq!(info["raw_bytes"], 200_000);
    assert_eq!(info["frame_bytes"], packed.len());
    assert_eq!(info["checksums"], true);
    let blocks = info["blocks"].as_array().unwrap();
    assert_eq!(info["n_blocks"], blocks.iter().map(|kind| kind["n_blocks"].as_u64().unwrap()).sum::<u64>());
}

#[test]
fn reader_that_closes_its_pipe_is_no_error() {
    let directory = Directory::new("pack-closed");
    let source = directory.write("noise.bin", &f32_bytes(2_000_000, 7));
    for arguments in [&["compress", &source, "-o", "-"][..], &["demo"]] {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
        assert_eq!(stderr, "");
    }
}
