//! Whether and how a tensor is predicted: from its base, from a decayed base, by a matrix of low rank.
//!
//! Every candidate is compared by the bits that its symbols take in a sample of rows, and what it adds to the header.

use super::TensorPlan;
use super::blocks::{SHARED_TABLES, STATES_LEN, block_len, rows_per_block};
use super::effort::MAX_PREDICTED_SHARE;
use super::low_rank::{Components, Rows, exponent_of, power, sum_of_squares};
use crate::options::FrameOptions;
use crate::pipeline::with_scratch;
use mithril_codec::block::{MAX_OVERHEAD, Place, Recipe, Shared, encode_block};
use mithril_codec::prediction::{Counts, Format, LowRank, Matrix, Prediction, Predictor, Tables, count};
use mithril_codec::{Dtype, MAX_LISTED};

/// Smaller tensors are not worth tables of their own.
const MIN_ELEMENTS: usize = 1 << 12;

/// Larger tensors are predicted row by row only.
const MAX_WITHOUT_ROWS: usize = 1 << 22;

/// Elements that candidates are compared by.
const SAMPLED: usize = 1 << 16;

/// Runs of rows that a sample has at most.
const MAX_RUNS: usize = 512;

/// Elements next to each other that are looked at together.
const PIECE: usize = 128;

/// Rows by which the scales of columns are told, at most.
const MAX_ROWS_OF_COLUMNS: usize = 4096;

/// Ranks that are tried.
const RANKS: [usize; 7] = [4, 8, 16, 32, 64, 96, 128];

/// Rows that tell whether a low rank may pay.
const TRIED_ROWS: usize = 256;

/// What the first components of those rows may leave of them. Less than a fifth explained is a sixth of a bit.
const MAX_LEFT_OVER: f64 = 0.8;

/// Fewer rows or columns do not make a low rank pay.
const MIN_SIDE: usize = 64;

/// Half octaves that the scale of a row or a column may be off that of the tensor.
const SPREAD: i32 = 12;

/// Raw bytes of blocks by which the size of the other plan is told.
const COMPARED: usize = 64 << 20;

/// A tensor with its base, if it has one.
struct Tensor<'a> {
    source: &'a [u8],
    base: Option<&'a [u8]>,
    format: Format,
    /// Rows and their length; one row where no shape is known.
    n_rows: usize,
    row_len: usize,
    has_rows: bool,
}

/// Where predictions start from: the base, a decayed base, or zero without a base.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Origin {
    decay: Option<f32>,
}

/// The plan of a tensor that can be predicted, from its base if it has one, and about the bytes of its frame.
pub(super) fn tensor(
    source: &[u8],
    base: Option<&[u8]>,
    options: &FrameOptions,
) -> Option<(TensorPlan, u64)> {
    let format = Format::of(options.dtype)?;
    let n = source.len() / format.width();
    let means = options.coding.effort.means();
    if !means.predicts || n < MIN_ELEMENTS || !source.len().is_multiple_of(format.width()) {
        return None;
    }
    let matrix = matrix_of(n, options.shape.as_deref());
    if matrix.is_none() && n > MAX_WITHOUT_ROWS {
        return None;
    }
    let (n_rows, row_len) = matrix.unwrap_or((1, n));
    let tensor = Tensor { source, base, format, n_rows, row_len, has_rows: matrix.is_some() };
    let (plan, coded_len) = tensor.plan(means.low_rank)?;
    if options.max_block_len.is_some_and(|most| u64::from(plan.block_len) > most) {
        return None;
    }
    let section = plan.shared.to_bytes();
    // A reader refuses more factors than a byte can stand for: those of mostly empty rows get there.
    let fits = section.len() <= source.len() * MAX_PREDICTED_SHARE / 100 && Shared::parse(&section).is_ok();
    let n_blocks = source.len().div_ceil(plan.block_len as usize) as u64;
    fits.then_some((plan, coded_len + section.len() as u64 + STATES_LEN * n_blocks))
}

