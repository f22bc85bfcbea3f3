//! rANS8 decoding, 32 lanes per register pair.
//!
//! A step looks up bucket, alias, rank and frequency by shuffles. Slots below the divider set the index of the
//! alias look-ups to 0xff, for which the shuffle gives zero: their symbol is the bucket and their rank the
//! offset, without a blend. With AVX-512 the comparison is a mask, and bytes of the stream are put in their lanes by
//! one instruction instead of four loads and a table of shuffles: 45 instructions per step instead of 80.

use super::{Avx2, EXPAND, load, load_pieces, mask_shuffle, store, table};
use crate::entropy::rans8::{DecodeState, DecodeTable, LANES};
use std::arch::x86_64::*;

impl Avx2 {
    /// Decodes groups from the front of `out` while a step cannot read past `data`; returns how many symbols
    /// were decoded. What is left needs the scalar code.
    pub(crate) fn rans8_decode<const N: usize>(
        self,
        state: &mut DecodeState<N>,
        table: &DecodeTable,
        values: &[u8; 16],
        data: &[u8],
        out: &mut [u8],
    ) -> usize {
        match self.wide {
            // SAFETY: both exist only when `detect` saw the features.
            Some(_) => unsafe { wide::decode(state, table, values, data, out) },
            // SAFETY: `self` exists only when `detect` saw the features.
            None => unsafe { narrow::decode(state, table, values, data, out) },
        }
    }

    /// Decodes streams to outputs of their own while a step cannot read past `data`; returns how many symbols of each
    /// were decoded.
    pub(crate) fn rans8_decode_apart<const N: usize>(
        self,
        state: &mut DecodeState<N>,
        table: &DecodeTable,
        data: &[u8],
        outs: &mut [&mut [u8]; N],
    ) -> usize {
        match self.wide {
            // SAFETY: both exist only when `detect` saw the features.
            Some(_) => unsafe { wide::decode_apart(state, table, data, outs) },
            // SAFETY: `self` exists only when `detect` saw the features.
            None => unsafe { narrow::decode_apart(state, table, data, outs) },
        }
    }
}

/// Steps of `N` streams that certainly stay inside the data: a step reads at most 32 bytes of each stream.
#[inline]
pub(super) fn safe_steps<const N: usize>(state: &DecodeState<N>, data: &[u8]) -> usize {
    state.at.iter().map(|&at| data.len().saturating_sub(at) / LANES).min().unwrap_or(0)
}

/// The decoders of plain symbols, for one set of instructions.
macro_rules! decoder {
    ($module:ident, $features:literal, $step:ident) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            pub(super) fn decode<const N: usize>(
                state: &mut DecodeState<N>,
                table_of: &DecodeTable,
                values: &[u8; 16],
                data: &[u8],
                out: &mut [u8],
            ) -> usize {
                let tables = Tables::new(table_of);
                let values = table(values);
                let mut lanes: [Lanes; N] = std::array::from_fn(|stream| Lanes::load(state, stream));
                let mut done = 0;
                loop {
                    let steps = safe_steps(state, data).min((out.len() - done) / (N * LANES));
                    if steps == 0 {
                        break;
                    }
                    let groups = out[done..done + steps * N * LANES].as_chunks_mut::<LANES>().0;
                    for group in groups.chunks_exact_mut(N) {
                        for (stream, out) in group.iter_mut().enumerate() {
                            let (lanes, at) = (&mut lanes[stream], &mut state.at[stream]);
                            // SAFETY: `safe_steps` allows this many steps from where the streams stood.
                            let symbols = unsafe { tables.$step(lanes, at, data) };
                            store(out, _mm256_shuffle_epi8(values, symbols));
                        }
                    }
                    done += steps * N * LANES;
                }
                for (stream, lanes) in lanes.iter().enumerate() {
                    lanes.save(state, stream);
                }
                done
            }

            #[target_feature(enable = $features)]
            pub(super) fn decode_apart<const N: usize>(
                state: &mut DecodeState<N>,
                table_of: &DecodeTable,
                data: &[u8],
                outs: &mut [&mut [u8]; N],
            ) -> usize {
                let tables = Tables::new(table_of);
                let mut lanes: [Lanes; N] = std::array::from_fn(|stream| Lanes::load(state, stream));
                let n_groups = outs.iter().map(|out| out.len() / LANES).min().unwrap_or(0);
                let mut outs: [&mut [[u8; LANES]]; N] =
                    outs.each_mut().map(|out| &mut out.as_chunks_mut().0[..n_groups]);
                let mut done = 0;
                loop {
                    let steps = safe_steps(state, data).min(n_groups - done);
                    if steps == 0 {
                        break;
                    }
                    let mut at = state.at;
                    for group in done..done + steps {
                        for ((lanes, at), out) in lanes.iter_mut().zip(&mut at).zip(&mut outs) {
                            // SAFETY: `safe_steps` allows this many steps from where the streams stood.
                            let symbols = unsafe { tables.$step(lanes, at, data) };
                            store(&mut out[group], symbols);
                        }
                    }
                    state.at = at;
                    done += steps;
                }
                for (stream, lanes) in lanes.iter().enumerate() {
                    lanes.save(state, stream);
                }
                done * LANES
            }
        }
    };
}

