//! Differences of 64 elements at a time with AVX-512, from decoded symbols to the elements: see `delta::words`.

use super::{load_wide, store_wide, table_wide};
use crate::delta::Centers32;
use crate::delta::words::{EXACT, KEPT, LEADING, MOVED, NEGATIVE, TILE_WORDS, Walk};
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn byte(value: u8) -> __m512i {
    _mm512_set1_epi8(value.cast_signed())
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn codes_of_all(code_of: &[u8; 16], symbols: &[u8], codes: &mut [u8], n: usize) {
    let code_of = table_wide(code_of);
    let n_words = n.div_ceil(64);
    let (symbols, codes) = (&symbols[..64 * n_words], &mut codes[..64 * n_words]);
    for (symbols, codes) in symbols.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        store_wide(codes, _mm512_shuffle_epi8(code_of, load_wide(symbols)));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn codes_of_flagged(code_of: &[u8; 16], flags: &[u8], symbols: &[u8], codes: &mut [u8], n: usize) {
    let code_of = table_wide(code_of);
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

/// Codes and single kept bits of some words of 64 elements: few enough that they stay in the first-level cache.
struct Tile {
    codes: [[u8; 64]; TILE_WORDS],
    /// A word of bits for each plane of single bits, and each word of elements.
    bits: [[u64; 8]; TILE_WORDS],
    /// Planes of which there are words.
    n_planes: u8,
    /// Whether some element keeps whole bytes.
    any_bytes: bool,
    /// A vector of each context that has codes.
    numbers: [__m512i; 16],
}

impl Tile {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(walk: &Walk<'_>) -> Self {
        let mut numbers = [_mm512_setzero_si512(); 16];
        for (number, (context, _)) in numbers.iter_mut().zip(&walk.codes_at) {
            *number = byte(*context);
        }
        let (codes, bits) = ([[0; 64]; TILE_WORDS], [[0; 8]; TILE_WORDS]);
        Self { codes, bits, n_planes: 0, any_bytes: false, numbers }
    }

    /// Takes what belongs to the next elements, which have these contexts. One step after the other for all words, so that
    /// no word waits for the one before.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt")]
    fn fill(&mut self, walk: &mut Walk<'_>, contexts: &[[u8; 64]]) {
        let kept = match walk.n_contexts {
            0..=4 => self.take_codes::<1>(walk, contexts),
            5..=8 => self.take_codes::<2>(walk, contexts),
            9..=12 => self.take_codes::<3>(walk, contexts),
            _ => self.take_codes::<4>(walk, contexts),
        };
        self.any_bytes = with(kept, KEPT & !7) != 0;
        self.n_planes = most(_mm512_and_si512(kept, byte(7)));
        let n = contexts.len();
        match self.n_planes {
            0 => {}
            1 => self.take_bits::<1>(walk, n),
            2 => self.take_bits::<2>(walk, n),
            3 => self.take_bits::<3>(walk, n),
            4 => self.take_bits::<4>(walk, n),
            5 => self.take_bits::<5>(walk, n),
            6 => self.take_bits::<6>(walk, n),
            _ => self.take_bits::<7>(walk, n),
        }
    }

    /// Hands codes to the elements, with so many times four contexts; returns the most kept bits and bytes at each place.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx2,bmi1,bmi2,popcnt")]
    fn take_codes<const FOURS: usize>(&mut self, walk: &mut Walk<'_>, contexts: &[[u8; 64]]) -> __m512i {
        let fours: &mut [[(u8, usize); 4]; FOURS] =
            walk.codes_at.as_chunks_mut().0.first_chunk_mut().expect("room for sixteen contexts");
        let numbers: &[[__m512i; 4]; FOURS] =
            self.numbers.as_chunks().0.first_chunk().expect("sixteen contexts");
        // A word moves the place of a context by at most 64.
        let room = walk.codes.len().checked_sub(64 * (TILE_WORDS + 1)).expect("codes have bytes behind them");
        assert!(contexts.len() <= TILE_WORDS && fours.iter().flatten().all(|(_, at)| *at <= room));
        let zero = _mm512_setzero_si512();
        let (mut n_bits, mut bytes) = (zero, zero);
        for (contexts, out) in contexts.iter().zip(&mut self.codes) {
            let contexts = load_wide(contexts);
            // Four parts, so that an expansion does not wait for all before it. Contexts behind the last have no members.
            let mut parts = [zero; 4];
            for (four, numbers) in fours.iter_mut().zip(numbers) {
                for ((part, (_, at)), number) in parts.iter_mut().zip(four).zip(numbers) {
                    let members = _mm512_cmpeq_epi8_mask(contexts, *number);
                    // SAFETY: there are 64 bytes for each word of the tile behind where it started, and 64 more.
                    let next = unsafe { _mm512_loadu_si512(walk.codes.as_ptr().wrapping_add(*at).cast()) };
                    *part = _mm512_mask_expand_epi8(*part, members, next);
                    *at += members.count_ones() as usize;
                }
            }
            let [a, b, c, d] = parts;
            let codes = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
            n_bits = _mm512_max_epu8(n_bits, _mm512_and_si512(codes, byte(7)));
            bytes = _mm512_or_si512(bytes, _mm512_and_si512(codes, byte(KEPT & !7)));
            store_wide(out, codes);
        }
        _mm512_or_si512(n_bits, bytes)
    }

    /// Hands single kept bits to the first `n` words, of so many planes.
    #[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt")]
    fn take_bits<const PLANES: usize>(&mut self, walk: &mut Walk<'_>, n: usize) {
        let ends: &mut [usize; PLANES] = walk.bits_at.first_chunk_mut().expect("seven planes");
        let mut places = *ends;
        // A word moves the place of a plane by at most 64 bits.
        let room = walk.bits.len().checked_sub(8 * TILE_WORDS + 16).expect("bits have bytes behind them");
        assert!(n <= TILE_WORDS && places.iter().all(|at| at / 8 <= room));
        for (codes, words) in self.codes[..n].iter().zip(&mut self.bits) {
            let codes = load_wide(codes);
            let (ones, twos, fours) = (with(codes, 1), with(codes, 2), with(codes, 4));
            for ((at, members), word) in places.iter_mut().zip(more_than(ones, twos, fours)).zip(words) {
                let first = walk.bits.as_ptr().wrapping_add(*at / 8);
                // SAFETY: there are eight bytes for each word of the tile behind where it started, and sixteen more.
                let low = unsafe { first.cast::<u64>().read_unaligned() };
                // SAFETY: as above, one byte further.
                let high = unsafe { first.wrapping_add(1).cast::<u64>().read_unaligned() };
                let next = low >> (*at % 8) | high << (8 - *at % 8);
                *word = _pdep_u64(next, members);
                *at += members.count_ones() as usize;
            }
        }
        *ends = places;
    }

    /// The single kept bits of each element of a word.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    fn bits_of(&self, word: usize) -> __m512i {
        // SAFETY: a word of each of eight planes is 64 readable bytes, and `loadu` has no alignment requirement.
        let planes = unsafe { _mm512_loadu_si512(self.bits[word].as_ptr().cast()) };
        // Eight elements of all planes together, the last plane first, as the product with a matrix has it. Words of planes
        // that are not there are left over from before.
        let there = ONES_OF_LANES * (0xff << (8 - self.n_planes) & 0xff);
        let by_eights = _mm512_maskz_permutexvar_epi8(there, load_wide(&BY_EIGHTS), planes);
        _mm512_gf2p8affine_epi64_epi8::<0>(_mm512_set1_epi64(DIAGONAL), by_eights)
    }
}

/// Elements that keep more than 0, 1, 2... single bits, from the bits of how many they keep.
#[inline(always)]
pub(super) fn more_than(ones: u64, twos: u64, fours: u64) -> [u64; 7] {
    let (any_low, both_low) = (ones | twos, ones & twos);
    [any_low | fours, twos | fours, both_low | fours, fours, any_low & fours, twos & fours, both_low & fours]
}

/// The largest of 64 numbers below eight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn most(numbers: __m512i) -> u8 {
    let mut most = 0;
    while _mm512_cmpgt_epu8_mask(numbers, byte(most)) != 0 {
        most += 1;
    }
    most
}

/// Asks for the lines of a tile that is written soon: its stores come all at once, and would wait for each.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
    }
}