/// Whether a matrix of low rank holds so much of a tensor that a prediction without a base may pay: some rows tell.
pub(super) fn may_pay(source: &[u8], options: &FrameOptions) -> bool {
    let Some(format) = Format::of(options.dtype).filter(|&format| format != Format::F16) else {
        return false;
    };
    let n = source.len() / format.width();
    let Some((n_rows, row_len)) = matrix_of(n, options.shape.as_deref()) else { return false };
    if n < MIN_ELEMENTS || n_rows.min(row_len) < MIN_SIDE {
        return false;
    }
    let tensor = Tensor { source, base: None, format, n_rows, row_len, has_rows: true };
    let n_tried = TRIED_ROWS.min(n_rows);
    let origin = Origin { decay: None };
    // Rows of equal length, so that no large one stands for all.
    let tried = |row: usize, out: &mut [f32]| {
        tensor.residual(origin, row * n_rows / n_tried, out);
        let length = out.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
        let factor = if length > 0.0 { (1.0 / length) as f32 } else { 0.0 };
        out.iter_mut().for_each(|x| *x *= factor);
    };
    let found = Components::find(&Rows { n_rows: n_tried, row_len, row: &tried }, RANKS[0]);
    found.is_some_and(|found| found.left_over(RANKS[0]) < found.mean_square * MAX_LEFT_OVER)
}

/// Whether a matrix of low rank is looked for in tensors of this type and shape.
pub(super) fn is_tried(dtype: Dtype, shape: &[u64]) -> bool {
    let n = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    let Some(n) = n.and_then(|n| usize::try_from(n).ok()) else { return false };
    Format::of(dtype).is_some_and(|format| format != Format::F16)
        && n >= MIN_ELEMENTS
        && matrix_of(n, Some(shape)).is_some_and(|(n_rows, row_len)| n_rows.min(row_len) >= MIN_SIDE)
}

/// Rows and columns of a shape.
fn matrix_of(n: usize, shape: Option<&[u64]>) -> Option<(usize, usize)> {
    let shape = shape.filter(|shape| shape.len() >= 2)?;
    let row_len = usize::try_from(shape[1..].iter().product::<u64>()).ok()?;
    let n_rows = n.checked_div(row_len)?;
    let fits = (2..=MAX_LISTED).contains(&row_len) && (2..=MAX_LISTED).contains(&n_rows);
    (fits && n_rows * row_len == n).then_some((n_rows, row_len))
}

/// About the bytes of a frame by this plan.
pub(crate) fn sampled_len(plan: &TensorPlan, source: &[u8], base: Option<&[u8]>) -> u64 {
    let block_len = plan.block_len as usize;
    let n_blocks = source.len().div_ceil(block_len);
    let n = COMPARED.div_ceil(block_len).min(n_blocks);
    let mut out = vec![0; block_len.min(source.len()) + MAX_OVERHEAD];
    let (mut raw, mut coded) = (0, 0);
    with_scratch(|scratch| {
        for at in 0..n {
            // The middle one of as many as it stands for.
            let block_idx = (2 * at + 1) * n_blocks / (2 * n);
            let range = block_idx * block_len..((block_idx + 1) * block_len).min(source.len());
            let first_byte = range.start as u64;
            let place = Place { first_byte, next: &[], base: base.map(|base| &base[range.clone()]) };
            raw += range.len() as u64;
            let block = &source[range];
            coded += encode_block(&plan.recipe, &plan.shared, place, block, scratch, &mut out) as u64;
        }
    });
    coded * source.len() as u64 / raw.max(1) + plan.shared.to_bytes().len() as u64
}

