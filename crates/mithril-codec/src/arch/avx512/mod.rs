//! Kernels for CPUs that also have AVX-512 with the instructions on bytes: Ice Lake, Zen 4 and later. What they do no faster
//! is left to AVX2.

#![expect(unsafe_code, reason = "vector loads and stores, and calls after feature detection")]

mod count;
mod definitions;
mod delta_codes;
mod delta_contexts;
mod delta_flags;
mod delta_words;
mod delta_words_encode;
mod ecq_gemv;
mod join;
mod low_rank;
mod predicted;
mod products;
mod quantised_dot;
mod rans12;
mod rans8_decode;
mod rans8_encode;
mod rans8_fused;
mod scatter;
mod window;

use super::avx2::Avx2;
use super::kernels::{JoinTiles, Kernels, WordKernels, implement};
use crate::block::QUAD;
use crate::block::symbols::FieldSymbols;
use crate::checksum::LANES as SUM_LANES;
use crate::contexts::ColumnClasses;
use crate::delta::encode_words::{Kept, Windows};
use crate::delta::words::Walk;
use crate::delta::{ContextRule, Elements32};
use crate::ecq::gemv::{Activations, Exponents, FourBlocks};
use crate::entropy::rans8::{DecodeTable, EncodeTable, Streams, Symbols, Window};
use crate::entropy::rans12::{FREQUENCY_SUM, LANES as RANS12_LANES};
use crate::prediction::tile::{Coded, Lists, Tile, TileSymbols};
use crate::prediction::{CodedElements, TableRules};
use crate::quantised::products::CodeRow;
use crate::transform::fields::{FieldSplit, Finish};
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Proof that this CPU has AVX2, and AVX-512 with the instructions on bytes that the kernels use.
#[derive(Clone, Copy)]
pub(super) struct Avx512 {
    avx2: Avx2,
}

impl Avx512 {
    /// Asks the CPU, once.
    pub(super) fn detect() -> Option<&'static Self> {
        static DETECTED: OnceLock<Option<Avx512>> = OnceLock::new();
        let detect = || {
            let avx2 = *Avx2::detect()?;
            (is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vbmi2")
                && is_x86_feature_detected!("avx512bitalg")
                && is_x86_feature_detected!("gfni"))
            .then_some(Self { avx2 })
        };
        DETECTED.get_or_init(detect).as_ref()
    }
}

