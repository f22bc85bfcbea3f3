//! Coded weights times a vector: symbols go from the lanes into sums without leaving the registers.

use super::rans8_decode::{Lanes, Tables, safe_steps};
use super::{load, table};
use crate::ecq::gemv::{Activations, Exponents, FourBlocks, PARTIAL_SUMS, join};
use crate::entropy::rans8::{LANES, Streams};
use std::arch::x86_64::*;

/// The level of 32 symbols: `tables[low][symbol]`, where `half` says which 32 of 64 neighbours they are.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::arch) fn level<const LOW: usize>(
    tables: &[__m256i; 4],
    symbols: __m256i,
    low: &[u8],
    half: i64,
) -> __m256i {
    match LOW {
        0 => _mm256_shuffle_epi8(tables[0], symbols),
        1 => {
            // Bit `4 half + k` of byte j belongs to lane 8 k + j: moved to the top bit, it chooses.
            let bytes = low.first_chunk::<8>().map_or(0, |bytes| i64::from_le_bytes(*bytes));
            let top = 7 - 4 * half;
            let counts = _mm256_setr_epi64x(top, top - 1, top - 2, top - 3);
            let chosen = _mm256_sllv_epi64(_mm256_set1_epi64x(bytes), counts);
            let (a, b) = (_mm256_shuffle_epi8(tables[0], symbols), _mm256_shuffle_epi8(tables[1], symbols));
            _mm256_blendv_epi8(a, b, chosen)
        }
        _ => {
            // Bits `2 g` and up of byte j belong to symbol 16 g + j; `g` is `2 half` below and one more above.
            let pieces = low.first_chunk::<16>().map_or(_mm256_setzero_si256(), |bytes| table(bytes));
            let top = 6 - 4 * half;
            let high = _mm256_sllv_epi64(pieces, _mm256_setr_epi64x(top, top, top - 2, top - 2));
            let first = _mm256_slli_epi64::<1>(high);
            let pick = |idx: usize| _mm256_shuffle_epi8(tables[idx], symbols);
            let even = _mm256_blendv_epi8(pick(0), pick(2), high);
            let odd = _mm256_blendv_epi8(pick(1), pick(3), high);
            _mm256_blendv_epi8(even, odd, first)
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::arch) fn sum_i32(v: __m256i) -> i32 {
    let half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let pair = _mm_add_epi32(half, _mm_shuffle_epi32::<0b0100_1110>(half));
    _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32::<0b1011_0001>(pair)))
}

/// Exponents of symbols in registers.
#[derive(Clone, Copy)]
pub(in crate::arch) struct ExponentTables {
    high: __m256i,
    low: __m256i,
}

impl ExponentTables {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in crate::arch) fn new(of: &Exponents) -> Self {
        Self { high: table(&of.high), low: table(&of.low) }
    }

    /// Adds 32 weights times their activations to eight sums, in four additions of eight: `x` has the activations of each.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in crate::arch) fn add(
        self,
        sum: __m256,
        symbols: __m256i,
        rest: __m256i,
        x: [&[f32; 8]; 4],
    ) -> __m256 {
        let mantissa = _mm256_set1_epi8(0x7f);
        let low = _mm256_or_si256(_mm256_shuffle_epi8(self.low, symbols), _mm256_and_si256(rest, mantissa));
        let high =
            _mm256_or_si256(_mm256_shuffle_epi8(self.high, symbols), _mm256_andnot_si256(mantissa, rest));
        add_products(sum, _mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high), x)
    }
}

/// The activations of the lower or upper 32 columns of 64.
#[inline]
pub(in crate::arch) fn half(x: &[[f32; PARTIAL_SUMS]; 4], half: usize) -> [&[f32; 8]; 4] {
    x.each_ref().map(|x| &x.as_chunks::<8>().0[half])
}

/// 16-bit weights 0-7 and 16-23, then 8-15 and 24-31, times activations: even ones as singles, then odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn add_products(sum: __m256, a: __m256i, b: __m256i, x: [&[f32; 8]; 4]) -> __m256 {
    let upper = _mm256_set1_epi32(0xffff_0000u32.cast_signed());
    let weights = [
        _mm256_slli_epi32::<16>(a),
        _mm256_and_si256(a, upper),
        _mm256_slli_epi32::<16>(b),
        _mm256_and_si256(b, upper),
    ];
    let mut sum = sum;
    for (weights, x) in weights.iter().zip(x) {
        // SAFETY: `x` is eight readable singles, and `loadu` has no alignment requirement.
        let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_castsi256_ps(*weights), x));
    }
    sum
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::arch) fn sum_f32(halves: [__m256; 2]) -> f32 {
    let mut p = [0f32; PARTIAL_SUMS];
    for (p, half) in p.as_chunks_mut::<8>().0.iter_mut().zip(halves) {
        // SAFETY: `p` is eight writable singles, and `storeu` has no alignment requirement.
        unsafe { _mm256_storeu_ps(p.as_mut_ptr(), half) };
    }
    join(p)
}

