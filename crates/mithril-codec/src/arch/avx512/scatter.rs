//! Rows to buckets and back with AVX-512: one instruction hands the next symbols of a class to its columns among 64, and
//! another takes them out.

use super::{load_wide, store_wide};
use crate::contexts::ColumnClasses;
use std::arch::x86_64::*;

/// How far ahead of a class's next symbol memory is fetched.
const AHEAD: usize = 384;

/// Writes the first `n` bytes of a register to the front of `out`, and whatever follows them where there is room for a
/// whole register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn store_first(out: &mut [u8], n: usize, vector: __m512i) {
    if let Some(out) = out.first_chunk_mut() {
        store_wide(out, vector);
    } else {
        let out = &mut out[..n];
        let first = _bzhi_u64(u64::MAX, u32::try_from(out.len()).unwrap_or(u32::MAX).min(64));
        // SAFETY: the mask writes no byte after `out`.
        unsafe { _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), first, vector) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn scatter_rows(
    columns: &ColumnClasses<'_>,
    row_classes: &[u8],
    bucketed: &[u8],
    at: &mut [usize],
    plane: &mut [u8],
) -> bool {
    let ColumnClasses { row_len, masks, .. } = *columns;
    match columns.n_classes {
        // As many as encoders make of fields, and of signs: their positions stay in registers.
        4 => scatter_rows_of::<4>(columns, row_classes, bucketed, at, plane),
        8 => scatter_rows_of::<8>(columns, row_classes, bucketed, at, plane),
        n_classes => {
            for (row, &class) in row_classes.iter().enumerate() {
                let next = &mut at[usize::from(class) * n_classes..][..n_classes];
                scatter_row(masks, row_len, bucketed, next, &mut plane[row * row_len..]);
            }
        }
    }
    true
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn scatter_rows_of<const CLASSES: usize>(
    columns: &ColumnClasses<'_>,
    row_classes: &[u8],
    bucketed: &[u8],
    at: &mut [usize],
    plane: &mut [u8],
) {
    let ColumnClasses { row_len, masks, .. } = *columns;
    let at = at.as_chunks_mut::<CLASSES>().0;
    for (row, &class) in row_classes.iter().enumerate() {
        let mut next = at[usize::from(class)];
        scatter_row(masks, row_len, bucketed, &mut next, &mut plane[row * row_len..]);
        at[usize::from(class)] = next;
    }
}

/// Puts one row at the front of `out`. What is written after it is overwritten by the next row, or lies in the slack.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn scatter_row(masks: &[u64], row_len: usize, bucketed: &[u8], next: &mut [usize], out: &mut [u8]) {
    for (masks, first) in masks.chunks_exact(next.len()).zip((0..).step_by(64)) {
        let mut group = _mm512_setzero_si512();
        for (&mask, at) in masks.iter().zip(&mut *next) {
            let symbols = load_wide(bucketed[*at..].first_chunk().expect("slack after the buckets"));
            // More streams than hardware foresees, and they may have left the first-level cache.
            _mm_prefetch::<_MM_HINT_T0>(bucketed.as_ptr().wrapping_add(*at + AHEAD).cast());
            group = _mm512_or_si512(group, _mm512_maskz_expand_epi8(mask, symbols));
            *at += mask.count_ones() as usize;
        }
        store_first(&mut out[first..], row_len - first, group);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn gather_rows(
    columns: &ColumnClasses<'_>,
    row_classes: &[u8],
    plane: &[u8],
    at: &mut [usize],
    bucketed: &mut [u8],
) -> bool {
    let ColumnClasses { n_classes, row_len, masks, .. } = *columns;
    let ends = at[1..].to_vec();
    for (&class, row) in row_classes.iter().zip(plane.chunks_exact(row_len)) {
        let first = usize::from(class) * n_classes;
        let (next, ends) = (&mut at[first..][..n_classes], &ends[first..][..n_classes]);
        for (masks, columns) in masks.chunks_exact(n_classes).zip(row.chunks(64)) {
            let group = match columns.first_chunk() {
                Some(columns) => load_wide(columns),
                None => {
                    let mut last = [0; 64];
                    last[..columns.len()].copy_from_slice(columns);
                    load_wide(&last)
                }
            };
            for ((&mask, at), &end) in masks.iter().zip(&mut *next).zip(ends) {
                let n = mask.count_ones() as usize;
                // Not into the next bucket, which has begun already.
                store_first(&mut bucketed[*at..end], n, _mm512_maskz_compress_epi8(mask, group));
                *at += n;
            }
        }
    }
    true
}
