//! `mithril inspect`: what a file holds, told from its headers.

pub(crate) mod page;
mod survey;
mod tree;

use crate::arguments::{InspectArguments, Sort};
use crate::failure::{Failure, print, print_json, tell};
use crate::open;
use crate::rows::Rows;
use crate::source::Source;
use crate::table::Table;
use mithril::FrameInfo;
use mithril::container::Header;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Read;
use survey::{Survey, Tensor};

/// Runs `mithril inspect`.
pub(crate) fn run(arguments: &InspectArguments) -> Result<(), Failure> {
    let source = Source::open(&arguments.file)?;
    if !source.is_container() && !source.is_model() {
        if arguments.html.is_some() {
            let message = format!(
                "`{}` is neither a container nor a model file, and a page shows one of these",
                source.name
            );
            return Err(Failure::input(message));
        }
        let name = source.name.clone();
        let info = describe_frame(source)?;
        return match arguments.json {
            true => print_json(&frame_to_json(&name, &info)),
            false => print(render_frame(&name, &info)),
        };
    }
    let model = match arguments.html {
        Some(_) => open::model(&arguments.file, &arguments.base)?,
        None => open::model_alone(&arguments.file)?,
    };
    let mut survey = Survey::of(&source, &model)?;
    sort(&mut survey.tensors, arguments.sort);
    if let Some(path) = &arguments.html {
        let len = page::write(&survey, &model, !arguments.base.is_empty(), path, arguments.force)?;
        tell(&format!("{}: {len} bytes", path.display()));
        return Ok(());
    }
    match arguments.json {
        true => print_json(&Report::of(&survey)),
        false => print(facts(&survey)).and_then(|()| print(table(&survey, arguments.sort))),
    }
}

/// Tensors in order; those by name stay in the order of the file, of which the tree makes its own.
fn sort(tensors: &mut [Tensor<'_>], by: Sort) {
    let descending =
        |key: fn(&Tensor<'_>) -> f64| move |a: &Tensor<'_>, b: &Tensor<'_>| key(b).total_cmp(&key(a));
    match by {
        Sort::Name => {}
        Sort::Size => {
            tensors.sort_by(descending(|tensor| tensor.stored_len.unwrap_or(tensor.raw_len) as f64))
        }
        Sort::Ratio => tensors.sort_by(descending(|tensor| tensor.ratio().unwrap_or(0.0))),
        Sort::Bits => tensors.sort_by(descending(|tensor| tensor.bits_per_element())),
    }
}

/// What a file says about itself, and an empty line.
fn facts(survey: &Survey<'_>) -> String {
    let mut table = Table::new(2, [&survey.name, ""]);
    for (key, value) in survey.facts() {
        table.push([format!("  {key}"), value]);
    }
    table.render() + "\n"
}

fn table(survey: &Survey<'_>, by: Sort) -> Table {
    match by {
        Sort::Name => tree::table(survey),
        _ => {
            let mut table = new_table(survey);
            survey.tensors.iter().for_each(|tensor| push_tensor(&mut table, tensor.name, tensor, survey));
            table
        }
    }
}

/// A table for tensors; columns about storage only where there is any.
fn new_table(survey: &Survey<'_>) -> Table {
    match survey.is_packed {
        true => Table::new(
            3,
            ["tensor", "dtype", "shape", "raw", "stored", "ratio", "bits/element", "kind", "blocks"],
        ),
        false => Table::new(3, ["tensor", "dtype", "shape", "raw", "bits/element"]),
    }
}

fn push_tensor(table: &mut Table, name: &str, tensor: &Tensor<'_>, survey: &Survey<'_>) {
    let (dtype, shape) = (tensor.dtype.name().to_owned(), format!("{:?}", tensor.shape));
    let (raw, bits) = (tensor.raw_len.to_string(), format!("{:.3}", tensor.bits_per_element()));
    let name = name.escape_debug().to_string();
    if !survey.is_packed {
        return table.push([name, dtype, shape, raw, bits]);
    }
    table.push([
        name,
        dtype,
        shape,
        raw,
        tensor.stored_len.unwrap_or(0).to_string(),
        tensor.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.4}")),
        bits,
        tensor.kind.unwrap_or("-").to_owned(),
        tensor.blocks_in_words(),
    ]);
}

/// What `--json` prints of a model.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a str,
    kind: &'static str,
    file_bytes: u64,
    raw_bytes: u64,
    n_tensors: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    header: Option<&'a Header>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    tensors: Rows<'a, Tensor<'a>>,
}

