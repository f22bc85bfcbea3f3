//! From a predicted block to its elements.

use super::encode::{layout, set_tables};
use super::{Format, Prediction, Scratch, symbols};
use crate::CodecError;
use crate::arch::{Kernels, kernels};
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
    let Prediction { predictor, tables, .. } = prediction;
    let decode = prediction.decode_tables();
    let format = predictor.format;
    let width = format.width();
    let n = out.len() / width;
    let first = usize::try_from(first_byte).map_err(|_| CodecError::corrupt("place of a block"))? / width;
    let Scratch { predicted, contexts, scales, symbols, bucketed, raw_lens, raw_bits, sums, .. } = scratch;
    predicted.resize(n, 0);
    scales.resize(n, 0);
    contexts.resize(n, 0);
    let kernels = kernels();
    predictor.tiles(first, n, base, sums, |at, tile| {
        tile.predict(kernels, &mut predicted[at..], &mut scales[at..], &mut contexts[at..]);
    })?;
    let lacks = CodecError::corrupt("element in a context without a table");
    set_tables(&tables.of_contexts(), contexts).ok_or(lacks)?;
    let (mut starts, runs, n_symbols) = layout(contexts, decode.len());
    bucketed.resize(n_symbols + SLACK, 0);
    let coded_len = cursor.len32()?;
    rans12::decode_into(cursor.take(coded_len)?, &runs, decode, &mut bucketed[..n_symbols])?;
    merge(contexts, &mut starts[..decode.len()], bucketed, symbols);
    let steps: Vec<Steps> = (0..decode.len()).map(|table| Steps::of(prediction, table)).collect();
    raw_lens.resize(n, 0);
    let n_value_tables = (0..decode.len()).filter(|&table| tables.is_value(table)).count();
    let n_value_tables = u8::try_from(n_value_tables).unwrap_or(0);
    let rules = TableRules { format, detail: tables.detail, n_value_tables };
    let done = kernels.predicted_raw_lens(rules, contexts, symbols, raw_lens);
    let places = contexts[done..].iter().zip(&symbols[done..]);
    for (len, (&table, &symbol)) in raw_lens[done..].iter_mut().zip(places) {
        *len = steps[usize::from(table)].raw_lens[usize::from(symbol)];
    }
    let counts = super::count_raw_lens(raw_lens);
    let planes = raw::read(&mut cursor, raw_lens, &counts, bucketed, raw_bits)?;
    let mut elements = Elements {
        done: 0,
        at: [0; 4],
        predicted,
        scales,
        tables: contexts,
        symbols,
        raw_lens,
        raw_bits,
        planes,
    };
    elements.restore_whole_vectors(kernels, rules, out);
    format.known(|format| elements.restore(format, &steps, out));
    let tail = &mut out[n * width..];
    if cursor.rest().len() != tail.len() {
        return Err(CodecError::corrupt("bytes behind the predicted block"));
    }
    tail.copy_from_slice(cursor.rest());
    Ok(())
}

/// Bytes behind the buckets that kernels may touch.
const SLACK: usize = 64;

/// Takes the symbols of all tables in the order of the elements. There are `SLACK` bytes behind the last bucket.
fn merge(tables: &[u8], starts: &mut [usize], bucketed: &[u8], symbols: &mut Vec<u8>) {
    symbols.resize(tables.len(), 0);
    let done = kernels().merge_buckets(tables, starts, bucketed, symbols);
    for (symbol, &table) in symbols[done..].iter_mut().zip(&tables[done..]) {
        let start = &mut starts[usize::from(table)];
        *symbol = bucketed[*start];
        *start += 1;
    }
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
    /// Elements that are done, and bytes that they took of each plane.
    done: usize,
    at: [usize; 4],
    predicted: &'a [u32],
    scales: &'a [i16],
    tables: &'a [u8],
    symbols: &'a [u8],
    raw_lens: &'a [u8],
    raw_bits: &'a [u8],
    planes: [&'a [u8]; 8],
}

/// What the symbols of a block mean.
#[derive(Clone, Copy)]
pub(crate) struct TableRules {
    pub(crate) format: Format,
    pub(crate) detail: u8,
    /// Tables below this code sizes.
    pub(crate) n_value_tables: u8,
}

/// What kernels see of [`Elements`].
pub(crate) struct CodedElements<'a> {
    pub(crate) rules: TableRules,
    pub(crate) predicted: &'a [u32],
    pub(crate) scales: &'a [i16],
    pub(crate) tables: &'a [u8],
    pub(crate) symbols: &'a [u8],
    pub(crate) raw_lens: &'a [u8],
    pub(crate) raw_bits: &'a [u8],
    pub(crate) planes: [&'a [u8]; 4],
}

impl Elements<'_> {
    /// Writes as many elements as a kernel can.
    fn restore_whole_vectors(&mut self, kernels: &dyn Kernels, rules: TableRules, out: &mut [u8]) {
        let elements = CodedElements {
            rules,
            predicted: self.predicted,
            scales: self.scales,
            tables: self.tables,
            symbols: self.symbols,
            raw_lens: self.raw_lens,
            raw_bits: self.raw_bits,
            planes: [self.planes[0], self.planes[1], self.planes[2], self.planes[3]],
        };
        (self.done, self.at) = kernels.restore_predicted(&elements, out);
    }

    /// Writes all elements. Inlined, so that the compiler knows the format.
    #[inline(always)]
    fn restore(&self, format: Format, steps: &[Steps], out: &mut [u8]) {
        let bits = 8 * format.width();
        let (mask, magnitudes) = (u32::MAX >> (32 - bits), u32::MAX >> (33 - bits));
        let (done, mut at) = (self.done, self.at);
        let places = self.predicted[done..].iter().zip(&self.scales[done..]);
        let places = places.zip(&self.tables[done..]).zip(&self.symbols[done..]);
        let kept = self.raw_lens[done..].iter().zip(&self.raw_bits[done..]);
        let elements = out.chunks_exact_mut(format.width()).skip(done);
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
