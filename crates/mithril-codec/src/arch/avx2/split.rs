//! Splitting and joining bit fields: in the packed order, pack instructions leave the elements where the format
//! wants them.
//!
//! Every function takes whole tiles of 256 elements.

use super::{load, store};
use crate::transform::fields::{FieldSplit, Order, TILE, VECTOR, piece_len, pieces};
use std::arch::x86_64::*;

/// Low and high bytes of 32 two-byte elements.
#[inline]
#[target_feature(enable = "avx2")]
fn byte_halves(a: __m256i, b: __m256i) -> (__m256i, __m256i) {
    let low = _mm256_set1_epi16(0x00ff);
    (
        _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)),
        _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b)),
    )
}

/// Exponent and `sign | mantissa` from the two bytes of a bf16, or of the upper half of an f32.
#[inline]
#[target_feature(enable = "avx2")]
fn exponent_and_rest(low: __m256i, high: __m256i) -> (__m256i, __m256i) {
    let mantissa = _mm256_set1_epi8(0x7f);
    let rest = _mm256_or_si256(_mm256_and_si256(low, mantissa), _mm256_andnot_si256(mantissa, high));
    let lowest_exponent_bit = _mm256_cmpgt_epi8(_mm256_setzero_si256(), low);
    (_mm256_sub_epi8(_mm256_add_epi8(high, high), lowest_exponent_bit), rest)
}

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn split_bf16(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    let order = LaneOrder::of(split);
    let pairs = source.as_chunks::<VECTOR>().0.as_chunks::<2>().0;
    let (planes, rests) = (plane.as_chunks_mut::<VECTOR>().0, rest.as_chunks_mut::<VECTOR>().0);
    for ((pair, plane), rest_out) in pairs.iter().zip(planes).zip(rests) {
        let (low, high) = byte_halves(load(&pair[0]), load(&pair[1]));
        let (exponent, rest) = exponent_and_rest(order.unpacked(low), order.unpacked(high));
        store(plane, exponent);
        store(rest_out, rest);
    }
}

/// The four bytes of 32 four-byte elements, lowest first.
#[inline]
#[target_feature(enable = "avx2")]
fn byte_quarters(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 4] {
    let low16 = _mm256_set1_epi32(0xffff);
    let upper = |x, y| _mm256_packus_epi32(_mm256_srli_epi32::<16>(x), _mm256_srli_epi32::<16>(y));
    let lower = |x, y| _mm256_packus_epi32(_mm256_and_si256(x, low16), _mm256_and_si256(y, low16));
    let (byte0, byte1) = byte_halves(lower(a, b), lower(c, d));
    let (byte2, byte3) = byte_halves(upper(a, b), upper(c, d));
    [byte0, byte1, byte2, byte3]
}

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn split_f32(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    let order = LaneOrder::of(split);
    let tiles = source.as_chunks::<VECTOR>().0.as_chunks::<32>().0;
    let planes = plane.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<8>().0;
    let rests = rest.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<24>().0;
    for ((tile, planes), rests) in tiles.iter().zip(planes).zip(rests) {
        for vector in 0..8 {
            let [a, b, c, d] = std::array::from_fn(|i| load(&tile[4 * vector + i]));
            let [byte0, byte1, byte2, byte3] = byte_quarters(a, b, c, d).map(|byte| order.unpacked(byte));
            let (exponent, rest) = exponent_and_rest(byte2, byte3);
            store(&mut rests[vector], byte0);
            store(&mut rests[8 + vector], byte1);
            store(&mut rests[16 + vector], rest);
            store(&mut planes[vector], exponent);
        }
    }
}