impl<'a> Report<'a> {
    fn of(survey: &'a Survey<'a>) -> Self {
        Self {
            file: &survey.name,
            kind: survey.kind,
            file_bytes: survey.file_len,
            raw_bytes: survey.raw_len(),
            n_tensors: survey.tensors.len(),
            header: survey.header.as_ref(),
            digest: survey.digest.as_deref(),
            tensors: Rows(&survey.tensors, tensor_to_json),
        }
    }
}

fn tensor_to_json(tensor: &Tensor<'_>) -> Value {
    let blocks: Vec<Value> =
        tensor.blocks.iter().map(|(kind, n)| json!({"kind": kind, "n_blocks": n})).collect();
    json!({
        "name": tensor.name,
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape,
        "raw_bytes": tensor.raw_len,
        "stored_bytes": tensor.stored_len,
        "ratio": tensor.ratio(),
        "bits_per_element": tensor.bits_per_element(),
        "kind": tensor.kind,
        "of": tensor.origin.text(),
        "blocks": blocks,
    })
}

fn describe_frame(mut source: Source) -> Result<FrameInfo, Failure> {
    let name = source.name.clone();
    let refused = |error: &mithril::Error| crate::pack::refused_frame(&name, error);
    if let (Some(len), true) = (source.len, source.is_frame()) {
        return mithril::inspect_at(&source.random_access()?, 0..len).map_err(|error| refused(&error));
    }
    // A pipe has to be read as a whole, and so is what turns out to be no frame.
    let mut frame = Vec::new();
    source.reader().read_to_end(&mut frame).map_err(|error| Failure::read(&name, &error))?;
    mithril::inspect(&frame).map_err(|error| refused(&error))
}

fn frame_to_json(name: &str, info: &FrameInfo) -> Value {
    let kinds = info.block_kinds.iter().map(|&(kind, n_blocks)| json!({"kind": kind, "n_blocks": n_blocks}));
    json!({
        "file": name,
        "kind": "frame",
        "dtype": info.dtype.name(),
        "shape": info.shape,
        "raw_bytes": info.raw_len,
        "frame_bytes": info.frame_len,
        "ratio": frame_ratio(info),
        "bits_per_element": frame_bits(info),
        "block_bytes": info.block_len,
        "checksums": info.checksums,
        "base": info.base.map(|digest| digest.to_string()),
        "n_blocks": n_blocks(info),
        "blocks": kinds.collect::<Vec<_>>(),
    })
}

fn render_frame(name: &str, info: &FrameInfo) -> String {
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
            frame_ratio(info),
            frame_bits(info)
        ),
    );
    line("blocks", format!("{} of {} bytes: {}", n_blocks(info), info.block_len, kinds.join(", ")));
    line("checksums", if info.checksums { "one per block" } else { "none" }.to_owned());
    if let Some(base) = info.base {
        line("base", base.to_string());
    }
    table.render()
}

fn n_blocks(info: &FrameInfo) -> u64 {
    info.block_kinds.iter().map(|&(_, n_blocks)| n_blocks).sum()
}

fn frame_ratio(info: &FrameInfo) -> f64 {
    info.frame_len as f64 / info.raw_len.max(1) as f64
}

fn frame_bits(info: &FrameInfo) -> f64 {
    frame_ratio(info) * info.dtype.bits_per_element()
}
