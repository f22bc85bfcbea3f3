//! Products of matrices of singles, for finding those of low rank.
//!
//! Every sum adds its products one after the other, each rounded on its own, so that vectors of any width give the same.

use crate::arch::kernels;

/// Columns of the right matrix that a kernel works on at a time.
pub const PRODUCT_COLUMNS: usize = 16;

/// Adds to each of the rows of `sums`, which have `width` entries, a row of `left` times the matrix `right`, whose rows
/// have as many. All matrices are row by row.
///
/// # Panics
/// When the lengths do not agree.
pub fn add_products(left: &[f32], right: &[f32], width: usize, sums: &mut [f32]) {
    let (n_rows, inner) = (sums.len() / width, right.len() / width);
    assert!(sums.len() == n_rows * width && right.len() == inner * width && left.len() == n_rows * inner);
    if inner == 0 {
        return;
    }
    let done = kernels().add_products(left, right, width, sums);
    for (row, sums) in left.chunks_exact(inner).zip(sums.chunks_exact_mut(width)).skip(done) {
        for (x, right) in row.iter().zip(right.chunks_exact(width)) {
            sums.iter_mut().zip(right).for_each(|(sum, y)| *sum += x * y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{KernelSet, kernel_sets, with_kernels};

    #[test]
    fn kernels_multiply_like_the_scalar_code() {
        let entries = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|at| ((at * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
        };
        let shapes = [(1, 1, 16), (8, 5, 16), (17, 33, 48), (9, 70, 80), (8, 3, 20)];
        for (n_rows, inner, width) in shapes.into_iter().step_by(crate::sizes(1, 4)) {
            let (left, right) = (entries(n_rows * inner, 1), entries(inner * width, 2));
            let product = |kernels: KernelSet| -> Vec<u32> {
                let mut sums = entries(n_rows * width, 3);
                with_kernels(kernels, || add_products(&left, &right, width, &mut sums));
                sums.into_iter().map(f32::to_bits).collect()
            };
            let expected = product(KernelSet::Scalar);
            assert!(kernel_sets().all(|kernels| product(kernels) == expected));
        }
    }
}
