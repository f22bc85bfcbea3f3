//! Levels at equal distances, and the codes that name them.

use crate::ecq::Escape;
use crate::entropy::log2_65536ths;
use crate::entropy::rans8::Frequencies;
use crate::narrow::to_bf16;

/// A family of levels: how a code becomes a multiple of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// Sixteen levels from -8 to 7 steps, zero among them: for few bits.
    Zero4,
    /// A sign and sixteen magnitudes of half steps, no zero.
    Halves5,
    /// A sign and 32 magnitudes of half steps; pairs of magnitudes share a symbol.
    Halves6,
    /// 256 levels from -128 to 127 steps; sixteen share a symbol.
    Zero8,
}

/// A quantised matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantised {
    /// Which levels.
    pub grid: Grid,
    /// What levels are multiplied by: one number for all rows, or one for each.
    pub scales: Vec<f32>,
    /// What they are also multiplied by, for each column; nothing where columns have no steps of their own.
    pub column_scales: Vec<f32>,
    /// The level of each code.
    pub levels: Vec<i8>,
    /// The code of each weight.
    pub codes: Vec<u8>,
    /// Weights beyond all levels, which are kept.
    pub escapes: Vec<Escape>,
    /// Sum of squared errors.
    pub squared_error: f64,
    /// Sum of squares of the weights that are no outliers.
    pub energy: f64,
    /// Bits that codes and escapes take, up to the overhead of blocks.
    pub bits: f64,
}

impl Grid {
    /// All of them, those with fewer bits first.
    pub const ALL: [Self; 4] = [Self::Zero4, Self::Halves5, Self::Halves6, Self::Zero8];

    /// Bits of a code.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Zero4 => 4,
            Self::Halves5 => 5,
            Self::Halves6 => 6,
            Self::Zero8 => 8,
        }
    }

    /// Units of a level in a step: levels are whole numbers of eight bits, and the farthest must fit.
    const fn units(self) -> f32 {
        match self {
            Self::Zero4 => 15.0,
            Self::Halves5 => 8.0,
            Self::Halves6 => 4.0,
            Self::Zero8 => 1.0,
        }
    }

    /// The code of a weight in steps, and whether it is beyond the last level.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a cast of floats saturates, and codes are clamped")]
    fn code(self, x: f32) -> (u8, bool) {
        match self {
            Self::Zero4 => {
                let q = x.round_ties_even();
                ((q.clamp(-8.0, 7.0) + 8.0) as u8, !(-8.5..=7.5).contains(&x))
            }
            Self::Zero8 => {
                let q = x.round_ties_even();
                ((q.clamp(-128.0, 127.0) + 128.0) as u8, !(-128.5..=127.5).contains(&x))
            }
            Self::Halves5 | Self::Halves6 => {
                let most = if matches!(self, Self::Halves5) { 15.0f32 } else { 31.0 };
                let magnitude = x.abs().min(most) as u8;
                (magnitude << 1 | u8::from(x < 0.0), x.abs() > most + 1.0)
            }
        }
    }

    /// The middle of a code's interval, in steps.
    fn middle(self, code: u8) -> f32 {
        match self {
            Self::Zero4 => f32::from(code) - 8.0,
            Self::Zero8 => f32::from(code) - 128.0,
            Self::Halves5 | Self::Halves6 => {
                let magnitude = f32::from(code >> 1) + 0.5;
                if code & 1 == 1 { -magnitude } else { magnitude }
            }
        }
    }

    /// Levels as whole units: means of the weights of each code, or middles where there are none.
    #[expect(clippy::cast_possible_truncation, reason = "levels are clamped to eight bits")]
    fn levels(self, sums: &[f64], counts: &[u64]) -> Vec<i8> {
        let level = |code: u8| {
            let at = usize::from(code);
            let mean = if counts[at] > 0 { (sums[at] / counts[at] as f64) as f32 } else { self.middle(code) };
            // Means of few weights wander; they never leave their interval.
            let mean = mean.clamp(self.middle(code) - 0.5, self.middle(code) + 0.5);
            (mean * self.units()).round_ties_even().clamp(-127.0, 127.0) as i8
        };
        (0..1u16 << self.bits()).map(|code| level(u8::try_from(code).unwrap_or(0))).collect()
    }
}

