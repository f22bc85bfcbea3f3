//! What golden frames against a base hold, as functions of the input of another golden frame. Never changed.

use crate::inputs::Random;

/// Name, the golden frame whose input is the base, bytes of an element, and what the frame holds.
pub(crate) type Delta = (&'static str, &'static str, u8, fn(&[u8]) -> Vec<u8>);

/// All golden frames against a base of this version.
pub(crate) const DELTAS_V0_1_0: &[Delta] = &[
    ("bf16_same", "bf16_rans8_four_streams", 2, <[u8]>::to_vec),
    ("bf16_difference", "bf16_rans8_four_streams", 2, |base| moved(base, 2, 4, 60)),
    ("bf16_difference_one_stream", "bf16_rans8_one_stream", 2, |base| moved(base, 2, 2, 9)),
    ("f32_difference", "f32_rans8_four_streams", 4, |base| moved(base, 4, 9, 1 << 18)),
    ("f32_difference_rows", "f32_rows", 4, rows_moved_alike),
    ("f64_difference", "f64_two_byte_escapes", 8, |base| moved(base, 8, 7, 1 << 40)),
    ("f8_e4m3_difference", "f8_e4m3_four_streams", 1, |base| moved(base, 1, 3, 6)),
    ("i32_xor", "i32_planes_zstd", 4, |base| moved(base, 4, 1, 100)),
    ("bf16_predicted_scales", "bf16_rans8_four_streams", 2, |base| moved(base, 2, 5, 60)),
    ("f16_predicted", "f16_rans8_four_streams", 2, |base| moved(base, 2, 6, 9)),
    ("f32_predicted_low_rank", "f32_rans8_four_streams", 4, |base| moved(base, 4, 8, 1 << 12)),
    ("bf16_predicted_low_rank", "bf16_rans8_four_streams", 2, |base| moved(base, 2, 10, 30)),
];

/// Seven of ten elements moved by fewer than `2 * most` in either direction, one of 500 to anywhere; bits as unsigned
/// numbers.
fn moved(base: &[u8], width: usize, seed: u64, most: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut out = base.to_vec();
    for element in out.chunks_exact_mut(width) {
        let mut word = [0; 8];
        word[..width].copy_from_slice(element);
        let steps = random.next() & ((2 << random.halving(most.ilog2().into())) - 1);
        let steps = if random.below(2) == 0 { steps } else { steps.wrapping_neg() };
        let elsewhere = random.next() << 33 | random.next() << 2;
        let bits = match random.below(500) {
            0 => elsewhere,
            n if n < 350 => u64::from_le_bytes(word).wrapping_add(steps),
            _ => u64::from_le_bytes(word),
        };
        element.copy_from_slice(&bits.to_le_bytes()[..width]);
    }
    out
}

/// Rows of 80 F32: most moved by one of two steps, as the mantissa says, every sixth by anything.
fn rows_moved_alike(base: &[u8]) -> Vec<u8> {
    let mut random = Random::new(11);
    let mut out = base.to_vec();
    for (at, element) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let bits = u32::from_le_bytes(*element);
        let steps = match (at / 80 % 6, bits >> 22 & 1) {
            (0, _) => random.next().to_le_bytes()[0].into(),
            (_, 0) => 998,
            _ => 1218,
        };
        *element = bits.wrapping_sub(steps).to_le_bytes();
    }
    out
}
