//! Splitting floats into bit fields, in the packed order of the format, whose pairs of 16 bytes are registers here.

use super::{load, store};
use crate::transform::fields::{FieldSplit, Order, TILE};
use std::arch::aarch64::*;

/// See `Kernels::split_tiles`.
#[target_feature(enable = "neon")]
pub(super) fn split_tiles(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize {
    let width = usize::from(split.layout.width);
    let is_plain = split.is_fusable() && split.order == Order::Packed && split.base == 0 && split.dead == 0;
    let full = source.len() / (width * TILE) * TILE;
    match (width, split.layout.mantissa) {
        (2, 7) if is_plain => split_upper::<2>(full, source, plane, rest),
        (4, 23) if is_plain => split_upper::<4>(full, source, plane, rest),
        (2, 10) if is_plain => split_f16(split.layout.sign, full, source, plane, rest),
        _ => 0,
    }
}

/// Low and high bytes of sixteen numbers of two bytes.
#[inline]
#[target_feature(enable = "neon")]
fn byte_halves(a: uint8x16_t, b: uint8x16_t) -> (uint8x16_t, uint8x16_t) {
    (vuzp1q_u8(a, b), vuzp2q_u8(a, b))
}

/// Low and high halves of eight numbers of four bytes.
#[inline]
#[target_feature(enable = "neon")]
fn word_halves(a: uint8x16_t, b: uint8x16_t) -> (uint8x16_t, uint8x16_t) {
    let (a, b) = (vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
    (vreinterpretq_u8_u16(vuzp1q_u16(a, b)), vreinterpretq_u8_u16(vuzp2q_u16(a, b)))
}

/// The first `n` elements of bf16 or f32, whose upper halves are bf16. Returns `n`.
#[target_feature(enable = "neon")]
fn split_upper<const WIDTH: usize>(n: usize, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize {
    let mantissa = vdupq_n_u8(0x7f);
    let tiles = source[..n * WIDTH].as_chunks::<16>().0.chunks_exact(WIDTH * TILE / 16);
    let planes = plane[..n].as_chunks_mut::<16>().0.chunks_exact_mut(TILE / 16);
    let rests = rest.as_chunks_mut::<16>().0.chunks_exact_mut((WIDTH - 1) * TILE / 16);
    for ((tile, planes), rests) in tiles.zip(planes).zip(rests) {
        for (register, plane) in planes.iter_mut().enumerate() {
            // Every other one of the registers of 32 elements.
            let part = |i: usize| load(&tile[register / 2 * 2 * WIDTH + 2 * i + register % 2]);
            let (low, high) = if WIDTH == 2 {
                byte_halves(part(0), part(1))
            } else {
                let ((lower_a, upper_a), (lower_b, upper_b)) =
                    (word_halves(part(0), part(1)), word_halves(part(2), part(3)));
                let (byte_0, byte_1) = byte_halves(lower_a, lower_b);
                store(&mut rests[register], byte_0);
                store(&mut rests[TILE / 16 + register], byte_1);
                byte_halves(upper_a, upper_b)
            };
            // The exponent, and sign and mantissa.
            store(plane, vsriq_n_u8::<7>(vshlq_n_u8::<1>(high), low));
            store(&mut rests[(WIDTH - 2) * TILE / 16 + register], vbslq_u8(mantissa, low, high));
        }
    }
    n
}

/// The first `n` half floats, whose sign is in the rest or in the coded field. Returns `n`.
#[target_feature(enable = "neon")]
fn split_f16(is_signed: bool, n: usize, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize {
    let field = vdupq_n_u8(if is_signed { 31 } else { 63 });
    let rest_registers = if is_signed { 22 } else { 20 };
    let tiles = source[..2 * n].as_chunks::<16>().0.chunks_exact(2 * TILE / 16);
    let planes = plane[..n].as_chunks_mut::<16>().0.chunks_exact_mut(TILE / 16);
    let rests = rest.as_chunks_mut::<16>().0.chunks_exact_mut(rest_registers);
    for ((tile, planes), rests) in tiles.zip(planes).zip(rests) {
        // Two bits of four vectors, and the signs of eight, share a byte; a vector is two registers.
        let mut mantissas = [vdupq_n_u8(0); 4];
        let mut signs = [vdupq_n_u8(0); 2];
        for (register, plane) in planes.iter_mut().enumerate() {
            let part = |i: usize| load(&tile[register / 2 * 4 + 2 * i + register % 2]);
            let (low, high) = byte_halves(part(0), part(1));
            store(&mut rests[register], low);
            store(plane, vandq_u8(vshrq_n_u8::<2>(high), field));
            let (vector, half) = (register / 2, register % 2);
            let mantissa = &mut mantissas[vector / 4 * 2 + half];
            let place = vdupq_n_s8([0, 2, 4, 6][vector % 4]);
            *mantissa = vorrq_u8(*mantissa, vshlq_u8(vandq_u8(high, vdupq_n_u8(3)), place));
            let place = vdupq_n_s8([0, 1, 2, 3, 4, 5, 6, 7][vector]);
            signs[half] = vorrq_u8(signs[half], vshlq_u8(vshrq_n_u8::<7>(high), place));
        }
        for (rest, register) in rests[TILE / 16..].iter_mut().zip(mantissas.into_iter().chain(signs)) {
            store(rest, register);
        }
    }
    n
}
