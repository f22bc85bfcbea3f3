//! Products of matrices of singles with AVX-512.

use crate::arch::avx2::products::ROWS;
use crate::prediction::PRODUCT_COLUMNS;
use std::arch::x86_64::*;

#[target_feature(enable = "avx512f")]
pub(super) fn add_products(left: &[f32], right: &[f32], width: usize, sums: &mut [f32]) -> usize {
    if !width.is_multiple_of(PRODUCT_COLUMNS) {
        return 0;
    }
    let inner = right.len() / width;
    let groups = left.chunks_exact(ROWS * inner).zip(sums.chunks_exact_mut(ROWS * width));
    let n_groups = groups.len();
    groups.for_each(|(left, sums)| add(left, right, width, sums));
    n_groups * ROWS
}

#[target_feature(enable = "avx512f")]
fn add(left: &[f32], right: &[f32], width: usize, sums: &mut [f32]) {
    let inner = left.len() / ROWS;
    let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &left[row * inner..][..inner]);
    for column in (0..width).step_by(16) {
        let mut vectors = [_mm512_setzero_ps(); ROWS];
        for (vector, sums) in vectors.iter_mut().zip(sums.chunks_exact(width)) {
            let sums: &[f32; 16] = sums[column..].first_chunk().expect("whole groups of columns");
            // SAFETY: `sums` is 64 readable bytes, and `loadu` has no alignment requirement.
            *vector = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
        }
        for (at, right) in right.chunks_exact(width).enumerate().take(inner) {
            let right: &[f32; 16] = right[column..].first_chunk().expect("whole groups of columns");
            // SAFETY: `right` is 64 readable bytes, and `loadu` has no alignment requirement.
            let right = unsafe { _mm512_loadu_ps(right.as_ptr()) };
            for (vector, row) in vectors.iter_mut().zip(rows) {
                *vector = _mm512_add_ps(*vector, _mm512_mul_ps(_mm512_set1_ps(row[at]), right));
            }
        }
        for (vector, sums) in vectors.into_iter().zip(sums.chunks_exact_mut(width)) {
            let sums: &mut [f32; 16] = sums[column..].first_chunk_mut().expect("whole groups of columns");
            // SAFETY: `sums` is 64 writable bytes, and `storeu` has no alignment requirement.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), vector) };
        }
    }
}
