//! Products of quantised weights with vectors: codes become weights in registers and never stand in memory.
//!
//! **Arithmetic.** Weights are those of [`super::values`], bit for bit. Each is multiplied and added in singles, each
//! operation rounded: column `c` is added to the partial sum `c mod 32`, columns ascending, and the 32 sums are joined by
//! halves, `p[i] + p[i + 16]` first, then 8, 4, 2 and 1 apart. Every kernel, any number of vectors at once, and
//! [`dot_singles`] over weights in memory give these very bits.

use super::values::{Groups, Numbers};
use crate::arch::kernels;
use crate::ecq::low_bits;

/// Partial sums of a product.
pub(crate) const PARTIAL_SUMS: usize = 32;

/// Some vectors of one length, each behind the other, with zeros up to a multiple of 64.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    columns: usize,
    padded: Vec<f32>,
}

impl Inputs {
    /// Vectors of so many columns, one behind the other.
    ///
    /// # Panics
    /// When they are not whole vectors.
    pub fn new(x: &[f32], columns: usize) -> Self {
        assert!(columns > 0 && x.len().is_multiple_of(columns), "whole vectors");
        let padded_columns = columns.next_multiple_of(64);
        let mut padded = Vec::with_capacity(x.len() / columns * padded_columns);
        for x in x.chunks_exact(columns) {
            padded.extend(x);
            padded.resize(padded.len().next_multiple_of(padded_columns), 0.0);
        }
        Self { columns, padded }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.padded.len() / self.padded_columns()
    }

    /// Numbers of each.
    pub fn columns(&self) -> usize {
        self.columns
    }

    fn padded_columns(&self) -> usize {
        self.columns.next_multiple_of(64)
    }
}

/// A row of codes in the layout of [`crate::ecq`].
#[derive(Debug, Clone, Copy)]
pub struct CodeRow<'a> {
    /// Symbols, padded to a multiple of 64.
    pub symbols: &'a [u8],
    /// Bits below each symbol.
    pub n_low: u8,
    /// Their plane.
    pub low_bits: &'a [u8],
    /// What symbols and low bits stand for.
    pub numbers: &'a Numbers,
    /// Scales.
    pub groups: &'a Groups,
}

impl CodeRow<'_> {
    /// Its product with every vector.
    ///
    /// # Panics
    /// When the row is not as long as the vectors, or `out` has no place for each of them.
    pub fn dot(&self, x: &Inputs, out: &mut [f32]) {
        let (columns, padded) = (x.columns, x.padded_columns());
        assert!(self.symbols.len() == padded && out.len() == x.count(), "vectors of the row's length");
        assert_eq!(self.low_bits.len(), padded / 8 * usize::from(self.n_low), "low bits of a row");
        assert_eq!(self.groups.scales.len(), columns.div_ceil(self.groups.len), "scales of a row");
        // Kernels take 32 columns of whole groups.
        let has_kernel = columns.is_multiple_of(32)
            && (self.groups.len.is_multiple_of(32) || self.groups.len == 16)
            && columns.is_multiple_of(self.groups.len)
            && matches!(
                (self.numbers, self.n_low),
                (Numbers::Listed(_), 0) | (Numbers::Signed { .. } | Numbers::Whole, 1 | 2 | 4)
            );
        if has_kernel && kernels().dot_codes(self, columns, &x.padded, out) {
            return;
        }
        let (mut codes, mut weights) = (vec![0; padded], vec![0.0; columns]);
        low_bits::unpack(self.n_low, self.low_bits, &mut codes);
        codes.iter_mut().zip(self.symbols).for_each(|(code, symbol)| *code |= symbol << self.n_low);
        self.groups.weights(self.numbers, &codes[..columns], &mut weights);
        for (x, out) in x.padded.chunks_exact(padded).zip(out) {
            *out = dot_singles(&weights, &x[..columns]);
        }
    }
}

