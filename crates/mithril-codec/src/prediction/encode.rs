//! From elements to a predicted block, and to counts that tables are chosen by.

use super::symbols::MAX_DETAIL;
use super::tile::{Coded, Lists, TILE, TileSymbols};
use super::{N_CONTEXTS, Prediction, Predictor, Scratch, Tables};
use crate::arch::kernels;
use crate::delta::raw;
use crate::entropy::rans12::{self, LANES, Run};

/// How often each symbol occurs in each context, with all leading bits of distances told apart.
#[derive(Debug, Clone)]
pub struct Counts {
    /// Two counters for each, which elements use in turns: neighbours are often equal, and the same counter would have
    /// to wait for itself.
    counts: Vec<[[u32; 2]; 256]>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { counts: vec![[[0; 2]; 256]; N_CONTEXTS] }
    }
}

impl Counts {
    #[inline(always)]
    fn add(&mut self, way: usize, context: u8, symbol: u8) {
        self.counts[usize::from(context)][usize::from(symbol)][way] += 1;
    }

    /// The counts of each context.
    pub(super) fn contexts(&self) -> impl Iterator<Item = [u32; 256]> {
        self.counts.iter().map(|counts| counts.map(|[a, b]| a + b))
    }
}

/// Counts the elements of `source`, of which the first is number `first` of its tensor. They are whole rows, if the
/// predictor has rows; `base` holds the same elements of the base.
///
/// # Panics
/// When they are not, or the base is missing or shorter.
pub fn count(predictor: &Predictor, first: usize, base: Option<&[u8]>, source: &[u8], counts: &mut Counts) {
    let width = predictor.format.width();
    let kernels = kernels();
    let (mut lists, mut contexts, mut symbols) = (Lists::new(), [0; TILE], [0; TILE]);
    let tiles = predictor.tiles(first, source.len() / width, base, &mut Vec::new(), |at, tile| {
        let source = &source[at * width..][..tile.len * width];
        let mut out = TileSymbols { contexts: &mut contexts, symbols: &mut symbols };
        tile.symbols(kernels, MAX_DETAIL, source, &mut lists, &mut out);
        let places = contexts[..tile.len].as_chunks::<2>();
        let coded = symbols[..tile.len].as_chunks::<2>();
        for (&[a, b], &[of_a, of_b]) in places.0.iter().zip(coded.0) {
            counts.add(0, a, of_a);
            counts.add(1, b, of_b);
        }
        places.1.iter().zip(coded.1).for_each(|(&place, &symbol)| counts.add(0, place, symbol));
    });
    tiles.expect("whole rows and their base");
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
    let width = predictor.format.width();
    let n = source.len() / width;
    let first = usize::try_from(first_byte).ok()? / width;
    let Scratch { contexts, symbols, bucketed, low_bytes, raw_lens, raw_bits, sums, .. } = scratch;
    for list in [&mut *contexts, symbols, raw_lens, raw_bits].into_iter().chain(&mut *low_bytes) {
        list.resize(n, 0);
    }
    let kernels = kernels();
    let mut lists = Lists::new();
    let tiles = predictor.tiles(first, n, base, sums, |at, tile| {
        let places = at..at + tile.len;
        let mut coded = Coded {
            contexts: &mut contexts[places.clone()],
            symbols: &mut symbols[places.clone()],
            raw_lens: &mut raw_lens[places.clone()],
            raw_bits: &mut raw_bits[places.clone()],
            low_bytes: low_bytes.each_mut().map(|bytes| &mut bytes[places.clone()]),
        };
        let source = &source[at * width..][..tile.len * width];
        tile.code(kernels, tables.detail, source, &mut lists, &mut coded);
    });
    tiles.ok()?;
    set_tables(&tables.of_contexts(), contexts)?;
    let runs = bucket(contexts, symbols, tables, bucketed)?;
    let at = out.len();
    out.extend([0; 4]);
    rans12::encode(bucketed, &runs, &tables.tables, out);
    let coded_len = u32::try_from(out.len() - at - 4).ok()?;
    out[at..at + 4].copy_from_slice(&coded_len.to_le_bytes());
    let counts = super::count_raw_lens(raw_lens);
    raw::write(raw_lens, &counts, raw_bits, |plane| (&low_bytes[plane][..]).into(), out);
    out.extend(&source[n * width..]);
    Some(())
}

/// The table of each context in its place; `None` if a context has none.
pub(super) fn set_tables(of_contexts: &[u8; N_CONTEXTS], contexts: &mut [u8]) -> Option<()> {
    let mut table_of = [u8::MAX; 64];
    table_of[..N_CONTEXTS].copy_from_slice(of_contexts);
    let done = kernels().look_up_64(&table_of, contexts);
    for context in &mut contexts[done..] {
        *context = table_of[usize::from(*context) % 64];
    }
    let most = contexts.iter().fold(0, |most, &table| most.max(table));
    (most != u8::MAX).then_some(())
}

/// Symbols table by table, each filled up to whole groups. `None` if a table lacks one of its symbols.
fn bucket(tables_of: &[u8], symbols: &[u8], tables: &Tables, bucketed: &mut Vec<u8>) -> Option<Vec<Run>> {
    let (mut starts, runs, n) = layout(tables_of, tables.tables.len());
    bucketed.clear();
    bucketed.resize(n, 0);
    let starts_of_tables = &mut starts[..tables.tables.len()];
    let done = kernels().split_buckets(tables_of, symbols, starts_of_tables, bucketed);
    for (&table, &symbol) in tables_of[done..].iter().zip(&symbols[done..]) {
        let start = &mut starts[usize::from(table)];
        bucketed[*start] = symbol;
        *start += 1;
    }
    let mut from = 0;
    for ((run, table), &end) in runs.iter().zip(tables.all()).zip(&starts) {
        let to = from + run.len;
        let has_symbol = table.frequencies().map(|share| share > 0);
        if !bucketed[from..end].iter().fold(true, |all, &symbol| all & has_symbol[usize::from(symbol)]) {
            return None;
        }
        bucketed[end..to].fill(table.most_probable());
        from = to;
    }
    Some(runs)
}

/// Where the symbols of each table start, the runs of groups, and the symbols of all groups.
pub(super) fn layout(tables_of: &[u8], n_tables: usize) -> ([usize; N_CONTEXTS], Vec<Run>, usize) {
    let mut counts = [0; N_CONTEXTS];
    let done = kernels().count_buckets(tables_of, &mut counts[..n_tables]);
    // Four counters for each, so that equal neighbours do not wait for each other.
    let mut counters = [[0usize; 4]; N_CONTEXTS];
    let (fours, rest) = tables_of[done..].as_chunks::<4>();
    for four in fours {
        for (way, &table) in four.iter().enumerate() {
            counters[usize::from(table) % N_CONTEXTS][way] += 1;
        }
    }
    rest.iter().for_each(|&table| counters[usize::from(table) % N_CONTEXTS][0] += 1);
    counts.iter_mut().zip(counters).for_each(|(count, ways)| *count += ways.iter().sum::<usize>());
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
