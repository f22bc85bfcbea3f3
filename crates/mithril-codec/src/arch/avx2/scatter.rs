//! Buckets to rows, 16 columns at a time: each class hands its next symbols to its columns by one shuffle.

use crate::contexts::ColumnClasses;
use std::arch::x86_64::*;

/// Where there are as many classes as encoders make of fields, and of signs.
#[target_feature(enable = "avx2")]
pub(super) fn scatter_rows(
    columns: &ColumnClasses<'_>,
    row_classes: &[u8],
    bucketed: &[u8],
    at: &mut [usize],
    plane: &mut [u8],
) -> bool {
    match columns.n_classes {
        4 => scatter_rows_of::<4>(columns, row_classes, bucketed, at, plane),
        8 => scatter_rows_of::<8>(columns, row_classes, bucketed, at, plane),
        _ => return false,
    }
    true
}

#[target_feature(enable = "avx2")]
fn scatter_rows_of<const CLASSES: usize>(
    columns: &ColumnClasses<'_>,
    row_classes: &[u8],
    bucketed: &[u8],
    at: &mut [usize],
    plane: &mut [u8],
) {
    let (shuffles, taken) =
        (columns.shuffles.as_chunks::<CLASSES>().0, columns.taken.as_chunks::<CLASSES>().0);
    let at = at.as_chunks_mut::<CLASSES>().0;
    let taken_by_row: [usize; CLASSES] =
        std::array::from_fn(|class| taken.iter().map(|taken| usize::from(taken[class])).sum());
    let n_groups = shuffles.len().min(taken.len());
    for (row, &class) in row_classes.iter().enumerate() {
        let out = &mut plane[row * columns.row_len..][..16 * n_groups];
        let next = &mut at[usize::from(class)];
        assert!(next.iter().zip(taken_by_row).all(|(next, taken)| next + taken + 16 <= bucketed.len()));
        for ((shuffles, taken), out) in shuffles.iter().zip(taken).zip(out.as_chunks_mut::<16>().0) {
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
