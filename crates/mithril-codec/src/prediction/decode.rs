//! From a predicted block to its elements.

use super::encode::layout;
use super::{Format, N_CONTEXTS, Prediction, Scratch, symbols};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::delta::raw;
use crate::entropy::rans12;

/// Decodes a block whose kind has been read into `out`.
pub(crate) fn decode(
    prediction: &Prediction,
    mut cursor: Cursor<'_>,
    first_byte: u64,
    base: Option<&[u8]>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let Prediction { predictor, tables, decode } = prediction;
    let format = predictor.format;
    let width = format.width();
    let n = out.len() / width;
    let first = usize::try_from(first_byte).map_err(|_| CodecError::corrupt("place of a block"))? / width;
    predictor.predict(first, n, base, scratch)?;
    let Scratch { predicted, contexts, scales, symbols, bucketed, raw_lens, raw_bits, .. } = scratch;
    let of_contexts = tables.of_contexts();
    let mut none = false;
    for context in contexts.iter_mut() {
        *context = of_contexts[usize::from(*context) % N_CONTEXTS];
        none |= *context == u8::MAX;
    }
    if none {
        return Err(CodecError::corrupt("element in a context without a table"));
    }
    let (mut starts, runs, n_symbols) = layout(contexts, decode.len());
    bucketed.clear();
    bucketed.resize(n_symbols, 0);
    let coded_len = cursor.len32()?;
    rans12::decode_into(cursor.take(coded_len)?, &runs, decode, bucketed)?;
    symbols.resize(n, 0);
    for (symbol, &table) in symbols.iter_mut().zip(&*contexts) {
        let start = &mut starts[usize::from(table) % N_CONTEXTS];
        *symbol = bucketed[*start];
        *start += 1;
    }
    let steps: Vec<Steps> = (0..decode.len()).map(|table| Steps::of(prediction, table)).collect();
    let mut counts = [0; 64];
    raw_lens.resize(n, 0);
    for ((len, &table), &symbol) in raw_lens.iter_mut().zip(&*contexts).zip(&*symbols) {
        *len = steps[usize::from(table)].raw_lens[usize::from(symbol)];
    }
    raw_lens.iter().for_each(|&len| counts[usize::from(len) % 64] += 1);
    let planes = raw::read(&mut cursor, raw_lens, &counts, bucketed, raw_bits)?;
    let elements = Elements { predicted, scales, tables: contexts, symbols, raw_lens, raw_bits, planes };
    match format {
        Format::F32 => elements.restore(Format::F32, &steps, out),
        Format::Bf16 => elements.restore(Format::Bf16, &steps, out),
        Format::F16 => elements.restore(Format::F16, &steps, out),
    }
    let tail = &mut out[n * width..];
    if cursor.rest().len() != tail.len() {
        return Err(CodecError::corrupt("bytes behind the predicted block"));
    }
    tail.copy_from_slice(cursor.rest());
    Ok(())
}

/// What the symbols of a table mean, looked up.
struct Steps {
    is_value: bool,
    raw_lens: [u8; 256],
    /// The least number of steps, and all bits set where they go towards zero.
    least: [(u32, u32); 256],
}

impl Steps {
    fn of(prediction: &Prediction, table: usize) -> Self {
        let (format, detail) = (prediction.predictor.format, prediction.tables.detail);
        let is_value = prediction.tables.is_value(table);
        let mut steps = Self { is_value, raw_lens: [0; 256], least: [(0, 0); 256] };
        for symbol in 0..=255u8 {
            let at = usize::from(symbol);
            // Tables hold no symbol that does not exist.
            let Some(raw_len) = symbols::raw_len(format, detail, is_value, symbol) else { continue };
            steps.raw_lens[at] = raw_len;
            if !is_value {
                let towards_zero = if symbol & 1 == 0 { u32::MAX } else { 0 };
                steps.least[at] = (symbols::steps_of(detail, symbol.div_ceil(2)).0, towards_zero);
            }
        }
        steps
    }
}

/// Everything that is known of the elements of a block before they are put together.
struct Elements<'a> {
    predicted: &'a [u32],
    scales: &'a [i16],
    tables: &'a [u8],
    symbols: &'a [u8],
    raw_lens: &'a [u8],
    raw_bits: &'a [u8],
    planes: [&'a [u8]; 8],
}

impl Elements<'_> {
    /// Writes all elements. Inlined, so that the compiler knows the format.
    #[inline(always)]
    fn restore(&self, format: Format, steps: &[Steps], out: &mut [u8]) {
        let bits = 8 * format.width();
        let (mask, magnitudes) = (u32::MAX >> (32 - bits), u32::MAX >> (33 - bits));
        let mut at = [0; 4];
        let places = self.predicted.iter().zip(self.scales).zip(self.tables).zip(self.symbols);
        let kept = self.raw_lens.iter().zip(self.raw_bits);
        let elements = out.chunks_exact_mut(format.width());
        for (((((&p, &scale), &table), &symbol), (&raw_len, &raw_bits)), out) in
            places.zip(kept).zip(elements)
        {
            let mut raw = u32::from(raw_bits);
            if raw_len >= 8 {
                let n_bytes = usize::from(raw_len / 8);
                raw = raw.checked_shl(8 * u32::from(raw_len / 8)).unwrap_or(0);
                for (byte, (plane, at)) in self.planes.iter().zip(&mut at).take(n_bytes).enumerate() {
                    raw |= u32::from(plane.get(*at).copied().unwrap_or(0)) << (8 * byte);
                    *at += 1;
                }
            }
            let steps = &steps[usize::from(table)];
            let x = if steps.is_value {
                symbols::decode_value(format, scale, p, symbol, raw)
            } else {
                // As `Number::moved`, with masks in place of branches.
                let (least, towards_zero) = steps.least[usize::from(symbol)];
                let negative = 0u32.wrapping_sub(p >> (bits - 1));
                let flip = towards_zero ^ negative;
                let distance = ((least | raw) ^ flip).wrapping_sub(flip);
                let moved = (p ^ negative & magnitudes).wrapping_add(distance) & mask;
                moved ^ 0u32.wrapping_sub(moved >> (bits - 1)) & magnitudes
            };
            out.copy_from_slice(&x.to_le_bytes()[..format.width()]);
        }
    }
}
