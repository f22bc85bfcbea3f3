//! Differences of 64 elements at a time with AVX-512, from decoded symbols to the elements: see `delta::words`.

use super::delta::bits_at;
use super::delta_wide::kernels;
use super::{Avx2, Avx512, load_wide, store_wide};
use crate::delta::Centers32;
use crate::delta::words::{EXACT, KEPT, LEADING, NEGATIVE, Walk};
use std::arch::x86_64::*;

impl Avx2 {
    /// Codes of `n` elements that all have a class, by what each symbol says. Writes whole vectors of 64.
    ///
    /// # Panics
    /// When there are fewer symbols or less room than whole vectors need.
    pub(crate) fn delta_codes_of_all(self, code_of: &[u8; 16], symbols: &[u8], codes: &mut [u8], n: usize) {
        if let Some(wide) = self.wide {
            wide.delta_codes_of_all(code_of, symbols, codes, n);
        }
    }

    /// As `delta_codes_of_all`, of elements that have a class where their flag is set; zero for the others.
    ///
    /// # Panics
    /// When there are not 64 symbols behind those of the flags, or less room than whole vectors need.
    pub(crate) fn delta_codes_of_flagged(
        self,
        code_of: &[u8; 16],
        flags: &[u8],
        symbols: &[u8],
        codes: &mut [u8],
        n: usize,
    ) {
        if let Some(wide) = self.wide {
            wide.delta_codes_of_flagged(code_of, flags, symbols, codes, n);
        }
    }

    /// See `delta::passes`, for whole words of 64 elements of two bytes.
    ///
    /// # Panics
    /// When the walk comes to an end before the elements do.
    pub(crate) fn delta_words_16(self, walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
        match self.wide {
            Some(wide) if walk.centers.is_none() => wide.delta_words_16(walk, contexts, base, out),
            Some(wide) => wide.delta_words_16_centered(walk, contexts, base, out),
            None => {}
        }
    }

    /// See `delta::passes`, for whole words of 64 elements of four bytes.
    ///
    /// # Panics
    /// When the walk comes to an end before the elements do.
    pub(crate) fn delta_words_32(self, walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
        match self.wide {
            Some(wide) if walk.centers.is_none() => wide.delta_words_32(walk, contexts, base, out),
            Some(wide) => wide.delta_words_32_centered(walk, contexts, base, out),
            None => {}
        }
    }
}

kernels! {
    /// See `Avx2::delta_codes_of_all`.
    delta_codes_of_all = codes_of_all(code_of: &[u8; 16], symbols: &[u8], codes: &mut [u8], n: usize) -> ();
    /// See `Avx2::delta_codes_of_flagged`.
    delta_codes_of_flagged = codes_of_flagged(code_of: &[u8; 16], flags: &[u8], symbols: &[u8], codes: &mut [u8], n: usize) -> ();
    /// See `Avx2::delta_words_16`.
    delta_words_16 = words_16::<false>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) -> ();
    /// The same where some context has a center or exact differences.
    delta_words_16_centered = words_16::<true>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) -> ();
    /// See `Avx2::delta_words_32`.
    delta_words_32 = words_32::<false>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) -> ();
    /// The same where some context has a center or exact differences.
    delta_words_32_centered = words_32::<true>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) -> ();
}

/// A table of sixteen bytes, ready to be looked up by a shuffle.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn table(entries: &[u8; 16]) -> __m512i {
    // SAFETY: `entries` is 16 readable bytes, and `loadu` has no alignment requirement.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(entries.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn byte(value: u8) -> __m512i {
    _mm512_set1_epi8(value.cast_signed())
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn codes_of_all(code_of: &[u8; 16], symbols: &[u8], codes: &mut [u8], n: usize) {
    let code_of = table(code_of);
    let n_words = n.div_ceil(64);
    let (symbols, codes) = (&symbols[..64 * n_words], &mut codes[..64 * n_words]);
    for (symbols, codes) in symbols.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        store_wide(codes, _mm512_shuffle_epi8(code_of, load_wide(symbols)));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn codes_of_flagged(code_of: &[u8; 16], flags: &[u8], symbols: &[u8], codes: &mut [u8], n: usize) {
    let code_of = table(code_of);
    let n_words = n.div_ceil(64);
    let (flags, codes) = (&flags[..8 * n_words], &mut codes[..64 * n_words]);
    let mut at = 0;
    for ((first, flags), codes) in
        (0..).step_by(64).zip(flags.as_chunks().0).zip(codes.as_chunks_mut::<64>().0)
    {
        // Bits behind the last element mean nothing.
        let exist = u32::try_from(n - first).unwrap_or(u32::MAX).min(64);
        let flags = _bzhi_u64(u64::from_le_bytes(*flags), exist);
        let next: &[u8; 64] = symbols[at..].first_chunk().expect("classes have bytes behind them");
        at += flags.count_ones() as usize;
        store_wide(codes, _mm512_maskz_expand_epi8(flags, _mm512_shuffle_epi8(code_of, load_wide(next))));
    }
}

/// A vector of each context that has codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn numbers_of(walk: &Walk<'_>) -> [__m512i; 16] {
    std::array::from_fn(|at| byte(walk.codes_at[at].0))
}

