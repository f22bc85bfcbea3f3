//! Whole commands: what they print, where, and their exit codes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod bench;
mod demo;
mod pack;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory of one test, empty at its start and removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mithril"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Runs with these bytes on stdin.
fn run_with_stdin(arguments: &[&str], stdin: &[u8]) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that refuses its input stops reading it.
            let _ = pipe.write_all(stdin);
        });
        child.wait_with_output().unwrap()
    })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Asserts success; returns stdout.
fn check_done(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Asserts a failure with this exit code, whose message is exactly `error: ...`, and nothing on stdout.
fn check_refused(output: &Output, exit_code: i32, message: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(message), "{stderr}");
    assert!(output.stdout.is_empty());
}

/// Numbers that look like weights: the same for the same seed.
fn weights(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n).map(|_| ((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * 0.02).collect()
}

fn f32_bytes(n: usize, seed: u64) -> Vec<u8> {
    weights(n, seed).into_iter().flat_map(f32::to_le_bytes).collect()
}

fn bf16_bytes(n: usize, seed: u64) -> Vec<u8> {
    weights(n, seed).into_iter().flat_map(|value| value.to_le_bytes()[2..].to_vec()).collect()
}

/// A safetensors file of these tensors: name, dtype, shape, bytes.
fn safetensors(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(
            (*name).to_owned(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
        );
        data.extend_from_slice(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// A `.npy` file of single-precision numbers in one dimension.
fn npy(data: &[u8]) -> Vec<u8> {
    let shape = data.len() / 4;
    let header =
        format!("{:<117}\n", format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape},), }}"));
    [b"\x93NUMPY\x01\x00", &u16::try_from(header.len()).unwrap().to_le_bytes()[..], header.as_bytes(), data]
        .concat()
}