impl Tensor<'_> {
    /// The plan, and about the bytes of its symbols and kept bits.
    fn plan(&self, with_low_rank: bool) -> Option<(TensorPlan, u64)> {
        let sampled = self.sampled_rows(SAMPLED);
        // Where to start from is told with both lists of scales; then whether either can be left out.
        let mut best: Option<(u64, Origin)> = None;
        for origin in self.origins() {
            let residual = |row: usize, out: &mut [f32]| self.residual(origin, row, out);
            let Some(scales) = self.scales(&residual, &sampled) else { continue };
            let predictor = self.predictor(origin, &scales, self.has_rows, self.has_rows, None);
            let cost = self.cost(&predictor, &sampled);
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, origin));
            }
        }
        let (flattered, origin) = best?;
        // Scales of all rows: those of a sample flatter it.
        let scales = self.scales(&|row, out| self.residual(origin, row, out), &[(0, self.n_rows)])?;
        // What they save may lie in a few rows of many.
        let more = self.sampled_rows(SAMPLED.max(self.n_rows * self.row_len / 8));
        let lists: &[(bool, bool)] = &[(false, false), (true, false), (false, true), (true, true)];
        let lists = if self.has_rows { lists } else { &lists[..1] };
        let candidates = lists.iter().map(|&(rows, columns)| {
            let predictor = self.predictor(origin, &scales, rows, columns, None);
            (self.cost(&predictor, &more), predictor)
        });
        let (_, mut predictor) = candidates.min_by_key(|(cost, _)| *cost)?;
        if with_low_rank
            && self.has_rows
            && self.n_rows.min(self.row_len) >= MIN_SIDE
            && self.format != Format::F16
            && let Some(low_rank) = self.low_rank(origin, &scales, flattered, &sampled)
        {
            predictor = self.with_low_rank(origin, low_rank, &[(0, self.n_rows)])?;
        }
        let mut counts = Counts::default();
        let rows_per_count = (SAMPLED / self.row_len).max(1);
        for first in (0..self.n_rows).step_by(rows_per_count) {
            self.count(&predictor, first, (first + rows_per_count).min(self.n_rows), &mut counts);
        }
        let (tables, bits) = Tables::choose(self.format, &counts);
        // The tables are a part of the section too.
        let len = (bits / 8).saturating_sub(tables.written_len() as u64);
        let rows = if predictor.matrix.is_some() {
            rows_per_block(self.row_len) * self.row_len
        } else {
            SHARED_TABLES
        };
        let plan = TensorPlan {
            recipe: Recipe::Predicted,
            shared: Shared::predicted(Prediction::new(predictor, tables)),
            block_len: block_len(rows * self.format.width()),
            alone: None,
        };
        Some((plan, len))
    }

    /// Runs of rows with about so many elements, from all over the tensor; the only row where there are none.
    fn sampled_rows(&self, n_elements: usize) -> Vec<(usize, usize)> {
        if !self.has_rows {
            return vec![(0, 1)];
        }
        let n_runs = (n_elements / self.row_len).clamp(1, MAX_RUNS).min(self.n_rows);
        let run = (n_elements / self.row_len / n_runs).max(1);
        let step = self.n_rows / n_runs;
        (0..n_runs).map(|at| (at * step, (at * step + run.min(step)).min(self.n_rows))).collect()
    }

    /// Starting points worth trying.
    fn origins(&self) -> Vec<Origin> {
        let mut origins = vec![Origin { decay: None }];
        let Some(base) = self.base.filter(|_| self.format != Format::F16) else { return origins };
        let (mut products, mut squares) = (0.0, 0.0);
        let mut ratios = Vec::new();
        let mut one_sided = true;
        let n = self.n_rows * self.row_len;
        let n_pieces = SAMPLED / PIECE;
        for piece in 0..n_pieces {
            let first = n.saturating_sub(PIECE) / n_pieces * piece;
            let (mut values, mut of_base) = ([0.0f32; PIECE], [0.0f32; PIECE]);
            let len = PIECE.min(n - first);
            self.subtract(self.source, first, -1.0, &mut values[..len]);
            self.subtract(base, first, -1.0, &mut of_base[..len]);
            for (&x, &b) in values.iter().zip(&of_base) {
                let (x, b) = (f64::from(x), f64::from(b));
                products += x * b;
                squares += b * b;
                one_sided &= x >= 0.0 && b >= 0.0;
                if one_sided && b > 0.0 {
                    ratios.push(x / b);
                }
            }
        }
        let mut decays = vec![products / squares];
        if one_sided && !ratios.is_empty() {
            let place = ratios.len() / 100;
            decays.push(*ratios.select_nth_unstable_by(place, f64::total_cmp).1);
        }
        for decay in decays {
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
            let decay = decay as f32;
            if decay.is_normal() && (decay - 1.0).abs() > 1e-3 && decay.abs() < 16.0 {
                origins.push(Origin { decay: Some(decay) });
            }
        }
        origins
    }

    /// The values of these elements times a factor are taken off what is there; zero for those that are not finite.
    fn subtract(&self, bytes: &[u8], first: usize, factor: f32, out: &mut [f32]) {
        let width = self.format.width();
        let bytes = &bytes[first * width..][..out.len() * width];
        match self.format {
            Format::F32 => {
                let values = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
                out.iter_mut().zip(values).for_each(|(out, x)| *out -= factor * finite(x));
            }
            Format::F16 => {
                let values = bytes.as_chunks::<2>().0.iter().map(|x| of_f16(u16::from_le_bytes(*x)));
                out.iter_mut().zip(values).for_each(|(out, x)| *out -= factor * finite(x));
            }
            _ => {
                let words = bytes.as_chunks::<2>().0.iter().map(|x| u32::from(u16::from_le_bytes(*x)));
                let values = words.map(|x| f32::from_bits(x << 16));
                out.iter_mut().zip(values).for_each(|(out, x)| *out -= factor * finite(x));
            }
        }
    }

    /// What a starting point leaves of a row.
    fn residual(&self, origin: Origin, row: usize, out: &mut [f32]) {
        let first = row * self.row_len;
        out.fill(0.0);
        self.subtract(self.source, first, -1.0, out);
        if let Some(base) = self.base {
            self.subtract(base, first, origin.decay.unwrap_or(1.0), out);
        }
    }

    /// Scales of the tensor, of these rows and of all columns; `None` if nothing is left to be coded.
    fn scales(&self, residual: &dyn Fn(usize, &mut [f32]), rows: &[(usize, usize)]) -> Option<Scales> {
        let mut row_squares = vec![0.0; self.n_rows];
        let mut column_squares = vec![0.0f64; if self.has_rows { self.row_len } else { 0 }];
        let mut values = vec![0.0f32; self.row_len];
        let (mut total, mut n) = (0.0, 0);
        let mut n_in_columns = 0;
        let n_listed: usize = rows.iter().map(|&(from, to)| to - from).sum();
        let step = n_listed.div_ceil(MAX_ROWS_OF_COLUMNS).max(1);
        for row in rows.iter().flat_map(|&(from, to)| from..to) {
            residual(row, &mut values);
            let sum = sum_of_squares(&values);
            row_squares[row] = sum / self.row_len as f64;
            total += sum;
            if sum > 0.0 && n % step == 0 {
                let factor = self.row_len as f64 / sum;
                for (column, x) in column_squares.iter_mut().zip(&values) {
                    *column += f64::from(*x) * f64::from(*x) * factor;
                }
            }
            n_in_columns += usize::from(n % step == 0);
            n += 1;
        }
        if total.is_nan() || total <= 0.0 || !total.is_finite() {
            return None;
        }
        let tensor = half_octaves(total / (n * self.row_len) as f64);
        let relative = |square: f64, to: i32| -> u8 {
            let scale = if square > 0.0 { half_octaves(square) - to } else { -SPREAD };
            u8::try_from(scale.clamp(-SPREAD, SPREAD) + SPREAD).unwrap_or(0)
        };
        Some(Scales {
            tensor,
            rows: row_squares.iter().map(|&square| relative(square, tensor)).collect(),
            columns: column_squares.iter().map(|&square| relative(square / n_in_columns as f64, 0)).collect(),
        })
    }

    fn predictor(
        &self,
        origin: Origin,
        scales: &Scales,
        rows: bool,
        columns: bool,
        low_rank: Option<LowRank>,
    ) -> Predictor {
        let bias = if self.format == Format::F16 { 30 } else { 254 };
        let offset = SPREAD * (i32::from(rows) + i32::from(columns));
        let list = |is_listed: bool, list: &[u8]| if is_listed { list.to_vec() } else { Vec::new() };
        let matrix = (rows || columns || low_rank.is_some()).then(|| Matrix {
            row_len: self.row_len,
            n_rows: if rows || low_rank.is_some() { self.n_rows } else { 0 },
            row_scales: list(rows, &scales.rows),
            column_scales: list(columns, &scales.columns),
            low_rank,
        });
        Predictor {
            format: self.format,
            from_base: self.base.is_some(),
            decay: origin.decay,
            scale: i16::try_from((scales.tensor + bias - offset).clamp(-2000, 2000)).unwrap_or(0),
            matrix,
        }
    }

    fn count(&self, predictor: &Predictor, from: usize, to: usize, counts: &mut Counts) {
        let width = self.format.width();
        let range = from * self.row_len * width..to * self.row_len * width;
        let base = self.base.map(|base| &base[range.clone()]);
        count(predictor, from * self.row_len, base, &self.source[range], counts);
    }

    /// About the bits of the tensor by a predictor: symbols of the sample, and its own size with its tables.
    fn cost(&self, predictor: &Predictor, sampled: &[(usize, usize)]) -> u64 {
        let mut counts = Counts::default();
        sampled.iter().for_each(|&(from, to)| self.count(predictor, from, to, &mut counts));
        let n_sampled: usize = sampled.iter().map(|&(from, to)| to - from).sum();
        let (of_symbols, of_tables) = Tables::expected_bits(self.format, &counts);
        let of_predictor = 8 * predictor.written_len() as u64;
        of_symbols * self.n_rows as u64 / n_sampled.max(1) as u64 + of_tables + of_predictor
    }

    /// The best matrix of low rank, if one costs less than this. The scales are those of all rows without one.
    fn low_rank(
        &self,
        origin: Origin,
        scales: &Scales,
        cost: u64,
        sampled: &[(usize, usize)],
    ) -> Option<LowRank> {
        // Powers of two nearest to the sizes of rows and columns.
        let row_shifts: Vec<u8> = scales.rows.iter().map(|scale| scale / 2).collect();
        let column_shifts: Vec<u8> = scales.columns.iter().map(|scale| scale / 2).collect();
        let exponent = scales.tensor.div_euclid(2) - SPREAD;
        let factors = |shifts: &[u8], exponent: i32| -> Vec<f32> {
            #[expect(clippy::cast_possible_truncation, reason = "a power of two")]
            shifts.iter().map(|&shift| power(-(exponent + i32::from(shift))) as f32).collect()
        };
        let (of_rows, of_columns) =
            (factors(&row_shifts, exponent / 2), factors(&column_shifts, exponent - exponent / 2));
        let normalised = |row: usize, out: &mut [f32]| {
            self.residual(origin, row, out);
            let of_row = of_rows[row];
            out.iter_mut().zip(&of_columns).for_each(|(x, of_column)| *x = *x * of_row * of_column);
        };
        let most = match self.format {
            Format::F32 => 128,
            _ => 64,
        };
        let most = most.min(self.n_rows.min(self.row_len) / 3);
        let matrix = Rows { n_rows: self.n_rows, row_len: self.row_len, row: &normalised };
        let components = Components::find(&matrix, most)?;
        let exponent = i16::try_from(exponent).ok()?;
        let quantised = |rank: usize| components.quantised(rank, exponent, &row_shifts, &column_shifts);
        let mut best = None;
        let mut least = cost;
        let mut n_worse = 0;
        for rank in RANKS.into_iter().filter(|&rank| rank <= components.n()) {
            let predictor = quantised(rank).and_then(|matrix| self.with_low_rank(origin, matrix, sampled));
            let Some(predictor) = predictor else { continue };
            let cost = self.cost(&predictor, sampled);
            if cost < least {
                (least, n_worse) = (cost, 0);
                best = Some(rank);
            } else {
                n_worse += 1;
                if n_worse == 2 {
                    break;
                }
            }
        }
        best.and_then(quantised)
    }

    /// The predictor with this matrix, and scales of what it leaves of these rows.
    fn with_low_rank(&self, origin: Origin, low_rank: LowRank, rows: &[(usize, usize)]) -> Option<Predictor> {
        let residual = |row: usize, out: &mut [f32]| {
            self.residual(origin, row, out);
            low_rank.subtract(row, out);
        };
        let scales = self.scales(&residual, rows)?;
        Some(self.predictor(origin, &scales, true, true, Some(low_rank)))
    }
}

/// Half octaves of a tensor, and relative to it of its rows and columns.
struct Scales {
    tensor: i32,
    rows: Vec<u8>,
    columns: Vec<u8>,
}

/// The root of a mean square in half octaves.
fn half_octaves(mean_square: f64) -> i32 {
    exponent_of(mean_square).clamp(-500, 500)
}

/// Zero in place of what is no number.
#[inline(always)]
fn finite(x: f32) -> f32 {
    if x.is_finite() { x } else { 0.0 }
}

/// The value of an f16.
fn of_f16(bits: u16) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => f32::from_bits(0x3380_0000) * f32::from(bits & 0x3ff),
        31 => f32::INFINITY,
        _ => f32::from_bits((exponent + 112) << 23 | mantissa << 13),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}
