//! The tensors that hold a layer.

use super::{EntropyCodedLinear, WeightClass};
use crate::convert::ecq::levels::Levels;
use crate::convert::ecq::matrix::{MatrixPlan, NewPart, planes_parts};
use crate::{Dtype, Error};
use mithril_codec::ecq::gemv::ESCAPE_SYMBOL;
use mithril_codec::ecq::{Coding, Escape};
use mithril_codec::narrow::to_bf16;
use mithril_codec::quantised::Layout;
use mithril_format::ecq::{
    COLUMN_SCALES, COMPRESSED, FREQ, LEVELS, LOW_BITS, SCALES, STREAM_OFFSETS, SideSum,
};

impl EntropyCodedLinear {
    /// The tensors of the layer's weights, named as in a coded file (`docs/format/ecq.md`).
    pub fn to_parts(&self) -> Vec<NewPart> {
        let part = |suffix: &str, dtype, shape: Vec<usize>, bytes: Vec<u8>| NewPart {
            name: format!("{}{suffix}", self.name),
            dtype,
            shape: shape.into_iter().map(|n| n as u64).collect(),
            bytes,
        };
        let (held, shape) = (&self.parts, &self.header.shape);
        let offsets = vec![held.stream_offsets.len() / 4];
        let mut parts = vec![
            part(COMPRESSED, Dtype::U8, vec![held.compressed.len()], held.compressed.clone()),
            part(STREAM_OFFSETS, Dtype::U32, offsets, held.stream_offsets.clone()),
            part(FREQ, Dtype::U8, vec![held.freq.len() / 16, 16], held.freq.clone()),
        ];
        if shape.low_bits() > 0 {
            let size = vec![shape.rows(), shape.low_row_len()];
            parts.push(part(LOW_BITS, Dtype::U8, size, held.low_bits.clone()));
        }
        let Levels { values, scales, column_scales } = &self.levels;
        let levels = values.iter().map(|level| level.cast_unsigned()).collect();
        parts.push(part(LEVELS, Dtype::I8, vec![values.len()], levels));
        if !column_scales.is_empty() {
            for (suffix, scales) in [(SCALES, scales), (COLUMN_SCALES, column_scales)] {
                let bytes = scales.iter().flat_map(|scale| to_bf16(scale.to_bits()).to_le_bytes()).collect();
                parts.push(part(suffix, Dtype::Bf16, vec![scales.len()], bytes));
            }
        } else if !scales.is_empty() {
            let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            parts.push(part(SCALES, Dtype::F32, vec![scales.len()], bytes));
        }
        parts
    }
}

/// The tensors of a matrix of bf16 weights.
pub(super) fn bf16_parts(
    name: &str,
    weights: &[u8],
    rows: usize,
    columns: usize,
    class: WeightClass,
) -> Result<Vec<NewPart>, Error> {
    let coding = match class {
        WeightClass::Fixed12 => Coding::Fixed,
        WeightClass::EntropyCoded => Coding::Entropy,
        WeightClass::Levels => return Err(Error::invalid("levels are what `quantize` makes")),
    };
    if columns == 0 || weights.len() / 2 != rows.saturating_mul(columns) || !weights.len().is_multiple_of(2) {
        return Err(Error::invalid(format!(
            "{} bytes are not {rows} x {columns} bf16 weights",
            weights.len()
        )));
    }
    let words = weights.as_chunks::<2>().0;
    let exponent = |word: &[u8; 2]| word[1] << 1 | word[0] >> 7;
    let mut counts = [0u64; 256];
    words.iter().for_each(|word| counts[usize::from(exponent(word))] += 1);
    // The fifteen neighbouring exponents that hold most weights.
    let held = |first: &u8| counts[usize::from(*first)..usize::from(*first) + 15].iter().sum::<u64>();
    let first = (0..=241u8).max_by_key(held).unwrap_or(0);
    let (mut symbols, mut low) = (Vec::with_capacity(words.len()), Vec::with_capacity(words.len()));
    let mut escapes = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let symbol = exponent(word).wrapping_sub(first);
        if symbol < ESCAPE_SYMBOL {
            symbols.push(symbol);
            low.push(word[1] & 0x80 | word[0] & 0x7f);
        } else {
            symbols.push(ESCAPE_SYMBOL);
            low.push(0);
            let value = f32::from_bits(u32::from(u16::from_le_bytes(*word)) << 16);
            escapes.push(Escape { row: at / columns, column: at % columns, value });
        }
    }
    if escapes.len() > words.len() / 2 {
        return Err(Error::invalid(format!("exponents of `{name}` are spread too wide")));
    }
    let plan = MatrixPlan {
        layout: Layout::Bf16,
        bits: 12,
        group_size: 0,
        scale_dtype: None,
        size: (rows, columns),
        rows_per_block: None,
        escapes: &escapes,
        coding,
        side_sum: SideSum::of(&[&[first]]),
    };
    let mut parts = planes_parts(name, &plan, 8, symbols, &low)?;
    let levels =
        NewPart { name: format!("{name}{LEVELS}"), dtype: Dtype::I8, shape: vec![1], bytes: vec![first] };
    parts.push(levels);
    Ok(parts)
}
