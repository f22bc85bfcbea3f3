//! Joining bit fields of floats in natural order with AVX-512: elements are built in registers of their own width, and
//! every run of bits in the rest comes to its place by one rotation.

use super::{Avx512, store_wide};
use crate::arch::avx2::split::is_whole;
use crate::arch::avx2::tiles::is_float;
use crate::arch::avx2::{self, load};
use crate::arch::kernels::{JoinTiles, Kernels};
use crate::transform::fields::{FieldSplit, Order, TILE, VECTOR, low_mask, pieces};
use std::arch::x86_64::*;

/// How the tiles of a split are joined: by the runs of its bits, or, without any, two whole bytes to an element.
struct Joiner {
    avx512: Avx512,
    runs: Option<Runs>,
}

/// The kernel of a split: AVX2's where that is faster.
pub(super) fn joiner(avx512: Avx512, split: &FieldSplit) -> Box<dyn JoinTiles> {
    let is_natural_float = is_float(split) && split.order == Order::Natural;
    let runs = match (split.layout.width, is_whole(split)) {
        // Where nothing needs unpacking, runs of bits are slower: 4.5 instead of 5.0 GB/s of bf16 at `balanced`.
        (2, true) if is_natural_float => None,
        (2, false) if is_natural_float => Some(Runs::new::<2>(split)),
        (4, false) if is_natural_float => Some(Runs::new::<4>(split)),
        _ => return Box::new(avx2::tiles::Joiner::new(avx512.avx2, split)),
    };
    Box::new(Joiner { avx512, runs })
}

impl JoinTiles for Joiner {
    fn join(
        &self,
        split: &FieldSplit,
        plane: &[u8],
        signs: Option<&[u8]>,
        rest: &[u8],
        out: &mut [u8],
    ) -> usize {
        let width = usize::from(split.layout.width);
        let full = out.len() / (width * TILE) * TILE;
        let (plane, out) = (&plane[..full], &mut out[..full * width]);
        match (&self.runs, width) {
            // SAFETY: `self.avx512` exists only where the CPU has the features.
            (Some(runs), 2) => unsafe { join_float::<2>(runs, split, plane, signs, rest, out) },
            // SAFETY: as above.
            (Some(runs), _) => unsafe { join_float::<4>(runs, split, plane, signs, rest, out) },
            (None, _) => {
                // SAFETY: as above.
                unsafe { join_bf16(plane, rest, out) };
                if let Some(signs) = signs {
                    self.avx512.set_signs(&signs[..full], width, out);
                }
            }
        }
        full
    }
}

/// Vectors of a tile.
const VECTORS: usize = TILE / VECTOR;

/// Runs of bits that the rest of an element can have: at most three in each of four bytes, and a sign that stands apart.
const MAX_RUNS: usize = 13;

/// Tiles whose rest is fetched ahead.
const AHEAD: usize = 4;

/// Bits that stand next to each other both in a piece of the rest and in the element.
#[derive(Clone, Copy)]
struct BitRun {
    /// The vector of a tile's rest that holds the bits of its first elements.
    first: usize,
    /// Bits of the piece that they belong to.
    piece_width: usize,
    /// The lowest of them in the piece.
    from: usize,
    /// The lowest of them in the element.
    to: usize,
    n_bits: u32,
}

/// The runs of a split, in the order of the rest.
fn bit_runs(split: &FieldSplit) -> impl Iterator<Item = BitRun> + use<> {
    let sign_at = split.width() as usize * 8 - 1;
    let mut end = 0;
    split.groups().flat_map(move |group| {
        let group_first = end;
        end += group.width() as usize;
        pieces(group.width()).flat_map(move |(shift, width)| {
            let (piece_width, first) = (width as usize, group_first + shift as usize);
            let n_bits = group.n_bits.saturating_sub(shift).min(width);
            let kept = BitRun { first, piece_width, from: 0, to: (group.low + shift) as usize, n_bits };
            // Above the kept bits of the last piece there is the sign.
            let sign = BitRun { from: n_bits as usize, to: sign_at, n_bits: 1, ..kept };
            [(n_bits > 0).then_some(kept), (n_bits < width).then_some(sign)].into_iter().flatten()
        })
    })
}

/// The runs of a split as the kernel takes them.
struct Runs {
    n: usize,
    /// Vectors of a tile's rest.
    n_rests: usize,
    /// For each vector of elements, the vectors of a tile's rest that hold its bits.
    vectors: [[usize; MAX_RUNS]; VECTORS],
    /// How far those bits are from their places, in every element of a word.
    rotations: [[i32; MAX_RUNS]; VECTORS],
    /// The places, in every element of a word.
    masks: [i32; MAX_RUNS],
}

impl Runs {
    fn new<const WIDTH: usize>(split: &FieldSplit) -> Self {
        let bits = 8 * WIDTH;
        let in_every_element = |value: u64| {
            let word = if WIDTH == 2 { value | value << 16 } else { value };
            u32::try_from(word & low_mask(32)).unwrap_or(0).cast_signed()
        };
        let (vectors, rotations) = ([[0; MAX_RUNS]; VECTORS], [[0; MAX_RUNS]; VECTORS]);
        let n_rests = split.rest_len(TILE) / VECTOR;
        let mut runs = Self { n: 0, n_rests, vectors, rotations, masks: [0; MAX_RUNS] };
        for (at, run) in bit_runs(split).take(MAX_RUNS).enumerate() {
            for vector in 0..VECTORS {
                let bits_before = vector * run.piece_width;
                runs.vectors[vector][at] = run.first + bits_before / 8;
                let rotation = (bits + run.to - bits_before % 8 - run.from) % bits;
                runs.rotations[vector][at] = in_every_element(rotation as u64);
            }
            runs.masks[at] = in_every_element(low_mask(run.n_bits) << run.to);
            runs.n = at + 1;
        }
        runs
    }
}

