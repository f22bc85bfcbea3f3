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

fn mode(path: &str) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &str, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn modes_and_times_are_kept_when_files_are_packed_and_restored() {
    let directory = Directory::new("faults-modes");
    let model = demo_model(&directory);
    let raw = directory.write("raw.bin", &f32_bytes(1000, 1));
    let then = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_500_000_000, 123_456_789);
    for (kind, suffix) in
        [("container", ".mckp"), ("safetensors", ".mithril.safetensors"), ("container", ".mthf")]
    {
        let source = if suffix == ".mthf" { &raw } else { &model };
        for kept in [0o600, 0o640, 0o444, 0o755] {
            set_mode(source, 0o600);
            std::fs::File::options().write(true).open(source).unwrap().set_modified(then).unwrap();
            set_mode(source, kept);
            let packed = format!("{source}{suffix}");
            check_done(&run(&["compress", source, "--to", kind, "--force"]));
            let back = directory.path("back");
            check_done(&run(&["decompress", &packed, "-o", &back, "--force"]));
            for made in [&packed, &back] {
                assert_eq!(mode(made), kept, "{made} of {kept:o}");
                assert_eq!(std::fs::metadata(made).unwrap().modified().unwrap(), then, "{made}");
            }
            std::fs::remove_file(&packed).unwrap();
        }
    }
}

#[test]
fn what_is_made_of_private_files_is_private_and_what_comes_from_a_pipe_follows_the_umask() {
    let directory = Directory::new("faults-private");
    let model = demo_model(&directory);
    check_done(&run(&["compress", &model]));
    let packed = directory.path("model.safetensors.mckp");
    let tensor =
        json(&run(&["inspect", &model, "--json"]))["tensors"][0]["name"].as_str().unwrap().to_owned();
    for (private, umask, expected) in [(0o600, "022", 0o600), (0o640, "022", 0o640), (0o664, "022", 0o644)] {
        set_mode(&model, private);
        set_mode(&packed, private);
        let out = directory.path("out");
        let commands: [(&str, &[&str]); 4] = [
            ("\"$0\" extract \"$1\" \"$2\" -o \"$3\" --force", &[&packed, &tensor, &out]),
            ("\"$0\" repair \"$1\" -o \"$2\" --force", &[&packed, &out]),
            ("\"$0\" repair \"$1\" -o \"$2\" --to safetensors --force", &[&packed, &out]),
            ("\"$0\" compress - --dtype u8 -o \"$2\" --force < \"$1\"", &[&model, &out]),
        ];
        for (line, arguments) in commands {
            check_done(&shell(&format!("umask {umask}; {line}"), arguments));
            assert_eq!(mode(&out), expected, "{line}");
        }
        let converted = directory.path("converted");
        check_done(&run(&["quantize", &model, "--bpw", "4", "-o", &converted]));
        assert_eq!(mode(&format!("{converted}/model.safetensors")) & !expected, 0);
        std::fs::remove_dir_all(converted).unwrap();
    }
    for (umask, expected) in [("022", 0o644), ("077", 0o600), ("002", 0o664)] {
        let line = format!("umask {umask}; cat \"$1\" | \"$0\" compress - -o \"$2\" --force");
        check_done(&shell(&line, &[&model, &directory.path("out")]));
        assert_eq!(mode(&directory.path("out")), expected, "umask {umask}");
    }
}

