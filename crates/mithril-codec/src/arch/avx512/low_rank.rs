//! Sums of products of small factors with AVX-512.

use crate::arch::avx2::low_rank::joined;
use std::arch::x86_64::*;

/// Columns that are summed at a time: four registers of sums.
const COLUMNS: usize = 64;

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn sums(
    pairs: &[[i16; 2]],
    n_pairs: usize,
    columns: &[i16],
    n_columns: usize,
    sums: &mut [i32],
) -> usize {
    assert!(columns.len() >= 2 * n_columns * n_pairs && sums.len() >= n_columns * (pairs.len() / n_pairs));
    let whole = n_columns / COLUMNS * COLUMNS;
    // Columns outside of rows: their factors are read once for all rows.
    for first in (0..whole).step_by(COLUMNS) {
        for (pairs, sums) in pairs.chunks_exact(n_pairs).zip(sums.chunks_exact_mut(n_columns)) {
            let mut vectors = [_mm512_setzero_si512(); 4];
            for (&pair, columns) in pairs.iter().zip(columns.chunks_exact(2 * n_columns)) {
                let factor = _mm512_set1_epi32(joined(pair));
                let entries: &[i16; 2 * COLUMNS] =
                    columns[2 * first..].first_chunk().expect("whole groups of columns");
                for (vector, entries) in vectors.iter_mut().zip(entries.as_chunks::<32>().0) {
                    // SAFETY: the reference is good for the 64 bytes that are read; no alignment is needed.
                    let entries = unsafe { _mm512_loadu_si512(entries.as_ptr().cast()) };
                    *vector = _mm512_add_epi32(*vector, _mm512_madd_epi16(entries, factor));
                }
            }
            let sums = &mut sums[first..][..COLUMNS];
            for (vector, sums) in vectors.into_iter().zip(sums.as_chunks_mut::<16>().0) {
                // SAFETY: the reference is good for the 64 bytes that are written; no alignment is needed.
                unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), vector) };
            }
        }
    }
    whole
}
