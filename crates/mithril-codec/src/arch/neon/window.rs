//! Values turned into symbols, sixteen at a time.

use super::{load, store};
use crate::entropy::rans8::{Symbols, Window};
use std::arch::aarch64::*;

#[target_feature(enable = "neon")]
pub(super) fn map_window(window: &Window, plane: &mut [u8], first: u32, escapes: &mut Vec<u32>) -> usize {
    let (offset, valid) = (vdupq_n_u8(window.offset), load(&window.valid()));
    let escape = vdupq_n_u8(window.escape_symbol());
    map_each(plane, first, escapes, |values| {
        let symbols = vsubq_u8(values, offset);
        // Symbols from sixteen on are not in the table, which gives zero for them.
        let is_symbol = vqtbl1q_u8(valid, symbols);
        (vbslq_u8(is_symbol, symbols, escape), is_symbol)
    })
}

#[target_feature(enable = "neon")]
pub(super) fn map_listed(symbols: &Symbols, plane: &mut [u8], escapes: &mut Vec<u32>) -> usize {
    let (quarters, _) = symbols.by_value.as_chunks();
    let by_value =
        uint8x16x4_t(load(&quarters[0]), load(&quarters[1]), load(&quarters[2]), load(&quarters[3]));
    map_each(plane, 0, escapes, |values| {
        let found = vqtbl4q_u8(by_value, values);
        (vandq_u8(found, vdupq_n_u8(!Symbols::LISTED)), found)
    })
}

/// Maps values by a function that gives symbols, and zero for values that have none.
#[inline]
#[target_feature(enable = "neon")]
fn map_each(
    plane: &mut [u8],
    first: u32,
    escapes: &mut Vec<u32>,
    map: impl Fn(uint8x16_t) -> (uint8x16_t, uint8x16_t),
) -> usize {
    let (registers, _) = plane.as_chunks_mut::<16>();
    let n_registers = registers.len();
    for (values, position) in registers.iter_mut().zip((0..).step_by(16)) {
        let (symbols, has_symbol) = map(load(values));
        store(values, symbols);
        if vminvq_u8(has_symbol) == 0 {
            let mut lanes = [0; 16];
            store(&mut lanes, has_symbol);
            let escaped = (first.wrapping_add(position)..).zip(lanes).filter(|&(_, lane)| lane == 0);
            escapes.extend(escaped.map(|(position, _)| position));
        }
    }
    n_registers * 16
}
