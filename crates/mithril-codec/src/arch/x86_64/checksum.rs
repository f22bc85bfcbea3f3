//! The checksum's lanes in eight registers.

use super::Avx2;
use crate::checksum::{LANES, step_lanes};

impl Avx2 {
    /// See `checksum::step_lanes`.
    pub(crate) fn checksum_lanes(self, lanes: &mut [u32; LANES], rounds: &[[u8; 4 * LANES]]) {
        // SAFETY: `self` exists only when `detect` saw the features.
        unsafe { step_lanes_avx2(lanes, rounds) }
    }
}

#[target_feature(enable = "avx2")]
fn step_lanes_avx2(lanes: &mut [u32; LANES], rounds: &[[u8; 4 * LANES]]) {
    step_lanes(lanes, rounds);
}
