//! What stands in for AVX2 where there is none: a proof that cannot be had, so that its kernels are never reached.

use crate::block::QUAD;
use crate::checksum::LANES as SUM_LANES;
use crate::delta::encode_words::{Kept, Windows};
use crate::delta::words::Walk;
use crate::delta::{ContextRule, Elements32};
use crate::ecq::gemv::{Activations, Exponents};
use crate::entropy::rans8::{DecodeState, DecodeTable, EncodeState, EncodeTable};
use crate::entropy::rans12;
use crate::transform::fields::FieldSplit;

/// No value of this type exists.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Avx2 {}

/// Never there.
pub(crate) fn avx2() -> Option<Avx2> {
    None
}

/// How a split is joined; see the kernel.
#[derive(Debug, Clone)]
pub(crate) enum JoinKernel {}

/// How the columns of every row are put back; see the kernel.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "made for a kernel that is never reached")]
pub(crate) struct Columns<'a, const CLASSES: usize> {
    pub(crate) row_len: usize,
    pub(crate) shuffles: &'a [[[u8; 16]; CLASSES]],
    pub(crate) taken: &'a [[u8; CLASSES]],
}

impl Avx2 {
    pub(crate) fn checksum_lanes(self, _: &mut [u32; SUM_LANES], _: &[[u8; 4 * SUM_LANES]]) {
        match self {}
    }

    pub(crate) fn join_of(self, _: &FieldSplit) -> JoinKernel {
        match self {}
    }

    pub(crate) fn join_tiles(
        self,
        _: &JoinKernel,
        _: &FieldSplit,
        _: &[u8],
        _: Option<&[u8]>,
        _: &[u8],
        _: &mut [u8],
    ) -> usize {
        match self {}
    }

    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    pub(crate) fn ecq_dot_levels(
        self,
        _: &mut DecodeState<4>,
        _: &DecodeTable,
        _: &[u8],
        _: &[i8],
        _: [&[u8]; 4],
        _: &[i8],
        _: usize,
        _: &mut [i32],
    ) -> usize {
        match self {}
    }

    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    pub(crate) fn ecq_dot_bf16(
        self,
        _: &mut DecodeState<4>,
        _: &DecodeTable,
        _: &[u8],
        _: &Exponents,
        _: [&[u8]; 4],
        _: &Activations,
        _: usize,
        _: &mut [f32],
    ) -> usize {
        match self {}
    }

    pub(crate) fn ecq_dot_bf16_packed(
        self,
        _: &[u8],
        _: &[u8],
        _: &Exponents,
        _: &Activations,
        _: &mut [f32],
    ) {
        match self {}
    }

    pub(crate) fn dot_plain_levels(self, _: &[u8], _: &[i8], _: &[i8], _: &mut [i32]) {
        match self {}
    }

    pub(crate) fn dot_plain_bf16(self, _: &[u8], _: &Activations, _: &mut [f32]) {
        match self {}
    }

    pub(crate) fn rans8_encode_apart(
        self,
        _: &mut EncodeState<'_, 4>,
        _: &EncodeTable,
        _: [&[u8]; 4],
    ) -> bool {
        match self {}
    }

    pub(crate) fn rans12_decode_groups(
        self,
        _: &mut [u32; rans12::LANES],
        _: &[u32; rans12::FREQUENCY_SUM],
        _: &[u8],
        _: &mut [[u8; rans12::LANES]],
    ) -> (usize, usize) {
        match self {}
    }

    pub(crate) fn scatter_rows<const CLASSES: usize>(
        self,
        _: Columns<'_, CLASSES>,
        _: &[u8],
        _: &[u8],
        _: &mut [[usize; CLASSES]],
        _: &mut [u8],
    ) {
        match self {}
    }

