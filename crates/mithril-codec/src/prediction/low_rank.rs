//! A matrix of low rank in whole numbers: factors, how they are written, and the sums of a row.

use super::symbols::{class_of, steps_of};
use crate::CodecError;
use crate::arch::kernels;
use crate::bytes::Cursor;
use crate::contexts::MAX_LISTED;
use crate::entropy::stream::{self, Allowed};
use std::ops::Range;

/// Components of a matrix at most.
pub(super) const MAX_RANK: usize = 128;

/// Leading bits that classes of factors tell apart.
const DETAIL: u8 = 2;

/// Bits that an entry of a factor takes at least; a file of few bytes cannot claim many entries.
const ENTRIES_PER_BYTE: usize = 8;

/// The sum of `rank` products of a column and a row vector, with powers of two for each row and each column.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    /// Power of two of a sum of 1.
    pub(super) exponent: i16,
    /// What each row adds to the exponent.
    pub(super) row_shifts: Vec<u8>,
    /// What each column adds to the exponent.
    pub(super) column_shifts: Vec<u8>,
    factors: Factors,
    /// Row factors with their shifts, `rank` rounded up to even for each row.
    rows: Vec<i16>,
    /// Column factors: for each pair of components, both entries of each column.
    columns: Vec<i16>,
}

/// The two factors, component by component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Factors {
    /// Bits that the entries of each row factor are shifted by. Components with the same shift share a table.
    pub shifts: Vec<u8>,
    /// Entries of each row factor.
    pub rows: Vec<Vec<i16>>,
    /// Entries of each column factor.
    pub columns: Vec<Vec<i16>>,
}

impl LowRank {
    /// A matrix of these factors. `None` if an entry does not fit 16 bits when it is shifted, or lengths do not agree.
    pub fn new(exponent: i16, row_shifts: Vec<u8>, column_shifts: Vec<u8>, factors: Factors) -> Option<Self> {
        let (n_rows, n_columns) = (row_shifts.len(), column_shifts.len());
        let rank = factors.shifts.len();
        let fit = |entries: &[Vec<i16>], n: usize| {
            entries.len() == rank && entries.iter().all(|entries| entries.len() == n)
        };
        if !(1..=MAX_RANK).contains(&rank) || !fit(&factors.rows, n_rows) || !fit(&factors.columns, n_columns)
        {
            return None;
        }
        let n_pairs = rank.div_ceil(2);
        let mut rows = vec![0; n_rows * 2 * n_pairs];
        let mut columns = vec![0; n_columns * 2 * n_pairs];
        for (at, &shift) in factors.shifts.iter().enumerate() {
            for (row, &entry) in factors.rows[at].iter().enumerate() {
                rows[row * 2 * n_pairs + at] =
                    i16::try_from(i32::from(entry).checked_shl(u32::from(shift))?).ok()?;
            }
            let pairs = &mut columns[at / 2 * 2 * n_columns..][..2 * n_columns];
            for (pair, &entry) in pairs.as_chunks_mut::<2>().0.iter_mut().zip(&factors.columns[at]) {
                pair[at % 2] = entry;
            }
        }
        Some(Self { exponent, row_shifts, column_shifts, factors, rows, columns })
    }

    /// Number of components.
    pub fn rank(&self) -> usize {
        self.factors.shifts.len()
    }

    #[inline(always)]
    pub(super) fn exponent_of_row(&self, row: usize) -> i32 {
        i32::from(self.exponent) + i32::from(self.row_shifts[row])
    }

    /// The sums of all columns of these rows, modulo 2^32.
    pub(super) fn sum_rows(&self, rows: Range<usize>, sums: &mut Vec<i32>) {
        let n_columns = self.column_shifts.len();
        let n_pairs = self.rank().div_ceil(2);
        let of_rows = &self.rows[rows.start * 2 * n_pairs..rows.end * 2 * n_pairs];
        let pairs = of_rows.as_chunks::<2>().0;
        sums.clear();
        sums.resize(rows.len() * n_columns, 0);
        let done = kernels().low_rank_sums(pairs, n_pairs, &self.columns, n_columns, sums);
        for (pairs, sums) in pairs.chunks_exact(n_pairs).zip(sums.chunks_exact_mut(n_columns)) {
            for (&[u, v], columns) in pairs.iter().zip(self.columns.chunks_exact(2 * n_columns)) {
                let (u, v) = (i32::from(u), i32::from(v));
                for (sum, &[x, y]) in sums[done..].iter_mut().zip(&columns.as_chunks::<2>().0[done..]) {
                    *sum = sum.wrapping_add((u * i32::from(x)).wrapping_add(v * i32::from(y)));
                }
            }
        }
    }

    /// Takes a row of the matrix off these values; for estimates, as it rounds in another place than decoding does.
    ///
    /// # Panics
    /// When there are not as many values as columns, or there is no such row.
    pub fn subtract(&self, row: usize, values: &mut [f32]) {
        let mut sums = Vec::new();
        self.sum_rows(row..row + 1, &mut sums);
        let of_row = self.exponent_of_row(row);
        for (value, (&sum, &column)) in values.iter_mut().zip(sums.iter().zip(&self.column_shifts)) {
            *value -= scaled(sum, of_row + i32::from(column));
        }
    }

    /// One sum, straight from the factors.
    #[cfg(test)]
    pub(super) fn sum(&self, row: usize, column: usize) -> i32 {
        let Factors { shifts, rows, columns } = &self.factors;
        let products = (0..self.rank())
            .map(|at| (i32::from(rows[at][row]) << shifts[at]) * i32::from(columns[at][column]));
        products.fold(0, i32::wrapping_add)
    }

