//! Four blocks of a matrix encoded at once, each from its own place: without a pass that weaves their symbols.

use super::rans8_encode_wide::{Tables, both, load_lanes, save_lanes};
use super::{Avx2, Avx512, load};
use crate::entropy::rans8::{EncodeState, EncodeTable, LANES};

impl Avx2 {
    /// Encodes four blocks of equal length, whole groups of 32, as four streams; says whether it could.
    pub(crate) fn rans8_encode_apart(
        self,
        state: &mut EncodeState<'_, 4>,
        table: &EncodeTable,
        blocks: [&[u8]; 4],
    ) -> bool {
        let Some(wide) = self.wide else { return false };
        wide.rans8_encode_apart(state, table, blocks);
        true
    }
}

impl Avx512 {
    fn rans8_encode_apart(self, state: &mut EncodeState<'_, 4>, table: &EncodeTable, blocks: [&[u8]; 4]) {
        let blocks = blocks.map(|block| block.as_chunks::<LANES>().0);
        let n_steps = blocks[0].len();
        assert!(blocks.iter().all(|block| block.len() == n_steps), "blocks of equal length");
        for stream in 0..4 {
            // A step writes 32 bytes downwards, of which as many count as lanes are full.
            let floor = if stream == 0 { 0 } else { state.at[stream - 1] };
            assert!(state.at[stream] - floor >= n_steps * LANES + 8 && state.at[stream] <= state.room.len());
        }
        let encode = if table.max_freq > 128 { encode::<true> } else { encode::<false> };
        // SAFETY: `self` exists only when `detect` saw the features; the room was checked above.
        unsafe { encode(state, table, blocks) }
    }
}

/// # Safety
/// Each stream must have room for one byte per symbol of its own.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
unsafe fn encode<const LARGE_FREQ: bool>(
    state: &mut EncodeState<'_, 4>,
    table_of: &EncodeTable,
    blocks: [&[[u8; LANES]]; 4],
) {
    let tables = Tables::new(table_of);
    let mut lanes = load_lanes(state);
    let n_steps = blocks[0].len();
    let blocks = blocks.map(|block| &block[..n_steps]);
    for step in (0..n_steps).rev() {
        for (pair, (high, low)) in lanes.iter_mut().enumerate() {
            let at = &mut state.at.as_chunks_mut::<2>().0[pair];
            let symbols = both(load(&blocks[2 * pair][step]), load(&blocks[2 * pair + 1][step]));
            // SAFETY: the caller vouches for the room of every step.
            unsafe { tables.step::<LARGE_FREQ>(symbols, high, low, state.room, at) };
        }
    }
    save_lanes(state, lanes);
}
