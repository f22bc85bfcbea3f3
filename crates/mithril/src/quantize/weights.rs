//! Tensors of floats as rows of singles.

use crate::convert::Repository;
use crate::{Dtype, Error};
use mithril_codec::narrow::{f16_to_f32, to_bf16, to_f16};
use mithril_format::TensorInfo;

/// Rows and columns of a tensor that can be quantised: a matrix of floats. Of more dimensions, as convolutions have, all
/// but the first are columns.
pub(super) fn matrix_of(tensor: &TensorInfo) -> Option<(usize, usize)> {
    let is_float = matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
    let (rows, rest) = tensor.shape.split_first().filter(|(_, rest)| is_float && !rest.is_empty())?;
    let columns = rest.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension))?;
    let (rows, columns) = (usize::try_from(*rows).ok()?, usize::try_from(columns).ok()?);
    // Below this the tables and names of a coded matrix weigh more than its bits.
    (rows.checked_mul(columns)? >= 4096 && columns >= 32).then_some((rows, columns))
}

/// Elements of a tensor as singles.
pub(super) fn singles(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = |widen: fn(u16) -> u32| {
        let one = |bytes: &[u8; 2]| f32::from_bits(widen(u16::from_le_bytes(*bytes)));
        bytes.as_chunks().0.iter().map(one).collect()
    };
    match dtype {
        Dtype::F16 => halves(f16_to_f32),
        Dtype::Bf16 => halves(|bits| u32::from(bits) << 16),
        _ => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
    }
}

/// Singles as elements of a tensor, rounded to its type.
pub(super) fn bytes_of(dtype: Dtype, singles: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F16 => singles.iter().flat_map(|x| to_f16(x.to_bits()).to_le_bytes()).collect(),
        Dtype::Bf16 => singles.iter().flat_map(|x| to_bf16(x.to_bits()).to_le_bytes()).collect(),
        _ => singles.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// About so many weights of a tensor, in whole rows at equal distances.
pub(super) fn sample(
    repository: &Repository,
    idx: usize,
    (rows, columns): (usize, usize),
    n_wanted: usize,
) -> Result<Vec<f32>, Error> {
    let dtype = repository.tensors()[idx].dtype;
    let row_len = columns * dtype.unit_len();
    let n_rows = (n_wanted / columns).clamp(1, rows);
    let mut bytes = vec![0; n_rows * row_len];
    for (at, row) in bytes.chunks_exact_mut(row_len).enumerate() {
        let from = at * rows / n_rows;
        repository.read_into(idx, from as u64 * row_len as u64, row)?;
    }
    Ok(singles(dtype, &bytes))
}

/// How widely the weights of a tensor are spread, apart from those that are beyond all others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    /// Root mean square of the weights that are no outliers.
    pub(super) deviation: f32,
    /// Magnitude beyond which a weight is an outlier.
    pub(super) outlier: f32,
}

/// Outliers are so many times as large as the largest of 31 in 32 weights: about 275 deviations of a bell. Layers of real
/// models have weights of 80 deviations, which levels and escapes hold.
const OUTLIER: f32 = 128.0;

/// Deviations from which steps and levels are ordinary singles.
const DEVIATIONS: std::ops::RangeInclusive<f32> = 1e-30..=1e30;

impl Spread {
    /// The spread of a tensor by its sample, or why it cannot be quantised.
    pub(super) fn of(sample: &[f32]) -> Result<Self, &'static str> {
        if sample.iter().any(|weight| !weight.is_finite()) {
            return Err(NO_NUMBERS);
        }
        let mut magnitudes: Vec<f32> =
            sample.iter().map(|weight| weight.abs()).filter(|&w| w > 0.0).collect();
        let Some(last) = magnitudes.len().checked_sub(1) else { return Err("its weights are all zero") };
        let (_, &mut most, _) = magnitudes.select_nth_unstable_by(last - last / 32, f32::total_cmp);
        let outlier = most.min(f32::MAX / OUTLIER) * OUTLIER;
        let n_within = sample.iter().filter(|weight| weight.abs() <= outlier).count();
        #[expect(clippy::cast_possible_truncation, reason = "a deviation is a single")]
        let deviation = (energy(sample, outlier) / n_within as f64).sqrt() as f32;
        if !DEVIATIONS.contains(&deviation) {
            return Err("its weights are too large or too small for a step");
        }
        Ok(Self { deviation, outlier })
    }
}

/// Why a tensor with NaN or infinities stays as it is.
pub(super) const NO_NUMBERS: &str = "it has weights that are no numbers";

/// Sum of squares of the weights that are no outliers.
pub(super) fn energy(weights: &[f32], outlier: f32) -> f64 {
    weights.iter().filter(|weight| weight.abs() <= outlier).map(|&w| f64::from(w) * f64::from(w)).sum()
}

/// What the steps of rows and columns are multiplied by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Factors {
    pub(super) rows: Vec<f32>,
    pub(super) columns: Vec<f32>,
}

/// How far the scale of a row or a column may be from that of its matrix: those of zeros, or of one weight, need no scale of
/// their own.
const FACTORS: (f32, f32) = (1.0 / 16.0, 16.0);

impl Factors {
    /// Of a row, its root mean square in deviations of the matrix: an equal relative error of every output. Of a column, the
    /// root of its root mean square once rows are equal. Inputs of small weights tend to be large, so that their weights
    /// count for more; how much more, no weight tells, and the root is half-way between nothing and all of it.
    #[expect(clippy::cast_possible_truncation, reason = "a factor is a single")]
    pub(super) fn of(weights: &[f32], columns: usize, spread: Spread) -> Self {
        let row_factor = |row: &[f32]| {
            let n_within = row.iter().filter(|weight| weight.abs() <= spread.outlier).count().max(1);
            let deviation = (energy(row, spread.outlier) / n_within as f64).sqrt() as f32;
            (deviation / spread.deviation).clamp(FACTORS.0, FACTORS.1)
        };
        let rows: Vec<f32> = weights.chunks_exact(columns).map(row_factor).collect();
        let (mut energies, mut counts) = (vec![0f64; columns], vec![0u64; columns]);
        for (row, factor) in weights.chunks_exact(columns).zip(&rows) {
            let square_of_row = f64::from(factor * spread.deviation).powi(2);
            for ((&weight, energy), count) in row.iter().zip(&mut energies).zip(&mut counts) {
                if weight.abs() <= spread.outlier {
                    *energy += f64::from(weight) * f64::from(weight) / square_of_row;
                    *count += 1;
                }
            }
        }
        let column_factor = |(energy, count): (&f64, &u64)| {
            let deviation = (energy / (*count).max(1) as f64).sqrt();
            (deviation.sqrt() as f32).clamp(FACTORS.0, FACTORS.1)
        };
        let columns = energies.iter().zip(&counts).map(column_factor).collect();
        Self { rows, columns }
    }
}