/// The lowest of each eight lanes.
const ONES_OF_LANES: u64 = 0x0101_0101_0101_0101;

/// A matrix of eight by eight bits with ones where row and column are the same.
pub(super) const DIAGONAL: i64 = 0x8040_2010_0804_0201_u64.cast_signed();

/// Byte `j` of eight words, the last word first, in the `j`-th eight lanes.
static BY_EIGHTS: [u8; 64] = by_eights();

const fn by_eights() -> [u8; 64] {
    let mut places = [0; 64];
    let mut lane: u8 = 0;
    while lane < 64 {
        places[lane as usize] = 8 * (7 - lane % 8) + lane / 8;
        lane += 1;
    }
    places
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
pub(super) fn with(codes: __m512i, bits: u8) -> u64 {
    _mm512_test_epi8_mask(codes, byte(bits))
}

/// See `WordKernels::move_16`.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,gfni,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn move_16(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
    match walk.centers {
        None => move_words_16::<false>(walk, contexts, base, out),
        Some(_) => move_words_16::<true>(walk, contexts, base, out),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,gfni,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn move_words_16<const CENTERED: bool>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
    let signs = _mm512_set1_epi16(if walk.sign { i16::MAX } else { 0 });
    let sign_of_base = if walk.sign { u32::MAX } else { 0 };
    let ordered = |x: __m512i| _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi16::<15>(x), signs));
    let (zero, one, eight) = (_mm512_setzero_si512(), _mm512_set1_epi16(1), _mm512_set1_epi16(8));
    let word = |bits: u8| _mm512_set1_epi16(i16::from(bits));
    let tables = walk.centers.map(|centers| {
        [&centers.centers, &centers.exact[0], &centers.exact[1]].map(|numbers| narrow(numbers))
    });
    let halves = |bytes: __m512i| {
        let (low, high) = (_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64::<1>(bytes));
        [_mm512_cvtepu8_epi16(low), _mm512_cvtepu8_epi16(high)]
    };
    let mut tile = Tile::new(walk);
    let tiles = contexts.as_chunks().0.chunks(TILE_WORDS).zip(base.as_chunks::<128>().0.chunks(TILE_WORDS));
    for ((contexts, base), out) in tiles.zip(out.as_chunks_mut::<128>().0.chunks_mut(TILE_WORDS)) {
        fetch(out.as_flattened());
        tile.fill(walk, contexts);
        for (at, ((contexts, base), out)) in contexts.iter().zip(base).zip(out).enumerate() {
            let codes = load_wide(&tile.codes[at]);
            let bits = halves(tile.bits_of(at));
            let mut low_bytes = [zero; 2];
            if tile.any_bytes {
                low_bytes = halves(next_of(&mut walk.bytes[0], with(codes, 8)));
            }
            let codes = halves(codes);
            let contexts = if CENTERED { halves(load_wide(contexts)) } else { [zero; 2] };
            let vectors = base.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<64>().0).enumerate();
            for (half, (base, out)) in vectors {
                let is = |bits: u8| _mm512_test_epi16_mask(codes[half], word(bits));
                let mut rest = bits[half];
                if tile.any_bytes {
                    let shifted = _mm512_sllv_epi16(rest, _mm512_and_si512(codes[half], eight));
                    rest = _mm512_or_si512(shifted, low_bytes[half]);
                }
                let len = _mm512_and_si512(codes[half], word(KEPT));
                let leading = _mm512_maskz_sllv_epi16(is(LEADING), one, len);
                let size = _mm512_maskz_add_epi16(is(MOVED), _mm512_or_si512(rest, leading), one);
                let negative = is(NEGATIVE);
                let base = load_wide(base);
                let from = ordered(base);
                let turned = _mm512_movepi16_mask(base) & sign_of_base;
                let moved_by = |step: __m512i, back: u32| {
                    _mm512_mask_sub_epi16(_mm512_add_epi16(from, step), back, from, step)
                };
                let to = match &tables {
                    Some([centers, exact_0, exact_1]) if CENTERED => {
                        let contexts = contexts[half];
                        let size = _mm512_mask_sub_epi16(size, negative, zero, size);
                        let step = _mm512_add_epi16(size, _mm512_permutexvar_epi16(contexts, *centers));
                        let is = |code: u8| _mm512_cmpeq_epi16_mask(codes[half], word(code));
                        let step = _mm512_mask_permutexvar_epi16(step, is(EXACT[0]), contexts, *exact_0);
                        let step = _mm512_mask_permutexvar_epi16(step, is(EXACT[1]), contexts, *exact_1);
                        moved_by(step, turned)
                    }
                    _ => moved_by(size, negative ^ turned),
                };
                store_wide(out, ordered(to));
            }
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

/// See `WordKernels::move_32`.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,gfni,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn move_32(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
    match walk.centers {
        None => move_words_32::<false>(walk, contexts, base, out),
        Some(_) => move_words_32::<true>(walk, contexts, base, out),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,gfni,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn move_words_32<const CENTERED: bool>(walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]) {
    let signs = _mm512_set1_epi32(if walk.sign { i32::MAX } else { 0 });
    let sign_of_base = if walk.sign { u16::MAX } else { 0 };
    let ordered = |x: __m512i| _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi32::<31>(x), signs));
    let (zero, one) = (_mm512_setzero_si512(), _mm512_set1_epi32(1));
    let word = |bits: u8| _mm512_set1_epi32(i32::from(bits));
    let tables = walk.centers.map(|centers: &Centers32| {
        [&centers.centers, &centers.exact[0], &centers.exact[1]].map(|numbers| lanes(numbers))
    });
    let quarters = |bytes: __m512i| {
        [
            _mm512_cvtepu8_epi32(_mm512_castsi512_si128(bytes)),
            _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32::<1>(bytes)),
            _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32::<2>(bytes)),
            _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32::<3>(bytes)),
        ]
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
    let mut tile = Tile::new(walk);
    let tiles = contexts.as_chunks().0.chunks(TILE_WORDS).zip(base.as_chunks::<256>().0.chunks(TILE_WORDS));
    for ((contexts, base), out) in tiles.zip(out.as_chunks_mut::<256>().0.chunks_mut(TILE_WORDS)) {
        fetch(out.as_flattened());
        tile.fill(walk, contexts);
        for (at, ((contexts, base), out)) in contexts.iter().zip(base).zip(out).enumerate() {
            let codes = load_wide(&tile.codes[at]);
            let bits = quarters(tile.bits_of(at));
            let (mut low, mut middle, mut high) = (zero, zero, zero);
            let mut longest = 0;
            if tile.any_bytes {
                let [plane_0, plane_1, plane_2] = &mut walk.bytes;
                low = next_of(plane_0, with(codes, 24));
                let longer = with(codes, 16);
                middle = next_of(plane_1, longer);
                longest = longer & with(codes, 8);
                if longest != 0 {
                    high = next_of(plane_2, longest);
                }
            }
            let codes = quarters(codes);
            let contexts = if CENTERED { quarters(load_wide(contexts)) } else { [zero; 4] };
            let vectors = base.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<64>().0).enumerate();
            for (quarter, (base, out)) in vectors {
                let is = |bits: u8| _mm512_test_epi32_mask(codes[quarter], word(bits));
                let mut rest = bits[quarter];
                if tile.any_bytes {
                    let above = _mm512_sllv_epi32(rest, _mm512_and_si512(codes[quarter], word(24)));
                    let below = _mm512_maskz_permutex2var_epi8(
                        0x3333_3333_3333_3333,
                        low,
                        low_pairs[quarter],
                        middle,
                    );
                    rest = _mm512_or_si512(above, below);
                }
                if longest != 0 {
                    let above =
                        _mm512_maskz_permutexvar_epi8(0x4444_4444_4444_4444, low_pairs[quarter], high);
                    rest = _mm512_or_si512(rest, above);
                }
                let len = _mm512_and_si512(codes[quarter], word(KEPT));
                let leading = _mm512_maskz_sllv_epi32(is(LEADING), one, len);
                let size = _mm512_maskz_add_epi32(is(MOVED), _mm512_or_si512(rest, leading), one);
                let negative = is(NEGATIVE);
                let base = load_wide(base);
                let from = ordered(base);
                let turned = _mm512_cmplt_epi32_mask(base, zero) & sign_of_base;
                let moved_by = |step: __m512i, back: u16| {
                    _mm512_mask_sub_epi32(_mm512_add_epi32(from, step), back, from, step)
                };
                let to = match &tables {
                    Some([centers, exact_0, exact_1]) if CENTERED => {
                        let contexts = contexts[quarter];
                        let size = _mm512_mask_sub_epi32(size, negative, zero, size);
                        let step = _mm512_add_epi32(size, _mm512_permutexvar_epi32(contexts, *centers));
                        let is = |code: u8| _mm512_cmpeq_epi32_mask(codes[quarter], word(code));
                        let step = _mm512_mask_permutexvar_epi32(step, is(EXACT[0]), contexts, *exact_0);
                        let step = _mm512_mask_permutexvar_epi32(step, is(EXACT[1]), contexts, *exact_1);
                        moved_by(step, turned)
                    }
                    _ => moved_by(size, negative ^ turned),
                };
                store_wide(out, ordered(to));
            }
        }
    }
}
