//! Sums of products of small factors: rows of a matrix of low rank.

use std::arch::x86_64::*;

/// Columns that are summed at a time: four registers of sums.
const COLUMNS: usize = 32;

/// Both factors of a pair as one number.
#[inline(always)]
pub(in crate::arch) fn joined([u, v]: [i16; 2]) -> i32 {
    let ([a, b], [c, d]) = (u.to_le_bytes(), v.to_le_bytes());
    i32::from_le_bytes([a, b, c, d])
}

#[target_feature(enable = "avx2")]
pub(super) fn sums(
    pairs: &[[i16; 2]],
    n_pairs: usize,
    columns: &[i16],
    n_columns: usize,
    sums: &mut [i32],
) -> usize {
    assert!(columns.len() >= 2 * n_columns * n_pairs && sums.len() >= n_columns * (pairs.len() / n_pairs));
    let whole = n_columns / COLUMNS * COLUMNS;
    for first in (0..whole).step_by(COLUMNS) {
        for (pairs, sums) in pairs.chunks_exact(n_pairs).zip(sums.chunks_exact_mut(n_columns)) {
            let mut vectors = [_mm256_setzero_si256(); 4];
            for (&pair, columns) in pairs.iter().zip(columns.chunks_exact(2 * n_columns)) {
                let factor = _mm256_set1_epi32(joined(pair));
                let entries: &[i16; 2 * COLUMNS] =
                    columns[2 * first..].first_chunk().expect("whole groups of columns");
                for (vector, entries) in vectors.iter_mut().zip(entries.as_chunks::<16>().0) {
                    // SAFETY: the reference is good for the 32 bytes that are read; no alignment is needed.
                    let entries = unsafe { _mm256_loadu_si256(entries.as_ptr().cast()) };
                    *vector = _mm256_add_epi32(*vector, _mm256_madd_epi16(entries, factor));
                }
            }
            let sums = &mut sums[first..][..COLUMNS];
            for (vector, sums) in vectors.into_iter().zip(sums.as_chunks_mut::<8>().0) {
                // SAFETY: the reference is good for the 32 bytes that are written; no alignment is needed.
                unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), vector) };
            }
        }
    }
    whole
}
