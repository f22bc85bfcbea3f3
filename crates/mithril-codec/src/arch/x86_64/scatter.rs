//! Putting bucketed symbols back into a row, 16 columns at a time: each class hands its next symbols to its
//! columns by one shuffle.

use super::Avx2;
use std::arch::x86_64::*;

impl Avx2 {
    /// See `contexts::Buckets::scatter`. `shuffles` and `taken` list, for each group of 16 columns, an entry per
    /// class; `at` has a position in `bucketed` per class.
    pub(crate) fn scatter_row(self, shuffles: &[[u8; 16]], taken: &[u8], bucketed: &[u8], at: &mut [usize], out: &mut [u8]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { scatter_row(shuffles, taken, bucketed, at, out) }
    }
}

#[target_feature(enable = "avx2")]
fn scatter_row(shuffles: &[[u8; 16]], taken: &[u8], bucketed: &[u8], at: &mut [usize], out: &mut [u8]) {
    let n_classes = at.len();
    let groups = shuffles.chunks_exact(n_classes).zip(taken.chunks_exact(n_classes));
    for ((shuffles, taken), out) in groups.zip(out.chunks_mut(16)) {
        let mut group = _mm_setzero_si128();
        for ((shuffle, &taken), at) in shuffles.iter().zip(taken).zip(at.iter_mut()) {
            let symbols = load(&bucketed[*at..*at + 16]);
            group = _mm_or_si128(group, _mm_shuffle_epi8(symbols, load(shuffle)));
            *at += usize::from(taken);
        }
        if let Some(out) = out.first_chunk_mut::<16>() {
            // SAFETY: `out` is 16 writable bytes, and `storeu` has no alignment requirement.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), group) };
        }
    }
}

/// # Panics
/// When there are not 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    // SAFETY: `bytes` has 16 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