/// Products of symbols as they are decoded, for one set of instructions: the wider one decodes quicker.
macro_rules! products {
    ($features:literal, $step:ident) => {
        /// See `Kernels::ecq_dot_levels`.
        #[target_feature(enable = $features)]
        pub(super) fn dot_levels(
            streams: Streams<'_>,
            blocks: &FourBlocks<'_>,
            levels: &[i8],
            x: &[i8],
            out: &mut [i32],
        ) -> usize {
            match levels.len() {
                16 => dot_levels_of::<0>(streams, blocks, levels, x, out),
                32 => dot_levels_of::<1>(streams, blocks, levels, x, out),
                _ => dot_levels_of::<2>(streams, blocks, levels, x, out),
            }
        }

        #[target_feature(enable = $features)]
        fn dot_levels_of<const LOW: usize>(
            streams: Streams<'_>,
            blocks: &FourBlocks<'_>,
            levels: &[i8],
            x: &[i8],
            out: &mut [i32],
        ) -> usize {
            let Some(state) = streams.of::<4>() else { return 0 };
            let FourBlocks { table: table_of, data, low, rows } = *blocks;
            assert_eq!(out.len(), 4 * rows);
            let tables = Tables::new(table_of);
            let level_tables: [__m256i; 4] = std::array::from_fn(|low| {
                let mut entries = [0; 16];
                for (symbol, entry) in entries.iter_mut().enumerate() {
                    *entry = levels.get(symbol << LOW | low).copied().unwrap_or(0).cast_unsigned();
                }
                table(&entries)
            });
            let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
            let ones = _mm256_set1_epi16(1);
            let n_pieces = x.len() / 64;
            let low_row_len = x.len() / 8 * LOW;
            let mut xs = vec![[0u8; LANES]; 2 * n_pieces];
            for (to, from) in xs.as_flattened_mut().iter_mut().zip(x) {
                *to = from.cast_unsigned();
            }
            let xs = xs.as_chunks::<2>().0;
            let mut done = 0;
            while done < rows && safe_steps(state.at, data) >= 2 * n_pieces {
                let mut at = *state.at;
                let mut sums = [_mm256_setzero_si256(); 4];
                for (piece, x) in xs.iter().enumerate() {
                    let x = [load(&x[0]), load(&x[1])];
                    for half in 0..2 {
                        for stream in 0..4 {
                            let (lanes, at) = (&mut lanes[stream], &mut at[stream]);
                            // SAFETY: `safe_steps` allows two steps for each piece of a row.
                            let symbols = unsafe { tables.$step(lanes, at, data) };
                            let low =
                                low[stream].get(done * low_row_len + 8 * LOW * piece..).unwrap_or_default();
                            let level = level::<LOW>(&level_tables, symbols, low, half);
                            let signed = _mm256_sign_epi8(x[usize::from(half == 1)], level);
                            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(level), signed);
                            sums[stream] = _mm256_add_epi32(sums[stream], _mm256_madd_epi16(pairs, ones));
                        }
                    }
                }
                *state.at = at;
                for (stream, sum) in sums.iter().enumerate() {
                    out[stream * rows + done] = sum_i32(*sum);
                }
                done += 1;
            }
            lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
            done
        }

        #[target_feature(enable = $features)]
        /// See `Kernels::ecq_dot_bf16`.
        pub(super) fn dot_bf16(
            streams: Streams<'_>,
            blocks: &FourBlocks<'_>,
            exponents: &Exponents,
            x: &Activations,
            out: &mut [f32],
        ) -> usize {
            let Some(state) = streams.of::<4>() else { return 0 };
            let FourBlocks { table: table_of, data, low, rows } = *blocks;
            assert_eq!(out.len(), 4 * rows);
            let (tables, exponents) = (Tables::new(table_of), ExponentTables::new(exponents));
            let xs = x.pieces();
            let low = low.map(|low| low.as_chunks::<LANES>().0.as_chunks::<2>().0);
            let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
            let mut done = 0;
            while done < rows && safe_steps(state.at, data) >= 2 * xs.len() {
                let mut at = *state.at;
                let mut sums = [[_mm256_setzero_ps(); 2]; 4];
                for (piece, x) in xs.iter().enumerate() {
                    for idx in 0..2 {
                        for stream in 0..4 {
                            let (lanes, at) = (&mut lanes[stream], &mut at[stream]);
                            // SAFETY: `safe_steps` allows two steps for each 64 columns.
                            let symbols = unsafe { tables.$step(lanes, at, data) };
                            let rest = load(&low[stream][done * xs.len() + piece][idx]);
                            let sum = &mut sums[stream][idx];
                            *sum = exponents.add(*sum, symbols, rest, half(x, idx));
                        }
                    }
                }
                *state.at = at;
                for (stream, sum) in sums.iter().enumerate() {
                    out[stream * rows + done] = sum_f32(*sum);
                }
                done += 1;
            }
            lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
            done
        }
    };
}

