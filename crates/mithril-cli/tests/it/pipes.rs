//! Every kind of input through every way in: what was given comes back, or the command fails loudly.

use crate::{
    Directory, check_done, command, demo_model, f32_bytes, npy, run, run_with_stdin, safetensors, text,
};
use std::fs::File;
use std::path::Path;
use std::process::Output;

/// One input of every magic that the program knows, and of none.
fn inputs(directory: &Directory) -> Vec<(&'static str, Vec<u8>)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mithril-format/tests/fixtures");
    let fixture = |name: &str| std::fs::read(fixtures.join(name)).unwrap();
    let numbers = f32_bytes(300, 3);
    let model = directory.write("packed.npy", &npy(&numbers));
    check_done(&run(&["compress", &model]));
    check_done(&run(&["compress", &model, "--dtype", "bytes"]));
    vec![
        ("safetensors", safetensors(&[("w", "F32", &[300], &numbers)])),
        ("gguf", fixture("tiny.gguf")),
        ("pt", fixture("checkpoint.pt")),
        ("legacy pt", fixture("legacy.pt")),
        ("zip", [b"PK\x03\x04 that is no archive".to_vec(), numbers.clone()].concat()),
        ("npy", npy(&numbers)),
        ("npz", fixture("arrays.npz")),
        // A version, and a graph with one tensor of 64 bytes.
        ("onnx", [&[0x08, 8, 0x3a, 72, 0x2a, 70, 0x08, 16, 0x10, 1, 0x4a, 64][..], &[5; 64]].concat()),
        ("mckp", directory.read("packed.npy.mckp")),
        ("mthf", directory.read("packed.npy.mthf")),
        ("text", b"plain words, plain words, plain words".to_vec()),
        ("one byte", vec![7]),
        ("empty", Vec::new()),
    ]
}

/// Compresses by one way in; what comes out is on stdout.
fn compress(way: &str, path: &str, raw: &[u8], options: &[&str]) -> Output {
    match way {
        "pipe" => run_with_stdin(&[&["compress", "-"], options].concat(), raw),
        "file" => run(&[&["compress", path, "-o", "-"], options].concat()),
        _ => command(&[&["compress", "-"], options].concat())
            .stdin(File::open(path).unwrap())
            .output()
            .unwrap(),
    }
}

#[test]
fn every_input_of_every_type_comes_back_by_pipe_file_and_redirect() {
    let directory = Directory::new("pipes-all");
    for (kind, raw) in inputs(&directory) {
        let path = directory.write("input", &raw);
        let is_packed = matches!(kind, "mckp" | "mthf");
        for dtype in [None, Some("bytes"), Some("f32"), Some("u8"), Some("bf16")] {
            for way in ["pipe", "file", "redirect"] {
                let case = format!("{kind}, {dtype:?}, {way}");
                let mut options = dtype.map_or_else(Vec::new, |dtype| vec!["--dtype", dtype]);
                if is_packed {
                    let refused = compress(way, &path, &raw, &options);
                    assert_eq!(refused.status.code(), Some(1), "{case}: {}", text(&refused.stderr));
                    assert!(
                        refused.stdout.is_empty() && text(&refused.stderr).contains("packed already"),
                        "{case}"
                    );
                    options.push("--force");
                }
                let packed = compress(way, &path, &raw, &options);
                assert_eq!(packed.status.code(), Some(0), "{case}: {}", text(&packed.stderr));
                let sizes = format!(": {} -> {} bytes", raw.len(), packed.stdout.len());
                assert!(text(&packed.stderr).contains(&sizes), "{case}: {}", text(&packed.stderr));
                let back = run_with_stdin(&["decompress", "-"], &packed.stdout);
                assert_eq!(back.status.code(), Some(0), "{case}: {}", text(&back.stderr));
                assert!(back.stdout == raw, "{case}");
            }
        }
    }
}

