//! Kernels for AVX2, reached through a proof that the CPU has it.

#![expect(unsafe_code, reason = "vector loads and stores, and calls after feature detection")]

pub(super) mod definitions;
pub(super) mod delta_elements;
pub(super) mod delta_flags;
pub(super) mod ecq_gemv;
pub(super) mod low_rank;
pub(super) mod products;
pub(super) mod quantised_dot;
mod rans12;
pub(super) mod rans8_decode;
pub(super) mod rans8_encode;
pub(super) mod rans8_fused;
mod scatter;
pub(super) mod split;
pub(super) mod tile_sink;
pub(super) mod tiles;
pub(super) mod window;

use super::kernels::{JoinTiles, Kernels, implement};
use super::shared::MaskShuffles;
use crate::block::QUAD;
use crate::block::symbols::FieldSymbols;
use crate::checksum::LANES as SUM_LANES;
use crate::contexts::ColumnClasses;
use crate::delta::ContextRule;
use crate::ecq::gemv::{Activations, Exponents, FourBlocks};
use crate::entropy::rans8::{DecodeTable, EncodeTable, Streams, Symbols, Window};
use crate::entropy::rans12::{FREQUENCY_SUM, LANES as RANS12_LANES};
use crate::prediction::tile::{Coded, Lists, Tile, TileSymbols};
use crate::quantised::products::CodeRow;
use crate::transform::fields::{FieldSplit, Finish};
use std::arch::x86_64::*;

/// Proof that this CPU has AVX2 and the bit instructions that come with it.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Asks the CPU; the answer is cached by the standard library.
    pub(super) fn detect() -> Option<&'static Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("lzcnt"))
        .then_some(&Self(()))
    }
}

