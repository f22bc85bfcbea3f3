//! Splitting and joining bit fields: hand-written for the packed orders of the fast path, and the portable
//! code compiled for AVX2 for everything else.

use super::Avx2;
use super::definitions;
use super::split::{join_float, split_bf16, split_bytes, split_f16, split_f32, split_float};
use crate::arch::kernels::{JoinTiles, Kernels};
use crate::transform::fields::{FieldSplit, TILE};

/// See `Kernels::split_tiles`.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn split_tiles(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize {
    let width = usize::from(split.layout.width);
    let full = source.len() / (width * TILE) * TILE;
    let (source, plane, rest) =
        (&source[..full * width], &mut plane[..full], &mut rest[..split.rest_len(full)]);
    // What the fused kernels join, in either order.
    let plain = split.is_fusable() && split.dead == 0 && split.base == 0;
    match (split.layout.width, split.layout.mantissa) {
        (2, 7) if plain => split_bf16(split, source, plane, rest),
        (2, 10) if plain && split.layout.sign => split_f16::<true>(split, source, plane, rest),
        (2, 10) if plain => split_f16::<false>(split, source, plane, rest),
        (4, 23) if plain => split_f32(split, source, plane, rest),
        (1, 3) if split.rest_bits() == 4 && split.dead == 0 && split.base == 0 => {
            split_bytes::<true>(split, source, plane, rest);
        }
        (1, 4) if split.rest_bits() == 4 && split.dead == 0 && split.base == 0 => {
            split_bytes::<false>(split, source, plane, rest);
        }
        (2, _) if is_float(split) => split_float::<2>(split, source, plane, rest),
        (4, _) if is_float(split) => split_float::<4>(split, source, plane, rest),
        _ => definitions::split_any(split, source, plane, rest),
    }
    full
}

/// Joins tiles by what is best for their split.
pub(in crate::arch) struct Joiner {
    avx2: Avx2,
    is_float: bool,
}

impl Joiner {
    pub(in crate::arch) fn new(avx2: Avx2, split: &FieldSplit) -> Self {
        Self { avx2, is_float: matches!(split.layout.width, 2 | 4) && is_float(split) }
    }
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
        match width {
            // SAFETY: `self.avx2` exists only where the CPU has the features.
            2 if self.is_float => unsafe { join_float::<2>(split, plane, rest, out) },
            // SAFETY: as above.
            4 if self.is_float => unsafe { join_float::<4>(split, plane, rest, out) },
            // SAFETY: as above.
            _ => unsafe { definitions::join_any(split, plane, rest, out) },
        }
        if let Some(signs) = signs {
            self.avx2.set_signs(&signs[..full], width, out);
        }
        full
    }
}

/// Whether the top field lies in the upper half of a float, as the kernels for floats assume.
pub(in crate::arch) fn is_float(split: &FieldSplit) -> bool {
    split.layout.sign && !split.layout.flip && split.top_shift() + 16 >= split.width() * 8
}