/// Floats of two or four bytes with any bits joint or dead, in either order.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(in crate::arch) fn split_float<const WIDTH: usize>(
    split: &FieldSplit,
    source: &[u8],
    plane: &mut [u8],
    mut rest: &mut [u8],
) {
    let magnitude = _mm256_set1_epi16(0x7fff);
    let base = _mm256_set1_epi16(split.base.cast_signed());
    let top_shift = _mm_cvtsi32_si128((split.top_shift() + 16 - 8 * split.width()).cast_signed());
    let order = LaneOrder::of(split);
    for (tile, planes) in source.chunks_exact(WIDTH * TILE).zip(plane.chunks_exact_mut(TILE)) {
        let mut bytes = [[0u8; TILE]; WIDTH];
        let vectors = tile.as_chunks::<VECTOR>().0.chunks_exact(WIDTH);
        for (vector, (parts, plane)) in vectors.zip(planes.as_chunks_mut::<VECTOR>().0).enumerate() {
            let quarters = if WIDTH == 2 {
                let (low, high) = byte_halves(load(&parts[0]), load(&parts[1]));
                [low, high, low, high]
            } else {
                byte_quarters(load(&parts[0]), load(&parts[1]), load(&parts[2]), load(&parts[3]))
            };
            let [low, high] = [quarters[WIDTH - 2], quarters[WIDTH - 1]];
            let index = |upper: __m256i| {
                let top = _mm256_srl_epi16(_mm256_and_si256(upper, magnitude), top_shift);
                _mm256_min_epu16(_mm256_sub_epi16(top, base), _mm256_set1_epi16(255))
            };
            let (index_a, index_b) =
                (index(_mm256_unpacklo_epi8(low, high)), index(_mm256_unpackhi_epi8(low, high)));
            store(plane, order.unpacked(_mm256_packus_epi16(index_a, index_b)));
            for (bytes, quarter) in bytes.iter_mut().zip(quarters) {
                store(&mut bytes.as_chunks_mut::<VECTOR>().0[vector], order.unpacked(quarter));
            }
        }
        for group in split.groups() {
            let mut packed = bytes[(group.low as usize / 8).min(WIDTH - 1)];
            let (shift, mask) =
                (count(group.low % 8), _mm256_set1_epi8(low_mask(group.n_bits).cast_signed()));
            for byte in packed.as_chunks_mut().0 {
                store(byte, _mm256_and_si256(_mm256_srl_epi16(load(byte), shift), mask));
            }
            if group.sign {
                let above = count(7 - group.n_bits.min(7));
                for (byte, high) in packed.as_chunks_mut().0.iter_mut().zip(bytes[WIDTH - 1].as_chunks().0) {
                    let sign = _mm256_srl_epi16(_mm256_and_si256(load(high), _mm256_set1_epi8(-128)), above);
                    store(byte, _mm256_or_si256(load(byte), sign));
                }
            }
            rest = pack_group(&packed, group.width(), rest);
        }
    }
}

/// The other way round: see `transform::fields::join_tiles`.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(in crate::arch) fn join_float<const WIDTH: usize>(
    split: &FieldSplit,
    plane: &[u8],
    rest: &[u8],
    out: &mut [u8],
) {
    if is_whole(split) {
        join_float_by::<WIDTH, true>(split, plane, rest, out)
    } else {
        join_float_by::<WIDTH, false>(split, plane, rest, out)
    }
}