implement! {
    impl Kernels for Avx2 {
        fn rans8_decode(streams: Streams<'_>, table: &DecodeTable, values: &[u8; 16], data: &[u8], out: &mut [u8]) -> usize
            = rans8_decode::decode;
        fn rans8_decode_apart(streams: Streams<'_>, table: &DecodeTable, data: &[u8], outs: &mut [&mut [u8]]) -> usize
            = rans8_decode::decode_apart;
        fn rans8_decode_join(streams: Streams<'_>, fields: &FieldSymbols<'_>, out: &mut [u8], finish: &mut Finish<'_>) -> usize
            = rans8_fused::decode;
        fn rans8_encode(streams: Streams<'_>, room: &mut [u8], table: &EncodeTable, symbols: &[u8], next: &[u8]) -> bool
            = rans8_encode::encode_groups;
        fn count_values(bytes: &[u8], first: u8, counts: &mut [u32; 16]) -> usize = window::count_values;
        fn map_listed(symbols: &Symbols, plane: &mut [u8], escapes: &mut Vec<u32>) -> usize = window::map_listed;
        fn scatter_rows(columns: &ColumnClasses<'_>, row_classes: &[u8], bucketed: &[u8], at: &mut [usize], plane: &mut [u8]) -> bool
            = scatter::scatter_rows;
        fn delta_contexts(width: usize, rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize
            = delta_elements::contexts;
        fn delta_codes_16(sign: bool, source: &[u8], base: &[u8], codes: &mut [u8], rests: [&mut [u8]; 2]) -> usize
            = delta_elements::codes_16;
        fn delta_keep_flagged(bytes: &[u8], moved: &[u64], out: &mut [u8]) -> (usize, usize) = delta_flags::keep_flagged;
        fn delta_merge_flags(contexts: &[u8], all: u16, strings_at: &mut [(u8, usize)], strings: &[u8], moved: &mut [u64]) -> usize
            = delta_flags::merge_flags;
        fn delta_split_flags(contexts: &[u8], moved: &[u64], strings_at: &mut [(u8, usize)], strings: &mut [u8]) -> usize
            = delta_flags::split_flags;
        fn delta_merge_classes(moved_contexts: &[u8], starts: &mut [usize; 16], bucketed: &[u8], symbols: &mut [u8]) -> usize
            = delta_flags::merge_classes;
        fn delta_add_bits(plane: u8, string: &[u8], raw_lens: &[u8], bits: &mut [u8]) -> (usize, usize) = delta_flags::add_bits;
        fn delta_take_bits(plane: u8, raw_lens: &[u8], bits: &[u8], string: &mut [u8]) -> (usize, usize) = delta_flags::take_bits;
        fn low_rank_sums(pairs: &[[i16; 2]], n_pairs: usize, columns: &[i16], n_columns: usize, sums: &mut [i32]) -> usize
            = low_rank::sums;
        fn add_products(left: &[f32], right: &[f32], width: usize, sums: &mut [f32]) -> usize = products::add_products;
        fn ecq_dot_levels(streams: Streams<'_>, blocks: &FourBlocks<'_>, levels: &[i8], x: &[i8], out: &mut [i32]) -> usize
            = ecq_gemv::dot_levels;
        fn ecq_dot_bf16(streams: Streams<'_>, blocks: &FourBlocks<'_>, exponents: &Exponents, x: &Activations, out: &mut [f32]) -> usize
            = ecq_gemv::dot_bf16;
        fn rans12_decode_groups(states: &mut [u32; RANS12_LANES], cells: &[u32; FREQUENCY_SUM], words: &[u8], groups: &mut [[u8; RANS12_LANES]]) -> (usize, usize)
            = rans12::decode_groups;
        fn split_tiles(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize = tiles::split_tiles;
        fn map_window(window: &Window, plane: &mut [u8], first: u32, escapes: &mut Vec<u32>) -> usize = window::map_window;
        fn delta_flag(bytes: &[u8], value: u8, words: &mut [u64]) -> usize = delta_elements::flag;
        fn delta_flag_from(bytes: &[u8], value: u8, words: &mut [u64]) -> usize = delta_elements::flag_from;
        fn delta_pack_flags(symbols: &[u8], out: &mut [u8]) -> usize = delta_flags::pack_flags;
        fn delta_count_set(bytes: &[u8], n: usize) -> Option<usize> = delta_flags::count_set;
        fn delta_symbols(lows: &[u8; 16], n_symbols: &[u8; 16], contexts: &[u8], codes: &mut [u8], without: &mut Vec<usize>) -> usize
            = delta_elements::symbols;
        fn delta_raw_lens(lows: &[u8; 16], contexts: &[u8], symbols: &[u8], raw_lens: &mut [u8]) -> usize = delta_elements::raw_lens;
        fn delta_top_bits(raw_lens: &[u8], rests: &[Vec<u8>], raw_bits: &mut [u8]) -> usize = delta_elements::top_bits;
        fn delta_steps_16(symbols: &[u8], raw_lens: &[u8], raw_bits: &[u8], low_bytes: &[u8], steps: &mut [u16]) -> (usize, usize)
            = delta_elements::steps_16;
        fn delta_apply_16(sign: bool, base: &[u8], moved: &[u64], steps: &[u16], out: &mut [u8]) -> (usize, usize)
            = delta_elements::apply_16;
    }
    all of it {
        fn checksum_lanes(lanes: &mut [u32; SUM_LANES], rounds: &[[u8; 4 * SUM_LANES]]) = definitions::checksum_lanes;
        fn count_window(plane: &[u8], offset: u8, counts: &mut [u32; 16]) = window::count_window;
        fn take_signs(width: usize, elements: &[u8], signs: &mut [u8]) = definitions::take_signs;
        fn set_signs(signs: &[u8], width: usize, elements: &mut [u8]) = definitions::set_signs;
        fn spread_signs(quads: &[u8], signs: &mut [[u8; QUAD]]) = definitions::spread_signs;
        fn collect_signs(signs: &[[u8; QUAD]], quads: &mut [u8]) = definitions::collect_signs;
        fn dot_plain_levels(packed: &[u8], levels: &[i8], x: &[i8], out: &mut [i32]) = ecq_gemv::dot_plain_levels;
        fn predict_tile(tile: &Tile<'_>, predicted: &mut [u32], scales: &mut [i16], contexts: &mut [u8]) = definitions::predict_tile;
        fn symbols_of_tile(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, out: &mut TileSymbols<'_>)
            = definitions::symbols_of_tile;
        fn code_tile(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, coded: &mut Coded<'_>) = definitions::code_tile;
        fn ecq_dot_bf16_packed(packed: &[u8], low: &[u8], exponents: &Exponents, x: &Activations, out: &mut [f32])
            = ecq_gemv::dot_bf16_packed;
        fn dot_plain_bf16(weights: &[u8], x: &Activations, out: &mut [f32]) = ecq_gemv::dot_plain_bf16;
        fn dot_codes(row: &CodeRow<'_>, columns: usize, x: &[f32], out: &mut [f32]) = quantised_dot::dot_rows;
    }
    and {
        fn tile_joiner(&self, split: &FieldSplit) -> Option<Box<dyn JoinTiles>> {
            Some(Box::new(tiles::Joiner::new(*self, split)))
        }
    }
}

/// A 16-entry table in both halves of a register, ready to be looked up by a shuffle.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn table(entries: &[u8; 16]) -> __m256i {
    // SAFETY: `entries` is 16 readable bytes, and `loadu` has no alignment requirement.
    let half = unsafe { _mm_loadu_si128(entries.as_ptr().cast()) };
    _mm256_broadcastsi128_si256(half)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: `bytes` is 32 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(bytes: &mut [u8; 32], vector: __m256i) {
    // SAFETY: `bytes` is 32 writable bytes, and `storeu` has no alignment requirement.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

/// Four pieces of eight bytes in one register. Built from `movq` and `movhps` loads: `set_epi64x` costs an
/// extra instruction per pair (6.1 instead of 6.7 G symbols/s in the rANS8 decoder). `_mm_load_sd` and `_mm_loadh_pd` compile
/// to the same, but are for aligned numbers only.
///
/// # Safety
/// Each pointer must be valid for reading eight bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_pieces(a: *const u8, b: *const u8, c: *const u8, d: *const u8) -> __m256i {
    // SAFETY: the caller vouches for eight readable bytes at `a`.
    let low = _mm_setr_pd(unsafe { a.cast::<f64>().read_unaligned() }, 0.0);
    // SAFETY: the caller vouches for eight readable bytes at `b`.
    let low = _mm_setr_pd(_mm_cvtsd_f64(low), unsafe { b.cast::<f64>().read_unaligned() });
    // SAFETY: the caller vouches for eight readable bytes at `c`.
    let high = _mm_setr_pd(unsafe { c.cast::<f64>().read_unaligned() }, 0.0);
    // SAFETY: the caller vouches for eight readable bytes at `d`.
    let high = _mm_setr_pd(_mm_cvtsd_f64(high), unsafe { d.cast::<f64>().read_unaligned() });
    _mm256_castpd_si256(_mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(low), high))
}

/// Writes the upper eight bytes of a register. `_mm_storeh_pd` compiles to the same, but is for aligned numbers only.
///
/// # Safety
/// The pointer must be valid for writing eight bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_upper(to: *mut u8, vector: __m128i) {
    let vector = _mm_castsi128_pd(vector);
    let upper = _mm_cvtsd_f64(_mm_unpackhi_pd(vector, vector));
    // SAFETY: the caller vouches for eight writable bytes.
    unsafe { to.cast::<f64>().write_unaligned(upper) }
}

/// Moves packed bytes to the lanes whose mask bit is set, and zero to the others.
static EXPAND: MaskShuffles = expand_shuffles();

const fn expand_shuffles() -> MaskShuffles {
    let mut shuffles = [[0; 256]; 2];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut packed) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                shuffles[0][mask] |= packed << (8 * lane);
                shuffles[1][mask] |= (packed + 8) << (8 * lane);
                packed += 1;
            } else {
                shuffles[0][mask] |= 0x80 << (8 * lane);
                shuffles[1][mask] |= 0x80 << (8 * lane);
            }
            lane += 1;
        }
        mask += 1;
    }
    shuffles
}

/// The shuffle of 32 lanes from a mask of 32 bits, one table entry per eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn mask_shuffle(shuffles: &'static MaskShuffles, mask: u32) -> __m256i {
    let [a, b, c, d] = mask.to_le_bytes();
    let entry = |half: usize, mask: u8| (&raw const shuffles[half][usize::from(mask)]).cast::<u8>();
    // SAFETY: each pointer is to a `u64` of a static table.
    unsafe { load_pieces(entry(0, a), entry(1, b), entry(0, c), entry(1, d)) }
}