/// The steps of a matrix: that of a weight is its row's times its column's.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a> {
    /// One for every row, or one for all.
    pub rows: &'a [f32],
    /// One for every column, or nothing if all are 1. Scales are rounded to bf16 then, so that every weight is an exact
    /// product.
    pub columns: &'a [f32],
}

/// Quantises the rows of a matrix with this step. A step of zero, and weights that are no numbers, are for the caller to
/// keep out.
///
/// Weights of larger magnitude than `outlier` are kept as they are, and count neither as error nor as energy: one of
/// 1e30 would hide that nothing is left of all others.
///
/// # Panics
/// When the weights are no whole rows.
pub fn quantize(grid: Grid, step: f32, outlier: f32, columns: usize, weights: &[f32]) -> Quantised {
    quantize_by(grid, Steps { rows: &[step], columns: &[] }, outlier, columns, weights)
}

/// As [`quantize`], with steps of rows and columns.
///
/// # Panics
/// When the weights are no whole rows, or have another number of steps.
pub fn quantize_by(grid: Grid, steps: Steps<'_>, outlier: f32, columns: usize, weights: &[f32]) -> Quantised {
    assert!(columns > 0 && weights.len().is_multiple_of(columns), "whole rows");
    let (n_row_steps, n_column_steps) = (steps.rows.len(), steps.columns.len());
    assert!(n_row_steps == 1 || n_row_steps == weights.len() / columns, "a step for every row, or one");
    assert!(n_column_steps == 0 || n_column_steps == columns, "a step for every column, or none");
    let column_scales: Vec<f32> = steps.columns.iter().map(|&step| bf16_of(step)).collect();
    let scale_of = |step: &f32| step / grid.units();
    let scales: Vec<f32> = if column_scales.is_empty() {
        steps.rows.iter().map(scale_of).collect()
    } else {
        steps.rows.iter().map(|step| bf16_of(scale_of(step))).collect()
    };
    let row_steps: Vec<f32> = if column_scales.is_empty() {
        steps.rows.to_vec()
    } else {
        scales.iter().map(|scale| scale * grid.units()).collect()
    };
    let step_of = |row: usize| row_steps[if n_row_steps == 1 { 0 } else { row }];
    // Factors of one change nothing.
    let column_steps = if column_scales.is_empty() { vec![1.0; columns] } else { column_scales.clone() };
    let reciprocals: Vec<f32> = column_steps.iter().map(|step| 1.0 / step).collect();
    let n_codes = 1 << grid.bits();
    let (mut sums, mut counts) = (vec![0f64; n_codes], vec![0u64; n_codes]);
    let mut codes = Vec::with_capacity(weights.len());
    let mut escapes = Vec::new();
    for (row, weights) in weights.chunks_exact(columns).enumerate() {
        let reciprocal = 1.0 / step_of(row);
        for (column, (&weight, own)) in weights.iter().zip(&reciprocals).enumerate() {
            let x = weight * (reciprocal * own);
            let (code, is_beyond) = grid.code(x);
            codes.push(code);
            if is_beyond || weight.abs() > outlier {
                escapes.push(Escape { row, column, value: weight });
            } else {
                sums[usize::from(code)] += f64::from(x);
                counts[usize::from(code)] += 1;
            }
        }
    }
    let levels = grid.levels(&sums, &counts);
    let (mut squared_error, mut energy) = (0f64, 0f64);
    // In steps, whose squares are single-precision numbers whatever the weights are.
    let unit = grid.units().recip();
    // Kept weights have no error. Theirs would be so large that a sum could not be rid of it again.
    let mut kept = escapes.iter().peekable();
    for (row_idx, (row, codes)) in weights.chunks_exact(columns).zip(codes.chunks_exact(columns)).enumerate()
    {
        let step = step_of(row_idx);
        let reciprocal = 1.0 / step;
        // Partial sums in single precision are exact enough for a row, and fast.
        let (mut row_error, mut row_energy) = (0f32, 0f32);
        for (column, ((&weight, &code), own)) in row.iter().zip(codes).zip(&column_steps).enumerate() {
            let x = weight * reciprocal;
            if kept.next_if(|escape| escape.row == row_idx && escape.column == column).is_none() {
                let error = x - own * (unit * f32::from(levels[usize::from(code)]));
                row_error += error * error;
            }
            if weight.abs() <= outlier {
                row_energy += x * x;
            }
        }
        let square = f64::from(step) * f64::from(step);
        squared_error += f64::from(row_error) * square;
        energy += f64::from(row_energy) * square;
    }
    let bits = coded_bits(grid, &codes) + 64.0 * escapes.len() as f64;
    Quantised { grid, scales, column_scales, levels, codes, escapes, squared_error, energy, bits }
}

