//! What stands in for the kernels of `fast` where there is neither AVX2 nor NEON; see `absent`.

use super::Avx2;
use crate::entropy::rans8::{DecodeState, DecodeTable, EncodeState, EncodeTable, Symbols, Window};
use crate::transform::fields::{FieldSplit, Finish};

impl Avx2 {
    pub(crate) fn rans8_decode<const N: usize>(
        self,
        _: &mut DecodeState<N>,
        _: &DecodeTable,
        _: &[u8; 16],
        _: &[u8],
        _: &mut [u8],
    ) -> usize {
        match self {}
    }

    pub(crate) fn rans8_decode_apart<const N: usize>(
        self,
        _: &mut DecodeState<N>,
        _: &DecodeTable,
        _: &[u8],
        _: &mut [&mut [u8]; N],
    ) -> usize {
        match self {}
    }

    pub(crate) fn rans8_encode<const N: usize>(
        self,
        _: &mut EncodeState<'_, N>,
        _: &EncodeTable,
        _: &[u8],
        _: &[u8],
    ) {
        match self {}
    }

    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    pub(crate) fn rans8_decode_join(
        self,
        _: &FieldSplit,
        _: &[u8; 16],
        _: &DecodeTable,
        _: &mut DecodeState<4>,
        _: &[u8],
        _: &[u8],
        _: &mut [u8],
        _: &mut Finish<'_>,
    ) -> usize {
        match self {}
    }

    pub(crate) fn split_tiles(self, _: &FieldSplit, _: &[u8], _: &mut [u8], _: &mut [u8]) {
        match self {}
    }

    pub(crate) fn map_window(self, _: &Window, _: &mut [u8], _: u32, _: &mut Vec<u32>) -> usize {
        match self {}
    }

    pub(crate) fn map_listed(self, _: &Symbols, _: &mut [u8], _: &mut Vec<u32>) -> usize {
        match self {}
    }
}