/// The product of weights in memory and a vector, in the order of this module.
///
/// # Panics
/// When there are not as many weights as numbers of the vector.
pub fn dot_singles(weights: &[f32], x: &[f32]) -> f32 {
    assert_eq!(weights.len(), x.len(), "a weight for every number");
    let mut sums = [0f32; PARTIAL_SUMS];
    let (pieces, rest) = weights.as_chunks::<PARTIAL_SUMS>();
    let (x_pieces, x_rest) = x.as_chunks::<PARTIAL_SUMS>();
    for (weights, x) in pieces.iter().zip(x_pieces) {
        for ((sum, weight), x) in sums.iter_mut().zip(weights).zip(x) {
            *sum += weight * x;
        }
    }
    for ((sum, weight), x) in sums.iter_mut().zip(rest).zip(x_rest) {
        *sum += weight * x;
    }
    join(sums)
}

/// The partial sums in one.
pub(crate) fn join(mut sums: [f32; PARTIAL_SUMS]) -> f32 {
    let mut len = PARTIAL_SUMS / 2;
    while len > 0 {
        for at in 0..len {
            sums[at] += sums[at + len];
        }
        len /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{kernel_sets, with_kernels};
    use crate::sizes;

    #[test]
    fn kernels_give_the_products_of_weights_in_memory() {
        let listed = Numbers::Listed(std::array::from_fn(|code| code as f32 - 7.5));
        let kinds = [
            (listed, 0),
            (Numbers::Signed { less: 16 }, 1),
            (Numbers::Signed { less: 0 }, 2),
            (Numbers::Whole, 4),
        ];
        let shapes: [(usize, usize); 8] =
            [(32, 32), (96, 32), (576, 64), (256, 16), (48, 16), (640, 128), (30, 10), (70, 64)];
        for ((numbers, n_low), (columns, len)) in
            kinds.iter().flat_map(|kind| shapes.map(|shape| (*kind, shape))).step_by(sizes(1, 5))
        {
            let padded = columns.next_multiple_of(64);
            let byte = |at: usize| u8::try_from(at * 89 % 251).unwrap();
            let symbols: Vec<u8> = (0..padded).map(|at| byte(at) % 16).collect();
            let low: Vec<u8> = (0..padded / 8 * usize::from(n_low)).map(byte).collect();
            let n_groups = columns.div_ceil(len);
            let groups = Groups {
                len,
                scales: (0..n_groups).map(|at| 0.01 + at as f32 / 977.0).collect(),
                offsets: (0..n_groups).map(|at| if at % 3 == 0 { -0.0 } else { at as f32 / -31.0 }).collect(),
            };
            let row =
                CodeRow { symbols: &symbols, n_low, low_bits: &low, numbers: &numbers, groups: &groups };
            let mut codes = vec![0; padded];
            low_bits::unpack(n_low, &low, &mut codes);
            codes.iter_mut().zip(&symbols).for_each(|(code, symbol)| *code |= symbol << n_low);
            let mut weights = vec![0.0; columns];
            groups.weights(&numbers, &codes[..columns], &mut weights);
            for n in [1, 2, 3, 4, 7].into_iter().step_by(sizes(1, 3)) {
                let x: Vec<f32> = (0..n * columns).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
                let wanted: Vec<u32> =
                    x.chunks_exact(columns).map(|x| dot_singles(&weights, x).to_bits()).collect();
                let inputs = Inputs::new(&x, columns);
                assert_eq!((inputs.count(), inputs.columns()), (n, columns));
                for kernels in kernel_sets() {
                    let mut out = vec![0.0; n];
                    with_kernels(kernels, || row.dot(&inputs, &mut out));
                    let bits: Vec<u32> = out.iter().map(|sum| sum.to_bits()).collect();
                    assert_eq!(bits, wanted, "{numbers:?}, {columns} columns, groups of {len}, {kernels:?}");
                }
            }
        }
    }
}
