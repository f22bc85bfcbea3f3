//! Putting bucketed symbols back into rows, 16 columns at a time: each class hands its next symbols to its columns
//! by one shuffle.

use super::Avx2;
use std::arch::x86_64::*;

impl Avx2 {
    /// See `contexts::Buckets::scatter`. `shuffles` and `taken` list, for each group of 16 columns, an entry per
    /// column class; `at` has a position in `bucketed` per column class for each row class.
    ///
    /// # Panics
    /// When a row's groups do not fit `plane`, or a class would be read past the end of `bucketed`.
    pub(crate) fn scatter_rows<const CLASSES: usize>(
        self,
        columns: Columns<'_, CLASSES>,
        row_classes: &[u8],
        bucketed: &[u8],
        at: &mut [[usize; CLASSES]],
        plane: &mut [u8],
    ) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { scatter_rows(columns, row_classes, bucketed, at, plane) }
    }
}

/// How the columns of every row are put back.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a, const CLASSES: usize> {
    pub(crate) row_len: usize,
    pub(crate) shuffles: &'a [[[u8; 16]; CLASSES]],
    pub(crate) taken: &'a [[u8; CLASSES]],
}

#[target_feature(enable = "avx2")]
fn scatter_rows<const CLASSES: usize>(
    columns: Columns<'_, CLASSES>,
    row_classes: &[u8],
    bucketed: &[u8],
    at: &mut [[usize; CLASSES]],
    plane: &mut [u8],
) {
    let taken_by_row: [usize; CLASSES] =
        std::array::from_fn(|class| columns.taken.iter().map(|taken| usize::from(taken[class])).sum());
    let n_groups = columns.shuffles.len().min(columns.taken.len());
    for (row, &class) in row_classes.iter().enumerate() {
        let out = &mut plane[row * columns.row_len..][..16 * n_groups];
        let next = &mut at[usize::from(class)];
        assert!(next.iter().zip(taken_by_row).all(|(next, taken)| next + taken + 16 <= bucketed.len()));
        for ((shuffles, taken), out) in
            columns.shuffles.iter().zip(columns.taken).zip(out.as_chunks_mut::<16>().0)
        {
            let mut group = _mm_setzero_si128();
            for class in 0..CLASSES {
                let from = bucketed.as_ptr().wrapping_add(next[class]);
                // SAFETY: what the whole row takes was checked to end 16 bytes inside `bucketed`.
                let symbols = unsafe { _mm_loadu_si128(from.cast()) };
                group = _mm_or_si128(group, _mm_shuffle_epi8(symbols, load(&shuffles[class])));
                next[class] += usize::from(taken[class]);
            }
            // SAFETY: `out` is 16 writable bytes, and `storeu` has no alignment requirement.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), group) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: `bytes` is 16 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