/// Whether every group is a byte, so that nothing needs unpacking.
pub(in crate::arch) fn is_whole(split: &FieldSplit) -> bool {
    split.raw_sign
        && split.dead == 0
        && split.groups().all(|group| group.low % 8 == 0 && group.width() == 8)
        && split.groups().count() + 1 == usize::from(split.layout.width)
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn join_float_by<const WIDTH: usize, const WHOLE: bool>(
    split: &FieldSplit,
    plane: &[u8],
    mut rest: &[u8],
    out: &mut [u8],
) {
    let zero = _mm256_setzero_si256();
    let base = _mm256_set1_epi16(split.base.cast_signed());
    let top_shift = _mm_cvtsi32_si128((split.top_shift() + 16 - 8 * split.width()).cast_signed());
    let magnitude = _mm256_set1_epi16(0x7fff);
    let order = LaneOrder::of(split);
    for (planes, out) in plane.chunks_exact(TILE).zip(out.chunks_exact_mut(WIDTH * TILE)) {
        let mut bytes = [[0u8; TILE]; WIDTH];
        let whole = if WHOLE {
            let (whole, left) = rest.split_at((WIDTH - 1) * TILE);
            rest = left;
            whole.as_chunks::<VECTOR>().0
        } else {
            rest = unpack_bytes(split, rest, &mut bytes);
            &[]
        };
        let outs = out.as_chunks_mut::<VECTOR>().0.chunks_exact_mut(WIDTH);
        for (vector, (plane, out)) in planes.as_chunks::<VECTOR>().0.iter().zip(outs).enumerate() {
            let index = order.to_packed(load(plane));
            let byte = |b: usize| {
                let vector =
                    if WHOLE { &whole[8 * b + vector] } else { &bytes[b].as_chunks::<VECTOR>().0[vector] };
                order.to_packed(load(vector))
            };
            let top = |index: __m256i| {
                _mm256_and_si256(_mm256_sll_epi16(_mm256_add_epi16(index, base), top_shift), magnitude)
            };
            let (low, high) = if WHOLE {
                let mantissa = _mm256_set1_epi8(0x7f);
                let upper = byte(WIDTH - 2);
                (_mm256_and_si256(upper, mantissa), _mm256_andnot_si256(mantissa, upper))
            } else {
                (byte(WIDTH - 2), byte(WIDTH - 1))
            };
            let upper_a =
                _mm256_or_si256(top(_mm256_unpacklo_epi8(index, zero)), _mm256_unpacklo_epi8(low, high));
            let upper_b =
                _mm256_or_si256(top(_mm256_unpackhi_epi8(index, zero)), _mm256_unpackhi_epi8(low, high));
            if WIDTH == 2 {
                store(&mut out[0], upper_a);
                store(&mut out[1], upper_b);
            } else {
                let (lower_a, lower_b) =
                    (_mm256_unpacklo_epi8(byte(0), byte(1)), _mm256_unpackhi_epi8(byte(0), byte(1)));
                store(&mut out[0], _mm256_unpacklo_epi16(lower_a, upper_a));
                store(&mut out[1], _mm256_unpackhi_epi16(lower_a, upper_a));
                store(&mut out[2], _mm256_unpacklo_epi16(lower_b, upper_b));
                store(&mut out[3], _mm256_unpackhi_epi16(lower_b, upper_b));
            }
        }
    }
}

/// The rest of a full tile as the bytes of its elements, without their top fields; returns what is left of `rest`.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
fn unpack_bytes<'a, const WIDTH: usize>(
    split: &FieldSplit,
    mut rest: &'a [u8],
    bytes: &mut [[u8; TILE]; WIDTH],
) -> &'a [u8] {
    for group in split.groups() {
        let mut packed = [0u8; TILE];
        rest = unpack_group(rest, group.width(), &mut packed);
        let (shift, mask) = (count(group.low % 8), _mm256_set1_epi8(low_mask(group.n_bits).cast_signed()));
        let byte = (group.low as usize / 8).min(WIDTH - 1);
        for (byte, packed) in bytes[byte].as_chunks_mut().0.iter_mut().zip(packed.as_chunks().0) {
            let placed = _mm256_sll_epi16(_mm256_and_si256(load(packed), mask), shift);
            store(byte, _mm256_or_si256(load(byte), placed));
        }
        if group.sign {
            let above = count(7 - group.n_bits.min(7));
            for (byte, packed) in bytes[WIDTH - 1].as_chunks_mut().0.iter_mut().zip(packed.as_chunks().0) {
                let sign = _mm256_and_si256(_mm256_sll_epi16(load(packed), above), _mm256_set1_epi8(-128));
                store(byte, _mm256_or_si256(load(byte), sign));
            }
        }
    }
    rest
}

