//! Rows to buckets and back. With AVX2 16 columns are put back at a time: each class hands its next symbols to its
//! columns by one shuffle. With AVX-512 one instruction does that for 64 columns, and another takes them out.

use super::{Avx2, load_wide, store_wide};
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

    /// See `contexts::Scatter::next_rows`. `masks` lists, for each group of 64 columns, the columns of every class; `at`
    /// has a position in `bucketed` per column class for each row class.
    ///
    /// # Panics
    /// Without AVX-512. When a row does not fit `plane`, or a class would be read past the end of `bucketed`.
    pub(crate) fn expand_rows(
        self,
        masks: &[u64],
        row_len: usize,
        row_classes: &[u8],
        bucketed: &[u8],
        at: &mut [usize],
        plane: &mut [u8],
    ) {
        assert!(self.is_wide());
        // SAFETY: `wide` exists only when `detect` saw the features.
        unsafe { expand_rows(masks, row_len, row_classes, bucketed, at, plane) }
    }

    /// See `contexts::Buckets::gather`; the same lists as for `expand_rows`.
    ///
    /// # Panics
    /// Without AVX-512. When `plane` has fewer rows, or a class would be written past the end of `bucketed`.
    pub(crate) fn gather_rows(
        self,
        masks: &[u64],
        row_len: usize,
        row_classes: &[u8],
        plane: &[u8],
        at: &mut [usize],
        bucketed: &mut [u8],
    ) {
        assert!(self.is_wide());
        // SAFETY: `wide` exists only when `detect` saw the features.
        unsafe { gather_rows(masks, row_len, row_classes, plane, at, bucketed) }
    }
}

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
        // SAFETY: the mask writes no byte behind `out`.
        unsafe { _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), first, vector) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn expand_rows(
    masks: &[u64],
    row_len: usize,
    row_classes: &[u8],
    bucketed: &[u8],
    at: &mut [usize],
    plane: &mut [u8],
) {
    match masks.len() / row_len.div_ceil(64) {
        // As many as encoders make of fields, and of signs: their positions stay in registers.
        4 => expand_rows_of::<4>(masks, row_len, row_classes, bucketed, at, plane),
        8 => expand_rows_of::<8>(masks, row_len, row_classes, bucketed, at, plane),
        n_classes => {
            for (row, &class) in row_classes.iter().enumerate() {
                let next = &mut at[usize::from(class) * n_classes..][..n_classes];
                expand_row(masks, row_len, bucketed, next, &mut plane[row * row_len..]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn expand_rows_of<const CLASSES: usize>(
    masks: &[u64],
    row_len: usize,
    row_classes: &[u8],
    bucketed: &[u8],
    at: &mut [usize],
    plane: &mut [u8],
) {
    let at = at.as_chunks_mut::<CLASSES>().0;
    for (row, &class) in row_classes.iter().enumerate() {
        let mut next = at[usize::from(class)];
        expand_row(masks, row_len, bucketed, &mut next, &mut plane[row * row_len..]);
        at[usize::from(class)] = next;
    }
}

/// Puts one row at the front of `out`. What is written behind it is overwritten by the next row, or lies in the slack.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn expand_row(masks: &[u64], row_len: usize, bucketed: &[u8], next: &mut [usize], out: &mut [u8]) {
    for (masks, first) in masks.chunks_exact(next.len()).zip((0..).step_by(64)) {
        let mut group = _mm512_setzero_si512();
        for (&mask, at) in masks.iter().zip(&mut *next) {
            let symbols = load_wide(bucketed[*at..].first_chunk().expect("slack behind the buckets"));
            // More streams than hardware foresees, and they may have left the first-level cache.
            _mm_prefetch::<_MM_HINT_T0>(bucketed.as_ptr().wrapping_add(*at + AHEAD).cast());
            group = _mm512_or_si512(group, _mm512_maskz_expand_epi8(mask, symbols));
            *at += mask.count_ones() as usize;
        }
        store_first(&mut out[first..], row_len - first, group);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn gather_rows(
    masks: &[u64],
    row_len: usize,
    row_classes: &[u8],
    plane: &[u8],
    at: &mut [usize],
    bucketed: &mut [u8],
) {
    let n_classes = masks.len() / row_len.div_ceil(64);
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
