//! Sixteen consecutive values out of 256: which ones, how frequent, and what happens to the others.
//!
//! Exponents of weights lie close together, so sixteen symbols cover nearly all. A value outside the window,
//! or too rare to deserve a 256th of the probability, is an escape: it is coded as the most frequent symbol
//! and listed apart with its position.

use super::Frequencies;
use crate::arch::kernels;

/// Sixteen consecutive byte values with their frequencies. Symbol `s` stands for the value `offset + s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The value of symbol 0.
    pub offset: u8,
    /// Frequencies of the symbols.
    pub frequencies: Frequencies,
}

/// A symbol gets its own frequency only above this share. One 256th costs everyone 0.0056 bits; an escape
/// costs itself about 24.
const RARE: u64 = 4096;

/// Symbols that are counted together.
pub(crate) const COUNTED: usize = 128;

/// Planes of fewer values are counted whole.
const SAMPLED_FROM: usize = 16384;

/// One of this many groups is counted. A quarter costs 0.01 % of size and saves 13 % of encoding time.
const EVERY: usize = 4;

impl Window {
    /// The window for a plane of values, from a sample of it.
    pub(crate) fn choose(plane: &[u8]) -> Self {
        let offset = first_of_best_sixteen(&sample_histogram(plane, RUNS));
        Self::from_counts(offset, count_window(plane, offset))
    }

    /// The window for a plane of values, all of which are counted.
    pub(crate) fn choose_exactly(plane: &[u8]) -> Self {
        let offset = first_of_best_sixteen(&sample_histogram(plane, RUNS));
        Self::from_counts(offset, count_all(plane, offset))
    }

    /// How often each of the values 0 to 15 occurs in a sample of a plane.
    pub(super) fn count_nibbles(plane: &[u8]) -> [u32; 16] {
        count_window(plane, 0)
    }

    /// The window of values that all fit in sixteen symbols from zero, counted exactly.
    pub(crate) fn of_nibbles(plane: &[u8]) -> Self {
        Self { offset: 0, frequencies: Frequencies::from_counts(&count_all(plane, 0)) }
    }

    /// A window from counts of its sixteen values, where rare ones become escapes.
    pub fn from_counts(offset: u8, mut counts: [u32; 16]) -> Self {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let mut escapes = 0;
        for count in &mut counts {
            if u64::from(*count) * RARE <= total {
                escapes += *count;
                *count = 0;
            }
        }
        if let Some(most) = counts.iter_mut().max() {
            *most += escapes;
        }
        Self { offset, frequencies: Frequencies::from_counts(&counts) }
    }

    /// The window that codes these counts of 256 values best.
    pub fn of_counts(counts: &[u32; 256]) -> Self {
        let offset = first_of_best_sixteen(counts);
        let mut window = [0; 16];
        window.copy_from_slice(&counts[usize::from(offset)..][..16]);
        Self::from_counts(offset, window)
    }

    /// Bits that these counts of 256 values cost in this window, in 256ths; escapes included, at `escape_bits` each.
    pub fn cost_bits(&self, counts: &[u32; 256], escape_bits: u64) -> u64 {
        let escaped = u64::from(8 - (self.frequencies.bytes()[usize::from(self.escape_symbol())].ilog2()))
            + escape_bits;
        (0..=u8::MAX).zip(counts).fold(0, |total, (value, &count)| {
            let freq = self.frequencies.bytes().get(usize::from(value.wrapping_sub(self.offset)));
            let bits = match freq {
                Some(&freq) if freq > 0 => {
                    (u64::from(8u32 << 16) - super::super::log2_65536ths(u64::from(freq))) >> 8
                }
                _ => escaped << 8,
            };
            total + bits * u64::from(count)
        })
    }

    /// The symbol that escapes are coded as: the most frequent, the first of equals.
    pub(crate) fn escape_symbol(&self) -> u8 {
        let freq = self.frequencies.bytes();
        (0..16).rev().max_by_key(|&symbol| freq[usize::from(symbol)]).unwrap_or(0)
    }

    /// 0xff for symbols that have a frequency, 0 for the others.
    pub(crate) fn valid(&self) -> [u8; 16] {
        self.frequencies.bytes().map(|freq| if freq > 0 { 0xff } else { 0 })
    }

    /// Turns values into symbols in place, and adds the positions of escapes, counted from `first`.
    pub(crate) fn map(&self, plane: &mut [u8], first: u32, escapes: &mut Vec<u32>) {
        let done = kernels().map_window(self, plane, first, escapes);
        let (valid, escape) = (self.valid(), self.escape_symbol());
        let first = first.wrapping_add(u32::try_from(done).unwrap_or(u32::MAX));
        for (position, value) in (first..).zip(&mut plane[done..]) {
            let symbol = value.wrapping_sub(self.offset);
            if symbol < 16 && valid[usize::from(symbol)] != 0 {
                *value = symbol;
            } else {
                escapes.push(position);
                *value = escape;
            }
        }
    }

    /// The values of the symbols.
    pub(crate) fn values(&self) -> [u8; 16] {
        values_from(self.offset)
    }
}

/// Sixteen consecutive values.
pub(crate) fn values_from(first: u8) -> [u8; 16] {
    let mut values = [0; 16];
    for (symbol, value) in (0..).zip(&mut values) {
        *value = first.wrapping_add(symbol);
    }
    values
}

/// A fixed generator: sampling must not follow a period of the data (convolution filters repeat every 128
/// elements), and the bytes written must not depend on anything but the input.
struct Jitter(u32);

impl Jitter {
    fn new() -> Self {
        Self(0x9E37_79B9)
    }

    /// A number below `bound`.
    #[inline]
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((self.0 >> 8) as usize * bound) >> 24
    }
}

