//! The first components of a matrix, and their factors as whole numbers.
//!
//! A randomised range finder: a random matrix of a few columns is multiplied by the matrix and its transpose in turn,
//! made orthonormal in between, until it spans the rows that explain most. The rest is a small eigenvalue problem. Of
//! a matrix of very many rows, some stand for all.
//! Plain loops in a fixed order, so that the bytes do not depend on threads; no function whose last bit a platform may
//! choose.

use mithril_codec::prediction::{Factors, LowRank, PRODUCT_COLUMNS, add_products};

/// Columns beyond the wanted rank.
const EXTRA: usize = 8;

/// Rows that are worked on at a time.
const PANEL: usize = 64;

/// Rows by which components are found at most.
const MAX_SKETCHED: usize = 4096;

/// A matrix that is made row by row.
pub(super) struct Rows<'a> {
    pub(super) n_rows: usize,
    pub(super) row_len: usize,
    /// Writes a row, divided by the powers of two of its row and of all columns.
    pub(super) row: &'a dyn Fn(usize, &mut [f32]),
}

/// The first components, strongest first: `left` holds one vector of rows and `right` one of columns for each, the
/// right ones of length one.
pub(super) struct Components {
    left: Vec<Vec<f32>>,
    right: Vec<Vec<f32>>,
    /// Root mean square of each component over the whole matrix.
    sizes: Vec<f64>,
    /// Mean square of the matrix.
    pub(super) mean_square: f64,
}

impl Components {
    /// Finds at most so many components; `None` if they cannot save what their factors take.
    pub(super) fn find(matrix: &Rows<'_>, rank: usize) -> Option<Self> {
        let (n_rows, row_len) = (matrix.n_rows, matrix.row_len);
        // Enough rows, from all over the matrix, tell what its columns have in common.
        let step = n_rows.div_ceil(MAX_SKETCHED);
        let sketched_row = |row: usize, out: &mut [f32]| (matrix.row)(row * step, out);
        let sketch = Rows { n_rows: n_rows.div_ceil(step), row_len, row: &sketched_row };
        let width = (rank + EXTRA).min(sketch.n_rows).min(row_len).next_multiple_of(PRODUCT_COLUMNS);
        let mut random = 0x9E37_79B9_7F4A_7C15u64;
        let signs: Vec<f32> = (0..sketch.n_rows * width)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if random >> 63 == 1 { 1.0 } else { -1.0 }
            })
            .collect();
        let mut right = sketch.transposed_times(&signs, width);
        orthonormalise(&mut right, width);
        right = sketch.transposed_times(&sketch.times(&right, width).0, width);
        orthonormalise(&mut right, width);
        let (left, sum_of_squares) = sketch.times(&right, width);
        let of_left = |row: usize, out: &mut [f32]| out.copy_from_slice(&left[row * width..][..width]);
        let gram =
            Rows { n_rows: sketch.n_rows, row_len: width, row: &of_left }.transposed_times(&left, width);
        let turns = eigenvectors(gram.into_iter().map(f64::from).collect(), width);
        let n = (sketch.n_rows * row_len) as f64;
        let n_found = rank.min(width);
        let squares: Vec<f64> = turns.iter().take(n_found).map(|(square, _)| square.max(0.0) / n).collect();
        let mean_square = sum_of_squares / n;
        if !may_pay(&squares, mean_square, n_rows, row_len) {
            return None;
        }
        // Columns beyond those found are zero, so that products have whole groups of them.
        let n_turned = n_found.next_multiple_of(PRODUCT_COLUMNS);
        let mut turn = vec![0.0; width * n_turned];
        for (at, (_, vector)) in turns.iter().take(n_found).enumerate() {
            vector.iter().enumerate().for_each(|(row, x)| turn[row * n_turned + at] = to_f32(*x));
        }
        let mut right_turned = vec![0.0; row_len * n_turned];
        add_products(&right, &turn, n_turned, &mut right_turned);
        let left_turned = if step == 1 {
            let mut turned = vec![0.0; n_rows * n_turned];
            add_products(&left, &turn, n_turned, &mut turned);
            turned
        } else {
            matrix.times(&right_turned, n_turned).0
        };
        let columns = |turned: &[f32], at: usize| -> Vec<f32> {
            turned.chunks_exact(n_turned).map(|row| row[at]).collect()
        };
        Some(Self {
            left: (0..n_found).map(|at| columns(&left_turned, at)).collect(),
            right: (0..n_found).map(|at| columns(&right_turned, at)).collect(),
            sizes: squares.into_iter().map(f64::sqrt).collect(),
            mean_square,
        })
    }

    /// How many components there are.
    pub(super) fn n(&self) -> usize {
        self.sizes.len()
    }

    /// Mean square of what the first `rank` components leave.
    pub(super) fn left_over(&self, rank: usize) -> f64 {
        let explained: f64 = self.sizes.iter().take(rank).map(|size| size * size).sum();
        (self.mean_square - explained).max(self.mean_square * 1e-6)
    }

    /// The first components with entries only as fine as what they leave deserves. `None` if there are none. The shifts
    /// are the powers of two of rows and columns, of which `exponent` was taken off.
    pub(super) fn quantised(
        &self,
        rank: usize,
        exponent: i16,
        row_shifts: &[u8],
        column_shifts: &[u8],
    ) -> Option<LowRank> {
        let rank = rank.min(self.sizes.iter().filter(|size| **size > 0.0).count());
        // Steps of a column factor per unit of a component, so that errors of all components together stay below a
        // third of what is left.
        let fineness = 1.168 * ((rank as f64).sqrt() / self.left_over(rank).sqrt());
        let largest = self.sizes.first().copied().unwrap_or(0.0) * fineness;
        let bits = (exponent_of(largest) + 1).clamp(2, 10);
        let unit = exponent_of(fineness) + bits;
        let mut factors = Factors { shifts: Vec::new(), rows: Vec::new(), columns: Vec::new() };
        for at in 0..rank {
            let size = self.sizes[at];
            let steps = size * power(unit - bits);
            let shift = (bits - exponent_of(steps)).clamp(0, bits);
            let of_row = power(bits - shift) / (size * (column_shifts.len() as f64).sqrt());
            let of_column = steps * (column_shifts.len() as f64).sqrt();
            let highest = f64::from(i16::MAX >> shift);
            let entries = |vector: &[f32], factor: f64, highest: f64| -> Vec<i16> {
                let entry = |x: &f32| (f64::from(*x) * factor).round().clamp(-highest, highest);
                #[expect(clippy::cast_possible_truncation, reason = "clamped to 16 bits")]
                vector.iter().map(|x| entry(x) as i16).collect()
            };
            factors.shifts.push(u8::try_from(shift).ok()?);
            factors.rows.push(entries(&self.left[at], of_row, highest));
            factors.columns.push(entries(&self.right[at], of_column, f64::from(i16::MAX)));
        }
        let exponent = i16::try_from(i32::from(exponent) - unit).ok()?;
        LowRank::new(exponent, row_shifts.to_vec(), column_shifts.to_vec(), factors)
    }
}