decoder!(narrow, "avx2,bmi1,bmi2,popcnt,lzcnt", step);
decoder!(wide, "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt", step_wide);

/// The states of 32 lanes as byte planes.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    high: __m256i,
    low: __m256i,
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn load<const N: usize>(state: &DecodeState<N>, stream: usize) -> Self {
        let (planes, _) = state.planes[stream].as_chunks::<LANES>();
        Self { high: load(&planes[0]), low: load(&planes[1]) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn save<const N: usize>(&self, state: &mut DecodeState<N>, stream: usize) {
        let (planes, _) = state.planes[stream].as_chunks_mut::<LANES>();
        store(&mut planes[0], self.high);
        store(&mut planes[1], self.low);
    }
}

/// A decode table in registers.
#[derive(Clone, Copy)]
pub(super) struct Tables {
    divider: __m256i,
    alias_step: __m256i,
    rank_step: __m256i,
    freq: __m256i,
}

impl Tables {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn new(of: &DecodeTable) -> Self {
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
    pub(super) unsafe fn step(&self, lanes: &mut Lanes, at: &mut usize, data: &[u8]) -> __m256i {
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
        // SAFETY: the pieces start at most 24 bytes behind `at`, and the caller vouches for 32.
        let bytes = unsafe { load_pieces(base, piece(0xff), piece(0xffff), piece(0x00ff_ffff)) };
        *at += mask.count_ones() as usize;
        let bytes = _mm256_shuffle_epi8(bytes, mask_shuffle(&EXPAND, mask));
        lanes.high = _mm256_blendv_epi8(high, low, needs);
        lanes.low = _mm256_blendv_epi8(low, bytes, needs);
        symbols
    }
    /// The same step with AVX-512.
    ///
    /// # Safety
    /// 32 bytes must be readable at `data[*at]`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) unsafe fn step_wide(&self, lanes: &mut Lanes, at: &mut usize, data: &[u8]) -> __m256i {
        let low_nibble = _mm256_set1_epi8(15);
        let even = _mm256_set1_epi16(0x00ff);
        let odd = _mm256_set1_epi16(0xff00u16.cast_signed());

        let bucket = _mm256_and_si256(_mm256_srli_epi16::<4>(lanes.low), low_nibble);
        let offset = _mm256_and_si256(lanes.low, low_nibble);
        let alias = _mm256_cmple_epi8_mask(_mm256_shuffle_epi8(self.divider, bucket), offset);
        let symbols = _mm256_add_epi8(bucket, _mm256_maskz_shuffle_epi8(alias, self.alias_step, bucket));
        let rank = _mm256_add_epi8(offset, _mm256_maskz_shuffle_epi8(alias, self.rank_step, bucket));
        let freq = _mm256_shuffle_epi8(self.freq, symbols);

        // x = freq * high + rank on even and odd bytes as 16-bit numbers: the upper half of a product of numbers that
        // stand in upper bytes is the product of those bytes.
        let x_even = _mm256_add_epi16(
            _mm256_mullo_epi16(_mm256_and_si256(freq, even), _mm256_and_si256(lanes.high, even)),
            _mm256_and_si256(rank, even),
        );
        let x_odd = _mm256_add_epi16(
            _mm256_mulhi_epu16(_mm256_and_si256(freq, odd), _mm256_and_si256(lanes.high, odd)),
            _mm256_srli_epi16::<8>(rank),
        );
        let high = _mm256_permutex2var_epi8(x_even, byte_planes(1), x_odd);
        let low = _mm256_permutex2var_epi8(x_even, byte_planes(0), x_odd);

        let needs = _mm256_testn_epi8_mask(high, high);
        // SAFETY: the caller vouches for 32 bytes.
        let bytes = unsafe { _mm256_loadu_si256(data.as_ptr().wrapping_add(*at).cast()) };
        *at += needs.count_ones() as usize;
        lanes.high = _mm256_mask_mov_epi8(high, needs, low);
        lanes.low = _mm256_mask_expand_epi8(low, needs, bytes);
        symbols
    }
}

/// Low or high bytes of 16-bit numbers of even and odd lanes, as indices into both registers.
#[inline]
#[target_feature(enable = "avx2")]
fn byte_planes(byte: i8) -> __m256i {
    // Lane 2 i is byte 2 i + byte of the first register, lane 2 i + 1 the same of the second.
    let pairs = _mm256_setr_epi16(
        0x2000, 0x2202, 0x2404, 0x2606, 0x2808, 0x2a0a, 0x2c0c, 0x2e0e, 0x3010, 0x3212, 0x3414, 0x3616,
        0x3818, 0x3a1a, 0x3c1c, 0x3e1e,
    );
    _mm256_add_epi8(pairs, _mm256_set1_epi8(byte))
}
