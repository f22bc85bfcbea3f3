//! bf16 weights times a vector with AVX-512: a register has the sixteen partial sums of a row.
//!
//! Some rows are taken at a time, and the next ones are fetched into the second-level cache meanwhile: each is too short
//! for what a CPU fetches by itself. Into the first level, where the activations are, this is a tenth slower.

use super::load_wide;
use crate::arch::avx2::ecq_gemv::{ExponentTables, half, level, products, sum_f32, sum_i32};
use crate::arch::avx2::rans8_decode::{Lanes, Tables, safe_steps};
use crate::arch::avx2::{load, table};
use crate::ecq::gemv::{Activations, Exponents, FourBlocks, PARTIAL_SUMS, PIECE, join};
use crate::entropy::rans8::{LANES, Streams};
use std::arch::x86_64::*;

products!("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt", step_wide);

/// Rows of packed symbols that are taken together.
const PACKED_ROWS: usize = 4;

/// Rows of plain weights that are taken together: twice as many as of packed symbols are fastest.
const PLAIN_ROWS: usize = 8;

/// Rows of `row_len` elements from a group's first on. Rows behind the last repeat the first; their sums are dropped.
#[inline]
fn rows_of<T, const ROWS: usize>(group: &[T], row_len: usize, n_rows: usize) -> [&[T]; ROWS] {
    std::array::from_fn(|row| &group[if row < n_rows { row * row_len } else { 0 }..][..row_len])
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2")]
pub(super) fn dot_bf16_packed(
    packed: &[u8],
    low: &[u8],
    exponents: &Exponents,
    x: &Activations,
    out: &mut [f32],
) {
    // A look-up by the lowest six bits of a byte: four times the same entries make the upper two of them count for nothing.
    let look_up = |entries: &[u8; 16]| _mm512_broadcast_i64x4(table(entries));
    let (exponents_low, exponents_high) = (look_up(&exponents.low), look_up(&exponents.high));
    let (xs, mantissa) = (x.pieces(), _mm512_set1_epi8(0x7f));
    let packed = packed.as_chunks::<{ PIECE / 2 }>().0;
    let low = low.as_chunks::<PIECE>().0;
    assert!(packed.len() == out.len() * xs.len() && low.len() == packed.len());
    let group_len = PACKED_ROWS * xs.len();
    for (group, out) in out.chunks_mut(PACKED_ROWS).enumerate() {
        let packed = rows_of::<_, PACKED_ROWS>(&packed[group * group_len..], xs.len(), out.len());
        let low = rows_of::<_, PACKED_ROWS>(&low[group * group_len..], xs.len(), out.len());
        let mut sums = [_mm512_setzero_ps(); PACKED_ROWS];
        for (piece, x) in xs.iter().enumerate() {
            let x = additions(x);
            for ((sum, packed), low) in sums.iter_mut().zip(packed).zip(low) {
                _mm_prefetch::<_MM_HINT_T1>(low.as_ptr().wrapping_add(piece + group_len).cast());
                if piece % 2 == 0 {
                    _mm_prefetch::<_MM_HINT_T1>(packed.as_ptr().wrapping_add(piece + group_len).cast());
                }
                // The upper 32 symbols stand in the upper halves of the bytes.
                let symbols = _mm512_broadcast_i64x4(load(&packed[piece]));
                let symbols = _mm512_srlv_epi64(symbols, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4));
                let rest = load_wide(&low[piece]);
                // The exponent, or the mantissa; the exponent, or the sign.
                let lower = _mm512_permutexvar_epi8(symbols, exponents_low);
                let lower = _mm512_ternarylogic_epi32::<0b1111_1000>(lower, rest, mantissa);
                let upper = _mm512_permutexvar_epi8(symbols, exponents_high);
                let upper = _mm512_ternarylogic_epi32::<0b1111_0100>(upper, rest, mantissa);
                let (a, b) = (_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper));
                *sum = add_products(*sum, a, b, &x);
            }
        }
        write_sums(&sums, out);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) fn dot_plain_bf16(weights: &[u8], x: &Activations, out: &mut [f32]) {
    let xs = x.pieces();
    let weights = weights.as_chunks::<PIECE>().0.as_chunks::<2>().0;
    assert_eq!(weights.len(), out.len() * xs.len());
    let group_len = PLAIN_ROWS * xs.len();
    for (group, out) in out.chunks_mut(PLAIN_ROWS).enumerate() {
        let rows = rows_of::<_, PLAIN_ROWS>(&weights[group * group_len..], xs.len(), out.len());
        let mut sums = [_mm512_setzero_ps(); PLAIN_ROWS];
        for (piece, x) in xs.iter().enumerate() {
            let x = additions(x);
            for (sum, row) in sums.iter_mut().zip(rows) {
                let ahead = row.as_ptr().wrapping_add(piece + group_len).cast::<i8>();
                _mm_prefetch::<_MM_HINT_T1>(ahead);
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(PIECE));
                let (lower, upper) = (load_wide(&row[piece][0]), load_wide(&row[piece][1]));
                let a = _mm512_shuffle_i64x2::<0b10_00_10_00>(lower, upper);
                let b = _mm512_shuffle_i64x2::<0b11_01_11_01>(lower, upper);
                *sum = add_products(*sum, a, b, &x);
            }
        }
        write_sums(&sums, out);
    }
}

/// 16-bit weights of 64 columns, the lower and the upper eight of every sixteen, times activations: even ones as singles,
/// then odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn add_products(sum: __m512, a: __m512i, b: __m512i, x: &[__m512; 4]) -> __m512 {
    let upper = _mm512_set1_epi32(0xffff_0000u32.cast_signed());
    let weights = [
        _mm512_slli_epi32::<16>(a),
        _mm512_and_si512(a, upper),
        _mm512_slli_epi32::<16>(b),
        _mm512_and_si512(b, upper),
    ];
    let mut sum = sum;
    for (weights, x) in weights.iter().zip(x) {
        sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_castsi512_ps(*weights), *x));
    }
    sum
}

/// Activations of 64 columns in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn additions(x: &[[f32; PARTIAL_SUMS]; 4]) -> [__m512; 4] {
    std::array::from_fn(|addition| {
        // SAFETY: sixteen readable singles, and `loadu` has no alignment requirement.
        unsafe { _mm512_loadu_ps(x[addition].as_ptr()) }
    })
}

/// Joins the partial sums of every row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn write_sums(sums: &[__m512], out: &mut [f32]) {
    for (sum, out) in sums.iter().zip(out) {
        let mut p = [0f32; PARTIAL_SUMS];
        // SAFETY: `p` is sixteen writable singles, and `storeu` has no alignment requirement.
        unsafe { _mm512_storeu_ps(p.as_mut_ptr(), *sum) };
        *out = join(p);
    }
}
