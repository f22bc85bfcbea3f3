//! One block given a prediction of each of its numbers and how far off it is likely to be.
//!
//! # Idea
//!
//! A prediction `p` comes from the base (the same tensor a few steps earlier), from a matrix of low rank that the frame
//! carries, from both, or is zero. How far off it will be is known too: each row and each column has a scale. The
//! ratio of the two says how many steps of the last place to expect, and it is the context of the element:
//!
//! * where `p` is large beside the scale, the element is coded as its distance from `p` in steps, by sign and class;
//! * where it is not, a distance would cross zero, and the element's own size, relative to the scale, is coded.
//!
//! ```text
//! shared tables   how p is made, scales, factors, a table for each run of contexts
//! block           symbols, table by table (rANS12), then the bits that classes keep, then the tail
//! ```
//! All contexts follow from the base and the shared tables, so a block is decoded in whole arrays. The arithmetic is
//! part of the format: integers, and single operations on f32 whose results IEEE 754 fixes. The exact rules are in
//! `docs/format/frame.md`, "Predicted" and "Shared prediction".

mod decode;
mod encode;
mod low_rank;
mod predictor;
mod products;
mod section;
mod symbols;
mod tables;
pub(crate) mod tile;

#[cfg(test)]
mod tests;

pub(crate) use decode::{CodedElements, TableRules, decode};
pub(crate) use encode::encode;
pub use encode::{Counts, count};
pub use low_rank::{Factors, LowRank};
pub use predictor::{Matrix, Predictor};
pub use products::{PRODUCT_COLUMNS, add_products};
#[cfg(all(target_arch = "x86_64", not(feature = "scalar-only")))]
pub(crate) use symbols::LOWEST_SIZE;
pub use tables::Tables;

use crate::delta::count_16;
use crate::delta::raw::RawCounts;
use crate::entropy::rans12::DecodeTable;
use std::sync::OnceLock;

/// A type of number that can be predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Eight bits of exponent, seven of mantissa.
    Bf16,
    /// Five bits of exponent, ten of mantissa. Predicted by its base as it is, or by zero.
    F16,
    /// Eight bits of exponent, 23 of mantissa.
    F32,
}

impl Format {
    /// The format of this dtype, if it can be predicted.
    pub fn of(dtype: crate::Dtype) -> Option<Self> {
        match dtype {
            crate::Dtype::Bf16 => Some(Self::Bf16),
            crate::Dtype::F16 => Some(Self::F16),
            crate::Dtype::F32 => Some(Self::F32),
            _ => None,
        }
    }

    /// Bytes of a number.
    pub const fn width(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Bits of a number.
    const fn bits(self) -> u32 {
        match self {
            Self::Bf16 | Self::F16 => 16,
            Self::F32 => 32,
        }
    }

    /// Bits of the mantissa.
    pub const fn mantissa(self) -> u32 {
        match self {
            Self::Bf16 => 7,
            Self::F16 => 10,
            Self::F32 => 23,
        }
    }

    /// Runs with the format as a constant, so that the compiler writes a loop for each.
    #[inline(always)]
    fn known<T>(self, work: impl FnOnce(Self) -> T) -> T {
        match self {
            Self::Bf16 => work(Self::Bf16),
            Self::F16 => work(Self::F16),
            Self::F32 => work(Self::F32),
        }
    }

    /// The size of a number in half octaves.
    #[inline(always)]
    pub(crate) fn size(self, x: u32) -> i32 {
        let magnitude = x & (u32::MAX >> (33 - 8 * self.width()));
        (magnitude >> (self.mantissa() - 1)).cast_signed()
    }
}

/// How the numbers of a tensor are predicted and coded: what its blocks share.
#[derive(Debug, Clone)]
pub struct Prediction {
    pub(crate) predictor: Predictor,
    pub(crate) tables: Tables,
    /// The decoding form of the tables, which is large: built by the first block that is decoded.
    decode: OnceLock<Vec<DecodeTable>>,
}

impl Prediction {
    /// A predictor with tables that have every symbol its tensor needs.
    pub fn new(predictor: Predictor, tables: Tables) -> Self {
        Self { predictor, tables, decode: OnceLock::new() }
    }

    /// The tables in their decoding form.
    fn decode_tables(&self) -> &[DecodeTable] {
        self.decode.get_or_init(|| self.tables.all().map(DecodeTable::new).collect())
    }

    /// Elements of a row, if blocks must hold rows whole.
    pub fn row_len(&self) -> Option<usize> {
        self.predictor.matrix.as_ref().map(|matrix| matrix.row_len)
    }
}

/// How many elements keep how many bits, of which there are at most 32.
fn count_raw_lens(raw_lens: &[u8]) -> RawCounts {
    let mut counts = [0; 64];
    let mut n_counted = 0;
    for (first, counts) in (0u8..).step_by(16).zip(counts.as_chunks_mut::<16>().0).take(3) {
        // Few elements keep many bits; often none does.
        if n_counted == raw_lens.len() {
            break;
        }
        *counts = count_16(raw_lens, first);
        n_counted += counts.iter().sum::<usize>();
    }
    counts
}

/// Contexts: sizes of the prediction relative to the scale, from `-LOWEST` half octaves on.
pub(crate) const N_CONTEXTS: usize = 53;
const LOWEST: i32 = 8;
/// Contexts below this code the element's own size.
pub(crate) const N_VALUE_CONTEXTS: usize = 11;

/// Buffers that blocks reuse.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Prediction of every element.
    predicted: Vec<u32>,
    /// Context of every element, then its table.
    contexts: Vec<u8>,
    /// Scale of every element.
    scales: Vec<i16>,
    symbols: Vec<u8>,
    /// Symbols as the coder sees them, table by table.
    bucketed: Vec<u8>,
    /// How many bits every element keeps, those above whole bytes, and the bytes.
    raw_lens: Vec<u8>,
    raw_bits: Vec<u8>,
    low_bytes: [Vec<u8>; 4],
    /// Sums of some rows.
    sums: Vec<i32>,
}