#[test]
fn nobody_else_can_read_a_file_while_it_is_written() {
    let directory = Directory::new("faults-while");
    let data = f32_bytes(1_000_000, 8);
    let model = directory.write("model.safetensors", &safetensors(&[("w", "F32", &[1000, 1000], &data)]));
    set_mode(&model, 0o644);
    let mut child = command(&["compress", &model, "--effort", "max", "--threads", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    while child.try_wait().unwrap().is_none() {
        for name in directory.names().iter().filter(|name| name.ends_with(".tmp")) {
            if let Ok(metadata) = std::fs::metadata(directory.path(name)) {
                seen.push(metadata.permissions().mode() & 0o777);
            }
        }
        std::thread::yield_now();
    }
    // Just before it gets its name, it has its mode.
    assert!(seen.first().is_some_and(|mode| *mode == 0o600), "{seen:?}");
    assert_eq!(mode(&directory.path("model.safetensors.mckp")), 0o644);
}

#[test]
fn files_of_private_directories_stay_private() {
    let directory = Directory::new("faults-directory");
    let model = demo_model(&directory);
    let private = directory.path("private");
    std::fs::create_dir_all(format!("{private}/inner")).unwrap();
    for name in ["model.safetensors", "inner/model.safetensors"] {
        std::fs::copy(&model, format!("{private}/{name}")).unwrap();
    }
    std::fs::write(format!("{private}/notes.txt"), b"a secret").unwrap();
    set_mode(&format!("{private}/notes.txt"), 0o600);
    set_mode(&format!("{private}/inner"), 0o700);
    set_mode(&private, 0o750);
    for kind in ["container", "safetensors"] {
        let (packed, back) =
            (directory.path(&format!("packed-{kind}")), directory.path(&format!("back-{kind}")));
        let output =
            shell("umask 022; \"$0\" compress \"$1\" --to \"$2\" -o \"$3\"", &[&private, kind, &packed]);
        check_done(&output);
        let output = run(&["decompress", &packed, "-o", &back]);
        check_done(&output);
        // The larger size is the one of the files that came back.
        let line = text(&output.stderr);
        let sizes: Vec<u64> =
            line.split(": ").nth(1).unwrap().split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(sizes[0] < sizes[1], "{line}");
        for made in [&packed, &back] {
            assert_eq!((mode(made), mode(&format!("{made}/inner"))), (0o750, 0o700), "{made}");
        }
        assert_eq!(mode(&format!("{back}/notes.txt")), 0o600);
    }
    assert_eq!(mode(&directory.path("packed-container/files.mckp")), 0o600);
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
fn a_packed_directory_that_is_replaced_in_part_is_no_mixture() {
    let directory = Directory::new("faults-mixture");
    for (tree, seed) in [("old", 1), ("new", 3)] {
        std::fs::create_dir(directory.path(tree)).unwrap();
        for (name, n) in [("a", 5_000), ("b", 100_000)] {
            let data = f32_bytes(n, seed + n as u64);
            let file = safetensors(&[("w", "F32", &[n as u64], &data)]);
            directory.write(&format!("{tree}/{name}.safetensors"), &file);
        }
    }
    let (old, new) = (directory.path("old"), directory.path("new"));
    for kind in ["container", "safetensors"] {
        let (packed, back) =
            (directory.path(&format!("packed-{kind}")), directory.path(&format!("back-{kind}")));
        let content = |name: &str| std::fs::read(format!("{back}/{name}.safetensors")).ok();
        let limited = |blocks: u32| {
            let line = format!(
                "trap '' XFSZ; ulimit -f {blocks}; \"$0\" compress \"$1\" -o \"$2\" --to {kind} --force"
            );
            check_refused(&shell(&line, &[&new, &packed]), 2, "too large");
        };
        check_done(&run(&["compress", &old, "-o", &packed, "--to", kind]));
        // Nothing was replaced: it is what it was.
        limited(4);
        check_done(&run(&["decompress", &packed, "-o", &back]));
        for name in ["a", "b"] {
            assert!(content(name).unwrap() == directory.read(&format!("old/{name}.safetensors")), "{kind}");
        }
        std::fs::remove_dir_all(&back).unwrap();
        // The first file was replaced, the second was not.
        limited(200);
        let refused = run(&["decompress", &packed, "-o", &back]);
        check_refused(&refused, 1, "is not complete: the run that writes it has not ended");
        assert_eq!((content("a"), content("b")), (None, None), "{kind}");
        check_done(&run(&["compress", &new, "-o", &packed, "--to", kind, "--force"]));
        check_done(&run(&["decompress", &packed, "-o", &back]));
        for name in ["a", "b"] {
            assert!(content(name).unwrap() == directory.read(&format!("new/{name}.safetensors")), "{kind}");
        }
    }
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
    directory.write(".model.safetensors.mckp.0123456789abcdef0123456789abcdef.tmp", b"half a container");
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
