//! From an element and its prediction to a symbol and kept bits, and back.

use super::{Format, N_VALUE_CONTEXTS};

/// Leading bits below the highest that classes of distances tell apart, at most.
pub(super) const MAX_DETAIL: u8 = 2;

/// Symbol of an element that equals its prediction.
const EQUAL: u8 = 0;
/// Symbol of an element whose size is far from the scale; all its bits are kept.
const ESCAPE: u8 = 1;
/// Sizes: quarter octaves relative to the scale, from `-LOWEST_SIZE` on.
pub(crate) const LOWEST_SIZE: i16 = 101;
const N_SIZES: u32 = 126;

/// Whether elements of this context code their own size.
#[inline(always)]
pub(super) const fn is_value(context: usize) -> bool {
    context < N_VALUE_CONTEXTS
}

/// The word of an element that codes its own size: symbol, from bit 8 on how many bits it keeps. Then these bits.
#[inline(always)]
pub(super) fn value_word(format: Format, scale: i16, p: u32, x: u32) -> (u32, u32) {
    let bits = format.bits();
    let kept_len = format.mantissa() - 2;
    let magnitude = x & (u32::MAX >> (33 - bits));
    let size = (magnitude >> kept_len).cast_signed() - 2 * i32::from(scale) + i32::from(LOWEST_SIZE);
    let size = size.cast_unsigned();
    let sign = (x ^ p) >> (bits - 1) & 1;
    let symbol = (size << 1).wrapping_add(2 + sign);
    let sized = (symbol | kept_len << 8, magnitude & ((1 << kept_len) - 1));
    let (word, kept) = if size < N_SIZES { sized } else { (u32::from(ESCAPE) | bits << 8, x) };
    if x == p { (u32::from(EQUAL), 0) } else { (word, kept) }
}

/// The word of an element that codes its distance from the prediction, and the bits that it keeps. No branches here
/// either, so that the compiler can make vectors of it.
#[inline(always)]
pub(super) fn distance_word(format: Format, detail: u8, p: u32, x: u32) -> (u32, u32) {
    let above = 32 - format.bits();
    let magnitudes = (u32::MAX >> (above + 1)).cast_signed();
    // Numbers in their order, with all bits above theirs equal to their sign.
    let extended = |x: u32| (x << above).cast_signed() >> above;
    let ordered = |x: i32| x ^ (x >> 31 & magnitudes);
    let (p, x) = (extended(p), extended(x));
    let towards = p >> 31;
    let distance = ordered(x).wrapping_sub(ordered(p));
    let distance = extended(((distance ^ towards).wrapping_sub(towards)).cast_unsigned());
    let negative = distance.cast_unsigned() >> 31;
    let steps = distance.unsigned_abs();
    let (class, kept, kept_len) = class_of(detail, steps);
    let class = u32::from(class);
    let symbol = 2 * class + negative - u32::from(class != 0);
    (symbol | u32::from(kept_len) << 8, kept)
}

/// Class of a number of steps, and the bits that it keeps.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "lengths are at most 32, classes below 124")]
pub(super) fn class_of(detail: u8, steps: u32) -> (u8, u32, u8) {
    // Where no bit is kept, the class is the number of steps.
    let raw_len = (31 - u32::from(detail)).saturating_sub(steps.leading_zeros());
    let class = (raw_len << detail) + (steps >> raw_len);
    (class as u8, steps & ((1 << raw_len) - 1), raw_len as u8)
}

/// The least number of steps of a class, and how many bits it keeps.
#[inline(always)]
pub(super) fn steps_of(detail: u8, class: u8) -> (u32, u8) {
    let first = 2u8 << detail;
    if class < first {
        return (u32::from(class), 0);
    }
    let above = class - first;
    let raw_len = (above >> detail) + 1;
    let leading = 1u32 << detail | u32::from(above & ((1 << detail) - 1));
    (leading.wrapping_shl(u32::from(raw_len)), raw_len)
}

/// How many bits a symbol keeps; `None` if there is no such symbol.
pub(super) fn raw_len(format: Format, detail: u8, value: bool, symbol: u8) -> Option<u8> {
    let bits = 8 * u8::try_from(format.width()).unwrap_or(4);
    if value {
        return match symbol {
            EQUAL => Some(0),
            ESCAPE => Some(bits),
            254.. => None,
            _ => Some(u8::try_from(format.mantissa() - 2).unwrap_or(0)),
        };
    }
    let class = symbol.div_ceil(2);
    let n_classes = (2 << detail) + ((bits - detail - 1) << detail);
    (class < n_classes).then(|| steps_of(detail, class).1)
}

/// The element whose own size was coded.
#[inline(always)]
pub(super) fn decode_value(format: Format, scale: i16, p: u32, symbol: u8, raw: u32) -> u32 {
    let bits = 8 * format.width();
    let magnitudes = u32::MAX >> (33 - bits);
    if symbol < 2 {
        return if symbol == EQUAL { p } else { raw };
    }
    let size = i32::from((symbol - 2) >> 1) - i32::from(LOWEST_SIZE) + 2 * i32::from(scale);
    let magnitude = (size.cast_unsigned().wrapping_shl(format.mantissa() - 2) | raw) & magnitudes;
    magnitude | (p ^ u32::from(symbol & 1) << (bits - 1)) & !magnitudes
}
