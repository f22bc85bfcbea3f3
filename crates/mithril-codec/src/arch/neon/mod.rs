//! NEON kernels for what takes longest without them. Every CPU of this architecture has NEON, and what is not here is
//! portable code that the compiler turns into NEON by itself.

#![expect(unsafe_code, reason = "vector loads and stores")]

mod rans8_decode;
mod rans8_encode;
mod rans8_fused;
mod split;
mod window;

use super::kernels::{Kernels, implement};
use crate::block::symbols::FieldSymbols;
use crate::entropy::rans8::{DecodeTable, EncodeTable, Streams, Symbols, Window};
use crate::transform::fields::{FieldSplit, Finish};
use std::arch::aarch64::*;

/// Proof that NEON may be used.
pub(super) struct Neon(());

impl Neon {
    /// Every CPU of this architecture has it.
    pub(super) fn detect() -> Option<&'static Self> {
        Some(&Self(()))
    }
}

implement! {
    impl Kernels for Neon {
        fn rans8_decode(streams: Streams<'_>, table: &DecodeTable, values: &[u8; 16], data: &[u8], out: &mut [u8]) -> usize
            = rans8_decode::decode;
        fn rans8_decode_apart(streams: Streams<'_>, table: &DecodeTable, data: &[u8], outs: &mut [&mut [u8]]) -> usize
            = rans8_decode::decode_apart;
        fn rans8_decode_join(streams: Streams<'_>, fields: &FieldSymbols<'_>, out: &mut [u8], finish: &mut Finish<'_>) -> usize
            = rans8_fused::decode;
        fn rans8_encode(streams: Streams<'_>, room: &mut [u8], table: &EncodeTable, symbols: &[u8], next: &[u8]) -> bool
            = rans8_encode::encode_groups;
        fn split_tiles(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize = split::split_tiles;
        fn map_window(window: &Window, plane: &mut [u8], first: u32, escapes: &mut Vec<u32>) -> usize = window::map_window;
        fn map_listed(symbols: &Symbols, plane: &mut [u8], escapes: &mut Vec<u32>) -> usize = window::map_listed;
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: `bytes` is 16 readable bytes, and the load has no alignment requirement.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(bytes: &mut [u8; 16], vector: uint8x16_t) {
    // SAFETY: `bytes` is 16 writable bytes, and the store has no alignment requirement.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), vector) }
}

/// The lanes of a stream as two registers for each byte of their states.
#[derive(Clone, Copy)]
struct Lanes {
    high: [uint8x16_t; 2],
    low: [uint8x16_t; 2],
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "neon")]
    fn load(planes: &[u8; 64]) -> Self {
        let (planes, _) = planes.as_chunks();
        Self { high: [load(&planes[0]), load(&planes[1])], low: [load(&planes[2]), load(&planes[3])] }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn save(&self, planes: &mut [u8; 64]) {
        let (planes, _) = planes.as_chunks_mut();
        for (plane, vector) in planes.iter_mut().zip(self.high.into_iter().chain(self.low)) {
            store(plane, vector);
        }
    }
}
