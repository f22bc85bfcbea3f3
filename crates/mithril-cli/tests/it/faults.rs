//! What the system may refuse: full disks, directories that cannot be written, files that change.

use crate::{
    Directory, check_done, check_refused, command, demo_model, f32_bytes, json, run, safetensors, text,
};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Runs a shell command line in which `$0` is the program and `$1`, ... are the arguments.
fn shell(line: &str, arguments: &[&str]) -> std::process::Output {
    Command::new("sh")
        .arg("-c")
        .arg(line)
        .arg(env!("CARGO_BIN_EXE_mithril"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn modes_of_new_files_follow_the_umask() {
    let directory = Directory::new("faults-umask");
    let model = demo_model(&directory);
    let packed = directory.path("model.safetensors.mckp");
    let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (umask, expected) in [("022", 0o644), ("077", 0o600), ("002", 0o664)] {
        let output = shell(&format!("umask {umask}; \"$0\" compress \"$1\" --force"), &[&model]);
        check_done(&output);
        assert_eq!(mode(&packed), expected, "umask {umask}");
        let back = directory.path("back");
        let output =
            shell(&format!("umask {umask}; \"$0\" decompress \"$1\" -o \"$2\" --force"), &[&packed, &back]);
        check_done(&output);
        assert_eq!(mode(&back), expected, "umask {umask}");
    }
}

#[test]
fn a_file_that_may_not_grow_leaves_the_old_output() {
    let directory = Directory::new("faults-limit");
    let model = demo_model(&directory);
    check_done(&run(&["compress", &model]));
    let packed = directory.path("model.safetensors.mckp");
    let old = directory.read("model.safetensors.mckp");
    // Files of at most 100 KiB; the signal that comes with it is ignored, as it is by services.
    let limited = "trap '' XFSZ; ulimit -f 100; \"$0\"";
    let output = shell(&format!("{limited} compress \"$1\" --force"), &[&model]);
    check_refused(&output, 2, "cannot write");
    assert!(text(&output.stderr).to_lowercase().contains("too large"), "{}", text(&output.stderr));
    assert!(directory.read("model.safetensors.mckp") == old);
    let output =
        shell(&format!("{limited} decompress \"$1\" -o \"$2\""), &[&packed, &directory.path("back")]);
    check_refused(&output, 2, "cannot write");
    assert_eq!(directory.names(), ["model.safetensors", "model.safetensors.mckp"]);
}

#[test]
fn full_device_is_told_with_the_reason() {
    let directory = Directory::new("faults-full");
    let model = demo_model(&directory);
    let output = run(&["compress", &model, "-o", "/dev/full"]);
    check_refused(&output, 2, "cannot write `/dev/full`: No space left on device");
    let raw = directory.write("raw.bin", &f32_bytes(100_000, 1));
    let output = run(&["compress", &raw, "--dtype", "f32", "-o", "/dev/full"]);
    check_refused(&output, 2, "cannot write `/dev/full`: No space left on device");
}

#[test]
fn directory_that_cannot_be_written_is_told() {
    let directory = Directory::new("faults-read-only");
    let model = demo_model(&directory);
    // A place where nobody, not even root, can make files.
    let output = run(&["compress", &model, "-o", "/proc/nowhere.mckp"]);
    check_refused(&output, 2, "cannot write `/proc/nowhere.mckp`");
    let output = run(&["extract", &model, "x", "-o", "/proc/x.npy"]);
    check_refused(&output, 1, "has no tensor");
    assert_eq!(directory.names(), ["model.safetensors"]);
}

#[test]
fn source_that_is_cut_off_while_it_is_read_is_told_and_gives_no_output() {
    let directory = Directory::new("faults-cut");
    let data = f32_bytes(1_000_000, 7);
    let model = directory.write("model.safetensors", &safetensors(&[("w", "F32", &[1000, 1000], &data)]));
    // The output is a pipe that nobody reads at first, so the program waits in the middle of its work.
    let fifo = directory.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let child = command(&["compress", &model, "-o", &fifo, "--threads", "1"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Opening the other end returns once the program has opened its own, which is after it looked at the file.
    let reader = std::fs::File::open(&fifo).unwrap();
    std::fs::OpenOptions::new().write(true).open(&model).unwrap().set_len(1_000_000).unwrap();
    std::io::copy(&mut &reader, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    check_refused(&output, 1, "model.safetensors");
}

#[test]
fn leftovers_of_killed_runs_are_removed_by_the_next() {
    let directory = Directory::new("faults-leftovers");
    let model = demo_model(&directory);
    directory.write(".model.safetensors.mckp.4000000001-0.tmp", b"half a container");
    check_done(&run(&["compress", &model]));
    assert_eq!(directory.names(), ["model.safetensors", "model.safetensors.mckp"]);
}

#[test]
fn interrupted_work_leaves_nothing_behind() {
    let directory = Directory::new("faults-interrupt");
    let data = f32_bytes(2_000_000, 9);
    let model = directory.write("model.safetensors", &safetensors(&[("w", "F32", &[2000, 1000], &data)]));
    // Killed once its temporary file is there, and before it can be done: `max` takes seconds.
    let mut child = command(&["compress", &model, "--effort", "max", "--threads", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while directory.names().len() < 2 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    if status.success() {
        assert_eq!(directory.names(), ["model.safetensors", "model.safetensors.mckp"]);
    } else {
        assert_eq!(directory.names(), ["model.safetensors"]);
    }
}

#[test]
fn reports_go_to_stdout_and_nothing_else_does() {
    let directory = Directory::new("faults-streams");
    let model = demo_model(&directory);
    let output = run(&["compress", &model, "--json"]);
    check_done(&output);
    assert!(output.stderr.is_empty());
    assert_eq!(json(&output)["n_failed"], 0);
}
