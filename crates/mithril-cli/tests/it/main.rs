//! Whole commands: what they print, where, and their exit codes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod bench;
mod convert;
mod demo;
mod dictionary;
mod estimate;
mod extract;
mod failures;
mod faults;
#[cfg(feature = "gpu")]
mod gpu;
mod inspect;
mod limits;
mod missing;
mod models;
mod pack;
mod pair;
mod pipes;
mod quantize;
mod repair;
mod servers;
mod store;
mod trees;
mod usage;
mod verify;

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

/// An output whose reader has gone before the program starts: what is written there fails, however little it is.
fn closed_pipe() -> Stdio {
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
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

/// A copy of the small real model that the program carries.
fn demo_model(directory: &Directory) -> String {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/minilm-demo.safetensors");
    directory.write("model.safetensors", &std::fs::read(model).unwrap())
}

/// A model of nine tensors, none of which can be made from another.
fn nine_tensors(directory: &Directory) -> String {
    let names: Vec<String> = (0..9).map(|layer| format!("layer.{layer}.weight")).collect();
    let data: Vec<Vec<u8>> = (0..9).map(|layer| bf16_bytes(100 * 300, layer + 1)).collect();
    let tensors: Vec<(&str, &str, &[u64], &[u8])> = names
        .iter()
        .zip(&data)
        .map(|(name, data)| (name.as_str(), "BF16", &[100, 300][..], data.as_slice()))
        .collect();
    directory.write("model.safetensors", &safetensors(&tensors))
}

/// Two fine-tunes of one model: a few tensors, of which the second file has some changed.
fn base_and_tuned(directory: &Directory) -> (String, String) {
    let (matrix, bias) = (bf16_bytes(256 * 512, 1), f32_bytes(512, 2));
    let mut tuned_matrix = matrix.clone();
    tuned_matrix.iter_mut().skip(1000).step_by(202).take(600).for_each(|byte| *byte ^= 1);
    let file = |matrix: &[u8]| {
        let tensors: [(&str, &str, &[u64], &[u8]); 2] =
            [("layer.0.matrix", "BF16", &[256, 512], matrix), ("layer.0.bias", "F32", &[512], &bias)];
        safetensors(&tensors)
    };
    let base = directory.write("base.safetensors", &file(&matrix));
    (base, directory.write("tuned.safetensors", &file(&tuned_matrix)))
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
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
