//! Encoding: the exact inverse of `decode`, hence backwards over the groups.
//!
//! # Idea
//!
//! A step needs the quotient and remainder of the state by the frequency. Both come from one multiplication
//! with a reciprocal from a table made at compile time, so that a step has no division and no branch.
//! Lanes are independent, so the encoder may visit the lanes of a group in ascending order as long as the
//! words of the group end up in ascending lane order; only the groups themselves run backwards.

use super::{
    FREQUENCY_BITS, FREQUENCY_SUM, FrequencyTable, GROUP_WORDS_LEN, GroupSpan, LANES, Run, STATE_FLOOR,
    STATES_LEN, group_tables, runs_fit,
};

/// Fraction bits of a reciprocal.
const RECIPROCAL_BITS: u32 = 44;

/// `ceil(2^44 / f)` for each frequency `f` (zero for zero).
///
/// Write `r f = 2^44 + e`; rounding up gives `0 <= e < f`. After renormalisation a state is `x < 2^20 f`.
///
/// * Exact: `x r / 2^44 = x / f + (x e / 2^44) / f`, and `x e < 2^20 f^2 <= 2^44`, so what is added stays
///   below `1 / f` and cannot carry the quotient to the next integer.
/// * No overflow: `x <= 2^20 f - 1`, so `x r <= 2^20 (2^44 + e) - r`, which is below `2^64` if
///   `2^20 e < r`. For `e > 0` that follows from `e f < f^2 <= 2^24`; for `e = 0` from `r > 0`.
static RECIPROCALS: [u64; FREQUENCY_SUM + 1] = build_reciprocals();

const fn build_reciprocals() -> [u64; FREQUENCY_SUM + 1] {
    let mut table = [0; FREQUENCY_SUM + 1];
    let mut frequency = 1;
    while frequency <= FREQUENCY_SUM {
        table[frequency] = (1u64 << RECIPROCAL_BITS).div_ceil(frequency as u64);
        frequency += 1;
    }
    table
}

/// What one encoding step needs to know about a symbol: 16 bytes, so that a table takes 4 KiB of cache.
///
/// For an absent symbol all is zero: a step then leaves a state below 2^16, which no other step does.
#[derive(Clone, Copy)]
struct Step {
    reciprocal: u64,
    /// The highest state that needs no renormalisation, `2^20 * frequency - 1`.
    limit: u32,
    start: u16,
    /// `4096 - frequency`.
    complement: u16,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a frequency is at most 4096, so the limit is below 2^32"
)]
fn build_steps(table: &FrequencyTable) -> [Step; 256] {
    let mut start = 0;
    table.frequencies().map(|frequency| {
        if frequency == 0 {
            return Step { reciprocal: 0, limit: 0, start: 0, complement: 0 };
        }
        let step = Step {
            reciprocal: RECIPROCALS[usize::from(frequency)],
            limit: ((u64::from(frequency) << (32 - FREQUENCY_BITS)) - 1) as u32,
            start,
            complement: FREQUENCY_SUM as u16 - frequency,
        };
        start += frequency;
        step
    })
}

/// Encodes one group and returns the number of its words, which are at the front of `words`.
#[expect(clippy::cast_possible_truncation, reason = "words are low halves; a quotient is below 2^20")]
fn encode_group(
    states: &mut [u32; LANES],
    steps: &[Step; 256],
    symbols: &[u8; LANES],
    words: &mut [u16; LANES],
) -> usize {
    let mut n_words = 0;
    for (state, &symbol) in states.iter_mut().zip(symbols) {
        let step = &steps[usize::from(symbol)];
        let full = *state;
        // Stored in any case and kept only if counted: no branch to mispredict. At most one word for each
        // lane before this one has been counted, so the mask only tells the compiler what holds anyway.
        words[n_words % LANES] = full as u16;
        let spills = full > step.limit;
        n_words += usize::from(spills);
        let reduced = if spills { full >> 16 } else { full };
        let quotient = ((u64::from(reduced) * step.reciprocal) >> RECIPROCAL_BITS) as u32;
        // quotient * 4096 + remainder + start, with remainder = reduced - quotient * frequency.
        *state = reduced + u32::from(step.start) + quotient * u32::from(step.complement);
    }
    n_words
}

