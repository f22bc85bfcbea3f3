//! bf16 weights times a vector with AVX-512: two rows in a register, so that the eight partial sums of each, and with them
//! the order of additions, are those of every other kernel.

use super::{Avx512, load, load_wide, table};
use crate::ecq::gemv::{Activations, Exponents, join};
use crate::entropy::rans8::LANES;
use std::arch::x86_64::*;

impl Avx512 {
    /// Products of rows whose symbols are packed four bits each.
    pub(super) fn ecq_dot_bf16_packed(
        self,
        packed: &[u8],
        low: &[u8],
        exponents: &Exponents,
        x: &Activations,
        out: &mut [f32],
    ) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { dot_bf16_packed(packed, low, exponents, x, out) }
    }

    /// Products of rows of plain weights.
    pub(super) fn dot_plain_bf16(self, weights: &[u8], x: &Activations, out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { dot_plain_bf16(weights, x, out) }
    }
}

/// `2 PAIRS` rows of `row_len` elements from a group's first on. Rows behind the last repeat the first; their sums are
/// dropped.
#[inline]
fn rows_of<T, const PAIRS: usize>(group: &[T], row_len: usize, n_rows: usize) -> [[&[T]; 2]; PAIRS] {
    let row = |row: usize| &group[if row < n_rows { row * row_len } else { 0 }..][..row_len];
    std::array::from_fn(|pair| [row(2 * pair), row(2 * pair + 1)])
}

/// Pairs of rows of packed symbols that are taken together.
const PACKED_PAIRS: usize = 2;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn dot_bf16_packed(packed: &[u8], low: &[u8], exponents: &Exponents, x: &Activations, out: &mut [f32]) {
    let exponents = ExponentTables::new(exponents);
    let xs = x.arranged().as_chunks::<32>().0.as_chunks::<2>().0;
    let packed = packed.as_chunks::<LANES>().0;
    let low = low.as_chunks::<LANES>().0.as_chunks::<2>().0;
    assert!(packed.len() == out.len() * xs.len() && low.len() == packed.len());
    let nibble = _mm512_set1_epi8(15);
    let group_len = 2 * PACKED_PAIRS * xs.len();
    for (group, out) in out.chunks_mut(2 * PACKED_PAIRS).enumerate() {
        let packed = rows_of::<_, PACKED_PAIRS>(&packed[group * group_len..], xs.len(), out.len());
        let low = rows_of::<_, PACKED_PAIRS>(&low[group * group_len..], xs.len(), out.len());
        let mut sums = [_mm512_setzero_ps(); PACKED_PAIRS];
        for piece in 0..xs.len() {
            let x = xs[piece].each_ref().map(|x| for_both(x));
            for pair in 0..PACKED_PAIRS {
                let ([packed_a, packed_b], [low_a, low_b]) = (packed[pair], low[pair]);
                // The same place of the next rows. Each row is too short for what a CPU fetches by itself: without, this
                // is slower than plain weights.
                for row in [low_a, low_b] {
                    _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(piece + group_len).cast());
                }
                if piece % 2 == 0 {
                    for row in [packed_a, packed_b] {
                        _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(piece + group_len).cast());
                    }
                }
                let symbols = both(load(&packed_a[piece]), load(&packed_b[piece]));
                let rest = |half: usize| both(load(&low_a[piece][half]), load(&low_b[piece][half]));
                let sum = exponents.add(sums[pair], _mm512_and_si512(symbols, nibble), rest(0), &x[0]);
                let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(symbols), nibble);
                sums[pair] = exponents.add(sum, upper, rest(1), &x[1]);
            }
        }
        write_sums(&sums, out);
    }
}

/// Pairs of rows of plain weights that are taken together: twice as many as of packed symbols are fastest.
const PLAIN_PAIRS: usize = 4;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn dot_plain_bf16(weights: &[u8], x: &Activations, out: &mut [f32]) {
    let xs = x.arranged().as_chunks::<32>().0;
    let weights = weights.as_chunks::<{ 2 * LANES }>().0;
    assert_eq!(weights.len(), out.len() * xs.len());
    for (group, out) in out.chunks_mut(2 * PLAIN_PAIRS).enumerate() {
        let weights = &weights[group * 2 * PLAIN_PAIRS * xs.len()..];
        let rows = rows_of::<_, PLAIN_PAIRS>(weights, xs.len(), out.len());
        let mut sums = [_mm512_setzero_ps(); PLAIN_PAIRS];
        for step in 0..xs.len() {
            let x = for_both(&xs[step]);
            for (sum, [a, b]) in sums.iter_mut().zip(rows) {
                let (a, b) = (load_wide(&a[step]), load_wide(&b[step]));
                let first = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
                let second = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
                *sum = add_products(*sum, first, second, &x);
            }
        }
        write_sums(&sums, out);
    }
}

/// Exponents of symbols in registers.
#[derive(Clone, Copy)]
struct ExponentTables {
    high: __m512i,
    low: __m512i,
}

impl ExponentTables {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
    fn new(of: &Exponents) -> Self {
        let wide = |entries: &[u8; 16]| both(table(entries), table(entries));
        Self { high: wide(&of.high), low: wide(&of.low) }
    }

    /// Adds 32 weights of two rows times their activations to eight sums each.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
    fn add(self, sum: __m512, symbols: __m512i, rest: __m512i, x: &[__m512; 4]) -> __m512 {
        let mantissa = _mm512_set1_epi8(0x7f);
        let (low, high) = (_mm512_shuffle_epi8(self.low, symbols), _mm512_shuffle_epi8(self.high, symbols));
        // The exponent, or the mantissa; the exponent, or the sign.
        let low = _mm512_ternarylogic_epi32::<0b1111_1000>(low, rest, mantissa);
        let high = _mm512_ternarylogic_epi32::<0b1111_0100>(high, rest, mantissa);
        add_products(sum, _mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high), x)
    }
}

/// 16-bit weights 0-7 and 16-23 of both rows, then 8-15 and 24-31, to singles, times activations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn add_products(sum: __m512, a: __m512i, b: __m512i, x: &[__m512; 4]) -> __m512 {
    let zero = _mm512_setzero_si512();
    let weights = [
        _mm512_unpacklo_epi16(zero, a),
        _mm512_unpackhi_epi16(zero, a),
        _mm512_unpacklo_epi16(zero, b),
        _mm512_unpackhi_epi16(zero, b),
    ];
    let mut sum = sum;
    for (weights, x) in weights.iter().zip(x) {
        sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_castsi512_ps(*weights), *x));
    }
    sum
}

/// Activations for both rows of a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn for_both(x: &[f32; 32]) -> [__m512; 4] {
    let (eights, _) = x.as_chunks::<8>();
    std::array::from_fn(|eight| {
        // SAFETY: eight readable singles, and `loadu` has no alignment requirement.
        let x = unsafe { _mm256_loadu_si256(eights[eight].as_ptr().cast()) };
        _mm512_castsi512_ps(_mm512_broadcast_i64x4(x))
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn both(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Joins the eight partial sums of every row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn write_sums(sums: &[__m512], out: &mut [f32]) {
    for (sum, out) in sums.iter().zip(out.chunks_mut(2)) {
        let mut p = [0f32; 16];
        // SAFETY: `p` is sixteen writable singles, and `storeu` has no alignment requirement.
        unsafe { _mm512_storeu_ps(p.as_mut_ptr(), *sum) };
        for (out, p) in out.iter_mut().zip(p.as_chunks::<8>().0) {
            *out = join(*p);
        }
    }
}