/// Whether components with these mean squares may save more bits than their factors take, which are few for each entry.
fn may_pay(squares: &[f64], mean_square: f64, n_rows: usize, row_len: usize) -> bool {
    const BITS_OF_ENTRY: f64 = 3.0;
    let price_of_rank = BITS_OF_ENTRY * (n_rows + row_len) as f64;
    let (mut left, mut price) = (mean_square, 0.0);
    squares.iter().any(|square| {
        left = (left - square).max(mean_square * 1e-6);
        price += price_of_rank;
        // Half the logarithm of the ratio for each element; a logarithm is below the number less one.
        let saved = 0.5 * std::f64::consts::LOG2_E * (mean_square / left - 1.0) * (n_rows * row_len) as f64;
        saved > price
    })
}

impl Rows<'_> {
    /// The matrix times a matrix of `width` columns, and the sum of all squares.
    fn times(&self, right: &[f32], width: usize) -> (Vec<f32>, f64) {
        let mut rows = vec![0.0; PANEL * self.row_len];
        let mut out = vec![0.0; self.n_rows * width];
        let mut squares = 0.0;
        for (first, sums) in (0..).step_by(PANEL).zip(out.chunks_mut(PANEL * width)) {
            let rows = &mut rows[..sums.len() / width * self.row_len];
            for (row, values) in (first..).zip(rows.chunks_exact_mut(self.row_len)) {
                (self.row)(row, values);
                squares += sum_of_squares(values);
            }
            add_products(rows, right, width, sums);
        }
        (out, squares)
    }

    /// The transposed matrix times a matrix of `width` columns.
    fn transposed_times(&self, left: &[f32], width: usize) -> Vec<f32> {
        let mut row = vec![0.0; self.row_len];
        let mut columns = vec![0.0; PANEL * self.row_len];
        let mut out = vec![0.0; self.row_len * width];
        for (first, left) in (0..).step_by(PANEL).zip(left.chunks(PANEL * width)) {
            let n = left.len() / width;
            for at in 0..n {
                (self.row)(first + at, &mut row);
                columns[at..].iter_mut().step_by(n).zip(&row).for_each(|(to, x)| *to = *x);
            }
            add_products(&columns[..n * self.row_len], left, width, &mut out);
        }
        out
    }
}