/// The codes of the next 64 elements, which have these contexts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt")]
fn next_codes(walk: &mut Walk<'_>, numbers: &[__m512i; 16], contexts: __m512i) -> __m512i {
    // Four parts, so that an expansion does not wait for all before it. Contexts behind the last have no members.
    let (codes, n_contexts) = (walk.codes, walk.n_contexts.next_multiple_of(4));
    let zero = _mm512_setzero_si512();
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    let fours = walk.codes_at[..n_contexts].as_chunks_mut::<4>().0.iter_mut();
    for (at, number) in fours.zip(numbers.as_chunks::<4>().0) {
        a = expand_next(a, codes, &mut at[0].1, _mm512_cmpeq_epi8_mask(contexts, number[0]));
        b = expand_next(b, codes, &mut at[1].1, _mm512_cmpeq_epi8_mask(contexts, number[1]));
        c = expand_next(c, codes, &mut at[2].1, _mm512_cmpeq_epi8_mask(contexts, number[2]));
        d = expand_next(d, codes, &mut at[3].1, _mm512_cmpeq_epi8_mask(contexts, number[3]));
    }
    _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d))
}

/// Hands the next codes of a context to its members.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
fn expand_next(others: __m512i, codes: &[u8], at: &mut usize, members: u64) -> __m512i {
    let next: &[u8; 64] = codes[*at..].first_chunk().expect("codes have bytes behind them");
    *at += members.count_ones() as usize;
    _mm512_mask_expand_epi8(others, members, load_wide(next))
}

/// The single kept bits of the next 64 elements, which have these codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt")]
fn next_bits(walk: &mut Walk<'_>, codes: __m512i) -> __m512i {
    let n_bits = _mm512_and_si512(codes, byte(7));
    let mut bits = _mm512_setzero_si512();
    for (plane, at) in (0u8..).zip(&mut walk.bits_at[..walk.n_planes]) {
        let members = _mm512_cmpgt_epi8_mask(n_bits, byte(plane));
        let n = members.count_ones();
        let placed = _pdep_u64(few_bits_at(walk.bits, *at, n), members);
        *at += n as usize;
        bits = _mm512_mask_add_epi8(bits, placed, bits, byte(1 << plane));
    }
    bits
}

/// The next `n` bits of a string, and others above them.
#[inline(always)]
fn few_bits_at(string: &[u8], at: usize, n: u32) -> u64 {
    if n > 56 {
        return bits_at(string, at);
    }
    let bytes: &[u8; 8] = string[at / 8..].first_chunk().expect("strings have bytes behind them");
    u64::from_le_bytes(*bytes) >> (at % 8)
}

/// The next bytes of a plane for the elements that reach it, and zero for the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt")]
fn next_of(plane: &mut &[u8], members: u64) -> __m512i {
    let n = members.count_ones();
    let (next, rest) = plane.split_at(n as usize);
    *plane = rest;
    let first_lanes = _bzhi_u64(u64::MAX, n);
    // SAFETY: the mask reads only the `n` bytes of `next`.
    let next = unsafe { _mm512_maskz_loadu_epi8(first_lanes, next.as_ptr().cast()) };
    _mm512_maskz_expand_epi8(members, next)
}

/// One bit for each element whose code has any of these.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn with(codes: __m512i, bits: u8) -> u64 {
    _mm512_test_epi8_mask(codes, byte(bits))
}

