//! The checksum of raw bytes: detects damage, at a speed that decoding does not notice.
//!
//! 64 lanes of 32 bits each take every 64th word: `lane = rotate(lane ^ word, 16) * ODD`. Each step is a
//! bijection of the lane and of the word, so a change confined to one word of a lane is always seen; the
//! rotation carries high bits back down, which plain sums and products do not. The lanes are then folded
//! into 64 bits by steps that are bijections too. Eight AVX2 registers hold the lanes, and a step is three
//! instructions per 32 bytes.
//!
//! It is no cryptographic digest: it finds accidents, not forgers.

use crate::arch::kernels;

/// Lanes of the checksum.
pub(crate) const LANES: usize = 64;

/// Bytes of which every lane takes one word.
pub(crate) const ROUND_LEN: usize = 4 * LANES;

/// Multiplier of a lane's step.
const STEP: u32 = 0x9E37_79B1;
/// Multiplier of the fold.
const FOLD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The checksum of `bytes`, as defined in `docs/format/frame.md`, "Checksum".
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u32; LANES];
    let (whole, tail) = bytes.as_chunks::<ROUND_LEN>();
    step_rounds(&mut lanes, whole);
    finish(lanes, tail, bytes.len() as u64)
}

/// Takes bytes in pieces; gives the [`checksum`] of all of them.
#[derive(Debug, Clone)]
pub struct Checksummer {
    lanes: [u32; LANES],
    /// The bytes that do not fill a round yet, at the front.
    pending: [u8; ROUND_LEN],
    len: u64,
}

impl Default for Checksummer {
    fn default() -> Self {
        Self { lanes: [0; LANES], pending: [0; ROUND_LEN], len: 0 }
    }
}

impl Checksummer {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let n_pending = self.n_pending();
        self.len += bytes.len() as u64;
        if n_pending > 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(ROUND_LEN - n_pending));
            self.pending[n_pending..n_pending + head.len()].copy_from_slice(head);
            bytes = rest;
            if n_pending + head.len() < ROUND_LEN {
                return;
            }
            step_rounds(&mut self.lanes, &[self.pending]);
        }
        let (whole, tail) = bytes.as_chunks::<ROUND_LEN>();
        step_rounds(&mut self.lanes, whole);
        self.pending[..tail.len()].copy_from_slice(tail);
    }

    /// Takes whole rounds behind whole rounds. Inlined into kernels, which have the bytes at hand.
    #[inline(always)]
    pub(crate) fn take_rounds(&mut self, rounds: &[[u8; ROUND_LEN]]) {
        debug_assert!(self.n_pending() == 0, "a round is begun");
        step_lanes(&mut self.lanes, rounds);
        self.len += (rounds.len() * ROUND_LEN) as u64;
    }

    /// The checksum of everything taken so far.
    pub fn finish(&self) -> u64 {
        finish(self.lanes, &self.pending[..self.n_pending()], self.len)
    }

    fn n_pending(&self) -> usize {
        usize::try_from(self.len % ROUND_LEN as u64).expect("less than a round")
    }
}

fn step_rounds(lanes: &mut [u32; LANES], rounds: &[[u8; ROUND_LEN]]) {
    if !kernels().checksum_lanes(lanes, rounds) {
        step_lanes(lanes, rounds);
    }
}

/// Takes the bytes that fill no round, and folds the lanes.
fn finish(mut lanes: [u32; LANES], tail: &[u8], len: u64) -> u64 {
    if !tail.is_empty() {
        let mut padded = [0; ROUND_LEN];
        padded[..tail.len()].copy_from_slice(tail);
        step_lanes(&mut lanes, &[padded]);
    }
    let mut sum = len.wrapping_mul(FOLD);
    for pair in lanes.as_chunks::<2>().0 {
        sum = (sum ^ (u64::from(pair[0]) | u64::from(pair[1]) << 32)).wrapping_mul(FOLD);
        sum ^= sum >> 29;
    }
    sum
}

/// The step of every lane. Inlined into the kernel, which is this code compiled for AVX2.
#[inline(always)]
pub(crate) fn step_lanes(lanes: &mut [u32; LANES], rounds: &[[u8; 4 * LANES]]) {
    let mut state = *lanes;
    for round in rounds {
        for (lane, word) in state.iter_mut().zip(round.as_chunks::<4>().0) {
            *lane = (*lane ^ u32::from_le_bytes(*word)).rotate_left(16).wrapping_mul(STEP);
        }
    }
    *lanes = state;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| u8::try_from((i * i * 31 + i * 7) % 251).unwrap()).collect()
    }

    #[test]
    fn every_single_bit_flip_changes_the_sum() {
        for len in [1, 255, 256, 257, 700] {
            let bytes = sample(len);
            let sum = checksum(&bytes);
            for bit in 0..len * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&damaged), sum, "length {len}, bit {bit}");
            }
        }
    }

    #[test]
    fn two_flips_of_the_same_bit_of_a_lane_change_the_sum() {
        // Sums without a rotation miss pairs of flips in the highest bit.
        let bytes = sample(256 * 8);
        let sum = checksum(&bytes);
        for bit in 0..256 * 8 {
            for later in 1..8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                damaged[bit / 8 + 256 * later] ^= 1 << (bit % 8);
                assert_ne!(checksum(&damaged), sum, "bit {bit}, {later} rounds apart");
            }
        }
    }

    #[test]
    fn zero_bytes_at_the_end_count() {
        let sums: Vec<u64> = (0..600).map(|len| checksum(&vec![0; len])).collect();
        for (len, sum) in sums.iter().enumerate() {
            assert!(!sums[..len].contains(sum), "length {len}");
        }
    }

    #[test]
    fn pieces_give_the_sum_of_the_whole() {
        let bytes = sample(3000);
        for piece_len in [1, 7, 255, 256, 257, 1000, 3000] {
            let mut checksummer = Checksummer::default();
            for (piece_idx, piece) in bytes.chunks(piece_len).enumerate() {
                checksummer.update(piece);
                let end = piece_idx * piece_len + piece.len();
                assert_eq!(checksummer.finish(), checksum(&bytes[..end]), "pieces of {piece_len}, {end}");
            }
        }
    }

    #[test]
    fn the_sum_never_changes() {
        assert_eq!(checksum(b""), 0);
        // From `docs/format/reference_decoder.py`.
        assert_eq!(checksum(&sample(1000)), 0x3cd3_e6a7_0c77_6344);
    }
}