pub(in crate::arch) use products;

products!("avx2,bmi1,bmi2,popcnt,lzcnt", step);

/// Rows that are taken together, so that their sums hide the latency of one another.
const ROWS: usize = 4;

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn dot_bf16_packed(
    packed: &[u8],
    low: &[u8],
    exponents: &Exponents,
    x: &Activations,
    out: &mut [f32],
) {
    let exponents = ExponentTables::new(exponents);
    let xs = x.pieces();
    let packed = packed.as_chunks::<LANES>().0;
    let low = low.as_chunks::<LANES>().0.as_chunks::<2>().0;
    assert!(packed.len() == out.len() * xs.len() && low.len() == packed.len());
    let nibble = _mm256_set1_epi8(15);
    for (group, out) in out.chunks_mut(ROWS).enumerate() {
        let start = group * ROWS * xs.len();
        // A group that is short repeats its first row; the sums of the repetitions are dropped.
        let first: [usize; ROWS] =
            std::array::from_fn(|row| start + if row < out.len() { row * xs.len() } else { 0 });
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        for (piece, x) in xs.iter().enumerate() {
            for (sums, first) in sums.iter_mut().zip(first) {
                let symbols = load(&packed[first + piece]);
                let rest = &low[first + piece];
                // The same place of the next rows. Each row is too short for what a CPU fetches by itself: without,
                // this is slower than plain weights. Into the second-level cache: what the first holds is the activations.
                _mm_prefetch::<_MM_HINT_T1>(rest.as_ptr().wrapping_add(ROWS * xs.len()).cast());
                if piece % 2 == 0 {
                    _mm_prefetch::<_MM_HINT_T1>(
                        packed.as_ptr().wrapping_add(first + piece + ROWS * xs.len()).cast(),
                    );
                }
                let lower = _mm256_and_si256(symbols, nibble);
                sums[0] = exponents.add(sums[0], lower, load(&rest[0]), half(x, 0));
                let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(symbols), nibble);
                sums[1] = exponents.add(sums[1], upper, load(&rest[1]), half(x, 1));
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            *out = sum_f32(sums);
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn dot_plain_bf16(weights: &[u8], x: &Activations, out: &mut [f32]) {
    let xs = x.pieces();
    let weights = weights.as_chunks::<LANES>().0.as_chunks::<2>().0.as_chunks::<2>().0;
    assert_eq!(weights.len(), out.len() * xs.len());
    for (group, out) in out.chunks_mut(ROWS).enumerate() {
        let start = group * ROWS * xs.len();
        let first: [usize; ROWS] =
            std::array::from_fn(|row| start + if row < out.len() { row * xs.len() } else { 0 });
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        for (piece, x) in xs.iter().enumerate() {
            for (sums, first) in sums.iter_mut().zip(first) {
                for (idx, [lower, upper]) in weights[first + piece].iter().enumerate() {
                    let ahead = lower.as_ptr().wrapping_add(4 * LANES * ROWS * xs.len());
                    _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    let (lower, upper) = (load(lower), load(upper));
                    let a = _mm256_permute2x128_si256::<0x20>(lower, upper);
                    let b = _mm256_permute2x128_si256::<0x31>(lower, upper);
                    sums[idx] = add_products(sums[idx], a, b, half(x, idx));
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            *out = sum_f32(sums);
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn dot_plain_levels(packed: &[u8], levels: &[i8], x: &[i8], out: &mut [i32]) {
    let entries = std::array::from_fn(|symbol| levels[symbol].cast_unsigned());
    let level_table = table(&entries);
    let (nibble, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let xs: Vec<u8> = x.iter().map(|x| x.cast_unsigned()).collect();
    let xs = xs.as_chunks::<LANES>().0.as_chunks::<2>().0;
    let packed = packed.as_chunks::<LANES>().0;
    for (row, out) in packed.chunks_exact(xs.len()).zip(out) {
        let mut sum = _mm256_setzero_si256();
        for (codes, x) in row.iter().zip(xs) {
            let codes = load(codes);
            let halves = [codes, _mm256_srli_epi16::<4>(codes)];
            for (codes, x) in halves.iter().zip(x) {
                let level = _mm256_shuffle_epi8(level_table, _mm256_and_si256(*codes, nibble));
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(level), _mm256_sign_epi8(load(x), level));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        *out = sum_i32(sum);
    }
}
