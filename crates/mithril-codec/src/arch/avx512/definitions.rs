//! Definitions compiled for AVX-512, where that is faster than AVX2.

use crate::arch::avx2::definitions::{compiled, compiled_tiles};
use crate::prediction::tile::{Coded, Lists, Tile, TileSymbols, code, predict, set_symbols};

compiled_tiles!("avx512f,avx512bw,avx512cd,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt");
