//! Wide rANS: entropy coding of bytes with static 12-bit probabilities in 64 interleaved lanes.
//!
//! # Idea
//!
//! One rANS state decodes one symbol every few nanoseconds because each step waits for the one before.
//! Sixty-four independent states take turns over one stream of words, so a processor works on many of
//! them at a time, and vector kernels hold eight per register.
//!
//! # Layout
//!
//! ```text
//! coded := 64 states, u32 little-endian, lane 0 first   (256 bytes)
//!          words, u16 little-endian, in the order the decoder reads them
//! ```
//!
//! Group `g` is the symbols `64 g .. 64 g + 64`; lane `l` codes symbol `64 g + l`. The last group is filled
//! up with the most probable symbol of its table (lowest symbol on ties); the decoder drops the filling.
//! One decoding step of a lane with state `x`, where `slot = x mod 4096` belongs to a symbol that owns the
//! slots `start .. start + frequency` (symbols own slots in ascending order):
//!
//! ```text
//! x := frequency * (x div 4096) + slot - start
//! if x < 2^16 { x := x * 2^16 + next word }
//! ```
//!
//! Lanes of a group take their words in ascending order. The encoder starts from all states at 2^16 and
//! runs backwards, so the decoder must end with all states at 2^16 and no byte left over, which catches
//! most damage.
//!
//! # Contexts
//!
//! The caller cuts the symbols into runs and names a table for each. Tables change between groups only: a
//! group uses the table of the run that holds its first symbol. `group_tables` tells which symbols that
//! makes for each table; callers must count their histograms by it, or a group that straddles two runs may
//! hold a symbol its table lacks.
//!
//! # Invariants
//!
//! Between steps every state is in `[2^16, 2^32)`. From there a step leaves at least
//! `frequency * 16 >= 16`, so one word always restores the range, and at most
//! `frequency * (2^20 - 1) + frequency - 1 < 2^32`, so no state overflows, whatever the input.

use std::ops::Range;

mod decode;
mod encode;
mod frequencies;
#[cfg(test)]
mod tests;

pub use decode::{DecodeTable, decode_into};
pub use encode::encode;
pub use frequencies::FrequencyTable;
pub(crate) use frequencies::log2_65536ths;

/// Interleaved states, and symbols in a group.
pub(crate) const LANES: usize = 64;
/// Frequencies of a table sum to two to this power.
pub(crate) const FREQUENCY_BITS: u32 = 12;
/// Sum of the frequencies of a table, and number of slots of its decode table.
pub(crate) const FREQUENCY_SUM: usize = 1 << FREQUENCY_BITS;
/// Lowest value of a state between steps; the encoder's first and the decoder's last.
pub(crate) const STATE_FLOOR: u32 = 1 << 16;
/// Bytes of the states at the head of coded data.
pub(crate) const STATES_LEN: usize = 4 * LANES;
/// Most bytes of words a group can take: one word for each lane.
pub(crate) const GROUP_WORDS_LEN: usize = 2 * LANES;

/// A stretch of consecutive symbols that share a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number of symbols; may be zero.
    pub len: usize,
    /// Which of the tables codes them.
    pub table_idx: usize,
}

/// Consecutive whole groups that one table codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupSpan {
    /// The symbols of the groups: starts at a multiple of [`LANES`], and ends at one or at the last symbol.
    pub(crate) symbols: Range<usize>,
    /// Which of the tables codes them.
    pub(crate) table_idx: usize,
}

/// Which table codes which symbols, in order and without gaps, for `n_symbols` symbols cut into `runs`.
///
/// A run in which no group starts yields nothing. If the runs are shorter than `n_symbols` the symbols after
/// their last group are left out; if they are longer the surplus is ignored.
pub(crate) fn group_tables(runs: &[Run], n_symbols: usize) -> impl Iterator<Item = GroupSpan> + '_ {
    let mut run_end = 0usize;
    let mut span_end = 0usize;
    runs.iter().filter_map(move |run| {
        run_end = run_end.saturating_add(run.len);
        // The groups that start before the end of the run, less those that earlier runs own.
        let end = run_end.min(n_symbols).div_ceil(LANES).saturating_mul(LANES).min(n_symbols);
        let symbols = span_end..end;
        span_end = end;
        (!symbols.is_empty()).then_some(GroupSpan { symbols, table_idx: run.table_idx })
    })
}

/// Whether the runs cover exactly `n_symbols` symbols and name only tables that exist.
fn runs_fit(runs: &[Run], n_symbols: usize, n_tables: usize) -> bool {
    let total = runs.iter().try_fold(0usize, |sum, run| sum.checked_add(run.len));
    total == Some(n_symbols) && runs.iter().all(|run| run.table_idx < n_tables)
}
