//! Symbol frequencies of one context: chosen from counts, priced, and stored in few bytes.
//!
//! # Idea
//!
//! A table gives each of 256 symbols a share of 4096 slots. Storing full shares would cost more than it
//! saves, so every share but one keeps its five highest significant bits only ("coarse" frequencies:
//! 0 to 31, then 32, 34 .. 62, 64, 68 .. 124 and so on), and one symbol, the absorber, takes what the
//! others leave. The encoder codes with these rounded shares; that costs 0.003 % of the output at most
//! against free 12-bit shares (measured on bell curves of 4.5 and 7.2 bits and a geometric source).
//!
//! # Layout
//!
//! ```text
//! table := first u8, last u8, absorber u8, cells, zero bits up to a whole byte
//! ```
//!
//! There is one cell for each symbol in `first ..= last` but the absorber, packed from the lowest bit of
//! each byte up: four bits with the bit length L of the frequency (0 for an absent symbol, at most 12), then
//! the `min(L, 5) - 1` bits below the leading one, as a little-endian field. Bits below those are zero.
//!
//! # Invariants
//!
//! Frequencies sum to 4096. `first` and `last` are present, the absorber lies between them and has at least
//! one slot, so there is one way only to write a table, and `FrequencyTable::read` refuses every other.

use super::{FREQUENCY_BITS, FREQUENCY_SUM};
use crate::CodecError;
use crate::bytes::Cursor;

/// Significant bits a coarse frequency keeps.
const KEPT_BITS: u32 = 5;
/// Fraction bits of the logarithms.
const LOG_BITS: u32 = 16;
/// Times the polishing visits every symbol at most; in the tests it settles within five.
const MAX_PASSES: usize = 16;

/// `floor(log2(frequency) * 2^16)`, exact for powers of two and within two units of the true value for
/// the rest. Integers only, so that every machine prices alike.
static LOG2: [u32; FREQUENCY_SUM + 1] = build_log2();

const fn build_log2() -> [u32; FREQUENCY_SUM + 1] {
    let mut table = [0; FREQUENCY_SUM + 1];
    let mut frequency = 1;
    while frequency <= FREQUENCY_SUM {
        let whole = frequency.ilog2();
        // The mantissa in [1, 2) with 62 fraction bits; each squaring shows one bit of its logarithm.
        let mut mantissa = (frequency as u128) << (62 - whole);
        let mut log = whole;
        let mut bit = 0;
        while bit < LOG_BITS {
            mantissa = (mantissa * mantissa) >> 62;
            let carry = mantissa >> 63 != 0;
            if carry {
                mantissa >>= 1;
            }
            log = log << 1 | carry as u32;
            bit += 1;
        }
        table[frequency] = log;
        frequency += 1;
    }
    table
}

/// The binary logarithm of a frequency up to 4096, in 65536ths, rounded down.
pub(crate) fn log2_65536ths(frequency: u16) -> u32 {
    LOG2[usize::from(frequency)]
}

/// Frequencies of 256 symbols that sum to 4096; a symbol with frequency zero cannot be coded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrequencyTable {
    frequencies: [u16; 256],
    absorber: u8,
}

impl FrequencyTable {
    /// The table that codes symbols with these counts in nearly the fewest bits; `None` if there are none.
    ///
    /// Every symbol that was counted gets at least one slot. The most frequent (lowest on ties) absorbs.
    pub fn from_counts(counts: &[u32; 256]) -> Option<Self> {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if total == 0 {
            return None;
        }
        let absorber = find_highest(counts);
        let mut others = scale_counts(counts, total, absorber);
        polish_frequencies(&mut others, counts, absorber);
        Self::complete(others, absorber)
    }

    /// Gives the absorber, whose entry is zero, what the others leave; `None` if they leave nothing.
    fn complete(mut frequencies: [u16; 256], absorber: u8) -> Option<Self> {
        let taken: usize = frequencies.iter().map(|&frequency| usize::from(frequency)).sum();
        let rest = FREQUENCY_SUM.checked_sub(taken).filter(|&rest| rest > 0)?;
        frequencies[usize::from(absorber)] = u16::try_from(rest).ok()?;
        Some(Self { frequencies, absorber })
    }

    /// The frequency of each symbol.
    pub fn frequencies(&self) -> &[u16; 256] {
        &self.frequencies
    }

    /// The symbol with the highest frequency, the lowest such on ties.
    pub(crate) fn most_probable(&self) -> u8 {
        find_highest(&self.frequencies)
    }

