//! Mapping the values of a rANS8 window with AVX-512.

use super::{load_wide, store_wide};
use crate::arch::avx2::window::push_escapes;
use crate::entropy::rans8::Symbols;
use std::arch::x86_64::*;

/// One look-up finds the symbols of 64 values.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn map_listed(symbols: &Symbols, plane: &mut [u8], escapes: &mut Vec<u32>) -> usize {
    let (by_value, symbol) = (load_wide(&symbols.by_value), _mm512_set1_epi8(0x7f));
    let (groups, _) = plane.as_chunks_mut::<64>();
    let n_groups = groups.len();
    for (values, position) in groups.iter_mut().zip((0..).step_by(64)) {
        let found = _mm512_permutexvar_epi8(load_wide(values), by_value);
        store_wide(values, _mm512_and_si512(found, symbol));
        push_escapes(position, !_mm512_movepi8_mask(found), escapes);
    }
    n_groups * 64
}
