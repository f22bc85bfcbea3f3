//! `mithril inspect`: what a frame holds, without decoding it.

use crate::arguments::InspectArguments;
use crate::failure::{Failure, print, print_json};
use crate::pack;
use crate::table::Table;
use mithril::FrameInfo;
use serde_json::json;
use std::io::Read;

/// Runs `mithril inspect`.
pub(crate) fn run(arguments: &InspectArguments) -> Result<(), Failure> {
    let mut source = pack::Source::open(&arguments.file)?;
    let mut frame = Vec::new();
    source.reader.read_to_end(&mut frame).map_err(|error| Failure::read(&source.name, &error))?;
    let info = mithril::inspect(&frame).map_err(|error| pack::refused(&source.name, &error))?;
    if arguments.json {
        print_json(&to_json(&source.name, &info))
    } else {
        print(&render(&source.name, &info))
    }
}

fn to_json(name: &str, info: &FrameInfo) -> serde_json::Value {
    let kinds = info.block_kinds.iter().map(|&(kind, n_blocks)| json!({"kind": kind, "n_blocks": n_blocks}));
    json!({
        "file": name,
        "dtype": info.dtype.name(),
        "shape": info.shape,
        "raw_bytes": info.raw_len,
        "frame_bytes": info.frame_len,
        "ratio": ratio(info),
        "bits_per_element": bits_per_element(info),
        "block_bytes": info.block_len,
        "checksums": info.checksums,
        "n_blocks": n_blocks(info),
        "blocks": kinds.collect::<Vec<_>>(),
    })
}

fn render(name: &str, info: &FrameInfo) -> String {
    let shape = info.shape.as_ref().map_or("not given".to_owned(), |shape| format!("{shape:?}"));
    let kinds: Vec<String> =
        info.block_kinds.iter().map(|(kind, n_blocks)| format!("{n_blocks} {kind}")).collect();
    let mut table = Table::new(2, [name, ""]);
    let mut line = |key: &str, value: String| table.push([format!("  {key}"), value]);
    line("dtype", info.dtype.name().to_owned());
    line("shape", shape);
    line("raw", format!("{} bytes", info.raw_len));
    line(
        "frame",
        format!(
            "{} bytes, ratio {:.4}, {:.3} bits/element",
            info.frame_len,
            ratio(info),
            bits_per_element(info)
        ),
    );
    line("blocks", format!("{} of {} bytes: {}", n_blocks(info), info.block_len, kinds.join(", ")));
    line("checksums", if info.checksums { "one per block" } else { "none" }.to_owned());
    table.render()
}

fn n_blocks(info: &FrameInfo) -> u64 {
    info.block_kinds.iter().map(|&(_, n_blocks)| n_blocks).sum()
}

fn ratio(info: &FrameInfo) -> f64 {
    info.frame_len as f64 / info.raw_len.max(1) as f64
}

fn bits_per_element(info: &FrameInfo) -> f64 {
    ratio(info) * f64::from(info.dtype.bits())
}
