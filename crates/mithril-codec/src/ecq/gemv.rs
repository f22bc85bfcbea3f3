//! Products of a coded matrix and a vector. Weights go from their codes into sums and never stand in memory.
//!
//! Blocks are not checked against their sums here: whoever keeps a matrix checks it once, when it is read. That streams
//! end where their symbols do is checked every time, as it costs nothing.
//!
//! **Arithmetic.** Levels and 8-bit activations are summed as integers, so order does not matter. bf16 weights are
//! multiplied and added in singles, each rounded: column `c` is added to the partial sum
//! `4 (c mod 64 div 16) + c mod 8 div 2`, columns ascending. Of the sixteen sums those that are eight apart are added, and
//! the eight sums `p` that are left are joined as `((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7))`. Every kernel, and
//! [`dot_plain_bf16`] over weights in memory, gives these very bits. Escapes count as zero: the caller adds them.

use super::decode::{Coded, Content};
use super::low_bits;
use crate::CodecError;
use crate::arch::kernels;
use crate::entropy::rans8::{DecodeState, DecodeTable, LANES};
use std::ops::Range;

/// The symbol of weights that are kept beside the codes.
pub const ESCAPE_SYMBOL: u8 = 15;

/// Columns whose integer sum certainly fits: levels and activations are at most 127.
pub const MAX_COLUMNS: usize = 1 << 17;

/// Exponents that the symbols of a bf16 matrix stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exponents {
    /// Upper byte of each symbol's exponent in place.
    pub(crate) high: [u8; 16],
    /// Lower byte.
    pub(crate) low: [u8; 16],
}

impl Exponents {
    /// Fifteen exponents from the first on; the last symbol is an escape and counts as zero.
    #[expect(clippy::cast_possible_truncation, reason = "bytes of sixteen bits")]
    pub fn new(first: u8) -> Self {
        let mut exponents = Self { high: [0; 16], low: [0; 16] };
        for symbol in 0..usize::from(ESCAPE_SYMBOL) {
            let exponent = first.wrapping_add(symbol as u8);
            (exponents.high[symbol], exponents.low[symbol]) = (exponent >> 1, exponent << 7);
        }
        exponents
    }

    /// The bits of a weight.
    pub fn weight(&self, symbol: u8, sign_mantissa: u8) -> u16 {
        let at = usize::from(symbol & 15);
        u16::from_be_bytes([self.high[at] | sign_mantissa & 0x80, self.low[at] | sign_mantissa & 0x7f])
    }
}

/// Partial sums of a row.
pub(crate) const PARTIAL_SUMS: usize = 16;

/// Columns in which each partial sum is added to four times.
pub(crate) const PIECE: usize = 64;

/// Activations in the order in which kernels take them: of 64 columns those that are added to the partial sums first, then
/// those that come second, and so on.
#[derive(Debug, Clone, PartialEq)]
pub struct Activations(Vec<f32>);

/// The column of a piece that is the given addition to a partial sum.
const fn column(addition: usize, sum: usize) -> usize {
    16 * (sum / 4) + 8 * (addition / 2) + 2 * (sum % 4) + addition % 2
}

impl Activations {
    /// Arranges activations for a matrix with so many padded columns; the padding is zero.
    ///
    /// # Panics
    /// When there are more than those.
    pub fn new(x: &[f32], padded_columns: usize) -> Self {
        let mut natural = x.to_vec();
        assert!(x.len() <= padded_columns, "an activation for every column");
        natural.resize(padded_columns.next_multiple_of(PIECE), 0.0);
        let mut arranged = Vec::with_capacity(natural.len());
        for piece in natural.as_chunks::<PIECE>().0 {
            for addition in 0..PIECE / PARTIAL_SUMS {
                arranged.extend((0..PARTIAL_SUMS).map(|sum| piece[column(addition, sum)]));
            }
        }
        Self(arranged)
    }

    /// For every 64 columns the four additions to all partial sums.
    pub(crate) fn pieces(&self) -> &[[[f32; PARTIAL_SUMS]; 4]] {
        self.0.as_chunks().0.as_chunks().0
    }
}

/// Four blocks of a matrix whose symbols kernels multiply as they decode them.
pub(crate) struct FourBlocks<'a> {
    pub(crate) table: &'a DecodeTable,
    /// The bytes that hold their streams.
    pub(crate) data: &'a [u8],
    /// Low bits of the rows of each.
    pub(crate) low: [&'a [u8]; 4],
    /// Rows of each.
    pub(crate) rows: usize,
}

