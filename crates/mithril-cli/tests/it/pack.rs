//! `mithril compress`, `decompress` and `inspect`.

use crate::{
    Directory, bf16_bytes, check_done, check_refused, closed_pipe, command, f32_bytes, npy, run,
    run_with_stdin, text,
};
use serde_json::Value;

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
    for (verb, message) in [
        ("decompress", "other.mthf` is not packed: nothing to decompress"),
        ("inspect", "other.mthf` is neither packed nor a model file of a known kind"),
        ("verify", "other.mthf` is neither packed nor a model file of a known kind"),
    ] {
        let output = run(&[verb, &other]);
        check_refused(&output, 1, message);
        assert!(text(&output.stderr).contains("\n\nhint: "));
    }
    check_refused(&run(&["compress", &directory.path("missing.bin")]), 1, "no such file");
    check_refused(&run(&["decompress", &directory.path("missing.mthf")]), 1, "no such file");
    check_refused(&run(&["decompress", &model]), 1, "is not packed: nothing to decompress");
    let frame = run_with_stdin(&["compress", "-"], b"words").stdout;
    check_refused(
        &run(&["decompress", &directory.write("model.safetensors", &frame)]),
        2,
        "the output has no name",
    );
    check_refused(&run(&["verify", &directory.0.display().to_string()]), 1, "it is a directory");
    let nowhere = directory.path("no/such/directory/out");
    let missing =
        format!("cannot write `{nowhere}`: there is no directory `{}`", directory.path("no/such/directory"));
    check_refused(&run(&["compress", &other, "-o", &nowhere]), 2, &missing);
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
fn output_that_nobody_reads_to_its_end_ends_as_by_the_signal_and_without_a_word() {
    let directory = Directory::new("pack-closed");
    let source = directory.write("noise.bin", &f32_bytes(2_000_000, 7));
    check_done(&run(&["compress", &source]));
    let packed = directory.path("noise.bin.mthf");
    let cases = [
        &["compress", &source, "-o", "-"][..],
        &["decompress", &packed, &packed, "-o", "-"],
        &["demo"],
        &["--help"],
    ];
    for arguments in cases {
        let output = command(arguments).stdout(closed_pipe()).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {stderr}");
        assert_eq!(stderr, "", "{arguments:?}");
    }
    // A device that is full is an error with its reason.
    for arguments in [&["decompress", &packed, "-o", "-"][..], &["verify", &packed], &["--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(arguments).stdout(full).output().unwrap();
        check_refused(&output, 2, "cannot write `stdout`: No space left on device");
    }
}

#[test]
fn what_is_packed_is_packed_again_only_when_forced_and_one_stream_takes_one_file() {
    let directory = Directory::new("pack-again");
    let source = directory.write("weights.bin", &f32_bytes(1000, 8));
    check_done(&run(&["compress", &source]));
    let packed = directory.path("weights.bin.mthf");
    check_refused(&run(&["compress", &packed]), 1, "is packed already");
    check_done(&run(&["compress", &packed, "--force"]));
    check_refused(&run(&["compress", &source, &source, "-o", "-"]), 2, "several files cannot go to stdout");
}

#[test]
fn claimed_lengths_are_compared_with_the_limit_and_with_the_room_before_anything_is_written() {
    let directory = Directory::new("pack-bomb");
    // Frame and container of constant bytes: small, and large when restored.
    let zeros = directory.write("zeros.bin", &vec![0; 3_000_000]);
    let model = directory.write("zeros.npy", &npy(&vec![0; 3_000_000]));
    check_done(&run(&["compress", &zeros, &model]));
    let files = [directory.path("zeros.bin.mthf"), directory.path("zeros.npy.mckp")];
    let before = directory.names();
    for packed in &files {
        let out = directory.path("out");
        let refused = run(&["decompress", packed, "-o", &out, "--max-output", "2MB"]);
        check_refused(&refused, 1, "above the limit of 2000000");
        assert!(
            text(&refused.stderr).contains("hint: `--max-output` allows more"),
            "{}",
            text(&refused.stderr)
        );
        assert_eq!(directory.names(), before);
        check_done(&run(&["decompress", packed, "-o", &out, "--max-output", "3MiB"]));
        std::fs::remove_file(out).unwrap();
    }
    let described: Value = serde_json::from_slice(&run(&["inspect", &files[1], "--json"]).stdout).unwrap();
    let name = described["tensors"][0]["name"].as_str().unwrap();
    let refused = run(&["extract", &files[1], name, "-o", &directory.path("out"), "--max-output", "1000"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    // A stream that does not say how long it is ends at the limit.
    let piped = run_with_stdin(&["compress", "-"], &vec![0; 9_000_000]).stdout;
    let refused =
        run_with_stdin(&["decompress", "-", "-o", &directory.path("out"), "--max-output", "8MB"], &piped);
    check_refused(&refused, 1, "above the limit of 8000000");
    assert_eq!(directory.names(), before);
    // More than any disk has: refused by what the header says, whatever follows.
    let header = mithril::FrameHeader {
        dtype: mithril::Dtype::U8,
        shape: None,
        block_len: 1 << 20,
        raw_len: Some(1 << 60),
        checksums: true,
        shared: mithril::block::Shared::default(),
        base: None,
    };
    let mut bomb = Vec::new();
    header.write(&mut bomb);
    let claimed = directory.write("bomb.mthf", &[bomb, vec![0; 100]].concat());
    let refused = run(&["decompress", &claimed, "-o", &directory.path("out")]);
    check_refused(&refused, 2, "1152921504606846976 bytes are to be written, and ");
    std::fs::remove_file(claimed).unwrap();
    assert_eq!(directory.names(), before);
}