/// See `transform::fields::Joiner::join`; whole tiles of floats of two or four bytes in natural order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn join_float<const WIDTH: usize>(
    runs: &Runs,
    split: &FieldSplit,
    plane: &[u8],
    signs: Option<&[u8]>,
    rest: &[u8],
    out: &mut [u8],
) {
    match signs {
        Some(signs) => join_by::<WIDTH, true>(runs, split, plane, signs, rest, out),
        None => join_by::<WIDTH, false>(runs, split, plane, &[], rest, out),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn join_by<const WIDTH: usize, const SIGNS: bool>(
    runs: &Runs,
    split: &FieldSplit,
    plane: &[u8],
    signs: &[u8],
    rest: &[u8],
    out: &mut [u8],
) {
    let n_rests = runs.n_rests;
    let (base, top_shift) = (i32::from(split.base), _mm_cvtsi32_si128(split.top_shift().cast_signed()));
    let rests = rest.as_chunks::<VECTOR>().0;
    let planes = plane.as_chunks::<VECTOR>().0.as_chunks::<VECTORS>().0;
    let signs = signs.as_chunks::<VECTOR>().0;
    let outs = out.as_chunks_mut::<64>().0.chunks_exact_mut(VECTORS * WIDTH / 2);
    for (tile, (planes, outs)) in planes.iter().zip(outs).enumerate() {
        // The pieces of a tile lie apart, an order that hardware does not foresee.
        let ahead = rest.as_ptr().wrapping_add((tile + AHEAD) * n_rests * VECTOR);
        for line in (0..n_rests * VECTOR).step_by(64) {
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line).cast());
        }
        let rests = &rests[tile * n_rests..][..n_rests];
        for (vector, outs) in outs.chunks_exact_mut(WIDTH / 2).enumerate() {
            let bits = runs.vectors[vector].iter().zip(&runs.rotations[vector]).zip(&runs.masks).take(runs.n);
            for (half, out) in outs.iter_mut().enumerate() {
                let index = widen::<WIDTH>(load(&planes[vector]), half);
                let mut elements = top::<WIDTH>(index, base, top_shift);
                for ((&at, &rotation), &mask) in bits.clone() {
                    let bits = widen::<WIDTH>(load(&rests[at]), half);
                    let placed = rotate::<WIDTH>(bits, _mm512_set1_epi32(rotation));
                    // elements | placed & mask
                    elements = _mm512_ternarylogic_epi32::<0xf8>(elements, placed, _mm512_set1_epi32(mask));
                }
                if SIGNS {
                    let sign = widen::<WIDTH>(load(&signs[tile * VECTORS + vector]), half);
                    elements = _mm512_or_si512(elements, to_top::<WIDTH>(sign));
                }
                store_wide(out, elements);
            }
        }
    }
}

/// As above, for bf16 with a rest of one byte, mantissa and sign: two bytes widened and put together.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
#[inline]
fn join_bf16(plane: &[u8], rest: &[u8], out: &mut [u8]) {
    let (planes, rests) = (plane.as_chunks::<VECTOR>().0, rest.as_chunks::<VECTOR>().0);
    let places = _mm512_set1_epi16(0x807fu16.cast_signed());
    for ((plane, rest), out) in planes.iter().zip(rests).zip(out.as_chunks_mut::<64>().0) {
        let exponent = _mm512_slli_epi16::<7>(_mm512_cvtepu8_epi16(load(plane)));
        let rest = _mm512_cvtepu8_epi16(load(rest));
        // (rest | rest << 8) & places
        let rest = _mm512_ternarylogic_epi32::<0xa8>(rest, _mm512_slli_epi16::<8>(rest), places);
        store_wide(out, _mm512_or_si512(exponent, rest));
    }
}

/// Bytes of a vector as elements; of four-byte elements a register holds half a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn widen<const WIDTH: usize>(bytes: __m256i, half: usize) -> __m512i {
    match (WIDTH, half) {
        (2, _) => _mm512_cvtepu8_epi16(bytes),
        (_, 0) => _mm512_cvtepu8_epi32(_mm256_castsi256_si128(bytes)),
        _ => _mm512_cvtepu8_epi32(_mm256_extracti128_si256::<1>(bytes)),
    }
}

/// The lowest bit of every element as its highest.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn to_top<const WIDTH: usize>(elements: __m512i) -> __m512i {
    if WIDTH == 2 { _mm512_slli_epi16::<15>(elements) } else { _mm512_slli_epi32::<31>(elements) }
}

/// Rotates every element to the left.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi2")]
fn rotate<const WIDTH: usize>(elements: __m512i, n_bits: __m512i) -> __m512i {
    if WIDTH == 2 {
        _mm512_shldv_epi16(elements, elements, n_bits)
    } else {
        _mm512_rolv_epi32(elements, n_bits)
    }
}

/// Coded fields in their places.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn top<const WIDTH: usize>(index: __m512i, base: i32, shift: __m128i) -> __m512i {
    if WIDTH == 2 {
        let field = _mm512_add_epi16(index, _mm512_set1_epi32(base << 16 | base));
        _mm512_and_si512(_mm512_sll_epi16(field, shift), _mm512_set1_epi16(i16::MAX))
    } else {
        let field = _mm512_add_epi32(index, _mm512_set1_epi32(base));
        _mm512_and_si512(_mm512_sll_epi32(field, shift), _mm512_set1_epi32(i32::MAX))
    }
}
