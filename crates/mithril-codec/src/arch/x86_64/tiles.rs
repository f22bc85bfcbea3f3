//! Splitting and joining bit fields: hand-written for the packed orders of the fast path, and the portable
//! code compiled for AVX2 for everything else.

use super::Avx2;
use super::join_wide::{Runs, join_bf16_wide, join_float_wide};
use super::split::{is_whole, join_float, split_bf16, split_bytes, split_f16, split_f32, split_float};
use crate::block::{QUAD, collect_signs_portable, spread_signs_portable};
use crate::transform::fields::{FieldSplit, Order, TILE};
use crate::transform::fields::{
    join_tiles_portable, set_signs_portable, split_tiles_portable, take_signs_portable,
};

/// How the tiles of a split are joined.
#[derive(Debug, Clone)]
pub(crate) enum JoinKernel {
    /// Floats, by AVX-512.
    Wide(Box<Runs>),
    /// Floats of two bytes whose rest is one whole byte, by AVX-512.
    WholeWide,
    /// Floats.
    Float,
    /// The portable code.
    Portable,
}

impl Avx2 {
    /// See `transform::fields::split_tiles`.
    pub(crate) fn split_tiles(self, split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
        let width = usize::from(split.layout.width);
        let full = source.len() / (width * TILE) * TILE;
        let ((head, tail), (head_plane, tail_plane)) =
            (source.split_at(full * width), plane.split_at_mut(full));
        let (head_rest, tail_rest) = rest.split_at_mut(split.rest_len(full));
        // What the fused kernels join, in either order.
        let plain = split.is_fusable() && split.dead == 0 && split.base == 0;
        match (split.layout.width, split.layout.mantissa) {
            // SAFETY: `self` exists only when `detect` saw the features.
            (2, 7) if plain => unsafe { split_bf16(split, head, head_plane, head_rest) },
            // SAFETY: as above.
            (2, 10) if plain && split.layout.sign => unsafe {
                split_f16::<true>(split, head, head_plane, head_rest)
            },
            // SAFETY: as above.
            (2, 10) if plain => unsafe { split_f16::<false>(split, head, head_plane, head_rest) },
            // SAFETY: as above.
            (4, 23) if plain => unsafe { split_f32(split, head, head_plane, head_rest) },
            (1, 3) if split.rest_bits() == 4 && split.dead == 0 && split.base == 0 => {
                // SAFETY: as above.
                unsafe { split_bytes::<true>(split, head, head_plane, head_rest) }
            }
            (1, 4) if split.rest_bits() == 4 && split.dead == 0 && split.base == 0 => {
                // SAFETY: as above.
                unsafe { split_bytes::<false>(split, head, head_plane, head_rest) }
            }
            // SAFETY: as above.
            (2, _) if is_float(split) => unsafe { split_float::<2>(split, head, head_plane, head_rest) },
            // SAFETY: as above.
            (4, _) if is_float(split) => unsafe { split_float::<4>(split, head, head_plane, head_rest) },
            // SAFETY: as above.
            _ => unsafe { split_any(split, head, head_plane, head_rest) },
        }
        split_tiles_portable(split, tail, tail_plane, tail_rest);
    }

    /// How a split is joined.
    pub(crate) fn join_of(self, split: &FieldSplit) -> JoinKernel {
        let is_whole = is_whole(split);
        match split.layout.width {
            2 | 4 if !is_float(split) => JoinKernel::Portable,
            2 if self.is_wide() && is_whole && split.order == Order::Natural => JoinKernel::WholeWide,
            // Where nothing needs unpacking, runs of bits are slower: 4.5 instead of 5.0 GB/s of bf16 at `balanced`.
            2 if self.is_wide() && !is_whole && split.order == Order::Natural => {
                JoinKernel::Wide(Box::new(Runs::new::<2>(split)))
            }
            4 if self.is_wide() && !is_whole && split.order == Order::Natural => {
                JoinKernel::Wide(Box::new(Runs::new::<4>(split)))
            }
            2 | 4 => JoinKernel::Float,
            _ => JoinKernel::Portable,
        }
    }

    /// See `transform::fields::Joiner::join`. Joins whole tiles by the kernel of the split; returns how many elements are
    /// done.
    pub(crate) fn join_tiles(
        self,
        kernel: &JoinKernel,
        split: &FieldSplit,
        plane: &[u8],
        signs: Option<&[u8]>,
        rest: &[u8],
        out: &mut [u8],
    ) -> usize {
        let width = usize::from(split.layout.width);
        let full = out.len() / (width * TILE) * TILE;
        let (plane, out) = (&plane[..full], &mut out[..full * width]);
        match (kernel, split.layout.width) {
            // SAFETY: `join_of` chose it where `detect` saw the features.
            (JoinKernel::Wide(runs), 2) if self.is_wide() => unsafe {
                join_float_wide::<2>(runs, split, plane, signs, rest, out);
            },
            // SAFETY: as above.
            (JoinKernel::Wide(runs), _) if self.is_wide() => unsafe {
                join_float_wide::<4>(runs, split, plane, signs, rest, out);
            },
            // SAFETY: as above.
            (JoinKernel::WholeWide, _) if self.is_wide() => unsafe { join_bf16_wide(plane, rest, out) },
            // SAFETY: `self` exists only when `detect` saw the features.
            (JoinKernel::Float, 2) => unsafe { join_float::<2>(split, plane, rest, out) },
            // SAFETY: as above.
            (JoinKernel::Float, _) => unsafe { join_float::<4>(split, plane, rest, out) },
            // SAFETY: as above.
            _ => unsafe { join_any(split, plane, rest, out) },
        }
        if let Some(signs) = signs.filter(|_| !matches!(kernel, JoinKernel::Wide(_))) {
            self.set_signs(&signs[..full], width, out);
        }
        full
    }

    /// See `transform::fields::sign_plane`.
    pub(crate) fn take_signs(self, width: usize, elements: &[u8], signs: &mut [u8]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { take_signs(width, elements, signs) }
    }

    /// See `block::signs`.
    pub(crate) fn spread_signs(self, quads: &[u8], signs: &mut [[u8; QUAD]]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { spread_signs(quads, signs) }
    }

    /// See `block::signs`.
    pub(crate) fn collect_signs(self, signs: &[[u8; QUAD]], quads: &mut [u8]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { collect_signs(signs, quads) }
    }

    /// See `transform::fields::set_signs`.
    pub(crate) fn set_signs(self, signs: &[u8], width: usize, elements: &mut [u8]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { set_signs(signs, width, elements) }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn take_signs(width: usize, elements: &[u8], signs: &mut [u8]) {
    take_signs_portable(width, elements, signs);
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn spread_signs(quads: &[u8], signs: &mut [[u8; QUAD]]) {
    spread_signs_portable(quads, signs);
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn collect_signs(signs: &[[u8; QUAD]], quads: &mut [u8]) {
    collect_signs_portable(signs, quads);
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn set_signs(signs: &[u8], width: usize, elements: &mut [u8]) {
    set_signs_portable(signs, width, elements);
}

/// Whether the top field lies in the upper half of a float, as the kernels for floats assume.
fn is_float(split: &FieldSplit) -> bool {
    split.layout.sign && !split.layout.flip && split.top_shift() + 16 >= split.width() * 8
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn split_any(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    split_tiles_portable(split, source, plane, rest);
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn join_any(split: &FieldSplit, plane: &[u8], rest: &[u8], out: &mut [u8]) {
    join_tiles_portable(split, plane, rest, out);
}
