//! Golden frames against a base: one for each kind of block that needs one.

use crate::delta_inputs::DELTAS_V0_1_0;
use crate::inputs::V0_1_0;
use crate::predicted_deltas;
use mithril_codec::block::{Delta, MAX_OVERHEAD, Place, Recipe, Scratch, Shared, encode_block};
use mithril_codec::delta::DeltaRecipe;
use mithril_codec::{Dtype, checksum};
use mithril_format::Digest;
use mithril_format::frame::{FrameHeader, FrameView, Trailer};

/// A golden frame against a base.
pub(crate) struct GoldenDelta {
    pub(crate) name: &'static str,
    /// The golden frame whose input is the base.
    pub(crate) base: &'static str,
    pub(crate) raw: Vec<u8>,
    pub(crate) frame: Vec<u8>,
}

/// All of them.
pub(crate) fn all() -> Result<Vec<GoldenDelta>, Box<dyn std::error::Error>> {
    let mut deltas = Vec::new();
    for &(name, of_base, width, target) in DELTAS_V0_1_0 {
        let input = V0_1_0.iter().find(|(input, _)| *input == of_base).ok_or("no such input")?.1;
        let base = input();
        let raw = target(&base);
        let (dtype, recipe, kind) = recipe(name).ok_or_else(|| format!("no recipe for {name}"))?;
        let shared = predicted_deltas::shared(name, dtype, &raw, &base)?;
        let frame = write(dtype, &recipe, shared, &raw, &base, kind)?;
        if decode(&frame, &base)? != raw {
            return Err(format!("{name} does not decode to its input, elements of {width} bytes").into());
        }
        deltas.push(GoldenDelta { name, base: of_base, raw, frame });
    }
    Ok(deltas)
}

/// Type, recipe and kind of block of each.
fn recipe(name: &str) -> Option<(Dtype, Recipe, u8)> {
    let difference = |dtype: Dtype, per_octave: u8, row_len: Option<u32>| {
        let delta = Delta::Difference(DeltaRecipe { layout: dtype.layout()?, per_octave, row_len });
        Some((dtype, Recipe::AgainstBase { delta, alone: Box::new(Recipe::Stored) }, 9))
    };
    match name {
        "bf16_same" => difference(Dtype::Bf16, 1, None).map(|(dtype, recipe, _)| (dtype, recipe, 8)),
        "bf16_difference" => difference(Dtype::Bf16, 1, None),
        "bf16_difference_one_stream" => difference(Dtype::Bf16, 2, None),
        "f32_difference" => difference(Dtype::F32, 2, None),
        "f32_difference_rows" => difference(Dtype::F32, 1, Some(80)),
        "f64_difference" => difference(Dtype::F64, 1, None),
        "f8_e4m3_difference" => difference(Dtype::F8E4m3, 1, None),
        "i32_xor" => {
            let planes = Recipe::Planes { width: 4, compressors: Vec::new() };
            let delta = Delta::Xor(Box::new(planes));
            Some((Dtype::I32, Recipe::AgainstBase { delta, alone: Box::new(Recipe::Stored) }, 10))
        }
        "f16_predicted" => Some((Dtype::F16, Recipe::Predicted, 11)),
        "f32_predicted_low_rank" => Some((Dtype::F32, Recipe::Predicted, 11)),
        _ if name.starts_with("bf16_predicted") => Some((Dtype::Bf16, Recipe::Predicted, 11)),
        _ => None,
    }
}

/// A frame of blocks of 256 KiB, whose first is of this kind.
fn write(
    dtype: Dtype,
    recipe: &Recipe,
    shared: Shared,
    raw: &[u8],
    base: &[u8],
    kind: u8,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let header = FrameHeader {
        dtype,
        shape: None,
        block_len: 1 << 18,
        raw_len: Some(raw.len() as u64),
        checksums: true,
        shared,
        base: Some(Digest::of(base)),
    };
    let mut frame = Vec::new();
    header.write(&mut frame);
    let mut trailer = Trailer { coded_lens: Vec::new(), raw_len: raw.len() as u64 };
    let mut first_byte = 0;
    for (raw, base) in raw.chunks(1 << 18).zip(base.chunks(1 << 18)) {
        let mut coded = vec![0; raw.len() + MAX_OVERHEAD];
        let place = Place { first_byte, base: Some(base), ..Place::default() };
        let len = encode_block(recipe, &header.shared, place, raw, &mut Scratch::new(), &mut coded);
        if first_byte == 0 && coded[0] != kind {
            return Err(format!("block of kind {}, not {kind}", coded[0]).into());
        }
        crate::golden::push_block(&mut frame, &mut trailer, Some(checksum(raw)), raw.len(), &coded[..len])?;
        first_byte += raw.len() as u64;
    }
    trailer.write(&mut frame);
    Ok(frame)
}

fn decode(frame: &[u8], base: &[u8]) -> Result<Vec<u8>, mithril_format::FormatError> {
    let view = FrameView::parse(frame)?;
    let mut raw = vec![0; base.len()];
    for ((block_idx, out), base) in raw.chunks_mut(1 << 18).enumerate().zip(base.chunks(1 << 18)) {
        view.decode_block(block_idx, Some(base), out, &mut Scratch::new())?;
    }
    Ok(raw)
}
