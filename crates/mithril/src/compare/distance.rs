//! How far the elements of two tensors are apart.

use super::number::Number;
use mithril_codec::Dtype;

/// How far two tensors of the same dtype and shape are apart.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Distance {
    /// Elements of each; bytes, for types whose elements are no single number.
    pub n_elements: u64,
    /// Elements whose bits differ.
    pub n_changed: u64,
    /// The largest difference of two values; nothing when no changed element has a finite value on both sides.
    pub max_abs: Option<f64>,
    /// The mean difference over all elements, with equal ones as zero and infinite ones left out.
    pub mean_abs: f64,
    /// The largest number of steps between neighbouring numbers; nothing for types whose elements are no numbers.
    pub max_ulp: Option<u64>,
    /// Changed elements that are not finite on one side or both.
    pub n_not_finite: u64,
}

/// Measures pieces of two tensors.
pub(super) struct Meter {
    number: Option<Number>,
    bits: u32,
    distance: Distance,
    sum_abs: f64,
}

impl Meter {
    pub(super) fn new(dtype: Dtype) -> Self {
        let number = Number::of(dtype);
        // What is no number is compared by bytes.
        let bits = if number.is_some() { dtype.bits() } else { 8 };
        Self { number, bits, distance: Distance::default(), sum_abs: 0.0 }
    }

    /// Measures some whole elements, or whole groups of them for types narrower than a byte.
    pub(super) fn add(&mut self, a: &[u8], b: &[u8]) {
        self.distance.n_elements += a.len() as u64 * 8 / u64::from(self.bits);
        if a == b {
            return;
        }
        match self.bits {
            4 | 6 => self.add_groups(a, b),
            bits => {
                let width = bits as usize / 8;
                for (a, b) in a.chunks_exact(width).zip(b.chunks_exact(width)) {
                    if a != b {
                        self.change(code(a), code(b));
                    }
                }
            }
        }
    }

    /// Four-bit elements lie two to a byte, six-bit ones four to three bytes, the first in the lowest bits.
    fn add_groups(&mut self, a: &[u8], b: &[u8]) {
        let bits = self.bits;
        let group_len = if bits == 4 { 1 } else { 3 };
        let per_group = if bits == 4 { 2 } else { 4 };
        let mask = (1 << bits) - 1;
        for (a, b) in a.chunks(group_len).zip(b.chunks(group_len)) {
            let (a_group, b_group) = (code(a), code(b));
            for shift in (0..per_group).map(|idx| idx * bits) {
                let (a, b) = (a_group >> shift & mask, b_group >> shift & mask);
                if a != b {
                    self.change(a, b);
                }
            }
        }
    }

    fn change(&mut self, a: u64, b: u64) {
        self.distance.n_changed += 1;
        let Some(number) = self.number else { return };
        let steps = number.place(a, self.bits).abs_diff(number.place(b, self.bits));
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        self.distance.max_ulp = self.distance.max_ulp.max(Some(steps));
        let difference = (number.value(a, self.bits) - number.value(b, self.bits)).abs();
        if !difference.is_finite() {
            self.distance.n_not_finite += 1;
            return;
        }
        self.sum_abs += difference;
        self.distance.max_abs = Some(self.distance.max_abs.map_or(difference, |max| max.max(difference)));
    }

    pub(super) fn finish(self) -> Distance {
        let mean_abs = self.sum_abs / self.distance.n_elements.max(1) as f64;
        Distance { mean_abs, ..self.distance }
    }
}

/// Little-endian bytes as a number.
fn code(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |code, &byte| code << 8 | u64::from(byte))
}
