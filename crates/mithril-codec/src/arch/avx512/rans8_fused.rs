//! rANS8 decoding fused with the join of bit fields, with the step of AVX-512.

use crate::arch::avx2::rans8_decode::{Lanes, Tables, safe_steps};
use crate::arch::avx2::rans8_fused::{AHEAD, for_each_vector, fused};
use crate::arch::avx2::split::unpack_low_bits;
use crate::arch::avx2::tile_sink::TileSink;
use crate::arch::avx2::{load, store, table};
use crate::arch::shared::byte_tables;
use crate::block::symbols::FieldSymbols;
use crate::entropy::rans8::{Streams, StreamsOf};
use crate::transform::fields::{Finish, Order, TILE, VECTOR};
use std::arch::x86_64::*;

fused!("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt", step_wide);
