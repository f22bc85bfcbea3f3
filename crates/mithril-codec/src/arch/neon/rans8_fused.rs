//! rANS8 decoding fused with the join of bit fields: symbols go from the lanes into elements without leaving the
//! registers.
//!
//! A tile of 256 elements is eight vectors of 32; vector `j` holds the lanes of stream `j % 4`. The packed order of the
//! format is what AVX2 leaves, which puts pairs of 16 bytes next to each other: here each of them is a register.

use super::rans8_decode::Tables;
use super::{Lanes, load, store};
use crate::arch::shared::byte_tables;
use crate::block::symbols::FieldSymbols;
use crate::entropy::rans8::{LANES, Streams, StreamsOf};
use crate::transform::fields::{FINISHED_LEN, Finish, Order, TILE};
use std::arch::aarch64::*;

/// Streams of a tile.
const N: usize = 4;

/// Bytes and rest of a tile as registers.
type Registers = [[u8; 16]];

/// See `Kernels::rans8_decode_join`.
#[expect(clippy::cast_possible_truncation, reason = "the vector's number is below eight")]
#[target_feature(enable = "neon")]
pub(super) fn decode(
    streams: Streams<'_>,
    fields: &FieldSymbols<'_>,
    out: &mut [u8],
    finish: &mut Finish<'_>,
) -> usize {
    let Some(state) = streams.of::<N>() else { return 0 };
    let FieldSymbols { split, values, .. } = *fields;
    let is_packed = split.order == Order::Packed;
    let (high_bits, low_bits) = (load(&values.map(|e| e >> 1)), load(&values.map(|e| e << 7)));
    let mantissa = vdupq_n_u8(0x7f);
    // Both bytes of a bf16, or of the upper half of an f32, from a symbol and `sign | mantissa`.
    let upper = |symbols: uint8x16_t, rest: uint8x16_t| {
        let low = vorrq_u8(vqtbl1q_u8(low_bits, symbols), vandq_u8(rest, mantissa));
        (low, vorrq_u8(vqtbl1q_u8(high_bits, symbols), vbicq_u8(rest, mantissa)))
    };
    match (split.layout.width, split.layout.mantissa) {
        (2, 7) if is_packed => decode_tiles::<2>(state, fields, out, finish, |vector, symbols, rest, out| {
            for (half, symbols) in symbols.into_iter().enumerate() {
                let (low, high) = upper(symbols, load(&rest[2 * vector + half]));
                store(&mut out[half], vzip1q_u8(low, high));
                store(&mut out[2 + half], vzip2q_u8(low, high));
            }
        }),
        (2, 10) if is_packed => {
            let field = if split.layout.sign { 31 } else { 63 };
            let tops = load(&values.map(|top| (top & field) << 2));
            let sign = vdupq_n_u8(if split.layout.sign { 0x80 } else { 0 });
            decode_tiles::<2>(state, fields, out, finish, |vector, symbols, rest, out| {
                for (half, symbols) in symbols.into_iter().enumerate() {
                    let low = load(&rest[2 * vector + half]);
                    let mantissas = shifted(load(&rest[16 + vector / 4 * 2 + half]), -2 * (vector as i8 % 4));
                    // Without signs there is no such piece: any is masked away.
                    let signs = shifted(load(&rest[rest.len() - 2 + half]), 7 - vector as i8);
                    let high = vorrq_u8(vqtbl1q_u8(tops, symbols), vandq_u8(mantissas, vdupq_n_u8(3)));
                    let high = vorrq_u8(high, vandq_u8(signs, sign));
                    store(&mut out[half], vzip1q_u8(low, high));
                    store(&mut out[2 + half], vzip2q_u8(low, high));
                }
            })
        }
        (4, 23) if is_packed && split.dead == 0 => {
            decode_tiles::<4>(state, fields, out, finish, |vector, symbols, rest, out| {
                for (half, symbols) in symbols.into_iter().enumerate() {
                    let byte = |b: usize| load(&rest[16 * b + 2 * vector + half]);
                    let (low, high) = upper(symbols, byte(2));
                    let lower = [vzip1q_u8(byte(0), byte(1)), vzip2q_u8(byte(0), byte(1))];
                    let upper = [vzip1q_u8(low, high), vzip2q_u8(low, high)];
                    for (pair, (lower, upper)) in lower.into_iter().zip(upper).enumerate() {
                        let (lower, upper) = (vreinterpretq_u16_u8(lower), vreinterpretq_u16_u8(upper));
                        let (a, b) = (vzip1q_u16(lower, upper), vzip2q_u16(lower, upper));
                        store(&mut out[4 * pair + half], vreinterpretq_u8_u16(a));
                        store(&mut out[4 * pair + 2 + half], vreinterpretq_u8_u16(b));
                    }
                }
            })
        }
        (1, _) if split.rest_bits() == 4 => {
            let (tops, nibbles) = byte_tables(split, values);
            let (tops, nibbles) = (load(&tops), load(&nibbles));
            decode_tiles::<1>(state, fields, out, finish, |vector, symbols, rest, out| {
                for (half, symbols) in symbols.into_iter().enumerate() {
                    let packed = load(&rest[vector / 2 * 2 + half]);
                    let nibble = vandq_u8(shifted(packed, -4 * (vector as i8 % 2)), vdupq_n_u8(15));
                    let element = veorq_u8(vqtbl1q_u8(tops, symbols), vqtbl1q_u8(nibbles, nibble));
                    store(&mut out[half], element);
                }
            })
        }
        _ => 0,
    }
}

/// Bytes shifted to the left, or to the right by a negative number.
#[inline]
#[target_feature(enable = "neon")]
fn shifted(bytes: uint8x16_t, by: i8) -> uint8x16_t {
    vshlq_u8(bytes, vdupq_n_s8(by))
}

/// Decodes tiles of elements of `WIDTH` bytes. `join` writes the 32 elements of a vector from their symbols and the rest
/// of the tile.
#[inline]
#[target_feature(enable = "neon")]
fn decode_tiles<const WIDTH: usize>(
    state: StreamsOf<'_, N>,
    fields: &FieldSymbols<'_>,
    out: &mut [u8],
    finish: &mut Finish<'_>,
    join: impl Fn(usize, [uint8x16_t; 2], &Registers, &mut Registers),
) -> usize {
    let tables = Tables::new(fields.table);
    let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
    let rest_len = fields.split.rest_len(TILE);
    let tiles = out.as_chunks_mut::<16>().0;
    let tile_registers = WIDTH * TILE / 16;
    let n_tiles = tiles.len() / tile_registers;
    let mut done = 0;
    loop {
        let (first, end) = (done, (done + FINISHED_LEN / (WIDTH * TILE)).min(n_tiles));
        while done < end && state.at.iter().all(|&at| at + 2 * LANES <= fields.data.len()) {
            let rest = fields.rest[done * rest_len..][..rest_len].as_chunks().0;
            let tile = &mut tiles[done * tile_registers..][..tile_registers];
            for (vector, out) in tile.chunks_exact_mut(2 * WIDTH).enumerate() {
                let (lanes, at) = (&mut lanes[vector % N], &mut state.at[vector % N]);
                let window = fields.data[*at..].first_chunk().expect("bytes for two steps were there");
                join(vector, tables.step(lanes, window, at), rest, out);
            }
            done += 1;
        }
        let bytes = tiles[first * tile_registers..done * tile_registers].as_flattened_mut();
        finish.tiles(fields.split, first * TILE, done * TILE, bytes);
        if done < end || done == n_tiles {
            break;
        }
    }
    lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
    done * TILE
}