/// Appends the coded `symbols` to `out`: 64 states, then the words.
///
/// Needs room for two bytes per symbol in `out` while it works.
///
/// # Panics
///
/// If the lengths of the runs do not sum to the number of symbols, if a run names a table that is not
/// there, or if a symbol is absent from the table that `group_tables` assigns to it.
pub fn encode(symbols: &[u8], runs: &[Run], tables: &[FrequencyTable], out: &mut Vec<u8>) {
    assert!(runs_fit(runs, symbols.len(), tables.len()), "runs must cover the symbols and name tables");
    let steps: Vec<[Step; 256]> = tables.iter().map(build_steps).collect();
    let spans: Vec<GroupSpan> = group_tables(runs, symbols.len()).collect();
    let head = out.len();
    out.resize(head + STATES_LEN + symbols.len().div_ceil(LANES) * GROUP_WORDS_LEN, 0);
    let buffer = &mut out[head..];
    // The words fill the buffer from its end towards its front.
    let mut front = buffer.len();
    let mut states = [STATE_FLOOR; LANES];
    let mut words = [0u16; LANES];
    let mut push_group = |table_idx: usize, group: &[u8; LANES]| {
        let n_words = encode_group(&mut states, &steps[table_idx], group, &mut words);
        assert!(
            states.iter().fold(true, |valid, &state| valid & (state >= STATE_FLOOR)),
            "every symbol must be present in the table of its group"
        );
        let end = front;
        front -= 2 * n_words;
        for (bytes, word) in buffer[front..end].as_chunks_mut::<2>().0.iter_mut().zip(&words) {
            *bytes = word.to_le_bytes();
        }
    };
    for span in spans.iter().rev() {
        let (groups, tail) = symbols[span.symbols.clone()].as_chunks::<LANES>();
        if !tail.is_empty() {
            let mut padded = [tables[span.table_idx].most_probable(); LANES];
            padded[..tail.len()].copy_from_slice(tail);
            push_group(span.table_idx, &padded);
        }
        for group in groups.iter().rev() {
            push_group(span.table_idx, group);
        }
    }
    for (bytes, state) in buffer.as_chunks_mut::<4>().0.iter_mut().zip(states) {
        *bytes = state.to_le_bytes();
    }
    buffer.copy_within(front.., STATES_LEN);
    let len = STATES_LEN + buffer.len() - front;
    out.truncate(head + len);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One each of symbols 1 and 2.
    const TWO_COUNTS: [u32; 256] = {
        let mut counts = [0; 256];
        counts[1] = 1;
        counts[2] = 1;
        counts
    };

    #[test]
    fn reciprocals_divide_exactly_over_the_whole_range_of_states() {
        for frequency in 1..=4096u64 {
            let end = frequency << 20;
            let multiples = [1, 2, 3, 1 << 19, (1 << 20) - 1, 1 << 20].into_iter();
            for multiple in multiples.chain((0..1 << 20).step_by(26_003)) {
                for state in [(multiple * frequency).saturating_sub(1), multiple * frequency] {
                    let state = state.min(end - 1);
                    let product =
                        state.checked_mul(RECIPROCALS[usize::try_from(frequency).unwrap()]).unwrap();
                    assert_eq!(product >> RECIPROCAL_BITS, state / frequency, "{state} / {frequency}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "present in the table")]
    fn encoding_a_symbol_that_the_table_lacks_panics() {
        let table = FrequencyTable::from_counts(&TWO_COUNTS).unwrap();
        encode(&[1, 2, 3, 1], &[Run { len: 4, table_idx: 0 }], &[table], &mut vec![]);
    }

    #[test]
    #[should_panic(expected = "runs must cover")]
    fn encoding_with_runs_of_another_length_panics() {
        let table = FrequencyTable::from_counts(&TWO_COUNTS).unwrap();
        encode(&[1, 1], &[Run { len: 1, table_idx: 0 }], &[table], &mut vec![]);
    }
}