    /// Cost of coding symbols with these counts, in 256ths of a bit, rounded down; `u64::MAX` if a counted
    /// symbol is absent from the table. States and the table itself are not included.
    pub fn cost_bits(&self, counts: &[u32; 256]) -> u64 {
        let mut cost = 0u64;
        let mut absent = 0u32;
        for (&count, &frequency) in counts.iter().zip(&self.frequencies) {
            absent |= if frequency == 0 { count } else { 0 };
            // No overflow: 256 terms below 2^32 * 12 * 2^16.
            cost += u64::from(count) * u64::from((FREQUENCY_BITS << LOG_BITS) - LOG2[usize::from(frequency)]);
        }
        if absent == 0 { cost >> (LOG_BITS - 8) } else { u64::MAX }
    }

    /// The lowest and the highest symbol that is present.
    fn range(&self) -> (u8, u8) {
        let present = |&symbol: &u8| self.frequencies[usize::from(symbol)] > 0;
        let first = (0..=255).find(present).unwrap_or(self.absorber);
        let last = (0..=255).rev().find(present).unwrap_or(self.absorber);
        (first, last)
    }

    /// Number of bytes [`Self::write`] appends.
    pub fn coded_len(&self) -> usize {
        let (first, last) = self.range();
        let n_bits: u32 = (first..=last)
            .filter(|&symbol| symbol != self.absorber)
            .map(|symbol| 4 + kept_field_len(bit_len(self.frequencies[usize::from(symbol)])))
            .sum();
        3 + n_bits.div_ceil(8) as usize
    }

    /// Appends the table in the layout of this module.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (first, last) = self.range();
        out.extend([first, last, self.absorber]);
        let mut bits = BitWriter { out, pending: 0, n_pending: 0 };
        for symbol in first..=last {
            if symbol == self.absorber {
                continue;
            }
            let frequency = self.frequencies[usize::from(symbol)];
            let length = bit_len(frequency);
            let field_len = kept_field_len(length);
            let kept = frequency >> length.saturating_sub(KEPT_BITS);
            // The leading one of what is kept is the top bit above the field, and the length implies it.
            bits.put(length, 4);
            bits.put(u32::from(kept) & ((1 << field_len) - 1), field_len);
        }
        bits.finish();
    }

    /// Reads one table off the front of untrusted bytes.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, CodecError> {
        let [first, last, absorber] = cursor.array()?;
        if !(first..=last).contains(&absorber) {
            return Err(CodecError::corrupt("symbol range of a frequency table"));
        }
        let mut frequencies = [0u16; 256];
        let mut bits = BitReader { cursor, pending: 0, n_pending: 0 };
        for symbol in first..=last {
            if symbol == absorber {
                continue;
            }
            let length = u32::from(bits.take(4)?);
            if length > FREQUENCY_BITS {
                return Err(CodecError::corrupt("bit length of a frequency"));
            }
            if length > 0 {
                let field_len = kept_field_len(length);
                let kept = 1u16 << field_len | bits.take(field_len)?;
                frequencies[usize::from(symbol)] = kept << length.saturating_sub(KEPT_BITS);
            }
        }
        bits.finish()?;
        let table = Self::complete(frequencies, absorber)
            .ok_or(CodecError::corrupt("frequencies sum to more than their table holds"))?;
        if table.range() != (first, last) {
            return Err(CodecError::corrupt("symbol range of a frequency table is not tight"));
        }
        Ok(table)
    }
}

/// The symbol with the highest value, the lowest such on ties.
fn find_highest<T: PartialOrd>(values: &[T; 256]) -> u8 {
    let mut best = 0;
    for symbol in 1..=255 {
        if values[usize::from(symbol)] > values[usize::from(best)] {
            best = symbol;
        }
    }
    best
}

/// Number of bits up to the highest that is set.
fn bit_len(frequency: u16) -> u32 {
    u16::BITS - frequency.leading_zeros()
}

/// Bits stored below the leading one of a frequency of this bit length.
fn kept_field_len(length: u32) -> u32 {
    length.min(KEPT_BITS).saturating_sub(1)
}

/// Distance from a coarse frequency to the next higher one.
fn step_above(frequency: u16) -> u16 {
    1 << bit_len(frequency).saturating_sub(KEPT_BITS)
}

/// The highest coarse frequency that is at most this.
fn round_down(frequency: u16) -> u16 {
    let n_dropped = bit_len(frequency).saturating_sub(KEPT_BITS);
    frequency >> n_dropped << n_dropped
}