implement! {
    impl Kernels for Avx512 {
        fn rans8_decode(streams: Streams<'_>, table: &DecodeTable, values: &[u8; 16], data: &[u8], out: &mut [u8]) -> usize
            = rans8_decode::decode;
        fn rans8_decode_apart(streams: Streams<'_>, table: &DecodeTable, data: &[u8], outs: &mut [&mut [u8]]) -> usize
            = rans8_decode::decode_apart;
        fn rans8_decode_join(streams: Streams<'_>, fields: &FieldSymbols<'_>, out: &mut [u8], finish: &mut Finish<'_>) -> usize
            = rans8_fused::decode;
        fn rans8_encode_apart(streams: Streams<'_>, room: &mut [u8], table: &EncodeTable, blocks: [&[u8]; 4]) -> bool
            = rans8_encode::encode_apart;
        fn rans8_encode(streams: Streams<'_>, room: &mut [u8], table: &EncodeTable, symbols: &[u8], next: &[u8]) -> bool
            = rans8_encode::encode_groups;
        fn count_values(bytes: &[u8], first: u8, counts: &mut [u32; 16]) -> usize = count::count_values;
        fn map_listed(symbols: &Symbols, plane: &mut [u8], escapes: &mut Vec<u32>) -> usize = window::map_listed;
        fn gather_rows(columns: &ColumnClasses<'_>, row_classes: &[u8], plane: &[u8], at: &mut [usize], bucketed: &mut [u8]) -> bool
            = scatter::gather_rows;
        fn scatter_rows(columns: &ColumnClasses<'_>, row_classes: &[u8], bucketed: &[u8], at: &mut [usize], plane: &mut [u8]) -> bool
            = scatter::scatter_rows;
        fn delta_contexts(width: usize, rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize
            = delta_contexts::contexts;
        fn delta_codes_16(sign: bool, source: &[u8], base: &[u8], codes: &mut [u8], rests: [&mut [u8]; 2]) -> usize
            = delta_words_encode::codes_16;
        fn delta_codes_32(elements: Elements32<'_>, source: &[u8], codes: &mut [u8], rests: [&mut [u8]; 4]) -> usize
            = delta_codes::codes_32;
        fn delta_keep_flagged(bytes: &[u8], moved: &[u64], out: &mut [u8]) -> (usize, usize) = delta_flags::keep_flagged;
        fn delta_merge_flags(contexts: &[u8], all: u16, strings_at: &mut [(u8, usize)], strings: &[u8], moved: &mut [u64]) -> usize
            = delta_flags::merge_flags;
        fn delta_split_flags(contexts: &[u8], moved: &[u64], strings_at: &mut [(u8, usize)], strings: &mut [u8]) -> usize
            = delta_flags::split_flags;
        fn delta_merge_classes(moved_contexts: &[u8], starts: &mut [usize; 16], bucketed: &[u8], symbols: &mut [u8]) -> usize
            = delta_flags::merge_classes;
        fn delta_split_classes(moved_contexts: &[u8], starts: &mut [usize; 16], symbols: &[u8], bucketed: &mut [u8]) -> usize
            = delta_flags::split_classes;
        fn delta_add_bits(plane: u8, string: &[u8], raw_lens: &[u8], bits: &mut [u8]) -> (usize, usize) = delta_flags::add_bits;
        fn delta_take_bits(plane: u8, raw_lens: &[u8], bits: &[u8], string: &mut [u8]) -> (usize, usize) = delta_flags::take_bits;
        fn look_up_64(table: &[u8; 64], bytes: &mut [u8]) -> usize = predicted::look_up;
        fn count_buckets(buckets: &[u8], counts: &mut [usize]) -> usize = predicted::count;
        fn split_buckets(buckets: &[u8], bytes: &[u8], starts: &mut [usize], bucketed: &mut [u8]) -> usize = predicted::split;
        fn merge_buckets(buckets: &[u8], starts: &mut [usize], bucketed: &[u8], out: &mut [u8]) -> usize = predicted::merge;
        fn predicted_raw_lens(rules: TableRules, tables: &[u8], symbols: &[u8], raw_lens: &mut [u8]) -> usize = predicted::raw_lens;
        fn restore_predicted(elements: &CodedElements<'_>, out: &mut [u8]) -> (usize, [usize; 4]) = predicted::restore;
        fn low_rank_sums(pairs: &[[i16; 2]], n_pairs: usize, columns: &[i16], n_columns: usize, sums: &mut [i32]) -> usize
            = low_rank::sums;
        fn add_products(left: &[f32], right: &[f32], width: usize, sums: &mut [f32]) -> usize = products::add_products;
        fn ecq_dot_levels(streams: Streams<'_>, blocks: &FourBlocks<'_>, levels: &[i8], x: &[i8], out: &mut [i32]) -> usize
            = ecq_gemv::dot_levels;
        fn ecq_dot_bf16(streams: Streams<'_>, blocks: &FourBlocks<'_>, exponents: &Exponents, x: &Activations, out: &mut [f32]) -> usize
            = ecq_gemv::dot_bf16;
        fn rans12_decode_groups(states: &mut [u32; RANS12_LANES], cells: &[u32; FREQUENCY_SUM], words: &[u8], groups: &mut [[u8; RANS12_LANES]]) -> (usize, usize)
            = rans12::decode_groups;
    }
    all of it {
        fn predict_tile(tile: &Tile<'_>, predicted: &mut [u32], scales: &mut [i16], contexts: &mut [u8]) = definitions::predict_tile;
        fn symbols_of_tile(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, out: &mut TileSymbols<'_>)
            = definitions::symbols_of_tile;
        fn code_tile(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, coded: &mut Coded<'_>) = definitions::code_tile;
        fn ecq_dot_bf16_packed(packed: &[u8], low: &[u8], exponents: &Exponents, x: &Activations, out: &mut [f32])
            = ecq_gemv::dot_bf16_packed;
        fn dot_plain_bf16(weights: &[u8], x: &Activations, out: &mut [f32]) = ecq_gemv::dot_plain_bf16;
        fn dot_codes(row: &CodeRow<'_>, columns: usize, x: &[f32], out: &mut [f32]) = quantised_dot::dot_rows;
    }
    else avx2 {
        fn split_tiles(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize;
        fn map_window(window: &Window, plane: &mut [u8], first: u32, escapes: &mut Vec<u32>) -> usize;
        fn delta_flag(bytes: &[u8], value: u8, words: &mut [u64]) -> usize;
        fn delta_flag_from(bytes: &[u8], value: u8, words: &mut [u64]) -> usize;
        fn delta_pack_flags(symbols: &[u8], out: &mut [u8]) -> usize;
        fn delta_count_set(bytes: &[u8], n: usize) -> Option<usize>;
        fn delta_symbols(lows: &[u8; 16], n_symbols: &[u8; 16], contexts: &[u8], codes: &mut [u8], without: &mut Vec<usize>) -> usize;
        fn delta_raw_lens(lows: &[u8; 16], contexts: &[u8], symbols: &[u8], raw_lens: &mut [u8]) -> usize;
        fn delta_top_bits(raw_lens: &[u8], rests: &[Vec<u8>], raw_bits: &mut [u8]) -> usize;
        fn delta_steps_16(symbols: &[u8], raw_lens: &[u8], raw_bits: &[u8], low_bytes: &[u8], steps: &mut [u16]) -> (usize, usize);
        fn delta_apply_16(sign: bool, base: &[u8], moved: &[u64], steps: &[u16], out: &mut [u8]) -> (usize, usize);
        fn checksum_lanes(lanes: &mut [u32; SUM_LANES], rounds: &[[u8; 4 * SUM_LANES]]) -> bool;
        fn count_window(plane: &[u8], offset: u8, counts: &mut [u32; 16]) -> bool;
        fn take_signs(width: usize, elements: &[u8], signs: &mut [u8]) -> bool;
        fn set_signs(signs: &[u8], width: usize, elements: &mut [u8]) -> bool;
        fn spread_signs(quads: &[u8], signs: &mut [[u8; QUAD]]) -> bool;
        fn collect_signs(signs: &[[u8; QUAD]], quads: &mut [u8]) -> bool;
        fn dot_plain_levels(packed: &[u8], levels: &[i8], x: &[i8], out: &mut [i32]) -> bool;
    }
    and {
        fn tile_joiner(&self, split: &FieldSplit) -> Option<Box<dyn JoinTiles>> {
            Some(join::joiner(*self, split))
        }

        fn delta_words(&self) -> Option<&dyn WordKernels> {
            Some(self)
        }
    }
}

implement! {
    impl WordKernels for Avx512 {
        fn codes_of_all(code_of: &[u8; 16], symbols: &[u8], codes: &mut [u8], n: usize) -> () = delta_words::codes_of_all;
        fn codes_of_flagged(code_of: &[u8; 16], flags: &[u8], symbols: &[u8], codes: &mut [u8], n: usize) -> ()
            = delta_words::codes_of_flagged;
        fn move_16(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) -> () = delta_words::move_16;
        fn move_32(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) -> () = delta_words::move_32;
        fn sort(contexts: &[u8], bytes: &[u8], ends: &mut [(u8, usize)], sorted: &mut [u8]) -> () = delta_words_encode::sort;
        fn flag_classes(window: &Windows, codes: &[u8], n: usize, flags: &mut [u8], symbols: &mut [u8]) -> usize
            = delta_words_encode::flag_classes;
        fn keep_bits_16(windows: &Windows, contexts: &[u8], codes: &[u8], rests: [&[u8]; 2], kept: &mut Kept<'_>) -> ()
            = delta_words_encode::keep_bits::<2>;
        fn keep_bits_32(windows: &Windows, contexts: &[u8], codes: &[u8], rests: [&[u8]; 4], kept: &mut Kept<'_>) -> ()
            = delta_words_encode::keep_bits::<4>;
    }
}

/// A table of sixteen bytes in all quarters of a register, ready to be looked up by a shuffle.
#[inline]
#[target_feature(enable = "avx512f")]
fn table_wide(entries: &[u8; 16]) -> __m512i {
    // SAFETY: `entries` is 16 readable bytes, and `loadu` has no alignment requirement.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(entries.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_wide(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: `bytes` is 64 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_wide(bytes: &mut [u8; 64], vector: __m512i) {
    // SAFETY: `bytes` is 64 writable bytes, and `storeu` has no alignment requirement.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Bytes of a plane for the lanes of a mask, and zero for the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,popcnt")]
fn next_bytes(plane: &[u8], taken: &mut usize, lanes: u32) -> __m512i {
    let n = lanes.count_ones();
    let next = &plane[*taken..][..n as usize];
    *taken += n as usize;
    let first_lanes = _bzhi_u32(u32::MAX, n);
    // SAFETY: the mask reads only the `n` bytes of `next`.
    let next = unsafe { _mm256_maskz_loadu_epi8(first_lanes, next.as_ptr().cast()) };
    _mm512_cvtepu8_epi16(_mm256_maskz_expand_epi8(lanes, next))
}