/// The sum of a row, whose weights come 64 at a time in their natural order.
fn sum_of(row: impl Iterator<Item = [f32; PIECE]>, x: &Activations) -> f32 {
    let mut p = [0f32; PARTIAL_SUMS];
    for (weights, x) in row.zip(x.pieces()) {
        for (addition, x) in x.iter().enumerate() {
            for (sum, (p, x)) in p.iter_mut().zip(x).enumerate() {
                *p += weights[column(addition, sum)] * x;
            }
        }
    }
    join(p)
}

/// The partial sums in one.
pub(crate) fn join(p: [f32; PARTIAL_SUMS]) -> f32 {
    let p: [f32; 8] = std::array::from_fn(|at| p[at] + p[at + 8]);
    ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
}

/// Products of rows of plain bf16 weights: what coded weights are compared with, in bits and in speed.
///
/// # Panics
/// When the rows do not fit the activations: each has as many weights as there are of those.
pub fn dot_plain_bf16(weights: &[u8], x: &Activations, out: &mut [f32]) {
    let columns = x.0.len();
    assert_eq!(weights.len(), 2 * columns * out.len(), "a row for every product");
    if kernels().dot_plain_bf16(weights, x, out) {
        return;
    }
    for (row, out) in weights.chunks_exact(2 * columns).zip(out) {
        let single = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        let pieces = row.as_chunks::<2>().0.as_chunks::<PIECE>().0;
        *out = sum_of(pieces.iter().map(|piece| piece.each_ref().map(single)), x);
    }
}

/// Sums of levels times 8-bit activations, for rows whose codes stand in memory with four bits each: what coded levels
/// are compared with.
///
/// # Panics
/// When levels, activations or sums do not fit the rows.
pub fn dot_plain_levels(packed: &[u8], levels: &[i8], x: &[i8], out: &mut [i32]) {
    let row_len = x.len() / 2;
    assert!(levels.len() == 16 && x.len().is_multiple_of(64) && x.len() <= MAX_COLUMNS);
    assert_eq!(packed.len(), row_len * out.len(), "a row for every sum");
    if kernels().dot_plain_levels(packed, levels, x, out) {
        return;
    }
    let mut codes = vec![0; x.len()];
    for (row, out) in packed.chunks_exact(row_len).zip(out) {
        low_bits::unpack(4, row, &mut codes);
        let term = |(&code, &x): (&u8, &i8)| i32::from(levels[usize::from(code)]) * i32::from(x);
        *out = codes.iter().zip(x).map(term).sum();
    }
}

