//! Splitting and joining bit fields: hand-written for the packed orders of the fast path, and the portable
//! code compiled for AVX2 for everything else.

use super::Avx2;
use super::split::{split_bf16, split_bytes, split_f16, split_f32};
use crate::transform::fields::{FieldSplit, Order, TILE};
use crate::transform::fields::{join_tiles_portable, split_tiles_portable};

impl Avx2 {
    /// See `transform::fields::split_tiles`.
    pub(crate) fn split_tiles(self, split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
        let width = usize::from(split.layout.width);
        let full = source.len() / (width * TILE) * TILE;
        let ((head, tail), (head_plane, tail_plane)) = (source.split_at(full * width), plane.split_at_mut(full));
        let (head_rest, tail_rest) = rest.split_at_mut(split.rest_len(full));
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe {
            match (split.layout.width, split.layout.mantissa) {
                (2, 7) if split.order == Order::Packed => split_bf16(head, head_plane, head_rest),
                (2, 10) if split.order == Order::Packed => split_f16(head, head_plane, head_rest),
                (4, 23) if split.order == Order::Packed => split_f32(head, head_plane, head_rest),
                (1, 3) if split.rest_bits() == 4 && split.dead == 0 && split.base == 0 => {
                    split_bytes::<true>(split, head, head_plane, head_rest);
                }
                (1, 4) if split.rest_bits() == 4 && split.dead == 0 && split.base == 0 => {
                    split_bytes::<false>(split, head, head_plane, head_rest);
                }
                _ => split_natural(split, head, head_plane, head_rest),
            }
        }
        split_tiles_portable(split, tail, tail_plane, tail_rest);
    }

    /// See `transform::fields::join_tiles`.
    pub(crate) fn join_tiles(self, split: &FieldSplit, plane: &[u8], rest: &[u8], out: &mut [u8]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { join_natural(split, plane, rest, out) }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn split_natural(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    split_tiles_portable(split, source, plane, rest);
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn join_natural(split: &FieldSplit, plane: &[u8], rest: &[u8], out: &mut [u8]) {
    join_tiles_portable(split, plane, rest, out);
}