    pub(crate) fn expand_rows(self, _: &[u64], _: usize, _: &[u8], _: &[u8], _: &mut [usize], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn gather_rows(self, _: &[u64], _: usize, _: &[u8], _: &[u8], _: &mut [usize], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn set_signs(self, _: &[u8], _: usize, _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn take_signs(self, _: usize, _: &[u8], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn spread_signs(self, _: &[u8], _: &mut [[u8; QUAD]]) {
        match self {}
    }

    pub(crate) fn collect_signs(self, _: &[[u8; QUAD]], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn count_window(self, _: &[u8], _: u8, _: &mut [u32; 16]) {
        match self {}
    }

    pub(crate) fn count_all(self, _: &[u8], _: u8, _: &mut [u32; 16]) {
        match self {}
    }

    pub(crate) fn delta_merge_flags(
        self,
        _: &[u8],
        _: u16,
        _: &mut [(u8, usize)],
        _: &[u8],
        _: &mut [u64],
    ) -> usize {
        match self {}
    }

    pub(crate) fn delta_pack_flags(self, _: &[u8], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn delta_count_set(self, _: &[u8], _: usize) -> usize {
        match self {}
    }

    pub(crate) fn delta_split_flags(self, _: &[u8], _: &[u64], _: &mut [(u8, usize)], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn delta_keep_flagged(self, _: &[u8], _: &[u64], _: &mut [u8]) -> (usize, usize) {
        match self {}
    }

    pub(crate) fn delta_merge_classes(self, _: &[u8], _: &mut [usize; 16], _: &[u8], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn delta_split_classes(self, _: &[u8], _: &mut [usize; 16], _: &[u8], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn delta_add_bits(self, _: u8, _: &[u8], _: &[u8], _: &mut [u8]) -> (usize, usize) {
        match self {}
    }

    pub(crate) fn delta_take_bits(self, _: u8, _: &[u8], _: &[u8], _: &mut [u8]) -> (usize, usize) {
        match self {}
    }

    pub(crate) fn delta_codes_16(
        self,
        _: bool,
        _: &[u8],
        _: &[u8],
        _: &mut [u8],
        _: [&mut [u8]; 2],
    ) -> usize {
        match self {}
    }

    pub(crate) fn delta_raw_lens(self, _: &[u8; 16], _: &[u8], _: &[u8], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn delta_steps_16(
        self,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &mut [u16],
    ) -> (usize, usize) {
        match self {}
    }

    pub(crate) fn delta_apply_16(
        self,
        _: bool,
        _: &[u8],
        _: &[u64],
        _: &[u16],
        _: &mut [u8],
    ) -> (usize, usize) {
        match self {}
    }

    pub(crate) fn delta_contexts_16(self, _: ContextRule, _: &[u8], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn delta_contexts_32(self, _: ContextRule, _: &[u8], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn delta_flag(self, _: &[u8], _: u8, _: &mut [u64]) -> usize {
        match self {}
    }

    pub(crate) fn delta_flag_from(self, _: &[u8], _: u8, _: &mut [u64]) -> usize {
        match self {}
    }

    pub(crate) fn delta_symbols(
        self,
        _: &[u8; 16],
        _: &[u8; 16],
        _: &[u8],
        _: &mut [u8],
        _: &mut Vec<usize>,
    ) -> usize {
        match self {}
    }

    pub(crate) fn delta_top_bits(self, _: &[u8], _: &[Vec<u8>], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn is_wide(self) -> bool {
        match self {}
    }

    pub(crate) fn delta_codes_32(
        self,
        _: Elements32<'_>,
        _: &[u8],
        _: &mut [u8],
        _: [&mut [u8]; 4],
    ) -> usize {
        match self {}
    }

    pub(crate) fn delta_codes_of_all(self, _: &[u8; 16], _: &[u8], _: &mut [u8], _: usize) {
        match self {}
    }

    pub(crate) fn delta_codes_of_flagged(self, _: &[u8; 16], _: &[u8], _: &[u8], _: &mut [u8], _: usize) {
        match self {}
    }

    pub(crate) fn delta_words_16(self, _: &mut Walk<'_>, _: &[u8], _: &[u8], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn delta_words_32(self, _: &mut Walk<'_>, _: &[u8], _: &[u8], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn delta_sort(self, _: &[u8], _: &[u8], _: &mut [(u8, usize)], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn delta_flag_classes(
        self,
        _: &Windows,
        _: &[u8],
        _: usize,
        _: &mut [u8],
        _: &mut [u8],
    ) -> usize {
        match self {}
    }

    pub(crate) fn delta_keep_bits_16(
        self,
        _: &Windows,
        _: &[u8],
        _: &[u8],
        _: [&[u8]; 2],
        _: &mut Kept<'_>,
        _: &mut Vec<u32>,
    ) {
        match self {}
    }

    pub(crate) fn delta_keep_bits_32(
        self,
        _: &Windows,
        _: &[u8],
        _: &[u8],
        _: [&[u8]; 4],
        _: &mut Kept<'_>,
        _: &mut Vec<u32>,
    ) {
        match self {}
    }

    pub(crate) fn look_up_64(self, _: &[u8; 64], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn merge_buckets(self, _: &[u8], _: &mut [usize], _: &[u8], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn restore_predicted(
        self,
        _: usize,
        _: &crate::prediction::CodedElements<'_>,
        _: &mut [u8],
    ) -> (usize, [usize; 4]) {
        match self {}
    }

    pub(crate) fn vectors_at_once(self) -> usize {
        match self {}
    }

    pub(crate) fn dot_codes(
        self,
        _: &crate::quantised::products::CodeRow<'_>,
        _: usize,
        _: &[f32],
        _: &mut [f32],
    ) {
        match self {}
    }

    pub(crate) fn low_rank_sums(self, _: &[[i16; 2]], _: usize, _: &[i16], _: usize, _: &mut [i32]) -> usize {
        match self {}
    }

    pub(crate) fn add_products(self, _: &[f32], _: &[f32], _: usize, _: &mut [f32]) -> usize {
        match self {}
    }

    pub(crate) fn count_buckets(self, _: &[u8], _: &mut [usize]) -> usize {
        match self {}
    }

    pub(crate) fn split_buckets(self, _: &[u8], _: &[u8], _: &mut [usize], _: &mut [u8]) -> usize {
        match self {}
    }

    pub(crate) fn predicted_raw_lens(
        self,
        _: crate::prediction::Format,
        _: u8,
        _: u8,
        _: &[u8],
        _: &[u8],
        _: &mut [u8],
    ) -> usize {
        match self {}
    }

    pub(crate) fn predict_tile(
        self,
        _: &crate::prediction::tile::Tile<'_>,
        _: &mut [u32],
        _: &mut [i16],
        _: &mut [u8],
    ) {
        match self {}
    }

    pub(crate) fn symbols_of_tile(
        self,
        _: &crate::prediction::tile::Tile<'_>,
        _: u8,
        _: &[u8],
        _: &mut crate::prediction::tile::Lists,
        _: &mut [u8],
        _: &mut [u8],
    ) {
        match self {}
    }

    pub(crate) fn code_tile(
        self,
        _: &crate::prediction::tile::Tile<'_>,
        _: u8,
        _: &[u8],
        _: &mut crate::prediction::tile::Lists,
        _: &mut crate::prediction::tile::Coded<'_>,
    ) {
        match self {}
    }
}
