//! Whole frames and containers: the examples of the specification, the golden files, and what must be refused.

mod container_rules;
mod delta_inputs;
mod foreign;
mod forge;
mod golden;
mod golden_deltas;
mod hex_blocks;
mod inputs;
mod sha256;
mod spec_examples;

use mithril_codec::CodecError;
use mithril_codec::block::Scratch;
use mithril_format::FormatError;
use mithril_format::frame::FrameView;
use std::path::PathBuf;

/// The raw bytes of a frame.
fn decode(frame: &[u8]) -> Result<Vec<u8>, FormatError> {
    let view = FrameView::parse(frame)?;
    let mut raw = Vec::new();
    let mut scratch = Scratch::new();
    for (block_idx, entry) in view.blocks().iter().enumerate() {
        let start = raw.len();
        raw.resize(start + entry.header.raw_len as usize, 0);
        view.decode_block(block_idx, None, &mut raw[start..], &mut scratch)?;
    }
    Ok(raw)
}

/// The variant of an error, as `golden/index.json` names it.
fn error_name(error: &FormatError) -> String {
    let variant =
        |debug: String| debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    match error {
        FormatError::Shared { source, .. } => format!("Shared.{}", variant(format!("{source:?}"))),
        FormatError::Block { source, .. } => format!("Block.{}", variant(format!("{source:?}"))),
        FormatError::Section { source, .. } => format!("Section.{}", variant(format!("{source:?}"))),
        error => variant(format!("{error:?}")),
    }
}

/// What a caller can do about an error: the kinds of `docs/format/README.md`.
fn error_kind(error: &FormatError) -> &'static str {
    match error {
        FormatError::Truncated { .. }
        | FormatError::NoFooter { .. }
        | FormatError::Section { source: CodecError::Truncated { .. }, .. }
        | FormatError::Shared { source: CodecError::Truncated { .. }, .. }
        | FormatError::Block { source: CodecError::Truncated { .. }, .. } => "truncated",
        FormatError::UnsupportedVersion { .. }
        | FormatError::Unknown { .. }
        | FormatError::Section { source: CodecError::Unsupported { .. }, .. }
        | FormatError::Shared { source: CodecError::Unsupported { .. }, .. }
        | FormatError::Block { source: CodecError::Unsupported { .. }, .. } => "unsupported",
        _ => "corrupt",
    }
}

/// A path from the root of the repository.
fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
