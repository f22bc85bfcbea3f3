//! One step for every tensor, from one target for the model.

use super::Target;
use super::report::{ReferenceReport, decibels};
use super::weights::{Factors, Spread, energy};
use crate::Error;
use mithril_codec::ecq::BLOCK_SYMBOLS;
use mithril_codec::quantize::reference::Reference;
use mithril_codec::quantize::{Grid, Quantised, Steps, quantize_by};

/// A matrix that is to be quantised, and a sample of it.
pub(super) struct Candidate {
    pub(super) idx: usize,
    pub(super) size: (usize, usize),
    /// Its sample, in whole rows.
    pub(super) sample: Vec<f32>,
    /// How widely its weights are spread.
    pub(super) spread: Spread,
    /// How much its error counts.
    pub(super) sensitivity: f64,
    /// What the steps of rows and columns differ by in its sample, if they have steps of their own.
    pub(super) factors: Option<Factors>,
}

/// What a block takes beyond the bits of its symbols: header, offset, and of each lane's state the half that says nothing.
const BLOCK_OVERHEAD_BITS: f64 = 62.0 * 8.0;

/// What a matrix takes besides: header, table, levels, scale.
const MATRIX_OVERHEAD_BITS: f64 = 140.0 * 8.0;

/// Bits that the scale of a row or a column takes.
const SCALE_BITS: f64 = 16.0;

/// Whether the rows and columns of a matrix get steps of their own when a size is wanted: where that costs at most an
/// eighth of a bit, and not in tables with many more rows than columns, such as embeddings, whose rows are not outputs of
/// one layer.
pub(super) fn wants_own_steps(target: Target, (rows, columns): (usize, usize)) -> bool {
    let is_size = matches!(target, Target::BitsPerWeight(bits) if bits >= 2.5);
    let cost = SCALE_BITS / rows as f64 + SCALE_BITS / columns as f64;
    is_size && cost <= 0.125 && rows <= 6 * columns
}

impl Candidate {
    /// Quantises all of its weights, or whole rows of them.
    pub(super) fn quantise(&self, grid: Grid, step: f32, weights: &[f32]) -> Quantised {
        let own = self.factors.as_ref().map(|_| Factors::of(weights, self.size.1, self.spread));
        self.quantise_by(grid, step, own.as_ref(), weights)
    }

    fn quantise_by(&self, grid: Grid, step: f32, factors: Option<&Factors>, weights: &[f32]) -> Quantised {
        let outlier = self.spread.outlier;
        match factors {
            None => quantize_by(grid, Steps { rows: &[step], columns: &[] }, outlier, self.size.1, weights),
            Some(factors) => {
                let rows: Vec<f32> = factors.rows.iter().map(|factor| step * factor).collect();
                let steps = Steps { rows: &rows, columns: &factors.columns };
                quantize_by(grid, steps, outlier, self.size.1, weights)
            }
        }
    }

    pub(super) fn n_weights(&self) -> f64 {
        self.size.0 as f64 * self.size.1 as f64
    }

    /// Its step when the model's is so many deviations.
    #[expect(clippy::cast_possible_truncation, reason = "a step is a single")]
    pub(super) fn step(&self, relative: f64) -> f32 {
        (relative * f64::from(self.spread.deviation) / self.sensitivity.sqrt()) as f32
    }

