//! Differences of elements of two bytes: what the encoder codes, and the way back.

use super::{load, store, table};
use crate::delta::ContextRule;
use std::arch::x86_64::*;

/// The place of sixteen numbers among all numbers, and back. `signs` is 0x7fff if they have a sign, else 0.
#[inline]
#[target_feature(enable = "avx2")]
fn ordered(x: __m256i, signs: __m256i) -> __m256i {
    _mm256_xor_si256(x, _mm256_and_si256(_mm256_srai_epi16::<15>(x), signs))
}

/// Bytes of two vectors of 16-bit numbers that fit a byte, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn pack(low: __m256i, high: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(low, high))
}

/// Of elements of two bytes, by rules that are not cyclic.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn contexts(width: usize, rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize {
    if width == 2 && !rule.cyclic { contexts_16(rule, base, contexts) } else { 0 }
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
#[expect(clippy::cast_possible_truncation, reason = "the bits of an element")]
fn contexts_16(rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize {
    let magnitude = _mm256_set1_epi16(rule.magnitude as i16);
    let shift = _mm_cvtsi32_si128(i32::from(rule.shift));
    let (low, last) = (_mm256_set1_epi16(rule.low.cast_signed()), _mm256_set1_epi16(i16::from(rule.last)));
    let first = _mm256_set1_epi16(i16::from(rule.first));
    let context = |base: &[u8; 32]| {
        let size = _mm256_srl_epi16(_mm256_and_si256(load(base), magnitude), shift);
        _mm256_add_epi16(_mm256_min_epu16(_mm256_subs_epu16(size, low), last), first)
    };
    let mut done = 0;
    for (base, out) in base.as_chunks::<32>().0.chunks_exact(2).zip(contexts.as_chunks_mut::<32>().0) {
        store(out, pack(context(&base[0]), context(&base[1])));
        done += 32;
    }
    done
}

/// Bit lengths of a nibble that stands so many bits up.
pub(in crate::arch) const fn nibble_lens(above: u8) -> [u8; 16] {
    let mut lens = [0; 16];
    let mut nibble = 1u8;
    while nibble < 16 {
        lens[nibble as usize] = above + 8 - nibble.leading_zeros().to_le_bytes()[0];
        nibble += 1;
    }
    lens
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn codes_16(
    sign: bool,
    source: &[u8],
    base: &[u8],
    codes: &mut [u8],
    rests: [&mut [u8]; 2],
) -> usize {
    let signs = _mm256_set1_epi16(if sign { 0x7fff } else { 0 });
    let sign_of_base = _mm256_set1_epi16(if sign { -1 } else { 0 });
    let low_byte = _mm256_set1_epi16(0xff);
    let nibble = _mm256_set1_epi8(15);
    let all = _mm256_set1_epi16(-1);
    let lens = [0, 4, 8, 12].map(|above| table(&nibble_lens(above)));
    let [low_rests, high_rests] = rests;
    let mut done = 0;
    let vectors = source.as_chunks::<32>().0.chunks_exact(2).zip(base.as_chunks::<32>().0.chunks_exact(2));
    let outputs = codes.as_chunks_mut::<32>().0.iter_mut();
    let outputs = outputs.zip(low_rests.as_chunks_mut::<32>().0).zip(high_rests.as_chunks_mut::<32>().0);
    for ((x, p), ((codes, low_rest), high_rest)) in vectors.zip(outputs) {
        let halves: [(__m256i, __m256i, __m256i); 2] = std::array::from_fn(|half| {
            let (x, p) = (load(&x[half]), load(&p[half]));
            let steps = _mm256_sub_epi16(ordered(x, signs), ordered(p, signs));
            let negative = _mm256_and_si256(_mm256_srai_epi16::<15>(p), sign_of_base);
            let steps = _mm256_sub_epi16(_mm256_xor_si256(steps, negative), negative);
            let negative = _mm256_srai_epi16::<15>(steps);
            let rest = _mm256_add_epi16(_mm256_xor_si256(steps, negative), _mm256_xor_si256(negative, all));
            let still = _mm256_cmpeq_epi16(steps, _mm256_setzero_si256());
            (rest, _mm256_srli_epi16::<15>(negative), _mm256_and_si256(still, low_byte))
        });
        let low = pack(_mm256_and_si256(halves[0].0, low_byte), _mm256_and_si256(halves[1].0, low_byte));
        let high = pack(_mm256_srli_epi16::<8>(halves[0].0), _mm256_srli_epi16::<8>(halves[1].0));
        let negative = pack(halves[0].1, halves[1].1);
        let still = pack(halves[0].2, halves[1].2);
        let upper = |bytes: __m256i| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
        let len = _mm256_max_epu8(
            _mm256_max_epu8(
                _mm256_shuffle_epi8(lens[0], _mm256_and_si256(low, nibble)),
                _mm256_shuffle_epi8(lens[1], upper(low)),
            ),
            _mm256_max_epu8(
                _mm256_shuffle_epi8(lens[2], _mm256_and_si256(high, nibble)),
                _mm256_shuffle_epi8(lens[3], upper(high)),
            ),
        );
        let code = _mm256_or_si256(_mm256_add_epi8(len, len), negative);
        store(codes, _mm256_or_si256(code, still));
        store(low_rest, low);
        store(high_rest, high);
        done += 32;
    }
    done
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn raw_lens(lows: &[u8; 16], contexts: &[u8], symbols: &[u8], raw_lens: &mut [u8]) -> usize {
    let lows = table(lows);
    let one = _mm256_set1_epi8(1);
    let vectors = contexts.as_chunks::<32>().0;
    for ((contexts, symbols), out) in
        vectors.iter().zip(symbols.as_chunks::<32>().0).zip(raw_lens.as_chunks_mut::<32>().0)
    {
        let class = _mm256_and_si256(_mm256_srli_epi16::<1>(load(symbols)), _mm256_set1_epi8(7));
        let low = _mm256_shuffle_epi8(lows, load(contexts));
        store(out, _mm256_add_epi8(low, _mm256_subs_epu8(class, one)));
    }
    32 * vectors.len()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn flag(bytes: &[u8], value: u8, words: &mut [u64]) -> usize {
    let value = _mm256_set1_epi8(value.cast_signed());
    let vectors = bytes.as_chunks::<64>().0;
    for (bytes, word) in vectors.iter().zip(words) {
        let [low, high] = bytes.as_chunks::<32>().0 else { break };
        let equal = |bytes: &[u8; 32]| {
            u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(load(bytes), value)).cast_unsigned())
        };
        *word = !(equal(low) | equal(high) << 32);
    }
    vectors.len()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn flag_from(bytes: &[u8], value: u8, words: &mut [u64]) -> usize {
    let below = _mm256_set1_epi8((value - 1).cast_signed());
    let vectors = bytes.as_chunks::<64>().0;
    for (bytes, word) in vectors.iter().zip(words) {
        let [low, high] = bytes.as_chunks::<32>().0 else { break };
        let above = |bytes: &[u8; 32]| {
            u64::from(_mm256_movemask_epi8(_mm256_cmpgt_epi8(load(bytes), below)).cast_unsigned())
        };
        *word = above(low) | above(high) << 32;
    }
    vectors.len()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn symbols(
    lows: &[u8; 16],
    n_symbols: &[u8; 16],
    contexts: &[u8],
    codes: &mut [u8],
    without: &mut Vec<usize>,
) -> usize {
    // Codes are twice a bit length and a sign.
    let lows = table(&lows.map(|low| 2 * low));
    let n_symbols = table(n_symbols);
    let one = _mm256_set1_epi8(1);
    let vectors = contexts.as_chunks::<32>().0;
    for ((first, contexts), codes) in (0..).step_by(32).zip(vectors).zip(codes.as_chunks_mut::<32>().0) {
        let (contexts, code) = (load(contexts), load(codes));
        let len = _mm256_andnot_si256(one, code);
        let class = _mm256_subs_epu8(len, _mm256_shuffle_epi8(lows, contexts));
        let symbol = _mm256_or_si256(class, _mm256_and_si256(code, one));
        store(codes, symbol);
        let limit = _mm256_shuffle_epi8(n_symbols, contexts);
        // As large as the limit or larger: the larger of the two is the symbol.
        let reaches = _mm256_cmpeq_epi8(_mm256_max_epu8(symbol, limit), symbol);
        let mut left = _mm256_movemask_epi8(reaches).cast_unsigned();
        while left != 0 {
            without.push(first + left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }
    32 * vectors.len()
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn top_bits(raw_lens: &[u8], rests: &[Vec<u8>], raw_bits: &mut [u8]) -> usize {
    let below = table(&[0, 1, 3, 7, 15, 31, 63, 127, 0, 1, 3, 7, 15, 31, 63, 127]);
    let vectors = raw_lens.as_chunks::<32>().0;
    for (which, (lens, out)) in vectors.iter().zip(raw_bits.as_chunks_mut::<32>().0).enumerate() {
        let lens = load(lens);
        let whole_bytes = _mm256_and_si256(_mm256_srli_epi16::<3>(lens), _mm256_set1_epi8(7));
        let mut byte = _mm256_setzero_si256();
        for (plane, rest) in (0..).zip(rests) {
            let is_top = _mm256_cmpeq_epi8(whole_bytes, _mm256_set1_epi8(plane));
            byte = _mm256_or_si256(byte, _mm256_and_si256(is_top, load(&rest.as_chunks::<32>().0[which])));
        }
        // The low four bits of a length choose the mask; its highest bit is never set.
        let mask = _mm256_shuffle_epi8(below, _mm256_and_si256(lens, _mm256_set1_epi8(15)));
        store(out, _mm256_and_si256(byte, mask));
    }
    32 * vectors.len()
}

/// Sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn load_half(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: `bytes` is 16 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn steps_16(
    symbols: &[u8],
    raw_lens: &[u8],
    raw_bits: &[u8],
    low_bytes: &[u8],
    steps: &mut [u16],
) -> (usize, usize) {
    let leading = load_half(&[1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0, 0]);
    let (zero, one) = (_mm_setzero_si128(), _mm_set1_epi8(1));
    let vectors = symbols.as_chunks::<16>().0;
    let inputs = vectors.iter().zip(raw_lens.as_chunks::<16>().0).zip(raw_bits.as_chunks::<16>().0);
    let mut taken = 0;
    for (((symbols, lens), bits), out) in inputs.zip(steps.as_chunks_mut::<16>().0) {
        let (codes, symbols) = (symbols, load_half(symbols));
        // The first class has no leading one.
        let has_leading = _mm_cmpgt_epi8(symbols, one);
        let leading = _mm_and_si128(_mm_shuffle_epi8(leading, load_half(lens)), has_leading);
        let rest = _mm256_cvtepu8_epi16(_mm_or_si128(leading, load_half(bits)));
        let sign = _mm256_cvtepi8_epi16(_mm_sub_epi8(zero, _mm_and_si128(symbols, one)));
        let steps =
            _mm256_add_epi16(_mm256_xor_si256(rest, sign), _mm256_add_epi16(sign, _mm256_set1_epi16(1)));
        // SAFETY: `out` is 32 writable bytes, and `storeu` has no alignment requirement.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), steps) };
        // Few elements keep eight bits or more; these are done one by one.
        let long = _mm_cmpgt_epi8(load_half(lens), _mm_set1_epi8(7));
        let mut left = _mm_movemask_epi8(long);
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            let leading = if codes[at] < 2 { 0 } else { 1u16 << (lens[at] & 15) };
            let rest = leading | u16::from(bits[at]) << 8 | u16::from(low_bytes[taken]);
            out[at] = if codes[at] & 1 == 1 { !rest } else { rest.wrapping_add(1) };
            taken += 1;
            left &= left - 1;
        }
    }
    (16 * vectors.len(), taken)
}

/// For each mask of eight lanes, the shuffle that hands packed 16-bit numbers to the lanes that are set, and zero to
/// the others.
static SPREAD_16: [[u8; 16]; 256] = spread_16();

const fn spread_16() -> [[u8; 16]; 256] {
    let mut shuffles = [[0x80; 16]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut packed) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                shuffles[mask][2 * lane] = packed;
                shuffles[mask][2 * lane + 1] = packed + 1;
                packed += 2;
            }
            lane += 1;
        }
        mask += 1;
    }
    shuffles
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn apply_16(
    sign: bool,
    base: &[u8],
    moved: &[u64],
    steps: &[u16],
    out: &mut [u8],
) -> (usize, usize) {
    let signs = _mm256_set1_epi16(if sign { 0x7fff } else { 0 });
    let sign_of_base = _mm256_set1_epi16(if sign { -1 } else { 0 });
    let mut at = 0;
    let words = base.as_chunks::<128>().0;
    for ((base, word), out) in words.iter().zip(moved).zip(out.as_chunks_mut::<128>().0) {
        let vectors = base.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0);
        for ((base, out), flags) in vectors.zip(word.to_le_bytes().as_chunks::<2>().0) {
            let mut half = |flags: u8| {
                let next: &[u16; 8] = steps[at..].first_chunk().expect("eight steps more than flags");
                at += flags.count_ones() as usize;
                // SAFETY: `next` is 16 readable bytes, and `loadu` has no alignment requirement.
                let next = unsafe { _mm_loadu_si128(next.as_ptr().cast()) };
                _mm_shuffle_epi8(next, load_half(&SPREAD_16[usize::from(flags)]))
            };
            let (low, high) = (half(flags[0]), half(flags[1]));
            let steps = _mm256_set_m128i(high, low);
            let base = load(base);
            let negative = _mm256_and_si256(_mm256_srai_epi16::<15>(base), sign_of_base);
            let steps = _mm256_sub_epi16(_mm256_xor_si256(steps, negative), negative);
            store(out, ordered(_mm256_add_epi16(ordered(base, signs), steps), signs));
        }
    }
    (words.len(), at)
}