/// Writes a group of every element of a full tile; returns what is left of `rest`. Shifts move 16 bits at a time:
/// what crosses a byte is masked away.
#[inline]
#[target_feature(enable = "avx2")]
fn pack_group<'a>(bytes: &[u8; TILE], width: u32, mut rest: &'a mut [u8]) -> &'a mut [u8] {
    let vectors = bytes.as_chunks::<VECTOR>().0;
    for (shift, width) in pieces(width) {
        let (out, left) = rest.split_at_mut(piece_len(width, TILE / VECTOR));
        rest = left;
        if width == 8 {
            out.copy_from_slice(bytes);
            continue;
        }
        let (shift, mask) = (count(shift), _mm256_set1_epi8(low_mask(width).cast_signed()));
        for (vectors, out) in vectors.chunks_exact(8 / width as usize).zip(out.as_chunks_mut::<VECTOR>().0) {
            let mut packed = _mm256_setzero_si256();
            for (place, vector) in (0..).step_by(width as usize).zip(vectors) {
                let part = _mm256_and_si256(_mm256_srl_epi16(load(vector), shift), mask);
                packed = _mm256_or_si256(packed, _mm256_sll_epi16(part, count(place)));
            }
            store(out, packed);
        }
    }
    rest
}

/// Reads a group of every element of a full tile; returns what is left of `rest`.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_group<'a>(mut rest: &'a [u8], width: u32, bytes: &mut [u8; TILE]) -> &'a [u8] {
    let vectors = bytes.as_chunks_mut::<VECTOR>().0;
    for (shift, width) in pieces(width) {
        let (piece, left) = rest.split_at(piece_len(width, TILE / VECTOR));
        rest = left;
        let (shift, mask) = (count(shift), _mm256_set1_epi8(low_mask(width).cast_signed()));
        for (packed, vectors) in
            piece.as_chunks::<VECTOR>().0.iter().zip(vectors.chunks_exact_mut(8 / width as usize))
        {
            let packed = load(packed);
            for (place, vector) in (0..).step_by(width as usize).zip(vectors) {
                let part = _mm256_and_si256(_mm256_srl_epi16(packed, count(place)), mask);
                store(vector, _mm256_or_si256(load(vector), _mm256_sll_epi16(part, shift)));
            }
        }
    }
    rest
}

/// The first group of a full tile, put above its dead bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::arch) fn unpack_low_bits(rest: &[u8], n_dead: u32, bytes: &mut [u8; TILE]) {
    unpack_group(rest, 8 - n_dead, bytes);
    for byte in bytes.as_chunks_mut::<VECTOR>().0 {
        // No bit crosses into the next byte: as many as are dead are still free at the top.
        store(byte, _mm256_sll_epi16(load(byte), count(n_dead)));
    }
}

/// A number of bits as shift instructions take it.
#[inline]
#[target_feature(enable = "avx2")]
fn count(bits: u32) -> __m128i {
    _mm_cvtsi32_si128(bits.cast_signed())
}

fn low_mask(n_bits: u32) -> u8 {
    u8::try_from((1u32 << n_bits) - 1).unwrap_or(u8::MAX)
}

/// How the places of a vector in the file map to what pack instructions leave.
#[derive(Clone, Copy)]
enum LaneOrder {
    Packed,
    Natural { from_packed: __m256i, to_packed: __m256i },
}

