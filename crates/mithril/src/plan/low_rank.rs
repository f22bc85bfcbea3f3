//! The first components of a matrix, and their factors as whole numbers.
//!
//! A randomised range finder: a random matrix of a few columns is multiplied by the matrix and its transpose in turn,
//! made orthonormal in between, until it spans the rows that explain most. The rest is a small eigenvalue problem.
//! Plain loops in a fixed order, so that the bytes do not depend on threads; no function whose last bit a platform may
//! choose.

use mithril_codec::prediction::{Factors, LowRank};

/// Columns beyond the wanted rank.
const EXTRA: usize = 8;

/// Rows or columns that are worked on at a time.
const PANEL: usize = 4;

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
    /// Finds at most so many components.
    pub(super) fn find(matrix: &Rows<'_>, rank: usize) -> Self {
        let (n_rows, row_len) = (matrix.n_rows, matrix.row_len);
        let width = (rank + EXTRA).min(n_rows).min(row_len).next_multiple_of(8);
        let mut random = 0x9E37_79B9_7F4A_7C15u64;
        let mut left: Vec<f32> = (0..n_rows * width)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if random >> 63 == 1 { 1.0 } else { -1.0 }
            })
            .collect();
        let mut right = matrix.transposed_times(&left, width);
        orthonormalise(&mut right, width);
        left = matrix.times(&right, width).0;
        orthonormalise(&mut left, width);
        right = matrix.transposed_times(&left, width);
        orthonormalise(&mut right, width);
        let (left, sum_of_squares) = matrix.times(&right, width);
        let turns = eigenvectors(gram(&left, width), width);
        let n = (n_rows * row_len) as f64;
        let turned = |vectors: &[f32], at: usize| -> Vec<f32> {
            let turn = &turns[at].1;
            let turned = |row: &[f32]| row.iter().zip(turn).map(|(x, t)| f64::from(*x) * t).sum::<f64>();
            vectors.chunks_exact(width).map(|row| to_f32(turned(row))).collect()
        };
        let n_found = rank.min(width);
        Self {
            left: (0..n_found).map(|at| turned(&left, at)).collect(),
            right: (0..n_found).map(|at| turned(&right, at)).collect(),
            sizes: turns.iter().take(n_found).map(|(square, _)| (square.max(0.0) / n).sqrt()).collect(),
            mean_square: sum_of_squares / n,
        }
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

impl Rows<'_> {
    /// The matrix times a matrix of `width` columns, and the sum of all squares.
    fn times(&self, right: &[f32], width: usize) -> (Vec<f32>, f64) {
        let mut row = vec![0.0; self.row_len];
        let mut out = vec![0.0; self.n_rows * width];
        let mut squares = 0.0;
        for (at, sums) in out.chunks_exact_mut(width).enumerate() {
            (self.row)(at, &mut row);
            squares += row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            let (panels, last) = row.as_chunks::<PANEL>();
            let rights = right.chunks_exact(PANEL * width);
            panels.iter().zip(rights).for_each(|(x, right)| add_panel(x, right, sums));
            let done = panels.len() * PANEL;
            for (x, right) in last.iter().zip(right[done * width..].chunks_exact(width)) {
                sums.iter_mut().zip(right).for_each(|(sum, y)| *sum += x * y);
            }
        }
        (out, squares)
    }

    /// The transposed matrix times a matrix of `width` columns.
    fn transposed_times(&self, left: &[f32], width: usize) -> Vec<f32> {
        let mut rows = vec![0.0; PANEL * self.row_len];
        let mut out = vec![0.0; self.row_len * width];
        for first in (0..self.n_rows).step_by(PANEL) {
            let n = PANEL.min(self.n_rows - first);
            rows.fill(0.0);
            for (at, row) in rows.chunks_exact_mut(self.row_len).enumerate().take(n) {
                (self.row)(first + at, row);
            }
            let mut panel = vec![0.0; PANEL * width];
            panel[..n * width].copy_from_slice(&left[first * width..][..n * width]);
            for (column, sums) in out.chunks_exact_mut(width).enumerate() {
                let x: [f32; PANEL] = std::array::from_fn(|at| rows[at * self.row_len + column]);
                add_panel(&x, &panel, sums);
            }
        }
        out
    }
}

/// Adds four rows of `right`, each times its factor.
#[inline]
fn add_panel(x: &[f32; PANEL], right: &[f32], sums: &mut [f32]) {
    let width = sums.len();
    let (a, rest) = right.split_at(width);
    let (b, rest) = rest.split_at(width);
    let (c, d) = rest.split_at(width);
    for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *sum += (x[0] * a + x[1] * b) + (x[2] * c + x[3] * d);
    }
}