/// Runs that are looked at to place a window.
const RUNS: usize = 128;

/// Histogram of so many runs of eight values, or of everything when there is little.
pub(super) fn sample_histogram(plane: &[u8], n_runs: usize) -> [u32; 256] {
    const RUN: usize = 8;
    let mut histogram = [0; 256];
    let stride = plane.len() / n_runs;
    if stride < 4 * RUN {
        for &value in plane {
            histogram[usize::from(value)] += 1;
        }
        return histogram;
    }
    let mut jitter = Jitter::new();
    for region in plane.chunks_exact(stride).take(n_runs) {
        let at = jitter.below(stride - RUN + 1);
        for &value in &region[at..at + RUN] {
            histogram[usize::from(value)] += 1;
        }
    }
    histogram
}

/// Start of the sixteen consecutive values that cover most; the lowest of equals.
fn first_of_best_sixteen(histogram: &[u32; 256]) -> u8 {
    let mut covered: u32 = histogram[..16].iter().sum();
    let mut best = (covered, 0);
    for first in 1..=240u8 {
        covered = covered + histogram[usize::from(first) + 15] - histogram[usize::from(first) - 1];
        if covered > best.0 {
            best = (covered, first);
        }
    }
    best.1
}

/// Counts of the values of a window, from a sample where the plane is large.
fn count_window(plane: &[u8], offset: u8) -> [u32; 16] {
    let mut counts = [0; 16];
    if plane.len() < SAMPLED_FROM {
        count_exactly(plane, offset, &mut counts);
    } else if !kernels().count_window(plane, offset, &mut counts) {
        count_sampled(plane, offset, &mut counts);
    }
    counts
}

/// Counts of the values of a window.
fn count_all(plane: &[u8], offset: u8) -> [u32; 16] {
    let mut counts = [0; 16];
    let done = kernels().count_values(plane, offset, &mut counts);
    count_exactly(&plane[done..], offset, &mut counts);
    counts
}

fn count_exactly(values: &[u8], offset: u8, counts: &mut [u32; 16]) {
    for value in values {
        if let Some(count) = counts.get_mut(usize::from(value.wrapping_sub(offset))) {
            *count += 1;
        }
    }
}

/// The meaning of the counting kernel.
fn count_sampled(plane: &[u8], offset: u8, counts: &mut [u32; 16]) {
    let groups = plane.as_chunks::<COUNTED>().0;
    for group in sampled_groups(groups.len()) {
        count_exactly(&groups[group], offset, counts);
    }
}

/// The groups that are counted: one of every four, at a jittered place.
#[inline]
pub(crate) fn sampled_groups(n_groups: usize) -> impl Iterator<Item = usize> {
    let mut jitter = Jitter::new();
    (0..n_groups).step_by(EVERY).map(move |first| (first + jitter.below(EVERY)).min(n_groups - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{kernel_sets, with_kernels};

    fn plane(n: usize) -> Vec<u8> {
        let mut state = 7u64;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let bell: u64 = (0..6).map(|i| state >> (20 + 6 * i) & 7).sum();
                u8::try_from(100 + bell / 2 + if state >> 60 == 0 && state >> 50 & 63 == 0 { 60 } else { 0 })
                    .unwrap()
            })
            .collect()
    }

    #[test]
    fn kernels_count_and_map_like_the_scalar_code() {
        for n in [16384, 16384 + 77, 65536, 100_000] {
            let values = plane(n);
            let offset = first_of_best_sixteen(&sample_histogram(&values, RUNS));
            let mut counts = [0; 16];
            count_sampled(&values, offset, &mut counts);
            for kernels in kernel_sets() {
                let chosen = with_kernels(kernels, || Window::choose(&values));
                assert_eq!(chosen, Window::from_counts(offset, counts), "{kernels:?}");
            }
        }
        for n in (0..=400).chain([5000]) {
            let values = plane(n);
            let window = Window::choose(&plane(3000));
            let (mut mapped, mut escapes) = (values.clone(), Vec::new());
            window.map(&mut mapped, 1000, &mut escapes);
            let valid = window.valid();
            for (position, (&value, &symbol)) in values.iter().zip(&mapped).enumerate() {
                let fits =
                    value.wrapping_sub(window.offset) < 16 && valid[usize::from(value - window.offset)] != 0;
                assert_eq!(fits, !escapes.contains(&(1000 + u32::try_from(position).unwrap())), "n {n}");
                assert_eq!(
                    symbol,
                    if fits { value - window.offset } else { window.escape_symbol() },
                    "n {n}"
                );
                assert!(window.frequencies.bytes()[usize::from(symbol)] > 0);
            }
            assert!(escapes.is_sorted());
        }
    }

    #[test]
    fn counters_of_kernels_do_not_overflow() {
        for value in 0..=255u8 {
            let values = vec![value; 100_000];
            for offset in [0, 1, value, value.wrapping_sub(15)] {
                let mut counts = [0; 16];
                count_sampled(&values, offset, &mut counts);
                for kernels in kernel_sets() {
                    let counted = with_kernels(kernels, || count_window(&values, offset));
                    assert_eq!(counted, counts, "{value} from {offset} on, {kernels:?}");
                }
            }
        }
    }

    #[test]
    fn rare_values_become_escapes() {
        let mut values = plane(20000);
        values[777] = 3;
        let window = Window::choose(&values);
        let mut escapes = Vec::new();
        window.map(&mut values, 0, &mut escapes);
        assert!(escapes.contains(&777));
    }

    #[test]
    fn sixteen_values_at_the_top_are_found() {
        let values: Vec<u8> = (0..4096).map(|i| 240 + u8::try_from(i % 16).unwrap()).collect();
        let window = Window::choose(&values);
        assert_eq!(window.offset, 240);
    }
}