    /// The grid that makes most of a step: fewest bits for its error, at 6.02 dB for a bit.
    pub(super) fn measure(&self, step: f32) -> Measure {
        let n = self.sample.len() as f64;
        let ratio = step / self.spread.deviation;
        // Grids that cannot reach the tails, or that waste low bits, need not be tried.
        let is_near = |grid: &Grid| match grid {
            Grid::Zero4 => ratio > 0.3,
            Grid::Halves5 => ratio > 0.12 && ratio < 1.2,
            Grid::Halves6 => ratio > 0.06 && ratio < 0.6,
            Grid::Zero8 => ratio < 0.25,
        };
        let measure = |grid: Grid| {
            let quantised = self.quantise_by(grid, step, self.factors.as_ref(), &self.sample);
            let relative_error = quantised.squared_error / quantised.energy.max(1e-300);
            Measure { grid, bits_per_weight: quantised.bits / n, relative_error }
        };
        let score = |measure: &Measure| measure.bits_per_weight - decibels(measure.relative_error) / 6.02;
        let measures = Grid::ALL.into_iter().filter(is_near).map(measure);
        let best = measures.min_by(|a, b| score(a).total_cmp(&score(b)));
        let mut best = best.unwrap_or_else(|| measure(Grid::Zero4));
        let (rows, columns) = self.size;
        let padded = columns.next_multiple_of(64);
        let n_blocks = rows.div_ceil((BLOCK_SYMBOLS / padded).max(1)) as f64;
        // Padding repeats the most frequent symbol, at about 1.5 bits, above low bits.
        let low_bits = f64::from(best.grid.bits() - 4);
        let padding = (rows * (padded - columns)) as f64 * (1.5 + low_bits);
        let n_scales = if self.factors.is_some() { rows + columns } else { 0 };
        let scales = SCALE_BITS * n_scales as f64;
        let overhead = n_blocks * BLOCK_OVERHEAD_BITS + MATRIX_OVERHEAD_BITS + padding + scales;
        best.bits_per_weight += overhead / self.n_weights();
        best
    }
}

/// What a step makes of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measure {
    pub(super) grid: Grid,
    pub(super) bits_per_weight: f64,
    pub(super) relative_error: f64,
}

/// Bits per weight and mean relative error of all candidates.
fn measure_all(candidates: &[Candidate], relative: f64) -> (f64, f64) {
    let (mut bits, mut error, mut n) = (0.0, 0.0, 0.0);
    for candidate in candidates {
        let measure = candidate.measure(candidate.step(relative));
        bits += measure.bits_per_weight * candidate.n_weights();
        error += measure.relative_error * candidate.n_weights();
        n += candidate.n_weights();
    }
    (bits / n, error / n)
}

/// The step, in deviations, that meets the target on the samples.
pub(super) fn relative_step(candidates: &[Candidate], target: Target) -> Result<f64, Error> {
    let snr_db = match target {
        Target::SnrDb(snr_db) => Some(snr_db),
        Target::Like(reference) => Some(measure_reference(candidates, reference).snr_db),
        Target::BitsPerWeight(_) => None,
    };
    let is_too_fine = |relative: f64| {
        let (bits, error) = measure_all(candidates, relative);
        match (snr_db, target) {
            (Some(snr_db), _) => decibels(error) > snr_db,
            (None, Target::BitsPerWeight(wanted)) => bits > wanted,
            _ => false,
        }
    };
    // From 8 bits down to one tenth of a bit.
    let (mut fine, mut coarse) = (0.015f64, 6.0f64);
    if !is_too_fine(fine) || is_too_fine(coarse) {
        return Err(Error::invalid("no step from 0.015 to 6 standard deviations reaches the target"));
    }
    for _ in 0..14 {
        let middle = (fine * coarse).sqrt();
        if is_too_fine(middle) {
            fine = middle;
        } else {
            coarse = middle;
        }
    }
    // For a size, the coarse end keeps below it; for an error, the fine end keeps above it.
    Ok(if snr_db.is_some() { fine } else { coarse })
}

/// What a format of MLX makes of the samples.
pub(super) fn measure_reference(candidates: &[Candidate], reference: Reference) -> ReferenceReport {
    let (mut error, mut n) = (0.0, 0.0);
    for candidate in candidates {
        let outlier = candidate.spread.outlier;
        let energy = energy(&candidate.sample, outlier);
        let own = reference.squared_error(candidate.size.1, outlier, &candidate.sample) / energy.max(1e-300);
        error += own * candidate.n_weights();
        n += candidate.n_weights();
    }
    let (name, bits_per_weight) = (reference.name(), reference.bits_per_weight());
    ReferenceReport { name, bits_per_weight, snr_db: decibels(error / n) }
}