/// The sum of all squares, in eight sums that need not wait for each other.
pub(super) fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    let (eights, rest) = values.as_chunks::<8>();
    for eight in eights {
        sums.iter_mut().zip(eight).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
    }
    sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
    sums.iter().sum()
}

/// Makes the columns of a matrix orthonormal by the method of Gram and Schmidt, some columns at a time, twice. A column
/// that is nothing but a sum of those before it becomes zero.
fn orthonormalise(matrix: &mut [f32], width: usize) {
    // Columns that are done, and the same as rows.
    let mut done: Vec<(Vec<f32>, Vec<f32>)> = Vec::new();
    for first in (0..width).step_by(PRODUCT_COLUMNS) {
        let rows = matrix.chunks_exact(width);
        let mut columns: Vec<f32> =
            rows.flat_map(|row| &row[first..first + PRODUCT_COLUMNS]).copied().collect();
        for _ in 0..2 {
            let before: [f64; PRODUCT_COLUMNS] = std::array::from_fn(|at| length(&columns, at));
            for (others, as_rows) in &done {
                let mut shares = [0.0; PRODUCT_COLUMNS * PRODUCT_COLUMNS];
                add_products(as_rows, &columns, PRODUCT_COLUMNS, &mut shares);
                shares.iter_mut().for_each(|share| *share = -*share);
                add_products(others, &shares, PRODUCT_COLUMNS, &mut columns);
            }
            orthonormalise_columns(&mut columns, &before);
        }
        for (row, columns) in matrix.chunks_exact_mut(width).zip(columns.chunks_exact(PRODUCT_COLUMNS)) {
            row[first..first + PRODUCT_COLUMNS].copy_from_slice(columns);
        }
        let as_rows = (0..PRODUCT_COLUMNS).flat_map(|at| columns[at..].iter().step_by(PRODUCT_COLUMNS));
        done.push((columns.clone(), as_rows.copied().collect()));
    }
}

/// The length of one of a few columns.
fn length(columns: &[f32], at: usize) -> f64 {
    let squares = columns.chunks_exact(PRODUCT_COLUMNS).map(|row| f64::from(row[at]) * f64::from(row[at]));
    squares.sum::<f64>().sqrt()
}

/// The same of a few columns, whose lengths were these before others were taken off.
fn orthonormalise_columns(columns: &mut [f32], before: &[f64; PRODUCT_COLUMNS]) {
    for (at, &before) in before.iter().enumerate() {
        let left = length(columns, at);
        let factor = if left > before * 1e-5 { to_f32(1.0 / left) } else { 0.0 };
        let mut shares = [0.0; PRODUCT_COLUMNS];
        for row in columns.as_chunks_mut::<PRODUCT_COLUMNS>().0 {
            row[at] *= factor;
            let x = row[at];
            shares.iter_mut().zip(row).for_each(|(share, y)| *share += x * *y);
        }
        // Those before it are done, and it is not taken off itself.
        shares[..=at].fill(0.0);
        for row in columns.as_chunks_mut::<PRODUCT_COLUMNS>().0 {
            let x = row[at];
            row.iter_mut().zip(&shares).for_each(|(y, share)| *y -= x * share);
        }
    }
}

