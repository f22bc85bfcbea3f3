//! Where the fused kernels leave their tiles: finished while they are in the first-level cache.
//!
//! Storing large outputs past the caches was tried twice and lost: lines must be whole and aligned, tiles are neither,
//! and a stage between costs more than the memory traffic that it spares (minilm fp32 2 % faster, crepe fp32 10 % slower,
//! bf16 and fp16 up to a quarter slower).

use crate::transform::fields::{FINISHED_LEN, FieldSplit, Finish, TILE, VECTOR};

/// Takes the tiles of a block, `W` vectors each, in order.
pub(in crate::arch) struct TileSink<'a, 'b, const W: usize> {
    split: &'a FieldSplit,
    outs: &'a mut [[[u8; VECTOR]; W]],
    finish: &'a mut Finish<'b>,
}

impl<'a, 'b, const W: usize> TileSink<'a, 'b, W> {
    const UNIT_TILES: usize = FINISHED_LEN / (W * VECTOR);

    #[inline]
    pub(in crate::arch) fn new(split: &'a FieldSplit, out: &'a mut [u8], finish: &'a mut Finish<'b>) -> Self {
        let outs = out.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<W>().0;
        Self { split, outs, finish }
    }

    #[inline]
    pub(in crate::arch) fn n_tiles(&self) -> usize {
        self.outs.len()
    }

    /// Where a tile is to be written.
    #[inline]
    pub(in crate::arch) fn tile(&mut self, tile: usize) -> &mut [[u8; VECTOR]; W] {
        &mut self.outs[tile]
    }

    /// Takes the tile that was written.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in crate::arch) fn take(&mut self, tile: usize) {
        if (tile + 1).is_multiple_of(Self::UNIT_TILES) {
            self.finish_tiles(tile + 1 - Self::UNIT_TILES, tile + 1);
        }
    }

    /// Finishes the last of `n_tiles`.
    #[target_feature(enable = "avx2")]
    pub(in crate::arch) fn end(&mut self, n_tiles: usize) {
        let first = n_tiles - n_tiles % Self::UNIT_TILES;
        if first < n_tiles {
            self.finish_tiles(first, n_tiles);
        }
    }

    #[target_feature(enable = "avx2")]
    fn finish_tiles(&mut self, first: usize, end: usize) {
        let bytes = self.outs[first..end].as_flattened_mut().as_flattened_mut();
        self.finish.tiles(self.split, first * TILE, end * TILE, bytes);
    }
}