/// Bits of a word that belong to a half, a quarter of it.
macro_rules! part {
    ($word:expr, $which:expr, $type:ty) => {{
        #[expect(clippy::cast_possible_truncation, reason = "the bits of one part")]
        let part = ($word >> ($which * <$type>::BITS)) as $type;
        part
    }};
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn words_16<const CENTERED: bool>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
    let numbers = numbers_of(walk);
    let signs = _mm512_set1_epi16(if walk.sign { i16::MAX } else { 0 });
    let sign_of_base = if walk.sign { u32::MAX } else { 0 };
    let ordered = |x: __m512i| _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi16::<15>(x), signs));
    let (zero, one, eight) = (_mm512_setzero_si512(), _mm512_set1_epi16(1), _mm512_set1_epi16(8));
    let tables = walk.centers.map(|centers| {
        [&centers.centers, &centers.exact[0], &centers.exact[1]].map(|numbers| narrow(numbers))
    });
    let halves = |bytes: __m512i| {
        [_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64::<1>(bytes)]
            .map(|half| _mm512_cvtepu8_epi16(half))
    };
    let words = contexts.as_chunks::<64>().0.iter().zip(base.as_chunks::<128>().0);
    for ((contexts, base), out) in words.zip(out.as_chunks_mut::<128>().0) {
        let contexts = load_wide(contexts);
        let codes = next_codes(walk, &numbers, contexts);
        let bits = next_bits(walk, codes);
        let moved = _mm512_movepi8_mask(codes);
        let leading = with(codes, LEADING);
        let negative = with(codes, NEGATIVE);
        let long = with(codes, 8);
        let low_bytes = if long == 0 { zero } else { next_of(&mut walk.bytes[0], long) };
        let lens = halves(_mm512_and_si512(codes, byte(KEPT)));
        let (bits, low_bytes) = (halves(bits), halves(low_bytes));
        let context_halves = if CENTERED { halves(contexts) } else { [zero; 2] };
        let vectors = base.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<64>().0).zip(0..);
        for ((base, out), half) in vectors {
            let at = half as usize;
            let moved = part!(moved, half, u32);
            let mut rest = bits[at];
            if long != 0 {
                let shifted = _mm512_sllv_epi16(rest, _mm512_and_si512(lens[at], eight));
                rest = _mm512_or_si512(shifted, low_bytes[at]);
            }
            let leading = _mm512_maskz_sllv_epi16(part!(leading, half, u32), one, lens[at]);
            let size = _mm512_maskz_add_epi16(moved, _mm512_or_si512(rest, leading), one);
            let negative = part!(negative, half, u32);
            let base = load_wide(base);
            let from = ordered(base);
            let turned = _mm512_movepi16_mask(base) & sign_of_base;
            let moved_by = |step: __m512i, back: u32| {
                _mm512_mask_sub_epi16(_mm512_add_epi16(from, step), back, from, step)
            };
            let to = match &tables {
                Some([centers, exact_0, exact_1]) if CENTERED => {
                    let contexts = context_halves[at];
                    let size = _mm512_mask_sub_epi16(size, negative, zero, size);
                    let step = _mm512_add_epi16(size, _mm512_permutexvar_epi16(contexts, *centers));
                    let is = |code: u8| _mm512_cmpeq_epi8_mask(codes, byte(code));
                    let (is_0, is_1) = (part!(is(EXACT[0]), half, u32), part!(is(EXACT[1]), half, u32));
                    let step = _mm512_mask_permutexvar_epi16(step, is_0, contexts, *exact_0);
                    let step = _mm512_mask_permutexvar_epi16(step, is_1, contexts, *exact_1);
                    moved_by(step, turned)
                }
                _ => moved_by(size, negative ^ turned),
            };
            store_wide(out, ordered(to));
        }
    }
}