/// Eigenvalues and eigenvectors of a symmetric matrix, largest first, by Jacobi's rotations. What is left beside the
/// diagonal is too small to matter to the first of them.
fn eigenvectors(mut matrix: Vec<f64>, n: usize) -> Vec<(f64, Vec<f64>)> {
    let mut vectors = vec![0.0; n * n];
    (0..n).for_each(|at| vectors[at * n + at] = 1.0);
    let trace: f64 = (0..n).map(|at| matrix[at * n + at]).sum();
    for _ in 0..12 {
        let mut n_turned = 0;
        for p in 0..n {
            for q in p + 1..n {
                let (on_p, on_q, off) = (matrix[p * n + p], matrix[q * n + q], matrix[p * n + q]);
                // Beside what both have, or beside all there is.
                if off * off <= on_p * on_q * 1e-8 || off.abs() <= trace * 1e-9 {
                    continue;
                }
                n_turned += 1;
                let theta = (on_q - on_p) / (2.0 * off);
                let tangent = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let cosine = 1.0 / (tangent * tangent + 1.0).sqrt();
                let sine = tangent * cosine;
                turn_rows(&mut matrix, n, (p, q), cosine, sine);
                // The matrix is symmetric: its columns are its rows, but where both meet.
                for k in 0..n {
                    matrix[k * n + p] = matrix[p * n + k];
                    matrix[k * n + q] = matrix[q * n + k];
                }
                matrix[p * n + p] = on_p - tangent * off;
                matrix[q * n + q] = on_q + tangent * off;
                (matrix[p * n + q], matrix[q * n + p]) = (0.0, 0.0);
                // Vectors as rows, so that a rotation runs along both.
                turn_rows(&mut vectors, n, (p, q), cosine, sine);
            }
        }
        if n_turned == 0 {
            break;
        }
    }
    let mut pairs: Vec<(f64, Vec<f64>)> =
        (0..n).map(|at| (matrix[at * n + at], vectors[at * n..][..n].to_vec())).collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs
}

/// Turns two rows of a matrix, of which `p` is the first.
fn turn_rows(matrix: &mut [f64], n: usize, (p, q): (usize, usize), cosine: f64, sine: f64) {
    let (before, from_q) = matrix.split_at_mut(q * n);
    for (x, y) in before[p * n..][..n].iter_mut().zip(from_q) {
        (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
    }
}

/// The power of two that is nearest to a number, by ratio.
pub(super) fn exponent_of(x: f64) -> i32 {
    let bits = (x * std::f64::consts::SQRT_2).to_bits();
    i32::try_from(bits >> 52 & 0x7ff).unwrap_or(0) - 1023
}

/// Two to this power.
pub(super) fn power(exponent: i32) -> f64 {
    f64::from_bits(u64::try_from(exponent.clamp(-1022, 1023) + 1023).unwrap_or(0) << 52)
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
fn to_f32(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_of_low_rank_is_found_again() {
        let (n_rows, row_len) = (90, 70);
        let vector = |seed: usize, n: usize| -> Vec<f32> {
            (0..n).map(|at| ((at * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
        };
        let parts: Vec<_> =
            (1..4).map(|at| (vector(at, n_rows), vector(at + 9, row_len), 3.0 / at as f32)).collect();
        let entry = |i: usize, j: usize| parts.iter().map(|(u, v, size)| u[i] * v[j] * size).sum::<f32>();
        let row = |i: usize, out: &mut [f32]| {
            out.iter_mut().enumerate().for_each(|(j, x)| *x = entry(i, j));
        };
        let found = Components::find(&Rows { n_rows, row_len, row: &row }, 8).unwrap();
        assert!(found.left_over(2) > found.mean_square * 1e-3);
        assert!(found.left_over(3) < found.mean_square * 1e-4);
        assert!(found.quantised(3, 0, &vec![0; n_rows], &vec![0; row_len]).is_some());
    }

    #[test]
    fn a_matrix_of_full_rank_is_left_alone() {
        let row = |i: usize, out: &mut [f32]| {
            out.iter_mut().enumerate().for_each(|(j, x)| *x = if i % 70 == j { 1.0 } else { 0.0 });
        };
        assert!(Components::find(&Rows { n_rows: 140, row_len: 70, row: &row }, 8).is_none());
    }

    #[test]
    fn many_rows_are_told_by_some_of_them() {
        let (n_rows, row_len) = (3 * MAX_SKETCHED - 1, 32);
        let row = |i: usize, out: &mut [f32]| {
            let factor = ((i * 7919) % 1009) as f32 - 504.0;
            out.iter_mut().enumerate().for_each(|(j, x)| *x = factor * (j % 5) as f32);
        };
        let found = Components::find(&Rows { n_rows, row_len, row: &row }, 4).unwrap();
        assert!(found.left_over(1) < found.mean_square * 1e-4);
        // A row is its factor times the column vector, whichever rows were looked at.
        let (at, j) = (MAX_SKETCHED + 1, 4);
        let mut values = [0.0; 32];
        row(at, &mut values);
        assert!((found.left[0][at] * found.right[0][j] / values[j] - 1.0).abs() < 1e-3);
    }

    #[test]
    fn powers_of_two_are_found_from_numbers() {
        for exponent in [-300, -1, 0, 1, 17] {
            assert_eq!(exponent_of(power(exponent) * 1.2), exponent);
            assert_eq!(exponent_of(power(exponent) * 0.8), exponent);
        }
    }
}
