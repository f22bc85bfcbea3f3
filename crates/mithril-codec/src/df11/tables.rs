//! The tables that take eight bits of a code to an exponent, or to the table for the next eight bits.

use super::code::Code;
use super::{FIRST_TAG, LONGEST_CODE, Unencodable};
use crate::CodecError;
use std::collections::BTreeSet;

/// Entries of a table.
const ROW: usize = 256;

/// Tables that a tag can name besides the first.
const MAX_TAGGED: usize = 16;

/// Steps from table to table that a reader takes: 32 bits are four bytes.
const MAX_STEPS: usize = 4;

/// The tables of a code, one behind the other, and the row of code lengths.
///
/// Each table stands for the first 8, 16 or 24 bits of some codes, shorter ones first; the first table for none.
pub(super) fn build(code: &Code) -> Result<Vec<u8>, Unencodable> {
    let symbols = || (0u8..=255).filter(|&symbol| code.lengths[usize::from(symbol)] > 0);
    let bits_of = |symbol: u8| (code.codes[usize::from(symbol)], code.lengths[usize::from(symbol)]);
    if let Some(symbol) = symbols().find(|&symbol| symbol >= FIRST_TAG) {
        return Err(Unencodable::Exponent(symbol));
    }
    let mut prefixes = BTreeSet::from([(0, 0)]);
    for symbol in symbols() {
        let (bits, length) = bits_of(symbol);
        let prefix_len = (length - 1) / 8 * 8;
        prefixes.insert((prefix_len, leading(bits, length, prefix_len)));
    }
    let prefixes: Vec<(u8, u32)> = prefixes.into_iter().collect();
    if prefixes.len() - 1 > MAX_TAGGED {
        return Err(Unencodable::TooManyTables(prefixes.len() - 1));
    }

    let mut tables = Vec::with_capacity((prefixes.len() + 1) * ROW);
    // Places that no code reaches repeat the value before them, across tables as well.
    let mut carried = None;
    for &(prefix_len, prefix) in &prefixes {
        let mut row = [None; ROW];
        for symbol in symbols() {
            let (bits, length) = bits_of(symbol);
            if length <= prefix_len || leading(bits, length, prefix_len) != prefix {
                continue;
            }
            let rest_len = length - prefix_len;
            if rest_len <= 8 {
                let rest = bits & low_bits(rest_len);
                row[(rest << (8 - rest_len)) as usize] = Some(symbol);
            } else {
                let next = (prefix_len + 8, leading(bits, length, prefix_len + 8));
                let idx = prefixes.binary_search(&next).map_err(|_| Unencodable::GapBetweenTables)?;
                let tag = u8::try_from(ROW - idx).expect("1 to 16 tables have tags");
                row[(next.1 & 0xff) as usize] = Some(tag);
            }
        }
        for place in row {
            carried = place.or(carried);
            tables.push(carried.ok_or(Unencodable::FewExponents)?);
        }
    }
    tables.extend(code.lengths);
    Ok(tables)
}

/// The first `n` bits of a code.
fn leading(bits: u32, length: u8, n: u8) -> u32 {
    bits.checked_shr(u32::from(length - n)).unwrap_or(0)
}

fn low_bits(n: u8) -> u32 {
    u32::MAX.checked_shr(32 - u32::from(n)).unwrap_or(0)
}

/// An exponent and the length of its code.
pub(super) type Found = (u8, u8);

/// Tables from a file: every tag names a table, everything else is checked when it is met.
///
/// More is not asked for, because the places of the end symbol may hold anything, even tags in a circle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables<'a> {
    rows: &'a [[u8; ROW]],
    lengths: &'a [u8; ROW],
}

impl<'a> Tables<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, CodecError> {
        let (rows, rest) = bytes.as_chunks();
        let (lengths, rows) = rows.split_last().ok_or(CodecError::truncated("DF11 tables"))?;
        if !rest.is_empty() || rows.is_empty() || rows.len() > MAX_TAGGED + 1 {
            return Err(CodecError::corrupt("DF11 tables that are not 1 to 17 and a row of code lengths"));
        }
        let is_tagged = |&&byte: &&u8| byte >= FIRST_TAG;
        if rows.as_flattened().iter().filter(is_tagged).any(|&tag| ROW - usize::from(tag) >= rows.len()) {
            return Err(CodecError::corrupt("DF11 table with a tag of a table that is not there"));
        }
        Ok(Self { rows, lengths })
    }

    /// The first symbol of 32 bits, or nothing if tables lead nowhere or the code has no possible length.
    #[inline]
    pub(super) fn find(&self, bits: u32) -> Option<Found> {
        let mut row = 0;
        for byte in bits.to_be_bytes().into_iter().take(MAX_STEPS) {
            let value = self.rows[row][usize::from(byte)];
            if value < FIRST_TAG {
                return self.with_length(value);
            }
            row = ROW - usize::from(value);
        }
        None
    }

    /// As [`Self::find`], where only the first `n_known` bits, 8 to 16, are known: nothing if the others matter.
    pub(super) fn find_in(&self, bits: u32, n_known: u32) -> Option<Found> {
        let [first, second, ..] = bits.to_be_bytes();
        let value = self.rows[0][usize::from(first)];
        let value = if value < FIRST_TAG {
            value
        } else {
            let first = usize::from(second);
            let places = &self.rows[ROW - usize::from(value)][first..first + (1 << (16 - n_known))];
            let all_equal = places.iter().all(|&place| place == places[0] && place < FIRST_TAG);
            all_equal.then_some(places[0])?
        };
        self.with_length(value).filter(|&(_, length)| u32::from(length) <= n_known)
    }

    #[inline]
    fn with_length(&self, symbol: u8) -> Option<Found> {
        let length = self.lengths[usize::from(symbol)];
        (1..=LONGEST_CODE).contains(&length).then_some((symbol, length))
    }
}
