//! Definitions compiled for wider vectors: the same code, so the same results. Numbers of floating point are multiplied and
//! added one operation at a time in any of them.

use crate::block::{QUAD, collect_signs_portable, spread_signs_portable};
use crate::checksum::{LANES, step_lanes};
use crate::prediction::tile::{Coded, Lists, Tile, TileSymbols, code, predict, set_symbols};
use crate::transform::fields::{
    FieldSplit, join_tiles_portable, set_signs_portable, split_tiles_portable, take_signs_portable,
};

/// Compiles definitions for some features.
macro_rules! compiled {
    ($features:literal, $($name:ident = $definition:ident($($argument:ident: $type:ty),*);)*) => {
        $(#[target_feature(enable = $features)]
        pub(super) fn $name($($argument: $type),*) {
            $definition($($argument),*);
        })*
    };
}

/// The loops of `prediction::tile` for some features.
macro_rules! compiled_tiles {
    ($features:literal) => {
        compiled! {
            $features,
            predict_tile = predict(tile: &Tile<'_>, predicted: &mut [u32], scales: &mut [i16], contexts: &mut [u8]);
            symbols_of_tile =
                set_symbols(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, out: &mut TileSymbols<'_>);
            code_tile =
                code(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, coded: &mut Coded<'_>);
        }
    };
}

pub(in crate::arch) use {compiled, compiled_tiles};

compiled_tiles!("avx2,bmi1,bmi2,popcnt,lzcnt");

compiled! {
    "avx2",
    checksum_lanes = step_lanes(lanes: &mut [u32; LANES], rounds: &[[u8; 4 * LANES]]);
}

compiled! {
    "avx2,bmi1,bmi2,popcnt,lzcnt",
    split_any = split_tiles_portable(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]);
    join_any = join_tiles_portable(split: &FieldSplit, plane: &[u8], rest: &[u8], out: &mut [u8]);
    take_signs = take_signs_portable(width: usize, elements: &[u8], signs: &mut [u8]);
    set_signs = set_signs_portable(signs: &[u8], width: usize, elements: &mut [u8]);
    spread_signs = spread_signs_portable(quads: &[u8], signs: &mut [[u8; QUAD]]);
    collect_signs = collect_signs_portable(signs: &[[u8; QUAD]], quads: &mut [u8]);
}
