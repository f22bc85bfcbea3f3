//! Splitting and joining bit fields: hand-written for the packed orders of the fast path, and the portable
//! code compiled for AVX2 for everything else.

use super::Avx2;
use super::join_wide::join_float_wide;
use super::split::{is_whole, join_float, split_bf16, split_bytes, split_f16, split_f32, split_float};
use crate::block::set_signs_portable;
use crate::transform::fields::{FieldSplit, Order, TILE};
use crate::transform::fields::{join_tiles_portable, split_tiles_portable};

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

    /// See `transform::fields::join_tiles`.
    pub(crate) fn join_tiles(self, split: &FieldSplit, plane: &[u8], rest: &[u8], out: &mut [u8]) {
        let width = usize::from(split.layout.width);
        let full = out.len() / (width * TILE) * TILE;
        let ((head, tail), (head_plane, tail_plane)) = (out.split_at_mut(full * width), plane.split_at(full));
        let (head_rest, tail_rest) = rest.split_at(split.rest_len(full));
        // Where nothing needs unpacking, AVX2 is faster: 5.0 instead of 4.5 GB/s of bf16 at `balanced`.
        let wide = self.is_wide() && is_float(split) && split.order == Order::Natural && !is_whole(split);
        match split.layout.width {
            // SAFETY: `wide` exists only when `detect` saw the features.
            2 if wide => unsafe { join_float_wide::<2>(split, head_plane, head_rest, head) },
            // SAFETY: as above.
            4 if wide => unsafe { join_float_wide::<4>(split, head_plane, head_rest, head) },
            // SAFETY: `self` exists only when `detect` saw the features.
            2 if is_float(split) => unsafe { join_float::<2>(split, head_plane, head_rest, head) },
            // SAFETY: as above.
            4 if is_float(split) => unsafe { join_float::<4>(split, head_plane, head_rest, head) },
            // SAFETY: as above.
            _ => unsafe { join_any(split, head_plane, head_rest, head) },
        }
        join_tiles_portable(split, tail_plane, tail_rest, tail);
    }

    /// See `block::signs::set`.
    pub(crate) fn set_signs(self, signs: &[u8], width: usize, elements: &mut [u8]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { set_signs(signs, width, elements) }
    }
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
