//! Counting sixteen values with AVX-512: every byte becomes one bit of sixteen, and full adders count each bit in all lanes
//! at once. Comparing with each value, as AVX2 does, takes four times as many instructions.

use super::{load_wide, store_wide, table_wide};
use crate::entropy::rans8::COUNTED;
use std::arch::x86_64::*;

/// Vectors that the adders take at once.
const ROUND: usize = 8;

/// Rounds that bytes can count eights of, eight at a time.
const ROUNDS: usize = 31;

/// Sums of bits of the same weight: `ones`, `twos` and `fours` are what is not yet counted.
struct Adders {
    ones: __m512i,
    twos: __m512i,
    fours: __m512i,
    /// Eights of some rounds: byte `k` of each eight bytes counts bit `k`.
    eights: __m512i,
    /// Eights of the rounds before.
    sums: [u32; 8],
}

/// Sum and carry of three bits, in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: __m512i, b: __m512i, c: __m512i) -> (__m512i, __m512i) {
    (_mm512_ternarylogic_epi64::<0x96>(a, b, c), _mm512_ternarylogic_epi64::<0xe8>(a, b, c))
}

/// In how many of each eight bytes each bit is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bitalg,gfni")]
fn bits_set(bytes: __m512i) -> __m512i {
    // The product with a matrix turns rows into columns.
    let diagonal = _mm512_set1_epi64(0x8040_2010_0804_0201_u64.cast_signed());
    _mm512_popcnt_epi8(_mm512_gf2p8affine_epi64_epi8::<0>(diagonal, bytes))
}

/// Sums of each byte of eight.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of(counts: __m512i) -> [u32; 8] {
    let mut bytes = [0; 64];
    store_wide(&mut bytes, counts);
    let mut sums = [0; 8];
    for eight in bytes.as_chunks::<8>().0 {
        sums.iter_mut().zip(eight).for_each(|(sum, count)| *sum += u32::from(*count));
    }
    sums
}

impl Adders {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self { ones: zero, twos: zero, fours: zero, eights: zero, sums: [0; 8] }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bitalg,gfni")]
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
        self.eights = _mm512_add_epi8(self.eights, bits_set(eights));
    }

    /// Puts the eights away before bytes overflow.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn settle(&mut self) {
        for (sum, more) in self.sums.iter_mut().zip(sums_of(self.eights)) {
            *sum += more;
        }
        self.eights = _mm512_setzero_si512();
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bitalg,gfni")]
    fn finish(mut self, counts: &mut [u32]) {
        self.settle();
        let ones = sums_of(bits_set(self.ones));
        let twos = sums_of(bits_set(self.twos));
        let fours = sums_of(bits_set(self.fours));
        for (bit, count) in counts.iter_mut().enumerate().take(8) {
            *count += 8 * self.sums[bit] + 4 * fours[bit] + 2 * twos[bit] + ones[bit];
        }
    }
}

/// Takes so many bytes into the adders of low and of high values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bitalg,gfni")]
fn take(round: &[u8; 64 * ROUND], first: __m512i, bits: [__m512i; 2], low: &mut Adders, high: &mut Adders) {
    let zero = _mm512_setzero_si512();
    let (mut low_bits, mut high_bits) = ([zero; ROUND], [zero; ROUND]);
    for ((bytes, low), high) in round.as_chunks().0.iter().zip(&mut low_bits).zip(&mut high_bits) {
        let values = _mm512_sub_epi8(load_wide(bytes), first);
        let counted = _mm512_cmplt_epu8_mask(values, _mm512_set1_epi8(16));
        *low = _mm512_maskz_shuffle_epi8(counted, bits[0], values);
        *high = _mm512_maskz_shuffle_epi8(counted, bits[1], values);
    }
    low.take(&low_bits);
    high.take(&high_bits);
}

#[target_feature(enable = "avx512f,avx512bw,avx512bitalg,gfni,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn count_values(bytes: &[u8], first: u8, counts: &mut [u32; 16]) -> usize {
    let bytes = bytes.as_chunks::<COUNTED>().0.as_flattened();
    const BITS: [u8; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
    let mut bits = [[0; 16]; 2];
    bits[0][..8].copy_from_slice(&BITS);
    bits[1][8..].copy_from_slice(&BITS);
    let bits = [table_wide(&bits[0]), table_wide(&bits[1])];
    let offset = _mm512_set1_epi8(first.cast_signed());
    let (mut low, mut high) = (Adders::new(), Adders::new());
    let (rounds, rest) = bytes.as_chunks::<{ 64 * ROUND }>();
    for rounds in rounds.chunks(ROUNDS) {
        for round in rounds {
            take(round, offset, bits, &mut low, &mut high);
        }
        low.settle();
        high.settle();
    }
    if !rest.is_empty() {
        // Filled up with a value that is not counted.
        let mut last = [first.wrapping_sub(1); 64 * ROUND];
        last[..rest.len()].copy_from_slice(rest);
        take(&last, offset, bits, &mut low, &mut high);
    }
    low.finish(&mut counts[..8]);
    high.finish(&mut counts[8..]);
    bytes.len()
}