impl LaneOrder {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn of(split: &FieldSplit) -> Self {
        match (split.order, split.layout.width) {
            (Order::Packed, _) => Self::Packed,
            (Order::Natural, 2) => {
                let swap = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
                Self::Natural { from_packed: swap, to_packed: swap }
            }
            (Order::Natural, _) => Self::Natural {
                from_packed: _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7),
                to_packed: _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7),
            },
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn unpacked(self, vector: __m256i) -> __m256i {
        match self {
            Self::Packed => vector,
            Self::Natural { from_packed, .. } => _mm256_permutevar8x32_epi32(vector, from_packed),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn to_packed(self, vector: __m256i) -> __m256i {
        match self {
            Self::Packed => vector,
            Self::Natural { to_packed, .. } => _mm256_permutevar8x32_epi32(vector, to_packed),
        }
    }
}

/// Half floats; `SIGNED` ones have their sign in the rest, the others in the coded field.
#[target_feature(enable = "avx2")]
pub(in crate::arch) fn split_f16<const SIGNED: bool>(
    split: &FieldSplit,
    source: &[u8],
    plane: &mut [u8],
    rest: &mut [u8],
) {
    let order = LaneOrder::of(split);
    let field = _mm256_set1_epi8(if SIGNED { 31 } else { 63 });
    let (two_bits, sign) = (_mm256_set1_epi8(3), _mm256_set1_epi8(-128));
    let tiles = source.as_chunks::<VECTOR>().0.as_chunks::<16>().0;
    let planes = plane.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<8>().0;
    let rests = rest.as_chunks_mut::<VECTOR>().0.chunks_exact_mut(if SIGNED { 11 } else { 10 });
    for ((tile, planes), rests) in tiles.iter().zip(planes).zip(rests) {
        let mut mantissas = [_mm256_setzero_si256(); 2];
        let mut signs = _mm256_setzero_si256();
        macro_rules! vectors {
            ($($vector:literal),*) => {$(
                let (low, high) = byte_halves(load(&tile[2 * $vector]), load(&tile[2 * $vector + 1]));
                let (low, high) = (order.unpacked(low), order.unpacked(high));
                store(&mut rests[$vector], low);
                store(&mut planes[$vector], _mm256_and_si256(_mm256_srli_epi16::<2>(high), field));
                let top_two = _mm256_slli_epi16::<{ 2 * ($vector % 4) }>(_mm256_and_si256(high, two_bits));
                mantissas[$vector / 4] = _mm256_or_si256(mantissas[$vector / 4], top_two);
                if SIGNED {
                    let sign = _mm256_srli_epi16::<{ 7 - $vector }>(_mm256_and_si256(high, sign));
                    signs = _mm256_or_si256(signs, sign);
                }
            )*};
        }
        vectors!(0, 1, 2, 3, 4, 5, 6, 7);
        store(&mut rests[8], mantissas[0]);
        store(&mut rests[9], mantissas[1]);
        if SIGNED {
            store(&mut rests[10], signs);
        }
    }
}

/// One-byte elements with a rest of four bits: `SIGNED` ones have a sign and three mantissa bits in it, the
/// others their low four bits.
#[target_feature(enable = "avx2")]
pub(in crate::arch) fn split_bytes<const SIGNED: bool>(
    split: &FieldSplit,
    source: &[u8],
    plane: &mut [u8],
    rest: &mut [u8],
) {
    let nibble = _mm256_set1_epi8(15);
    let flip = _mm256_set1_epi8(if split.layout.flip { -128 } else { 0 });
    let pairs = source.as_chunks::<VECTOR>().0.as_chunks::<2>().0;
    let planes = plane.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<2>().0;
    for ((pair, planes), rest_out) in pairs.iter().zip(planes).zip(rest.as_chunks_mut::<VECTOR>().0) {
        let split = |bytes: &[u8; VECTOR]| {
            let value = _mm256_xor_si256(load(bytes), flip);
            if SIGNED {
                let sign = _mm256_and_si256(_mm256_srli_epi16::<4>(value), _mm256_set1_epi8(8));
                let rest = _mm256_or_si256(_mm256_and_si256(value, _mm256_set1_epi8(7)), sign);
                (_mm256_and_si256(_mm256_srli_epi16::<3>(value), nibble), rest)
            } else {
                (_mm256_and_si256(_mm256_srli_epi16::<4>(value), nibble), _mm256_and_si256(value, nibble))
            }
        };
        let ((top_a, rest_a), (top_b, rest_b)) = (split(&pair[0]), split(&pair[1]));
        store(&mut planes[0], top_a);
        store(&mut planes[1], top_b);
        store(rest_out, _mm256_or_si256(rest_a, _mm256_slli_epi16::<4>(rest_b)));
    }
}
