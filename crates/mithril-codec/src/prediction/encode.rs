//! From elements to a predicted block, and to counts that tables are chosen by.

use super::symbols::{self, MAX_DETAIL};
use super::{Format, N_CONTEXTS, Prediction, Predictor, Scratch, Tables};
use crate::delta::raw;
use crate::entropy::rans12::{self, LANES, Run};

/// How often each symbol occurs in each context, with all leading bits of distances told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    pub(super) counts: Vec<[u32; 256]>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { counts: vec![[0; 256]; N_CONTEXTS] }
    }
}

/// Counts the elements of `source`, of which the first is number `first` of its tensor. They are whole rows, if the
/// predictor has rows; `base` holds the same elements of the base.
///
/// # Panics
/// When they are not, or the base is missing or shorter.
pub fn count(predictor: &Predictor, first: usize, base: Option<&[u8]>, source: &[u8], counts: &mut Counts) {
    let format = predictor.format;
    let n = source.len() / format.width();
    let mut scratch = Scratch::default();
    predictor.predict(first, n, base, &mut scratch).expect("whole rows and their base");
    format.known(|format| count_as(format, source, &scratch, counts));
}

/// Inlined, so that the compiler knows the format.
#[inline(always)]
fn count_as(format: Format, source: &[u8], scratch: &Scratch, counts: &mut Counts) {
    let places = scratch.contexts.iter().zip(&scratch.predicted).zip(&scratch.scales);
    for (at, ((&context, &p), &scale)) in places.enumerate() {
        let context = usize::from(context) % N_CONTEXTS;
        let x = read(format, source, at);
        let coded = symbols::encode(format, MAX_DETAIL, symbols::is_value(context), scale, p, x);
        counts.counts[context][usize::from(coded.symbol)] += 1;
    }
}

/// Appends the block without its kind. `None` if the tables lack a symbol, or the block does not hold whole rows.
pub(crate) fn encode(
    prediction: &Prediction,
    first_byte: u64,
    base: Option<&[u8]>,
    source: &[u8],
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> Option<()> {
    let Prediction { predictor, tables, .. } = prediction;
    let format = predictor.format;
    let n = source.len() / format.width();
    let first = usize::try_from(first_byte).ok()? / format.width();
    predictor.predict(first, n, base, scratch).ok()?;
    let tail = &source[n * format.width()..];
    let counts = format.known(|format| set_symbols(format, tables, source, scratch))?;
    let Scratch { contexts, symbols, bucketed, kept, raw_lens, raw_bits, .. } = scratch;
    let runs = bucket(contexts, symbols, tables, bucketed);
    let at = out.len();
    out.extend([0; 4]);
    rans12::encode(bucketed, &runs, &tables.tables, out);
    let coded_len = u32::try_from(out.len() - at - 4).ok()?;
    out[at..at + 4].copy_from_slice(&coded_len.to_le_bytes());
    raw_bits.clear();
    raw_bits.extend(kept.iter().zip(&*raw_lens).map(|(&kept, &len)| top_bits(kept, len)));
    raw::write(raw_lens, &counts, raw_bits, |plane| low_bytes(kept, plane).into(), out);
    out.extend(tail);
    Some(())
}

/// One byte of the kept bits of all elements.
fn low_bytes(kept: &[u32], plane: usize) -> Vec<u8> {
    kept.iter().map(|kept| (kept >> (8 * plane)).to_le_bytes()[0]).collect()
}

/// The kept bits above whole bytes.
#[expect(clippy::cast_possible_truncation, reason = "fewer than eight bits are left")]
fn top_bits(kept: u32, len: u8) -> u8 {
    (u64::from(kept) >> (len / 8 * 8)) as u8
}

/// Symbols and kept bits of all elements, and the number of each table in place of its contexts. Returns how many
/// elements keep how many bits. Inlined, so that the compiler knows the format.
#[inline(always)]
fn set_symbols(
    format: Format,
    tables: &Tables,
    source: &[u8],
    scratch: &mut Scratch,
) -> Option<raw::RawCounts> {
    let of_contexts = tables.of_contexts();
    // Whether a table has a symbol: an array, so that it is looked up at once.
    let has_symbol: Vec<[bool; 256]> =
        tables.all().map(|table| table.frequencies().map(|share| share > 0)).collect();
    let Scratch { predicted, contexts, scales, symbols, kept, raw_lens, .. } = scratch;
    let n = contexts.len();
    symbols.resize(n, 0);
    kept.resize(n, 0);
    raw_lens.resize(n, 0);
    let mut lacks = false;
    let places = contexts.iter_mut().zip(&*predicted).zip(&*scales);
    let outputs = symbols.iter_mut().zip(&mut *kept).zip(&mut *raw_lens);
    for (at, (((context, &p), &scale), ((symbol, kept), raw_len))) in places.zip(outputs).enumerate() {
        let of_context = usize::from(*context) % N_CONTEXTS;
        let x = read(format, source, at);
        let coded = symbols::encode(format, tables.detail, symbols::is_value(of_context), scale, p, x);
        *context = of_contexts[of_context];
        lacks |= !has_symbol.get(usize::from(*context))?[usize::from(coded.symbol)];
        (*symbol, *kept, *raw_len) = (coded.symbol, coded.raw, coded.raw_len);
    }
    (!lacks).then(|| super::count_raw_lens(raw_lens))
}

/// Symbols table by table, each filled up to whole groups.
fn bucket(tables_of: &[u8], symbols: &[u8], tables: &Tables, bucketed: &mut Vec<u8>) -> Vec<Run> {
    let (mut starts, runs, n) = layout(tables_of, tables.tables.len());
    bucketed.clear();
    bucketed.resize(n, 0);
    let mut at = 0;
    for (run, table) in runs.iter().zip(tables.all()) {
        bucketed[at..at + run.len].fill(table.most_probable());
        at += run.len;
    }
    for (&table, &symbol) in tables_of.iter().zip(symbols) {
        let start = &mut starts[usize::from(table)];
        bucketed[*start] = symbol;
        *start += 1;
    }
    runs
}

/// Where the symbols of each table start, the runs of groups, and the symbols of all groups.
pub(super) fn layout(tables_of: &[u8], n_tables: usize) -> ([usize; N_CONTEXTS], Vec<Run>, usize) {
    // Four counters for each, so that equal neighbours do not wait for each other.
    let mut counters = [[0usize; 4]; N_CONTEXTS];
    let (fours, rest) = tables_of.as_chunks::<4>();
    for four in fours {
        for (way, &table) in four.iter().enumerate() {
            counters[usize::from(table) % N_CONTEXTS][way] += 1;
        }
    }
    rest.iter().for_each(|&table| counters[usize::from(table) % N_CONTEXTS][0] += 1);
    let counts = counters.map(|ways| ways.iter().sum::<usize>());
    let mut starts = [0; N_CONTEXTS];
    let mut runs = Vec::with_capacity(n_tables);
    let mut n = 0;
    for (table_idx, &count) in counts.iter().enumerate().take(n_tables) {
        starts[table_idx] = n;
        let len = usize::next_multiple_of(count, LANES);
        runs.push(Run { len, table_idx });
        n += len;
    }
    (starts, runs, n)
}

#[inline(always)]
pub(super) fn read(format: Format, elements: &[u8], at: usize) -> u32 {
    match format.width() {
        2 => u32::from(u16::from_le_bytes(elements.as_chunks().0[at])),
        _ => u32::from_le_bytes(elements.as_chunks().0[at]),
    }
}
