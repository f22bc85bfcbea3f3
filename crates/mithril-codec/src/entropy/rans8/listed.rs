//! Sixteen values of a plane that need not lie side by side: what sign and exponent together are.
//!
//! Signs that are mostly equal cost next to nothing when they are coded with the exponent, but then the values that
//! occur are two runs. Each table lists its values; what is not listed is an escape.

use super::Frequencies;
use super::window::{Window, sample_histogram};
use crate::arch::kernels;

/// Values of a plane that can be listed: all below this.
pub(crate) const LISTABLE: usize = 64;

/// Runs that are looked at to choose the values, where a plane is large.
const SAMPLED_RUNS: usize = 512;

/// Up to sixteen values with their frequencies. Symbol `s` stands for `values[s]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedValues {
    /// The value of every symbol; zero for symbols without a frequency.
    pub(crate) values: [u8; 16],
    /// Frequencies of the symbols.
    pub(crate) frequencies: Frequencies,
}

impl ListedValues {
    /// The values for a plane, whose values are below 64, which is turned into symbols. Positions of values that are
    /// not listed are added to `escapes`.
    pub(crate) fn choose_and_map(plane: &mut [u8], escapes: &mut Vec<u32>) -> Self {
        let histogram = sample_histogram(plane, SAMPLED_RUNS);
        let (values, n_values) = most_frequent(&histogram);
        Symbols::of(&values[..n_values]).map(plane, escapes);
        let mut counts = Window::count_nibbles(plane);
        // A value of the sample may be missing where symbols were counted, and still occur.
        counts[..n_values].iter_mut().for_each(|count| *count = (*count).max(1));
        Self { values, frequencies: Frequencies::from_counts(&counts) }
    }

    /// The values that code these counts best.
    pub fn of_counts(counts: &[u32; 256]) -> Self {
        let (values, n_values) = most_frequent(counts);
        let mut listed = [0; 16];
        for (count, &value) in listed.iter_mut().zip(&values[..n_values]) {
            *count = counts[usize::from(value)];
        }
        Self { values, frequencies: Frequencies::from_counts(&listed) }
    }

    /// Bits that these counts cost, in 256ths; escapes included, at `escape_bits` each.
    pub fn cost_bits(&self, counts: &[u32; 256], escape_bits: u64) -> u64 {
        // As a window over a plane of symbols, where one value that is no symbol stands for all escapes.
        let mut symbols = [0; 256];
        let mut escaped: u32 = counts.iter().sum();
        for (symbol, (&value, &freq)) in self.values.iter().zip(self.frequencies.bytes()).enumerate() {
            if freq > 0 {
                symbols[symbol] = counts[usize::from(value)];
                escaped = escaped.saturating_sub(symbols[symbol]);
            }
        }
        symbols[255] = escaped;
        Window { offset: 0, frequencies: self.frequencies }.cost_bits(&symbols, escape_bits)
    }
}

/// The sixteen values that occur most, or as many as occur; the lower of equals first.
fn most_frequent(counts: &[u32; 256]) -> ([u8; 16], usize) {
    let mut order: [u8; LISTABLE] = std::array::from_fn(|value| u8::try_from(value).unwrap_or(0));
    order.sort_by_key(|&value| std::cmp::Reverse(counts[usize::from(value)]));
    let n_values = order[..16].iter().filter(|&&value| counts[usize::from(value)] > 0).count();
    let mut values = [0; 16];
    values[..n_values].copy_from_slice(&order[..n_values]);
    (values, n_values)
}

/// Symbols by value.
pub(crate) struct Symbols {
    /// The symbol and [`Symbols::LISTED`], or zero.
    pub(crate) by_value: [u8; LISTABLE],
}

impl Symbols {
    /// Marks values that have a symbol.
    pub(crate) const LISTED: u8 = 0x80;

    fn of(values: &[u8]) -> Self {
        let mut by_value = [0; LISTABLE];
        for (symbol, &value) in (0..).zip(values) {
            by_value[usize::from(value)] = symbol | Self::LISTED;
        }
        Self { by_value }
    }

    /// Turns values into symbols in place. Escapes become the first symbol, that of the most frequent value.
    fn map(&self, plane: &mut [u8], escapes: &mut Vec<u32>) {
        let done = kernels().map_listed(self, plane, escapes);
        self.map_scalar(done, plane, escapes);
    }

    fn map_scalar(&self, done: usize, plane: &mut [u8], escapes: &mut Vec<u32>) {
        for (position, value) in (u32::try_from(done).unwrap_or(u32::MAX)..).zip(&mut plane[done..]) {
            let symbol = self.by_value[usize::from(*value) % LISTABLE];
            *value = symbol & !Self::LISTED;
            if symbol == 0 {
                escapes.push(position);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{kernel_sets, with_kernels};
    use crate::sizes;

    /// Two runs of values, one of them rare, and single others.
    fn plane(n: usize) -> Vec<u8> {
        let mut state = 11u64;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let exponent = u8::try_from(20 - (state >> 40 | 1 << 12).trailing_zeros()).unwrap();
                if state >> 61 == 0 { exponent + 32 } else { exponent }
            })
            .collect()
    }

    #[test]
    fn values_are_listed_mapped_and_the_others_escape() {
        for n in [1, 31, 400, 16_383, 20_000, 65_536] {
            let values = plane(n);
            let (mut symbols, mut escapes) = (values.clone(), Vec::new());
            let listed = ListedValues::choose_and_map(&mut symbols, &mut escapes);
            for (position, (&value, &symbol)) in (0..).zip(values.iter().zip(&symbols)) {
                let escaped = escapes.binary_search(&position).is_ok();
                assert_eq!(listed.values[usize::from(symbol)] == value, !escaped, "n {n} at {position}");
                assert!(listed.frequencies.bytes()[usize::from(symbol)] > 0);
            }
        }
    }

    #[test]
    fn the_kernels_map_like_the_scalar_code() {
        let map = Symbols::of(&[20, 19, 52, 18, 51, 0, 63, 17, 33, 32, 31, 15, 16, 47, 48, 7]);
        for n in (0..=400).chain([5000]).step_by(sizes(1, 133)) {
            let values: Vec<u8> = (0..n).map(|i| u8::try_from(i * 37 % 64).unwrap()).collect();
            let (mut scalar, mut scalar_escapes) = (values.clone(), Vec::new());
            map.map_scalar(0, &mut scalar, &mut scalar_escapes);
            for kernels in kernel_sets() {
                let (mut kernel, mut kernel_escapes) = (values.clone(), Vec::new());
                with_kernels(kernels, || map.map(&mut kernel, &mut kernel_escapes));
                assert!(kernel == scalar && kernel_escapes == scalar_escapes, "{kernels:?} n {n}");
            }
        }
    }

    #[test]
    fn skewed_signs_cost_less_together_with_the_exponent() {
        let mut counts = [0; 256];
        plane(10_000).iter().for_each(|&value| counts[usize::from(value)] += 1);
        let mut exponents = [0; 256];
        (0..64).for_each(|value| exponents[value % 32] += counts[value]);
        let together = ListedValues::of_counts(&counts).cost_bits(&counts, 24);
        let apart = Window::of_counts(&exponents).cost_bits(&exponents, 24) + 10_000 * 256;
        assert!(together * 10 < apart * 9, "{together} {apart}");
    }
}
