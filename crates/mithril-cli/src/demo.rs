//! `mithril demo`: compresses, verifies and restores a small real model that the program carries.

use crate::arguments::DemoArguments;
use crate::bench::{Basis, Budget, Clock, Contestant, Speed, measure};
use crate::failure::{Failure, print, print_json};
use crate::input::{self, Input, Piece};
use crate::table::Table;
use mithril::{Effort, Error};
use serde::Serialize;

/// A few tensors of a sentence-embedding model; `assets/README.md` has origin and licence.
const MODEL: &[u8] = include_bytes!("../../../assets/minilm-demo.safetensors");

const MODEL_NAME: &str = "minilm-demo.safetensors";

/// Time for the speed figures: enough for a steady best.
const SECONDS: f64 = 0.3;

#[derive(Debug, Serialize)]
struct DemoReport {
    version: &'static str,
    model: &'static str,
    effort: &'static str,
    threads: usize,
    tensors: Vec<TensorReport>,
    raw_bytes: usize,
    compressed_bytes: usize,
    ratio: f64,
    bits_per_element: f64,
    exact: bool,
    encode: Speed,
    decode: Speed,
    memcpy: Speed,
}

#[derive(Debug, Serialize)]
struct TensorReport {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    raw_bytes: usize,
    compressed_bytes: usize,
    ratio: f64,
    bits_per_element: f64,
    exact: bool,
}

/// Runs `mithril demo`.
pub(crate) fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    let refused = |error: Error| Failure::library(MODEL_NAME, &error);
    let pieces = input::pieces_of_model(MODEL).map_err(refused)?.unwrap_or_default();
    let input = Input { data: MODEL.to_vec(), pieces };
    let tensors = input
        .pieces
        .iter()
        .map(|piece| round_trip(piece, arguments.effort.get()))
        .collect::<Result<Vec<_>, _>>();
    let tensors = tensors.map_err(refused)?;

    let mut contestants = [Contestant::frames(&input.pieces, arguments.effort.get(), 1, true)];
    let memcpy = measure(&input, &mut contestants, Budget::Seconds(SECONDS))
        .map_err(|what| Failure::input(format!("`{MODEL_NAME}` did not come back bit for bit: {what}")))?;
    let basis = Basis::new(&input, Clock::ThreadCpu, memcpy);
    let compressed_bytes = tensors.iter().map(|tensor| tensor.compressed_bytes).sum();
    let report = DemoReport {
        version: env!("CARGO_PKG_VERSION"),
        model: MODEL_NAME,
        effort: arguments.effort.get().name(),
        threads: 1,
        raw_bytes: basis.raw_len,
        compressed_bytes,
        ratio: ratio(compressed_bytes, basis.raw_len),
        bits_per_element: bits_per_element(compressed_bytes, basis.n_elements),
        exact: tensors.iter().all(|tensor| tensor.exact),
        tensors,
        encode: basis.speed(contestants[0].encode, 1),
        decode: basis.speed(contestants[0].decode, 1),
        memcpy: basis.speed(memcpy, 1),
    };
    if arguments.json {
        print_json(&report)?;
    } else {
        print(render(&report))?;
    }
    match report.exact {
        true => Ok(()),
        false => Err(Failure::input(format!("`{MODEL_NAME}` did not come back bit for bit"))),
    }
}

/// Compresses a tensor, restores it and compares.
fn round_trip(piece: &Piece, effort: Effort) -> Result<TensorReport, Error> {
    let source = &MODEL[piece.bytes.clone()];
    let frame = mithril::compress(source, &piece.options().with_effort(effort).with_threads(1))?;
    let restored = mithril::decompress(&frame)?;
    Ok(TensorReport {
        name: piece.name.clone(),
        dtype: piece.dtype.name(),
        shape: piece.shape.clone().unwrap_or_default(),
        raw_bytes: source.len(),
        compressed_bytes: frame.len(),
        ratio: ratio(frame.len(), source.len()),
        bits_per_element: bits_per_element(frame.len(), piece.n_elements()),
        exact: restored == source,
    })
}

fn ratio(compressed_len: usize, raw_len: usize) -> f64 {
    compressed_len as f64 / raw_len.max(1) as f64
}

fn bits_per_element(compressed_len: usize, n_elements: u64) -> f64 {
    compressed_len as f64 * 8.0 / n_elements.max(1) as f64
}

fn render(report: &DemoReport) -> String {
    let yes = |exact: bool| if exact { "yes" } else { "NO" }.to_owned();
    let mut table =
        Table::new(3, ["tensor", "dtype", "shape", "raw", "compressed", "ratio", "bits/element", "exact"]);
    for tensor in &report.tensors {
        table.push([
            tensor.name.clone(),
            tensor.dtype.to_owned(),
            tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x"),
            tensor.raw_bytes.to_string(),
            tensor.compressed_bytes.to_string(),
            format!("{:.4}", tensor.ratio),
            format!("{:.3}", tensor.bits_per_element),
            yes(tensor.exact),
        ]);
    }
    table.push([
        "total".to_owned(),
        String::new(),
        String::new(),
        report.raw_bytes.to_string(),
        report.compressed_bytes.to_string(),
        format!("{:.4}", report.ratio),
        format!("{:.3}", report.bits_per_element),
        yes(report.exact),
    ]);
    let speed = |speed: &Speed| speed.main(Clock::ThreadCpu);
    format!(
        "{}, effort {}, mithril {}\n\n{}\nencode {:.2} GB/s, decode {:.2} GB/s, memcpy {:.2} GB/s (one thread, its CPU time; the model fits in the cache)\n\nnext: mithril bench your-model.safetensors\n",
        report.model,
        report.effort,
        report.version,
        table.render(),
        speed(&report.encode),
        speed(&report.decode),
        speed(&report.memcpy),
    )
}