/// Makes the columns of a matrix orthonormal, by the method of Gram and Schmidt, twice. A column that is nothing but a
/// sum of those before it becomes zero.
fn orthonormalise(matrix: &mut [f32], width: usize) {
    let n = matrix.len() / width;
    let mut columns = vec![0.0f32; matrix.len()];
    for (at, row) in matrix.chunks_exact(width).enumerate() {
        row.iter().enumerate().for_each(|(column, x)| columns[column * n + at] = *x);
    }
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        // Eight sums, so that they need not wait for each other.
        let mut sums = [0.0f32; 8];
        let (mut total, mut seen) = (0.0, 0);
        for (a, b) in a.chunks(8).zip(b.chunks(8)) {
            sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
            seen += 1;
            if seen % 64 == 0 {
                total += sums.iter().map(|sum| f64::from(*sum)).sum::<f64>();
                sums = [0.0; 8];
            }
        }
        total + sums.iter().map(|sum| f64::from(*sum)).sum::<f64>()
    };
    for at in 0..width {
        let (before, rest) = columns.split_at_mut(at * n);
        let column = &mut rest[..n];
        let length = dot(column, column).sqrt();
        for _ in 0..2 {
            for other in before.chunks_exact(n) {
                let share = to_f32(dot(column, other));
                column.iter_mut().zip(other).for_each(|(x, y)| *x -= share * y);
            }
        }
        let left = dot(column, column).sqrt();
        let factor = if left > length * 1e-5 { to_f32(1.0 / left) } else { 0.0 };
        column.iter_mut().for_each(|x| *x *= factor);
    }
    for (at, row) in matrix.chunks_exact_mut(width).enumerate() {
        row.iter_mut().enumerate().for_each(|(column, x)| *x = columns[column * n + at]);
    }
}

/// Products of all pairs of columns.
fn gram(matrix: &[f32], width: usize) -> Vec<f64> {
    let mut gram = vec![0.0; width * width];
    for row in matrix.chunks_exact(width) {
        for (at, x) in row.iter().enumerate() {
            let x = f64::from(*x);
            let sums = &mut gram[at * width..][..width];
            sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * f64::from(*y));
        }
    }
    gram
}

/// Eigenvalues and eigenvectors of a symmetric matrix, largest first, by Jacobi's rotations.
fn eigenvectors(mut matrix: Vec<f64>, n: usize) -> Vec<(f64, Vec<f64>)> {
    let mut vectors = vec![0.0; n * n];
    (0..n).for_each(|at| vectors[at * n + at] = 1.0);
    let trace: f64 = (0..n).map(|at| matrix[at * n + at]).sum();
    for _ in 0..12 {
        let mut largest = 0.0f64;
        for p in 0..n {
            for q in p + 1..n {
                let off = matrix[p * n + q];
                largest = largest.max(off.abs());
                if off.abs() <= trace * 1e-14 {
                    continue;
                }
                let theta = (matrix[q * n + q] - matrix[p * n + p]) / (2.0 * off);
                let tangent = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let cosine = 1.0 / (tangent * tangent + 1.0).sqrt();
                let sine = tangent * cosine;
                for k in 0..n {
                    let (x, y) = (matrix[k * n + p], matrix[k * n + q]);
                    (matrix[k * n + p], matrix[k * n + q]) = (cosine * x - sine * y, sine * x + cosine * y);
                }
                for k in 0..n {
                    let (x, y) = (matrix[p * n + k], matrix[q * n + k]);
                    (matrix[p * n + k], matrix[q * n + k]) = (cosine * x - sine * y, sine * x + cosine * y);
                }
                // Vectors as rows, so that a rotation runs along both.
                for k in 0..n {
                    let (x, y) = (vectors[p * n + k], vectors[q * n + k]);
                    (vectors[p * n + k], vectors[q * n + k]) = (cosine * x - sine * y, sine * x + cosine * y);
                }
            }
        }
        if largest <= trace * 1e-9 {
            break;
        }
    }
    let mut pairs: Vec<(f64, Vec<f64>)> =
        (0..n).map(|at| (matrix[at * n + at], vectors[at * n..][..n].to_vec())).collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs
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
        let found = Components::find(&Rows { n_rows, row_len, row: &row }, 8);
        assert!(found.left_over(2) > found.mean_square * 1e-3);
        assert!(found.left_over(3) < found.mean_square * 1e-4);
        assert!(found.quantised(3, 0, &vec![0; n_rows], &vec![0; row_len]).is_some());
    }

    #[test]
    fn powers_of_two_are_found_from_numbers() {
        for exponent in [-300, -1, 0, 1, 17] {
            assert_eq!(exponent_of(power(exponent) * 1.2), exponent);
            assert_eq!(exponent_of(power(exponent) * 0.8), exponent);
        }
    }
}