    /// Appends everything but the numbers of rows and columns.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Factors { shifts, rows, columns } = &self.factors;
        out.push(u8::try_from(self.rank()).unwrap_or(u8::MAX));
        out.extend(self.exponent.to_le_bytes());
        out.extend(shifts);
        stream::encode_smallest(&self.row_shifts, Allowed::Entropy, out);
        stream::encode_smallest(&self.column_shifts, Allowed::Entropy, out);
        for shift in groups(shifts) {
            let of_group = |entries: &'_ [Vec<i16>]| -> Vec<i16> {
                let members = shifts.iter().zip(entries).filter(|(other, _)| **other == shift);
                members.flat_map(|(_, entries)| entries.iter().copied()).collect()
            };
            let mut entries = of_group(rows);
            entries.extend(of_group(columns));
            write_entries(&entries, out);
        }
    }

    /// Reads what [`LowRank::write`] wrote.
    pub(super) fn read(cursor: &mut Cursor<'_>, n_rows: usize, n_columns: usize) -> Result<Self, CodecError> {
        let rank = usize::from(cursor.u8()?);
        if !(1..=MAX_RANK).contains(&rank) || n_rows.max(n_columns) > MAX_LISTED {
            return Err(CodecError::corrupt("rank of a predictor"));
        }
        let exponent = i16::from_le_bytes(cursor.array()?);
        let shifts = cursor.take(rank)?.to_vec();
        if shifts.iter().any(|&shift| shift > 14) {
            return Err(CodecError::corrupt("shift of a factor"));
        }
        if (n_rows + n_columns) * rank > cursor.rest().len().saturating_mul(ENTRIES_PER_BYTE) {
            return Err(CodecError::corrupt("more factors than bytes to hold them"));
        }
        let (mut row_shifts, mut column_shifts) = (vec![0; n_rows], vec![0; n_columns]);
        stream::decode_into(cursor, &mut row_shifts)?;
        stream::decode_into(cursor, &mut column_shifts)?;
        let (mut rows, mut columns) = (vec![Vec::new(); rank], vec![Vec::new(); rank]);
        for shift in groups(&shifts) {
            let members: Vec<usize> = (0..rank).filter(|&at| shifts[at] == shift).collect();
            let entries = read_entries(cursor, members.len() * (n_rows + n_columns))?;
            let (of_rows, of_columns) = entries.split_at(members.len() * n_rows);
            for (at, &member) in members.iter().enumerate() {
                rows[member] = of_rows[at * n_rows..][..n_rows].to_vec();
                columns[member] = of_columns[at * n_columns..][..n_columns].to_vec();
            }
        }
        Self::new(exponent, row_shifts, column_shifts, Factors { shifts, rows, columns })
            .ok_or(CodecError::corrupt("factor of more than 16 bits"))
    }
}

/// A sum times a power of two.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "rounded to nearest, as the format says")]
pub(super) fn scaled(sum: i32, exponent: i32) -> f32 {
    sum as f32 * f32::from_bits((exponent.clamp(-126, 96) + 127).cast_unsigned() << 23)
}

/// The shifts that occur, ascending.
fn groups(shifts: &[u8]) -> Vec<u8> {
    let mut groups = shifts.to_vec();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Entries as classes, and the bits that these keep, lowest first, without gaps.
fn write_entries(entries: &[i16], out: &mut Vec<u8>) {
    let mut symbols = Vec::with_capacity(entries.len());
    let (mut bits, mut pending, mut n_pending) = (Vec::new(), 0u32, 0);
    for &entry in entries {
        let (class, raw, raw_len) = class_of(DETAIL, u32::from(entry.unsigned_abs()));
        symbols.push(if class == 0 { 0 } else { 2 * class - 1 + u8::from(entry < 0) });
        pending |= raw << n_pending;
        n_pending += u32::from(raw_len);
        while n_pending >= 8 {
            bits.push(pending.to_le_bytes()[0]);
            pending >>= 8;
            n_pending -= 8;
        }
    }
    if n_pending > 0 {
        bits.push(pending.to_le_bytes()[0]);
    }
    stream::encode_smallest(&symbols, Allowed::Entropy, out);
    out.extend(bits);
}

fn read_entries(cursor: &mut Cursor<'_>, n: usize) -> Result<Vec<i16>, CodecError> {
    let mut symbols = vec![0; n];
    stream::decode_into(cursor, &mut symbols)?;
    let mut n_bits = 0;
    for &symbol in &symbols {
        // The longest class has 15 bits.
        if symbol > MAX_SYMBOL {
            return Err(CodecError::corrupt("class of a factor"));
        }
        n_bits += usize::from(steps_of(DETAIL, symbol.div_ceil(2)).1);
    }
    let bits = cursor.take(n_bits.div_ceil(8))?;
    if !n_bits.is_multiple_of(8) && bits.last().is_some_and(|last| last >> (n_bits % 8) != 0) {
        return Err(CodecError::corrupt("fill bits of factors"));
    }
    let mut at = 0;
    let mut entries = Vec::with_capacity(n);
    for symbol in symbols {
        let (least, raw_len) = steps_of(DETAIL, symbol.div_ceil(2));
        let word =
            [0, 1, 2].map(|byte| u32::from(bits.get(at / 8 + byte).copied().unwrap_or(0)) << (8 * byte));
        let raw = (word[0] | word[1] | word[2]) >> (at % 8) & ((1 << raw_len) - 1);
        at += usize::from(raw_len);
        let magnitude = i16::try_from(least | raw).map_err(|_| CodecError::corrupt("size of a factor"))?;
        entries.push(if symbol & 1 == 0 { -magnitude } else { magnitude });
    }
    Ok(entries)
}

/// The symbol of the largest negative entry: class 8 + 4 * 11 + 3.
const MAX_SYMBOL: u8 = 110;
