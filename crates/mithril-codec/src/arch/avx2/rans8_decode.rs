//! rANS8 decoding, 32 lanes per register pair.
//!
//! A step looks up bucket, alias, rank and frequency by shuffles. Slots below the divider set the index of the
//! alias look-ups to 0xff, for which the shuffle gives zero: their symbol is the bucket and their rank the
//! offset, without a blend.

use super::{EXPAND, load, load_pieces, mask_shuffle, store, table};
use crate::entropy::rans8::{DecodeTable, LANES, Streams, StreamsOf};
use std::arch::x86_64::*;

/// Steps of `N` streams that certainly stay inside the data: a step reads at most 32 bytes of each stream.
#[inline]
pub(in crate::arch) fn safe_steps<const N: usize>(at: &[usize; N], data: &[u8]) -> usize {
    at.iter().map(|&at| data.len().saturating_sub(at) / LANES).min().unwrap_or(0)
}

/// The decoders of plain symbols, for the features and the step of an instruction set.
macro_rules! decoders {
    ($features:literal, $step:ident) => {
        /// See `Kernels::rans8_decode`.
        #[target_feature(enable = $features)]
        pub(super) fn decode(
            streams: Streams<'_>,
            table: &DecodeTable,
            values: &[u8; 16],
            data: &[u8],
            out: &mut [u8],
        ) -> usize {
            match streams.at.len() {
                1 => streams.of::<1>().map_or(0, |streams| decode_streams(streams, table, values, data, out)),
                4 => streams.of::<4>().map_or(0, |streams| decode_streams(streams, table, values, data, out)),
                _ => 0,
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn decode_streams<const N: usize>(
            state: StreamsOf<'_, N>,
            table_of: &DecodeTable,
            values: &[u8; 16],
            data: &[u8],
            out: &mut [u8],
        ) -> usize {
            let tables = Tables::new(table_of);
            let values = table(values);
            let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
            let mut at = *state.at;
            let mut done = 0;
            loop {
                let steps = safe_steps(&at, data).min((out.len() - done) / (N * LANES));
                if steps == 0 {
                    break;
                }
                let groups = out[done..done + steps * N * LANES].as_chunks_mut::<LANES>().0;
                for group in groups.chunks_exact_mut(N) {
                    for (stream, out) in group.iter_mut().enumerate() {
                        let (lanes, at) = (&mut lanes[stream], &mut at[stream]);
                        // SAFETY: `safe_steps` allows this many steps from where the streams stood.
                        let symbols = unsafe { tables.$step(lanes, at, data) };
                        store(out, _mm256_shuffle_epi8(values, symbols));
                    }
                }
                done += steps * N * LANES;
            }
            *state.at = at;
            lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
            done
        }

        /// See `Kernels::rans8_decode_apart`.
        #[target_feature(enable = $features)]
        pub(super) fn decode_apart(
            streams: Streams<'_>,
            table: &DecodeTable,
            data: &[u8],
            outs: &mut [&mut [u8]],
        ) -> usize {
            match streams.at.len() {
                1 => streams.of::<1>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
                2 => streams.of::<2>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
                3 => streams.of::<3>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
                4 => streams.of::<4>().map_or(0, |streams| decode_streams_apart(streams, table, data, outs)),
                _ => 0,
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn decode_streams_apart<const N: usize>(
            state: StreamsOf<'_, N>,
            table: &DecodeTable,
            data: &[u8],
            outs: &mut [&mut [u8]],
        ) -> usize {
            let tables = Tables::new(table);
            let mut lanes = state.planes.each_ref().map(|planes| Lanes::load(planes));
            let mut at = *state.at;
            let Some(outs) = outs.first_chunk_mut::<N>() else { return 0 };
            let n_groups = outs.iter().map(|out| out.len() / LANES).min().unwrap_or(0);
            let mut outs: [&mut [[u8; LANES]]; N] =
                outs.each_mut().map(|out| &mut out.as_chunks_mut().0[..n_groups]);
            let mut done = 0;
            loop {
                let steps = safe_steps(&at, data).min(n_groups - done);
                if steps == 0 {
                    break;
                }
                for group in done..done + steps {
                    for ((lanes, at), out) in lanes.iter_mut().zip(&mut at).zip(&mut outs) {
                        // SAFETY: `safe_steps` allows this many steps from where the streams stood.
                        let symbols = unsafe { tables.$step(lanes, at, data) };
                        store(&mut out[group], symbols);
                    }
                }
                done += steps;
            }
            *state.at = at;
            lanes.iter().zip(state.planes).for_each(|(lanes, planes)| lanes.save(planes));
            done * LANES
        }
    };
}

pub(in crate::arch) use decoders;

decoders!("avx2,bmi1,bmi2,popcnt,lzcnt", step);

/// The states of 32 lanes as byte planes.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Lanes {
    pub(in crate::arch) high: __m256i,
    pub(in crate::arch) low: __m256i,
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in crate::arch) fn load(planes: &[u8; 2 * LANES]) -> Self {
        let (planes, _) = planes.as_chunks::<LANES>();
        Self { high: load(&planes[0]), low: load(&planes[1]) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in crate::arch) fn save(&self, planes: &mut [u8; 2 * LANES]) {
        let (planes, _) = planes.as_chunks_mut::<LANES>();
        store(&mut planes[0], self.high);
        store(&mut planes[1], self.low);
    }
}

/// A decode table in registers.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Tables {
    pub(in crate::arch) divider: __m256i,
    pub(in crate::arch) alias_step: __m256i,
    pub(in crate::arch) rank_step: __m256i,
    pub(in crate::arch) freq: __m256i,
}

impl Tables {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in crate::arch) fn new(of: &DecodeTable) -> Self {
        Self {
            divider: table(&of.divider),
            alias_step: table(&of.alias_step),
            rank_step: table(&of.rank_step),
            freq: table(&of.freq),
        }
    }

    /// One step of 32 lanes: returns their symbols.
    ///
    /// # Safety
    /// 32 bytes must be readable at `data[*at]`.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(in crate::arch) unsafe fn step(&self, lanes: &mut Lanes, at: &mut usize, data: &[u8]) -> __m256i {
        let low_nibble = _mm256_set1_epi8(15);
        let even = _mm256_set1_epi16(0x00ff);
        let odd = _mm256_set1_epi16(0xff00u16.cast_signed());

        let bucket = _mm256_and_si256(_mm256_srli_epi16::<4>(lanes.low), low_nibble);
        let offset = _mm256_and_si256(lanes.low, low_nibble);
        let own = _mm256_cmpgt_epi8(_mm256_shuffle_epi8(self.divider, bucket), offset);
        let index = _mm256_or_si256(bucket, own);
        let symbols = _mm256_add_epi8(bucket, _mm256_shuffle_epi8(self.alias_step, index));
        let rank = _mm256_add_epi8(offset, _mm256_shuffle_epi8(self.rank_step, index));
        let freq = _mm256_shuffle_epi8(self.freq, symbols);

        // x = freq * high + rank on even and odd bytes as 16-bit numbers, then back to planes.
        let x_even = _mm256_add_epi16(
            _mm256_mullo_epi16(_mm256_and_si256(freq, even), _mm256_and_si256(lanes.high, even)),
            _mm256_and_si256(rank, even),
        );
        let x_odd = _mm256_add_epi16(
            _mm256_mullo_epi16(_mm256_srli_epi16::<8>(freq), _mm256_srli_epi16::<8>(lanes.high)),
            _mm256_srli_epi16::<8>(rank),
        );
        let high = _mm256_blendv_epi8(_mm256_srli_epi16::<8>(x_even), x_odd, odd);
        let low = _mm256_blendv_epi8(x_even, _mm256_slli_epi16::<8>(x_odd), odd);

        let needs = _mm256_cmpeq_epi8(high, _mm256_setzero_si256());
        let mask = _mm256_movemask_epi8(needs).cast_unsigned();
        let base = data.as_ptr().wrapping_add(*at);
        let piece = |lanes_before: u32| base.wrapping_add((mask & lanes_before).count_ones() as usize);
        // SAFETY: the pieces start at most 24 bytes after `at`, and the caller vouches for 32.
        let bytes = unsafe { load_pieces(base, piece(0xff), piece(0xffff), piece(0x00ff_ffff)) };
        *at += mask.count_ones() as usize;
        let bytes = _mm256_shuffle_epi8(bytes, mask_shuffle(&EXPAND, mask));
        lanes.high = _mm256_blendv_epi8(high, low, needs);
        lanes.low = _mm256_blendv_epi8(low, bytes, needs);
        symbols
    }
}