#[test]
fn models_that_their_first_bytes_tell_become_containers_by_every_way() {
    let directory = Directory::new("pipes-models");
    for (kind, raw) in inputs(&directory) {
        if matches!(kind, "safetensors" | "gguf" | "pt" | "legacy pt" | "npy" | "npz") {
            let path = directory.write("input", &raw);
            for way in ["pipe", "file", "redirect"] {
                let packed = compress(way, &path, &raw, &[]).stdout;
                assert!(packed.starts_with(&mithril::CONTAINER_MAGIC), "{kind}, {way}");
            }
        }
    }
}

#[test]
fn one_dash_is_a_stream_even_where_a_directory_has_that_name() {
    let directory = Directory::new("pipes-dash");
    let raw = f32_bytes(300, 3);
    let path = directory.write("input", &raw);
    std::fs::create_dir(directory.path("-")).unwrap();
    let run_here = |arguments: &[&str], stdin: &str| {
        let stdin = File::open(stdin).unwrap();
        command(arguments).current_dir(&directory.0).stdin(stdin).output().unwrap()
    };
    for arguments in
        [&["compress", "input", "-o", "-"][..], &["compress", "-"], &["compress", "-", "-o", "-"]]
    {
        let packed = run_here(arguments, &path);
        assert_eq!(packed.status.code(), Some(0), "{arguments:?}: {}", text(&packed.stderr));
        let path = directory.write("packed.mthf", &packed.stdout);
        for arguments in [&["decompress", "packed.mthf", "-o", "-"][..], &["decompress", "-"]] {
            let back = run_here(arguments, &path);
            assert!(back.stdout == raw, "{arguments:?}: {}", text(&back.stderr));
        }
    }
    // Called in another way, it is the directory.
    check_done(&run_here(&["compress", "input", "-o", "./-"], &path));
    assert!(!directory.read("-/input.mthf").is_empty());
    assert_eq!(directory.names(), ["-", "input", "packed.mthf"]);
}

#[test]
fn stdin_that_was_read_before_is_taken_from_where_it_is() {
    use std::io::{Read, Seek};
    let directory = Directory::new("pipes-position");
    let raw = f32_bytes(5000, 4);
    let path = directory.write("input", &raw);
    let mut file = File::open(path).unwrap();
    file.seek_relative(8000).unwrap();
    let packed =
        command(&["compress", "-", "--dtype", "f32"]).stdin(file.try_clone().unwrap()).output().unwrap();
    assert_eq!(packed.status.code(), Some(0), "{}", text(&packed.stderr));
    assert!(run_with_stdin(&["decompress", "-"], &packed.stdout).stdout == raw[8000..]);
    // A file that is redirected whole is read by place, and its position is left to who opened it.
    file.rewind().unwrap();
    let packed =
        command(&["compress", "-", "--dtype", "f32"]).stdin(file.try_clone().unwrap()).output().unwrap();
    assert!(run_with_stdin(&["decompress", "-"], &packed.stdout).stdout == raw);
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!(rest == raw);
}

#[test]
fn what_comes_through_a_pipe_leaves_nothing_where_temporary_files_are() {
    let directory = Directory::new("pipes-spool");
    let model = std::fs::read(demo_model(&directory)).unwrap();
    std::fs::create_dir(directory.path("tmp")).unwrap();
    let mut child =
        command(&["compress", "-", "--effort", "max", "--threads", "1", "-o", &directory.path("out")])
            .env("TMPDIR", directory.path("tmp"))
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
    std::io::Write::write_all(&mut child.stdin.as_ref().unwrap(), &model).unwrap();
    // All of it is kept, or in the pipe, and the end has not come: the program is killed as it waits.
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read_dir(directory.path("tmp")).unwrap().count(), 0);
    assert_eq!(directory.names(), ["model.safetensors", "tmp"]);
    // A directory that takes no file is named.
    let output = command(&["compress", "-", "-o", &directory.path("out")])
        .env("TMPDIR", directory.path("missing"))
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .map(|mut child| {
            let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), &model);
            child.wait_with_output().unwrap()
        });
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("missing"), "{}", text(&output.stderr));
}