impl Coded<'_> {
    /// Sums of levels times 8-bit activations, for the rows of some blocks.
    ///
    /// # Errors
    /// When a block is damaged.
    ///
    /// # Panics
    /// When levels, activations or sums do not fit the matrix, or it has more than [`MAX_COLUMNS`].
    pub fn dot_levels(
        &self,
        blocks: Range<usize>,
        levels: &[i8],
        x: &[i8],
        out: &mut [i32],
    ) -> Result<(), CodecError> {
        let shape = *self.shape();
        let padded = shape.padded_columns();
        assert!(levels.len() == 1 << (4 + shape.low_bits()) && x.len() == padded && padded <= MAX_COLUMNS);
        let rows_per_block = shape.rows_per_block();
        let mut symbols = Vec::new();
        for (first, out) in blocks.clone().step_by(4).zip(out.chunks_mut(4 * rows_per_block)) {
            let four = first..(first + 4).min(blocks.end);
            let mut done = 0;
            if shape.low_bits() <= 2
                && let Some((mut state, table)) = self.state_of_four(four.clone())?
            {
                let low = std::array::from_fn(|idx| self.low_rows(shape.rows_of(four.start + idx)));
                let four = FourBlocks { table, data: self.compressed(), low, rows: rows_per_block };
                done = kernels().ecq_dot_levels(state.streams(), &four, levels, x, out);
                if done == rows_per_block {
                    self.check_ends(&state)?;
                    continue;
                }
            }
            // What the kernel could not reach is decoded again from the start of the blocks.
            for (idx, out) in four.zip(out.chunks_mut(rows_per_block)) {
                symbols.resize(shape.n_symbols(idx), 0);
                self.decode_unchecked(idx, &mut symbols)?;
                let first_row = shape.rows_of(idx).start;
                let rows = symbols.chunks_exact(padded).zip(out).enumerate().skip(done);
                for (row, (symbols, out)) in rows {
                    *out = self.level_sum(first_row + row, symbols, levels, x);
                }
            }
        }
        Ok(())
    }

    fn level_sum(&self, row: usize, symbols: &[u8], levels: &[i8], x: &[i8]) -> i32 {
        let n_low = self.shape().low_bits();
        let mut low = vec![0; symbols.len()];
        low_bits::unpack(n_low, self.low_rows(row..row + 1), &mut low);
        let term = |((&symbol, &low), &x): ((&u8, &u8), &i8)| {
            i32::from(levels[usize::from(symbol) << n_low | usize::from(low)]) * i32::from(x)
        };
        symbols.iter().zip(&low).zip(x).map(term).sum()
    }

    /// Products of bf16 weights, for the rows of some blocks.
    ///
    /// # Errors
    /// When a block is damaged.
    ///
    /// # Panics
    /// When it is no matrix of bf16 weights, or activations or products do not fit it.
    pub fn dot_bf16(
        &self,
        blocks: Range<usize>,
        exponents: &Exponents,
        x: &Activations,
        out: &mut [f32],
    ) -> Result<(), CodecError> {
        let shape = *self.shape();
        let padded = shape.padded_columns();
        assert!(shape.low_bits() == 8 && x.0.len() == padded, "bf16 weights and an activation for each");
        let rows_per_block = shape.rows_per_block();
        let mut symbols = Vec::new();
        for (first, out) in blocks.clone().step_by(4).zip(out.chunks_mut(4 * rows_per_block)) {
            let four = first..(first + 4).min(blocks.end);
            let mut done = 0;
            if let Some((mut state, table)) = self.state_of_four(four.clone())? {
                let low = std::array::from_fn(|idx| self.low_rows(shape.rows_of(four.start + idx)));
                let four = FourBlocks { table, data: self.compressed(), low, rows: rows_per_block };
                done = kernels().ecq_dot_bf16(state.streams(), &four, exponents, x, out);
                if done == rows_per_block {
                    self.check_ends(&state)?;
                    continue;
                }
            }
            for (idx, out) in four.zip(out.chunks_mut(rows_per_block)) {
                let low = self.low_rows(shape.rows_of(idx));
                if let Content::Packed(packed) = self.block(idx)?.content
                    && kernels().ecq_dot_bf16_packed(packed, low, exponents, x, out)
                {
                    continue;
                }
                symbols.resize(shape.n_symbols(idx), 0);
                self.decode_unchecked(idx, &mut symbols)?;
                let rows = symbols.chunks_exact(padded).zip(low.chunks_exact(padded)).zip(out).skip(done);
                for ((symbols, low), out) in rows {
                    let pieces = symbols.as_chunks::<PIECE>().0.iter().zip(low.as_chunks::<PIECE>().0);
                    let weights = pieces.map(|(symbols, low)| {
                        std::array::from_fn(|at| {
                            f32::from_bits(u32::from(exponents.weight(symbols[at], low[at])) << 16)
                        })
                    });
                    *out = sum_of(weights, x);
                }
            }
        }
        Ok(())
    }

    /// The streams of four whole blocks that share a table, and that table.
    fn state_of_four(
        &self,
        four: Range<usize>,
    ) -> Result<Option<(DecodeState<4>, &DecodeTable)>, CodecError> {
        if four.len() != 4 || self.shape().rows_of(four.end - 1).len() != self.shape().rows_per_block() {
            return Ok(None);
        }
        let mut planes = [[0; 2 * LANES]; 4];
        let (mut at, mut ends) = ([0; 4], [0; 4]);
        let mut shared = None;
        for (idx, block) in four.enumerate() {
            let Content::Rans8 { table, states, stream } = self.block(block)?.content else {
                return Ok(None);
            };
            if *shared.get_or_insert(table) != table {
                return Ok(None);
            }
            (planes[idx], at[idx], ends[idx]) = (*states, stream.start, stream.end);
        }
        let table = &self.tables()[shared.unwrap_or(0)];
        Ok(Some((DecodeState::of_streams(planes, at, ends)?, table)))
    }
}