/// What contexts say, as numbers of two bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn narrow(numbers: &[u32; 16]) -> __m512i {
    _mm512_castsi256_si512(_mm512_cvtepi32_epi16(lanes(numbers)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(numbers: &[u32; 16]) -> __m512i {
    // SAFETY: `numbers` is 64 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn words_32<const CENTERED: bool>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
    let numbers = numbers_of(walk);
    let signs = _mm512_set1_epi32(if walk.sign { i32::MAX } else { 0 });
    let sign_of_base = if walk.sign { u16::MAX } else { 0 };
    let ordered = |x: __m512i| _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi32::<31>(x), signs));
    let (zero, one) = (_mm512_setzero_si512(), _mm512_set1_epi32(1));
    let tables = walk.centers.map(|centers: &Centers32| {
        [&centers.centers, &centers.exact[0], &centers.exact[1]].map(|numbers| lanes(numbers))
    });
    let quarters = |bytes: __m512i| {
        [
            _mm512_castsi512_si128(bytes),
            _mm512_extracti32x4_epi32::<1>(bytes),
            _mm512_extracti32x4_epi32::<2>(bytes),
            _mm512_extracti32x4_epi32::<3>(bytes),
        ]
        .map(|quarter| _mm512_cvtepu8_epi32(quarter))
    };
    // Bytes of two planes to the two low bytes of sixteen lanes.
    let low_pairs: [__m512i; 4] = std::array::from_fn(|quarter| {
        let mut places = [0; 64];
        for (lane, place) in places.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let element = (16 * quarter + lane).to_le_bytes()[0];
            *place = [element, 64 + element, element, 0];
        }
        load_wide(&places)
    });
    let words = contexts.as_chunks::<64>().0.iter().zip(base.as_chunks::<256>().0);
    for ((contexts, base), out) in words.zip(out.as_chunks_mut::<256>().0) {
        let contexts = load_wide(contexts);
        let codes = next_codes(walk, &numbers, contexts);
        let bits = quarters(next_bits(walk, codes));
        let moved = _mm512_movepi8_mask(codes);
        let leading = with(codes, LEADING);
        let negative = with(codes, NEGATIVE);
        let [plane_0, plane_1, plane_2] = &mut walk.bytes;
        let long = with(codes, 24);
        let low = if long == 0 { zero } else { next_of(plane_0, long) };
        let longer = with(codes, 16);
        let middle = if longer == 0 { zero } else { next_of(plane_1, longer) };
        let longest = longer & with(codes, 8);
        let high = if longest == 0 { zero } else { next_of(plane_2, longest) };
        let lens = quarters(_mm512_and_si512(codes, byte(KEPT)));
        let context_quarters = if CENTERED { quarters(contexts) } else { [zero; 4] };
        let vectors = base.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<64>().0).zip(0..);
        for ((base, out), quarter) in vectors {
            let at = quarter as usize;
            let moved = part!(moved, quarter, u16);
            let mut rest = _mm512_sllv_epi32(bits[at], _mm512_and_si512(lens[at], _mm512_set1_epi32(24)));
            let below = _mm512_maskz_permutex2var_epi8(0x3333_3333_3333_3333, low, low_pairs[at], middle);
            rest = _mm512_or_si512(rest, below);
            if longest != 0 {
                let above = _mm512_maskz_permutexvar_epi8(0x4444_4444_4444_4444, low_pairs[at], high);
                rest = _mm512_or_si512(rest, above);
            }
            let leading = _mm512_maskz_sllv_epi32(part!(leading, quarter, u16), one, lens[at]);
            let size = _mm512_maskz_add_epi32(moved, _mm512_or_si512(rest, leading), one);
            let negative = part!(negative, quarter, u16);
            let base = load_wide(base);
            let from = ordered(base);
            let turned = _mm512_cmplt_epi32_mask(base, zero) & sign_of_base;
            let moved_by = |step: __m512i, back: u16| {
                _mm512_mask_sub_epi32(_mm512_add_epi32(from, step), back, from, step)
            };
            let to = match &tables {
                Some([centers, exact_0, exact_1]) if CENTERED => {
                    let contexts = context_quarters[at];
                    let size = _mm512_mask_sub_epi32(size, negative, zero, size);
                    let step = _mm512_add_epi32(size, _mm512_permutexvar_epi32(contexts, *centers));
                    let is = |code: u8| _mm512_cmpeq_epi8_mask(codes, byte(code));
                    let (is_0, is_1) = (part!(is(EXACT[0]), quarter, u16), part!(is(EXACT[1]), quarter, u16));
                    let step = _mm512_mask_permutexvar_epi32(step, is_0, contexts, *exact_0);
                    let step = _mm512_mask_permutexvar_epi32(step, is_1, contexts, *exact_1);
                    moved_by(step, turned)
                }
                _ => moved_by(size, negative ^ turned),
            };
            store_wide(out, ordered(to));
        }
    }
}