/// The nearest bf16, as a single.
fn bf16_of(value: f32) -> f32 {
    f32::from_bits(u32::from(to_bf16(value.to_bits())) << 16)
}

/// Bits of codes with the frequencies that they would get.
fn coded_bits(grid: Grid, codes: &[u8]) -> f64 {
    let low_bits = grid.bits() - 4;
    let mut counts = [0u32; 16];
    codes.iter().for_each(|&code| counts[usize::from(code >> low_bits)] += 1);
    let frequencies = Frequencies::from_counts(&counts);
    let bits = |(&count, &freq): (&u32, &u8)| {
        f64::from(count) * (8.0 - log2_65536ths(u64::from(freq.max(1))) as f64 / 65536.0)
    };
    let symbols: f64 = counts.iter().zip(frequencies.bytes()).map(bits).sum();
    symbols + f64::from(low_bits) * codes.len() as f64
}

impl Quantised {
    /// The weights that the codes stand for.
    pub fn decode(&self, columns: usize) -> Vec<f32> {
        let mut weights = Vec::with_capacity(self.codes.len());
        for (row, codes) in self.codes.chunks_exact(columns).enumerate() {
            let scale = self.scales[if self.scales.len() == 1 { 0 } else { row }];
            let level = |&code: &u8| f32::from(self.levels[usize::from(code)]);
            if self.column_scales.is_empty() {
                weights.extend(codes.iter().map(|code| scale * level(code)));
            } else {
                let pairs = codes.iter().zip(&self.column_scales);
                weights.extend(pairs.map(|(code, column)| scale * column * level(code)));
            }
        }
        for escape in &self.escapes {
            weights[escape.row * columns + escape.column] = escape.value;
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bell of standard deviation one, from a fixed seed.
    fn bell(n: usize) -> Vec<f32> {
        let mut state = 88_172_645_463_325_252u64;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 24) as f32
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn error_and_bits_are_those_of_theory() {
        // Entropy-coded uniform quantisation of a bell: 6.02 dB for a bit, less 1.53.
        let weights = bell(1 << 18);
        for (grid, step) in
            [(Grid::Zero4, 0.6), (Grid::Halves5, 0.33), (Grid::Halves6, 0.2), (Grid::Zero8, 0.05)]
        {
            let quantised = quantize(grid, step, f32::MAX, 1024, &weights);
            let snr = 10.0 * (quantised.energy / quantised.squared_error).log10();
            let bits = quantised.bits / weights.len() as f64;
            let ideal = (snr + 1.53) / 6.02;
            assert!((ideal - 0.02..ideal + 0.1).contains(&bits), "{grid:?}: {bits} bits for {snr} dB");
        }
    }

    #[test]
    fn decoded_weights_have_the_error_that_is_told() {
        let mut weights = bell(4096);
        weights[17] = 1e6;
        weights[99] = -30.0;
        for grid in Grid::ALL {
            let quantised = quantize(grid, 0.4, f32::MAX, 64, &weights);
            let decoded = quantised.decode(64);
            let error: f64 = weights.iter().zip(&decoded).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            assert!((error / quantised.squared_error - 1.0).abs() < 1e-3, "{grid:?}");
            assert_eq!(decoded[17], 1e6, "weights beyond all levels are kept");
        }
    }

    #[test]
    fn rows_with_steps_of_their_own_have_equal_errors() {
        let mut weights = bell(1 << 16);
        let factors: Vec<f32> = (0..256u16).map(|row| 0.25 + f32::from(row % 16)).collect();
        for (row, factor) in weights.chunks_exact_mut(256).zip(&factors) {
            row.iter_mut().for_each(|weight| *weight *= factor);
        }
        let steps: Vec<f32> = factors.iter().map(|factor| 0.33 * factor).collect();
        let by_rows = Steps { rows: &steps, columns: &[] };
        let quantised = quantize_by(Grid::Halves5, by_rows, f32::MAX, 256, &weights);
        let decoded = quantised.decode(256);
        let error = |row: usize| {
            let pairs = weights[256 * row..][..256].iter().zip(&decoded[256 * row..]);
            let error: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
            error / f64::from(steps[row]).powi(2) / 256.0
        };
        let sum: f64 = (0..256).map(|row| error(row) * 256.0 * f64::from(steps[row]).powi(2)).sum();
        assert!((sum / quantised.squared_error - 1.0).abs() < 1e-3);
        for row in 0..256 {
            assert!((0.05..0.13).contains(&error(row)), "row {row}: {}", error(row));
        }
    }

    #[test]
    fn columns_with_steps_of_their_own_have_errors_in_proportion() {
        let mut weights = bell(1 << 16);
        weights[99] = 1e6;
        let factors: Vec<f32> = (0..128u16).map(|column| 0.5 + f32::from(column % 8)).collect();
        for row in weights.chunks_exact_mut(128) {
            row.iter_mut().zip(&factors).for_each(|(weight, factor)| *weight *= factor);
        }
        for grid in Grid::ALL {
            let steps = Steps { rows: &[0.33], columns: &factors };
            let quantised = quantize_by(grid, steps, f32::MAX, 128, &weights);
            let decoded = quantised.decode(128);
            let pairs = || weights.iter().zip(&decoded).enumerate();
            let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
            let error: f64 = pairs().map(|(_, pair)| square(pair)).sum();
            assert!((error / quantised.squared_error - 1.0).abs() < 1e-3, "{grid:?}");
            for (column, factor) in factors.iter().enumerate() {
                let own = pairs().filter(|(at, _)| at % 128 == column);
                let own = own.map(|(_, pair)| square(pair)).sum::<f64>() / 512.0;
                let relative = own / (0.33 * f64::from(*factor)).powi(2);
                assert!((0.05..0.13).contains(&relative), "{grid:?}, column {column}: {relative}");
            }
            assert_eq!(decoded[99], weights[99], "weights beyond all levels are kept");
            // Three bf16 or 8-bit numbers have an exact product in singles, in any order.
            let is_kept =
                |at: usize| quantised.escapes.iter().any(|escape| 128 * escape.row + escape.column == at);
            for (at, (weight, code)) in decoded.iter().zip(&quantised.codes).enumerate().step_by(97) {
                let level = f64::from(quantised.levels[usize::from(*code)]);
                let exact =
                    f64::from(quantised.scales[0]) * f64::from(quantised.column_scales[at % 128]) * level;
                assert!(is_kept(at) || f64::from(*weight).to_bits() == exact.to_bits());
            }
        }
    }

    #[test]
    fn zeros_and_constants_are_quantised() {
        for grid in Grid::ALL {
            let zeros = quantize(grid, 1.0, f32::MAX, 64, &[0.0; 256]);
            assert!(zeros.squared_error <= 256.0 * 0.25 + 1e-6 && zeros.escapes.is_empty(), "{grid:?}");
            let constant = quantize(grid, 0.5, f32::MAX, 64, &[1.25; 256]);
            // A level is the mean of its weights, up to the units that levels are counted in.
            let error = f64::from(0.5 * 0.5 / grid.units());
            assert!(constant.squared_error <= 256.0 * error * error + 1e-6, "{grid:?}");
        }
    }

    #[test]
    fn outliers_are_kept_and_hide_nothing() {
        let mut weights = bell(4096);
        for grid in Grid::ALL {
            let plain = quantize(grid, 0.4, 200.0, 64, &weights);
            weights[17] = 1e30;
            let with = quantize(grid, 0.4, 200.0, 64, &weights);
            assert!(with.escapes.iter().any(|escape| (escape.row, escape.column) == (0, 17)));
            assert_eq!(with.decode(64)[17], 1e30);
            let (a, b) = (plain.squared_error / plain.energy, with.squared_error / with.energy);
            assert!((a / b - 1.0).abs() < 0.01, "{grid:?}: {a} and {b}");
            // Within the levels of a large step too.
            let coarse = quantize(grid, 1e29, 200.0, 64, &weights);
            assert_eq!(coarse.decode(64)[17], 1e30);
            weights[17] = 0.5;
        }
    }
}
