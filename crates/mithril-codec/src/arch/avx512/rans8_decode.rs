//! rANS8 decoding with AVX-512, 32 lanes per register pair.
//!
//! The comparison with dividers is a mask, and bytes of the stream are put in their lanes by one instruction instead of
//! four loads and a table of shuffles: 45 instructions per step instead of the 80 of AVX2.

use crate::arch::avx2::rans8_decode::{Lanes, Tables, decoders, safe_steps};
use crate::arch::avx2::{store, table};
use crate::entropy::rans8::{DecodeTable, LANES, Streams, StreamsOf};
use std::arch::x86_64::*;

decoders!("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt", step_wide);

impl Tables {
    /// The step of 32 lanes with AVX-512: returns their symbols.
    ///
    /// # Safety
    /// 32 bytes must be readable at `data[*at]`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(in crate::arch) unsafe fn step_wide(
        &self,
        lanes: &mut Lanes,
        at: &mut usize,
        data: &[u8],
    ) -> __m256i {
        let low_nibble = _mm256_set1_epi8(15);
        let even = _mm256_set1_epi16(0x00ff);
        let odd = _mm256_set1_epi16(0xff00u16.cast_signed());

        let bucket = _mm256_and_si256(_mm256_srli_epi16::<4>(lanes.low), low_nibble);
        let offset = _mm256_and_si256(lanes.low, low_nibble);
        let alias = _mm256_cmple_epi8_mask(_mm256_shuffle_epi8(self.divider, bucket), offset);
        let symbols = _mm256_add_epi8(bucket, _mm256_maskz_shuffle_epi8(alias, self.alias_step, bucket));
        let rank = _mm256_add_epi8(offset, _mm256_maskz_shuffle_epi8(alias, self.rank_step, bucket));
        let freq = _mm256_shuffle_epi8(self.freq, symbols);

        // x = freq * high + rank on even and odd bytes as 16-bit numbers: where both factors are in
        // the upper byte, the upper half of their product is the product of those bytes.
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
