//! rANS8 encoding, 32 lanes in two registers for each byte of their states, backwards.
//!
//! As with AVX2, division is a multiplication by `floor(65536 / freq)` and one correction. The table of 256 slots fills
//! sixteen registers, and four shuffles look a slot up.

use super::{Lanes, load};
use crate::arch::shared::COMPACT;
use crate::entropy::rans8::{EncodeTable, LANES, Streams, StreamsOf};
use std::arch::aarch64::*;

/// See `Kernels::rans8_encode`. Nothing is done about `next`, which hardware fetches in time.
#[target_feature(enable = "neon")]
pub(super) fn encode_groups(
    streams: Streams<'_>,
    room: &mut [u8],
    table: &EncodeTable,
    symbols: &[u8],
    _next: &[u8],
) -> bool {
    match streams.at.len() {
        1 => streams.of::<1>().is_some_and(|streams| encode(streams, room, table, symbols)),
        4 => streams.of::<4>().is_some_and(|streams| encode(streams, room, table, symbols)),
        _ => false,
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn encode<const N: usize>(
    state: StreamsOf<'_, N>,
    room: &mut [u8],
    table: &EncodeTable,
    symbols: &[u8],
) -> bool {
    let tables = Tables::new(table);
    let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
    for group in symbols.as_chunks::<LANES>().0.rchunks_exact(N) {
        for (stream, symbols) in group.iter().enumerate() {
            tables.step(symbols, &mut lanes[stream], room, &mut state.at[stream]);
        }
    }
    lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
    true
}

/// An encode table in registers.
struct Tables {
    freq: uint8x16_t,
    reciprocal_low: uint8x16_t,
    reciprocal_high: uint8x16_t,
    first_slot: uint8x16_t,
    slots: [uint8x16x4_t; 4],
}

impl Tables {
    #[target_feature(enable = "neon")]
    fn new(of: &EncodeTable) -> Self {
        let (slots, _) = of.slots.as_chunks();
        let quarter = |at: usize| {
            uint8x16x4_t(load(&slots[at]), load(&slots[at + 1]), load(&slots[at + 2]), load(&slots[at + 3]))
        };
        Self {
            freq: load(&of.freq),
            reciprocal_low: load(&of.reciprocal_low),
            reciprocal_high: load(&of.reciprocal_high),
            first_slot: load(&of.first_slot),
            slots: [quarter(0), quarter(4), quarter(8), quarter(12)],
        }
    }

    /// One step of 32 lanes, whose bytes go below `at`: those of the upper lanes first.
    #[inline]
    #[target_feature(enable = "neon")]
    fn step(&self, symbols: &[u8; LANES], lanes: &mut Lanes, room: &mut [u8], at: &mut usize) {
        for (half, symbols) in symbols.as_chunks().0.iter().enumerate().rev() {
            let symbols = load(symbols);
            let (high, low) = (lanes.high[half], lanes.low[half]);
            let freq = vqtbl1q_u8(self.freq, symbols);
            // Lanes with x >= 256 freq hand their low byte to the stream.
            let full = vcgeq_u8(high, freq);
            hand_over(vget_high_u8(full), vget_high_u8(low), room, at);
            hand_over(vget_low_u8(full), vget_low_u8(low), room, at);
            let (x_high, x_low) = (vbicq_u8(high, full), vbslq_u8(full, high, low));

            let reciprocal_low = vqtbl1q_u8(self.reciprocal_low, symbols);
            let reciprocal_high = vqtbl1q_u8(self.reciprocal_high, symbols);
            let (quotient_a, rank_a) = divide(
                vreinterpretq_u16_u8(vzip1q_u8(x_low, x_high)),
                vreinterpretq_u16_u8(vzip1q_u8(reciprocal_low, reciprocal_high)),
                vmovl_u8(vget_low_u8(freq)),
            );
            let (quotient_b, rank_b) = divide(
                vreinterpretq_u16_u8(vzip2q_u8(x_low, x_high)),
                vreinterpretq_u16_u8(vzip2q_u8(reciprocal_low, reciprocal_high)),
                vmovl_high_u8(freq),
            );
            lanes.high[half] = vuzp1q_u8(quotient_a, quotient_b);
            let rank = vuzp1q_u8(rank_a, rank_b);
            lanes.low[half] = self.slot(vaddq_u8(vqtbl1q_u8(self.first_slot, symbols), rank));
        }
    }

    /// Looks up 16 of the 256 slots. A shuffle leaves alone what is not in its quarter.
    #[inline]
    #[target_feature(enable = "neon")]
    fn slot(&self, index: uint8x16_t) -> uint8x16_t {
        let mut slot = vqtbl4q_u8(self.slots[0], index);
        let mut index = index;
        for quarter in &self.slots[1..] {
            index = vsubq_u8(index, vdupq_n_u8(64));
            slot = vqtbx4q_u8(slot, *quarter, index);
        }
        slot
    }
}

/// Writes the bytes of the full ones of eight lanes below `at`. What lies left of them is overwritten by the next ones.
#[inline]
#[target_feature(enable = "neon")]
fn hand_over(full: uint8x8_t, bytes: uint8x8_t, room: &mut [u8], at: &mut usize) {
    let lane_bits = vcreate_u8(0x8040_2010_0804_0201);
    let mask = vaddv_u8(vand_u8(full, lane_bits));
    let packed = vtbl1_u8(bytes, vcreate_u8(COMPACT[0][usize::from(mask)]));
    let packed = vget_lane_u64::<0>(vreinterpret_u64_u8(packed));
    room[*at - 8..*at].copy_from_slice(&packed.to_le_bytes());
    *at -= mask.count_ones() as usize;
}

/// Quotient and remainder of eight numbers, whose bytes are all that is needed of them.
#[inline]
#[target_feature(enable = "neon")]
fn divide(x: uint16x8_t, reciprocal: uint16x8_t, freq: uint16x8_t) -> (uint8x16_t, uint8x16_t) {
    let product_a = vmull_u16(vget_low_u16(x), vget_low_u16(reciprocal));
    let product_b = vmull_high_u16(x, reciprocal);
    let quotient = vuzp2q_u16(vreinterpretq_u16_u32(product_a), vreinterpretq_u16_u32(product_b));
    let remainder = vmlsq_u16(x, quotient, freq);
    let too_small = vcgeq_u16(remainder, freq);
    let quotient = vsubq_u16(quotient, too_small);
    let remainder = vsubq_u16(remainder, vandq_u16(too_small, freq));
    (vreinterpretq_u8_u16(quotient), vreinterpretq_u8_u16(remainder))
}