/// The shares of all symbols but the absorber, coarse and in proportion to their counts.
///
/// Rare symbols are rounded up to one slot, at times hundreds of them, and the rest must make room in
/// proportion: the counts are scaled not to 4096 slots but to the highest scale at which all fits, found by
/// bisection. Scale zero always fits (255 symbols of one slot each), so the absorber always keeps a slot.
fn scale_counts(counts: &[u32; 256], total: u64, absorber: u8) -> [u16; 256] {
    /// Fraction bits of a share, and of the scale.
    const SHARE_BITS: u32 = 32;
    const SCALE_BITS: u32 = 4;
    let mut shares = [0u64; 256];
    for (share, &count) in shares.iter_mut().zip(counts) {
        *share = (u64::from(count) << SHARE_BITS) / total;
    }
    let absorber_share = std::mem::take(&mut shares[usize::from(absorber)]);
    let scale_share = |symbol: usize, scale: u64| -> u16 {
        if counts[symbol] == 0 || symbol == usize::from(absorber) {
            return 0;
        }
        let exact = shares[symbol] * scale;
        let whole = exact >> (SHARE_BITS + SCALE_BITS);
        let n_dropped = (u64::BITS - whole.leading_zeros()).saturating_sub(KEPT_BITS);
        let unit = SHARE_BITS + SCALE_BITS + n_dropped;
        let rounded = (exact + (1 << (unit - 1))) >> unit << n_dropped;
        // At most half of the highest scale: the absorber has as many counts.
        u16::try_from(rounded.max(1)).unwrap_or(u16::MAX)
    };
    let fits = |scale: u64| {
        let others: u64 = (0..256).map(|symbol| u64::from(scale_share(symbol, scale))).sum();
        let own = (absorber_share * scale) >> (SHARE_BITS + SCALE_BITS);
        others + own.max(1) <= FREQUENCY_SUM as u64
    };
    let mut scale = 0;
    // Twice the nominal scale, at most: rounding down loses less than half of any share.
    let mut step = (FREQUENCY_SUM as u64) << SCALE_BITS;
    while step > 0 {
        if fits(scale + step) {
            scale += step;
        }
        step >>= 1;
    }
    std::array::from_fn(|symbol| scale_share(symbol, scale))
}

/// Moves single steps between symbols and the absorber as long as that saves bits.
fn polish_frequencies(others: &mut [u16; 256], counts: &[u32; 256], absorber: u8) {
    let taken: usize = others.iter().map(|&frequency| usize::from(frequency)).sum();
    let mut own = FREQUENCY_SUM - taken;
    let own_count = u64::from(counts[usize::from(absorber)]);
    let saving = |count: u64, low: usize, high: usize| count * u64::from(LOG2[high] - LOG2[low]);
    for _ in 0..MAX_PASSES {
        let mut moved = false;
        for (frequency, &count) in others.iter_mut().zip(counts).filter(|(frequency, _)| **frequency > 0) {
            let count = u64::from(count);
            let current = usize::from(*frequency);
            let step_up = step_above(*frequency);
            let below = round_down(*frequency - 1);
            let up = usize::from(step_up);
            let down = current - usize::from(below);
            if up < own && saving(count, current, current + up) > saving(own_count, own - up, own) {
                *frequency += step_up;
                own -= up;
                moved = true;
            } else if below > 0 && saving(own_count, own, own + down) > saving(count, current - down, current)
            {
                *frequency = below;
                own += down;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
}

/// Packs fields into bytes, lowest bit first.
struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u32,
    n_pending: u32,
}

impl BitWriter<'_> {
    fn put(&mut self, field: u32, n_bits: u32) {
        self.pending |= field << self.n_pending;
        self.n_pending += n_bits;
        while self.n_pending >= 8 {
            self.put_byte();
            self.n_pending -= 8;
        }
    }

    fn put_byte(&mut self) {
        self.out.push(self.pending.to_le_bytes()[0]);
        self.pending >>= 8;
    }

    fn finish(mut self) {
        if self.n_pending > 0 {
            self.put_byte();
        }
    }
}

/// Takes fields off bytes, lowest bit first; fetches a byte only when a field needs it.
struct BitReader<'a, 'b> {
    cursor: &'a mut Cursor<'b>,
    pending: u16,
    n_pending: u32,
}

impl BitReader<'_, '_> {
    /// The next field, of at most eight bits.
    fn take(&mut self, n_bits: u32) -> Result<u16, CodecError> {
        if self.n_pending < n_bits {
            self.pending |= u16::from(self.cursor.u8()?) << self.n_pending;
            self.n_pending += 8;
        }
        let field = self.pending & ((1 << n_bits) - 1);
        self.pending >>= n_bits;
        self.n_pending -= n_bits;
        Ok(field)
    }

    fn finish(self) -> Result<(), CodecError> {
        if self.pending == 0 { Ok(()) } else { Err(CodecError::corrupt("padding of a frequency table")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_to_two_units() {
        for frequency in 1..=4096u16 {
            let exact = f64::from(frequency).log2() * 65536.0;
            assert!((f64::from(LOG2[usize::from(frequency)]) - exact).abs() < 2.0, "{frequency}");
        }
    }
}
