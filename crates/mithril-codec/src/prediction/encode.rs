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
    let Scratch { predicted, contexts, scales, .. } = &scratch;
    for at in 0..n {
        let context = usize::from(contexts[at]);
        let x = read(format, source, at);
        let value = symbols::is_value(context);
        let coded = symbols::encode(format, MAX_DETAIL, value, scales[at], predicted[at], x);
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
    let counts = set_symbols(format, tables, source, scratch)?;
    let Scratch { contexts, symbols, bucketed, kept, raw_lens, raw_bits, .. } = scratch;
    let runs = bucket(contexts, symbols, tables, bucketed);
    let at = out.len();
    out.extend([0; 4]);
    rans12::encode(bucketed, &runs, &tables.tables, out);
    let coded_len = u32::try_from(out.len() - at - 4).ok()?;
    out[at..at + 4].copy_from_slice(&coded_len.to_le_bytes());
    raw_bits.clear();
    raw_bits.extend(kept.iter().zip(&*raw_lens).map(|(&kept, &len)| top_bits(kept, len)));
    raw::write(raw_lens, &counts, raw_bits, |at, plane| kept[at].to_le_bytes()[plane], out);
    out.extend(tail);
    Some(())
}

/// The kept bits above whole bytes.
#[expect(clippy::cast_possible_truncation, reason = "fewer than eight bits are left")]
fn top_bits(kept: u32, len: u8) -> u8 {
    (u64::from(kept) >> (len / 8 * 8)) as u8
}

/// Symbols and kept bits of all elements, and the number of each table in place of its contexts. Returns how many
/// elements keep how many bits.
fn set_symbols(
    format: Format,
    tables: &Tables,
    source: &[u8],
    scratch: &mut Scratch,
) -> Option<raw::RawCounts> {
    let of_contexts = tables.of_contexts();
    let Scratch { predicted, contexts, scales, symbols, kept, raw_lens, .. } = scratch;
    let n = contexts.len();
    symbols.resize(n, 0);
    kept.resize(n, 0);
    raw_lens.resize(n, 0);
    let mut counts = [0; 64];
    for at in 0..n {
        let context = usize::from(contexts[at]);
        let value = symbols::is_value(context);
        let x = read(format, source, at);
        let coded = symbols::encode(format, tables.detail, value, scales[at], predicted[at], x);
        let table = of_contexts[context];
        let frequencies = tables.tables.get(usize::from(table))?.frequencies();
        if frequencies[usize::from(coded.symbol)] == 0 {
            return None;
        }
        contexts[at] = table;
        symbols[at] = coded.symbol;
        kept[at] = coded.raw;
        raw_lens[at] = coded.raw_len;
        counts[usize::from(coded.raw_len)] += 1;
    }
    Some(counts)
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
    let mut counts = [0; N_CONTEXTS];
    for &table in tables_of {
        counts[usize::from(table) % N_CONTEXTS] += 1;
    }
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
