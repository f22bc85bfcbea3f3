//! Which contexts share a table, chosen by counted size, and the tables.

use super::encode::Counts;
use super::symbols::{MAX_DETAIL, class_of, is_value, raw_len, steps_of};
use super::{Format, N_CONTEXTS, N_VALUE_CONTEXTS};
use crate::entropy::log2_65536ths;
use crate::entropy::rans12::FrequencyTable;

/// A table for each run of contexts. Contexts of sizes and of distances never share one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// Leading bits that classes of distances tell apart.
    pub(super) detail: u8,
    /// The last context of each table, ascending.
    pub(super) lasts: Vec<u8>,
    pub(super) tables: Vec<FrequencyTable>,
}

/// About the bits that a symbol takes in a table, and that a table takes without its symbols, in 256ths.
const SYMBOL_BITS: u64 = 8 << 8;
const ABSENT_BITS: u64 = 4 << 8;
const TABLE_BITS: u64 = 32 << 8;

impl Tables {
    /// The tables for elements that were counted, and about the bits of the elements and tables together.
    pub fn choose(format: Format, counts: &Counts) -> (Self, u64) {
        let Merged { detail, runs, symbol_bits, table_bits } = best(format, counts);
        let (mut lasts, mut tables) = (Vec::new(), Vec::new());
        for run in &runs {
            if let Some(table) = FrequencyTable::from_counts(&run.counts) {
                lasts.push(run.last);
                tables.push(table);
            }
        }
        (Self { detail, lasts, tables }, symbol_bits + table_bits)
    }

    /// About the bits of elements that were counted, and those of their tables.
    pub fn expected_bits(format: Format, counts: &Counts) -> (u64, u64) {
        let Merged { symbol_bits, table_bits, .. } = best(format, counts);
        (symbol_bits, table_bits)
    }

    /// Bytes that the tables take in their section.
    pub fn written_len(&self) -> usize {
        let mut out = Vec::new();
        self.all().for_each(|table| table.write(&mut out));
        out.len()
    }

    /// All tables, in the order of their contexts.
    pub(super) fn all(&self) -> impl Iterator<Item = &FrequencyTable> {
        self.tables.iter()
    }

    /// The table of each context; 255 where there is none.
    pub(super) fn of_contexts(&self) -> [u8; N_CONTEXTS] {
        let mut of_contexts = [u8::MAX; N_CONTEXTS];
        for (context, table) in of_contexts.iter_mut().enumerate() {
            let found = self.lasts.iter().position(|&last| usize::from(last) >= context);
            let same = |&at: &usize| is_value(usize::from(self.lasts[at])) == is_value(context);
            *table = found.filter(same).and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX);
        }
        of_contexts
    }

    /// Whether a table codes sizes.
    pub(super) fn is_value(&self, table: usize) -> bool {
        is_value(usize::from(self.lasts[table]))
    }
}

/// Contexts that share a table.
#[derive(Clone)]
struct Run {
    last: u8,
    counts: [u32; 256],
    /// Cost of symbols and table, in 256ths of a bit.
    cost: u64,
}

/// Which contexts share tables, and about the bits of all elements and of all tables.
struct Merged {
    detail: u8,
    runs: Vec<Run>,
    symbol_bits: u64,
    table_bits: u64,
}

/// The detail that takes fewest bits.
fn best(format: Format, counts: &Counts) -> Merged {
    let details = (0..=MAX_DETAIL).map(|detail| merge(format, detail, counts));
    details.min_by_key(|merged| merged.symbol_bits + merged.table_bits).expect("there are several details")
}

/// Starts from one table per context and merges neighbours as long as that saves.
fn merge(format: Format, detail: u8, counts: &Counts) -> Merged {
    let mut kept_bits = 0;
    let mut runs: Vec<Run> = Vec::new();
    for (last, counts) in (0u8..).zip(counts.contexts()) {
        let value = is_value(usize::from(last));
        let mut coarse = [0; 256];
        for (symbol, count) in (0..=255u8).zip(counts).filter(|(_, count)| *count > 0) {
            let symbol = if value { symbol } else { coarser(detail, symbol) };
            coarse[usize::from(symbol)] += count;
            kept_bits += u64::from(count) * u64::from(raw_len(format, detail, value, symbol).unwrap_or(0));
        }
        if coarse.iter().any(|&count| count > 0) {
            runs.push(Run { last, counts: coarse, cost: cost(&coarse) });
        }
    }
    // What each run would be together with the next; two change with every merge.
    let with_next = |runs: &[Run], at: usize| -> Option<Run> {
        let (run, next) = (&runs[at], runs.get(at + 1)?);
        let same = is_value(usize::from(run.last)) == is_value(usize::from(next.last));
        same.then(|| merged(run, next))
    };
    let mut pairs: Vec<Option<Run>> = (0..runs.len()).map(|at| with_next(&runs, at)).collect();
    loop {
        let saved = |at: usize| -> Option<u64> {
            let merged = pairs[at].as_ref()?;
            (runs[at].cost + runs[at + 1].cost).checked_sub(merged.cost)
        };
        let best = (0..runs.len()).filter_map(|at| Some((saved(at)?, at)));
        let Some((_, at)) = best.max_by_key(|&(saved, at)| (saved, std::cmp::Reverse(at))) else { break };
        let Some(merged) = pairs[at].take() else { break };
        runs[at] = merged;
        runs.remove(at + 1);
        pairs.remove(at + 1);
        pairs[at] = with_next(&runs, at);
        if at > 0 {
            pairs[at - 1] = with_next(&runs, at - 1);
        }
    }
    let cost = runs.iter().map(|run| run.cost).sum::<u64>();
    let table_bits = runs.iter().map(|run| table_cost(&run.counts)).sum::<u64>() >> 8;
    let symbol_bits = (cost >> 8).saturating_sub(table_bits) + kept_bits;
    Merged { detail, runs, symbol_bits, table_bits }
}

fn merged(run: &Run, next: &Run) -> Run {
    let counts = std::array::from_fn(|symbol| run.counts[symbol] + next.counts[symbol]);
    Run { last: next.last, counts, cost: cost(&counts) }
}

/// Bits of symbols with these counts and of their table, in 256ths.
fn cost(counts: &[u32; 256]) -> u64 {
    let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let log_total = log2_65536ths(total);
    let bits: u64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|&count| {
            // No share is below one of 4096.
            let log = log_total.saturating_sub(log2_65536ths(u64::from(count))).min(12 << 16);
            u64::from(count) * log
        })
        .sum();
    (bits >> 8) + table_cost(counts)
}

/// About the bits of a table, in 256ths.
fn table_cost(counts: &[u32; 256]) -> u64 {
    let first = counts.iter().position(|&count| count > 0).unwrap_or(0);
    let last = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let n_present = counts.iter().filter(|count| **count > 0).count() as u64;
    let n_absent = (last + 1 - first) as u64 - n_present;
    TABLE_BITS + n_present * SYMBOL_BITS + n_absent.min(256) * ABSENT_BITS
}

/// The symbol of a distance with fewer bits told apart, from that with the most.
fn coarser(detail: u8, symbol: u8) -> u8 {
    if symbol == 0 {
        return 0;
    }
    let (least, _) = steps_of(MAX_DETAIL, symbol.div_ceil(2));
    let class = class_of(detail, least).0;
    2 * class - (symbol & 1)
}

const _: () = assert!(N_VALUE_CONTEXTS < N_CONTEXTS);
