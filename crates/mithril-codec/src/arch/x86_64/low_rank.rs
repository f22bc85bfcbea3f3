//! Sums of products of small factors: a row of a matrix of low rank.

use super::Avx2;
use std::arch::x86_64::*;

/// Columns that are summed at a time: four registers of sums.
const COLUMNS: usize = 32;

impl Avx2 {
    /// See `prediction::LowRank::sum_row`. `columns` holds `2 * n_columns` entries for each pair. Takes whole groups of
    /// 32 columns; returns how many columns are done.
    ///
    /// # Panics
    /// When there are fewer entries than that.
    pub(crate) fn low_rank_sums(
        self,
        pairs: &[[i16; 2]],
        columns: &[i16],
        n_columns: usize,
        sums: &mut [i32],
    ) -> usize {
        assert!(columns.len() >= 2 * n_columns * pairs.len() && sums.len() >= n_columns);
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { low_rank_sums(pairs, columns, n_columns, sums) }
    }
}

#[target_feature(enable = "avx2")]
fn low_rank_sums(pairs: &[[i16; 2]], columns: &[i16], n_columns: usize, sums: &mut [i32]) -> usize {
    let groups = sums[..n_columns].as_chunks_mut::<COLUMNS>().0;
    for (group, sums) in groups.iter_mut().enumerate() {
        let mut vectors = [_mm256_setzero_si256(); 4];
        for (pair, &[u, v]) in pairs.iter().enumerate() {
            let [a, b] = u.to_le_bytes();
            let [c, d] = v.to_le_bytes();
            let factor = _mm256_set1_epi32(i32::from_le_bytes([a, b, c, d]));
            let from = 2 * (pair * n_columns + group * COLUMNS);
            let entries: &[i16; 2 * COLUMNS] = columns[from..].first_chunk().expect("as the caller says");
            for (vector, entries) in vectors.iter_mut().zip(entries.as_chunks::<16>().0) {
                // SAFETY: the reference is good for the 32 bytes that are read; no alignment is needed.
                let entries = unsafe { _mm256_loadu_si256(entries.as_ptr().cast()) };
                *vector = _mm256_add_epi32(*vector, _mm256_madd_epi16(entries, factor));
            }
        }
        for (vector, sums) in vectors.into_iter().zip(sums.as_chunks_mut::<8>().0) {
            // SAFETY: the reference is good for the 32 bytes that are written; no alignment is needed.
            unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), vector) };
        }
    }
    n_columns / COLUMNS * COLUMNS
}
