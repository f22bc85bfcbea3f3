//! rANS8 decoding, 32 lanes in two registers for each byte of their states.
//!
//! As with AVX2, tables are looked up by shuffles, and slots below the divider set the index of the alias look-ups to
//! 0xff, for which the shuffle gives zero. Bytes of the stream are put in their lanes by a running count of the lanes that
//! need one, which is their index in the window: no mask has to leave the vector registers.

use super::{Lanes, load, store};
use crate::entropy::rans8::{DecodeTable, LANES, Streams, StreamsOf};
use std::arch::aarch64::*;

/// See `Kernels::rans8_decode`.
#[target_feature(enable = "neon")]
pub(super) fn decode(
    streams: Streams<'_>,
    table: &DecodeTable,
    values: &[u8; 16],
    data: &[u8],
    out: &mut [u8],
) -> usize {
    match streams.at.len() {
        1 => streams.of::<1>().map_or(0, |streams| decode_streams(streams, table, values, data, out)),
        4 => streams.of::<4>().map_or(0, |streams| decode_streams(streams, table, values, data, out)),
        _ => 0,
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn decode_streams<const N: usize>(
    state: StreamsOf<'_, N>,
    table: &DecodeTable,
    values: &[u8; 16],
    data: &[u8],
    out: &mut [u8],
) -> usize {
    let (tables, values) = (Tables::new(table), load(values));
    let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
    let mut n_steps = 0;
    for group in out.as_chunks_mut::<LANES>().0.chunks_exact_mut(N) {
        let Some(windows) = windows(state.at, data) else { break };
        for (stream, out) in group.iter_mut().enumerate() {
            let symbols = tables.step(&mut lanes[stream], windows[stream], &mut state.at[stream]);
            put(out, symbols.map(|symbols| vqtbl1q_u8(values, symbols)));
        }
        n_steps += 1;
    }
    lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
    n_steps * N * LANES
}

/// See `Kernels::rans8_decode_apart`.
#[target_feature(enable = "neon")]
pub(super) fn decode_apart(
    streams: Streams<'_>,
    table: &DecodeTable,
    data: &[u8],
    outs: &mut [&mut [u8]],
) -> usize {
    match streams.at.len() {
        1 => streams.of::<1>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
        2 => streams.of::<2>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
        3 => streams.of::<3>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
        4 => streams.of::<4>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
        _ => 0,
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn decode_streams_apart<const N: usize>(
    state: StreamsOf<'_, N>,
    table: &DecodeTable,
    data: &[u8],
    outs: &mut [&mut [u8]],
) -> usize {
    let Some(outs) = outs.first_chunk_mut::<N>() else { return 0 };
    let tables = Tables::new(table);
    let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
    let mut outs = outs.each_mut().map(|out| out.as_chunks_mut::<LANES>().0);
    let n_groups = outs.iter().map(|out| out.len()).min().unwrap_or(0);
    let mut n_steps = 0;
    while n_steps < n_groups {
        let Some(windows) = windows(state.at, data) else { break };
        for (stream, out) in outs.iter_mut().enumerate() {
            let symbols = tables.step(&mut lanes[stream], windows[stream], &mut state.at[stream]);
            put(&mut out[n_steps], symbols);
        }
        n_steps += 1;
    }
    lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
    n_steps * LANES
}

/// The bytes that the next step of every stream may take, if they are all there.
#[inline]
fn windows<'a, const N: usize>(at: &[usize; N], data: &'a [u8]) -> Option<[&'a [u8; LANES]; N]> {
    let mut windows = [&[0; LANES]; N];
    for (window, &at) in windows.iter_mut().zip(at) {
        *window = data.get(at..)?.first_chunk()?;
    }
    Some(windows)
}

#[inline]
#[target_feature(enable = "neon")]
fn put(out: &mut [u8; LANES], symbols: [uint8x16_t; 2]) {
    for (out, symbols) in out.as_chunks_mut().0.iter_mut().zip(symbols) {
        store(out, symbols);
    }
}

/// A decode table in registers.
pub(super) struct Tables {
    divider: uint8x16_t,
    alias_step: uint8x16_t,
    rank_step: uint8x16_t,
    freq: uint8x16_t,
}

impl Tables {
    #[target_feature(enable = "neon")]
    pub(super) fn new(of: &DecodeTable) -> Self {
        Self {
            divider: load(&of.divider),
            alias_step: load(&of.alias_step),
            rank_step: load(&of.rank_step),
            freq: load(&of.freq),
        }
    }

    /// One step of 32 lanes: returns their symbols.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn step(&self, lanes: &mut Lanes, window: &[u8; LANES], at: &mut usize) -> [uint8x16_t; 2] {
        let (symbols_a, high_a, low_a) = self.look_up(lanes.high[0], lanes.low[0]);
        let (symbols_b, high_b, low_b) = self.look_up(lanes.high[1], lanes.low[1]);
        let (needs_a, needs_b) = (vceqzq_u8(high_a), vceqzq_u8(high_b));
        let taken_a = running_count(needs_a);
        let taken_b = vaddq_u8(running_count(needs_b), vdupq_laneq_u8::<15>(taken_a));
        let (window, _) = window.as_chunks();
        let window = uint8x16x2_t(load(&window[0]), load(&window[1]));
        // The first lane that needs a byte has counted one, itself.
        let one = vdupq_n_u8(1);
        let bytes_a = vqtbl1q_u8(window.0, vsubq_u8(taken_a, one));
        let bytes_b = vqtbl2q_u8(window, vsubq_u8(taken_b, one));
        *at += usize::from(vgetq_lane_u8::<15>(taken_b));
        lanes.high = [vbslq_u8(needs_a, low_a, high_a), vbslq_u8(needs_b, low_b, high_b)];
        lanes.low = [vbslq_u8(needs_a, bytes_a, low_a), vbslq_u8(needs_b, bytes_b, low_b)];
        [symbols_a, symbols_b]
    }

    /// Symbols of 16 lanes, and both bytes of their new states before any byte of the stream.
    #[inline]
    #[target_feature(enable = "neon")]
    fn look_up(&self, high: uint8x16_t, low: uint8x16_t) -> (uint8x16_t, uint8x16_t, uint8x16_t) {
        let (bucket, offset) = (vshrq_n_u8::<4>(low), vandq_u8(low, vdupq_n_u8(15)));
        let own = vcgtq_u8(vqtbl1q_u8(self.divider, bucket), offset);
        let index = vorrq_u8(bucket, own);
        let symbols = vaddq_u8(bucket, vqtbl1q_u8(self.alias_step, index));
        let rank = vaddq_u8(offset, vqtbl1q_u8(self.rank_step, index));
        let freq = vqtbl1q_u8(self.freq, symbols);
        let x_a = vaddw_u8(vmull_u8(vget_low_u8(freq), vget_low_u8(high)), vget_low_u8(rank));
        let x_b = vaddw_high_u8(vmull_high_u8(freq, high), rank);
        let (x_a, x_b) = (vreinterpretq_u8_u16(x_a), vreinterpretq_u8_u16(x_b));
        (symbols, vuzp2q_u8(x_a, x_b), vuzp1q_u8(x_a, x_b))
    }
}

/// For every lane how many up to it are set.
#[inline]
#[target_feature(enable = "neon")]
fn running_count(set: uint8x16_t) -> uint8x16_t {
    let zero = vdupq_n_u8(0);
    let mut count = vsubq_u8(zero, set);
    count = vaddq_u8(count, vextq_u8::<15>(zero, count));
    count = vaddq_u8(count, vextq_u8::<14>(zero, count));
    count = vaddq_u8(count, vextq_u8::<12>(zero, count));
    vaddq_u8(count, vextq_u8::<8>(zero, count))
}
