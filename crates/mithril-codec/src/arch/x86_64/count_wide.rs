//! Counting sixteen values with AVX-512: every byte becomes one bit of sixteen, and full adders count each bit in all lanes
//! at once. Comparing with each value, as AVX2 does, takes four times as many instructions.

use super::delta_wide::kernels;
use super::{Avx512, load_wide};
use std::arch::x86_64::*;

kernels! {
    /// Counts sixteen consecutive values; all others are left out.
    count_values = count(bytes: &[u8], first: u8, counts: &mut [u32; 16]) -> ();
}

/// Vectors that the adders take at once.
const ROUND: usize = 8;

/// Sums of bits of the same weight: `ones`, `twos` and `fours` are what is not yet counted.
struct Adders {
    ones: __m512i,
    twos: __m512i,
    fours: __m512i,
    /// Eights, for each bit of a byte.
    eights: [u32; 8],
}

/// Sum and carry of three bits, in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: __m512i, b: __m512i, c: __m512i) -> (__m512i, __m512i) {
    (_mm512_ternarylogic_epi64::<0x96>(a, b, c), _mm512_ternarylogic_epi64::<0xe8>(a, b, c))
}

/// In how many bytes each bit is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,popcnt")]
fn bits_set(bytes: __m512i) -> [u32; 8] {
    [1, 2, 4, 8, 16, 32, 64, -128].map(|bit| _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(bit)).count_ones())
}

impl Adders {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self { ones: zero, twos: zero, fours: zero, eights: [0; 8] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,popcnt")]
    fn take(&mut self, round: &[__m512i; ROUND]) {
        let [a, b, c, d, e, f, g, h] = *round;
        let (ones, twos_0) = add(self.ones, a, b);
        let (ones, twos_1) = add(ones, c, d);
        let (twos, fours_0) = add(self.twos, twos_0, twos_1);
        let (ones, twos_0) = add(ones, e, f);
        let (ones, twos_1) = add(ones, g, h);
        let (twos, fours_1) = add(twos, twos_0, twos_1);
        let (fours, eights) = add(self.fours, fours_0, fours_1);
        (self.ones, self.twos, self.fours) = (ones, twos, fours);
        self.eights.iter_mut().zip(bits_set(eights)).for_each(|(sum, more)| *sum += more);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,popcnt")]
    fn finish(self, counts: &mut [u32]) {
        let (ones, twos, fours) = (bits_set(self.ones), bits_set(self.twos), bits_set(self.fours));
        for (bit, count) in counts.iter_mut().enumerate().take(8) {
            *count += 8 * self.eights[bit] + 4 * fours[bit] + 2 * twos[bit] + ones[bit];
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn count(bytes: &[u8], first: u8, counts: &mut [u32; 16]) {
    let bit_of = |half: usize| {
        let mut bits = [0u8; 16];
        bits[8 * half..][..8].copy_from_slice(&[1, 2, 4, 8, 16, 32, 64, 128]);
        // SAFETY: `bits` is 16 readable bytes, and `loadu` has no alignment requirement.
        _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(bits.as_ptr().cast()) })
    };
    let (low_bits, high_bits) = (bit_of(0), bit_of(1));
    let (offset, limit) = (_mm512_set1_epi8(first.cast_signed()), _mm512_set1_epi8(16));
    let (mut low, mut high) = (Adders::new(), Adders::new());
    let mut take = |round: &[u8; 64 * ROUND]| {
        let vectors = round.as_chunks::<64>().0;
        let values: [__m512i; ROUND] =
            std::array::from_fn(|at| _mm512_sub_epi8(load_wide(&vectors[at]), offset));
        let counted = values.map(|values| _mm512_cmplt_epu8_mask(values, limit));
        low.take(&std::array::from_fn(|at| _mm512_maskz_shuffle_epi8(counted[at], low_bits, values[at])));
        high.take(&std::array::from_fn(|at| _mm512_maskz_shuffle_epi8(counted[at], high_bits, values[at])));
    };
    let (rounds, rest) = bytes.as_chunks::<{ 64 * ROUND }>();
    rounds.iter().for_each(&mut take);
    if !rest.is_empty() {
        // Filled up with a value that is not counted.
        let mut last = [first.wrapping_sub(1); 64 * ROUND];
        last[..rest.len()].copy_from_slice(rest);
        take(&last);
    }
    low.finish(&mut counts[..8]);
    high.finish(&mut counts[8..]);
}
