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
const N_SIZES: i32 = 126;

/// A symbol with the bits that it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coded {
    pub(super) symbol: u8,
    pub(super) raw: u32,
    pub(super) raw_len: u8,
}

/// Whether elements of this context code their own size.
#[inline(always)]
pub(super) const fn is_value(context: usize) -> bool {
    context < N_VALUE_CONTEXTS
}

#[inline(always)]
pub(super) fn encode(format: Format, detail: u8, value: bool, scale: i16, p: u32, x: u32) -> Coded {
    if value { encode_value(format, scale, p, x) } else { encode_distance(format, detail, p, x) }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "compared with their limits")]
fn encode_value(format: Format, scale: i16, p: u32, x: u32) -> Coded {
    let bits = 8 * format.width() as u32;
    let kept = format.mantissa() - 2;
    if x == p {
        return Coded { symbol: EQUAL, raw: 0, raw_len: 0 };
    }
    let magnitude = x & (u32::MAX >> (33 - bits));
    let size = (magnitude >> kept).cast_signed() - 2 * i32::from(scale) + i32::from(LOWEST_SIZE);
    if !(0..N_SIZES).contains(&size) {
        return Coded { symbol: ESCAPE, raw: x, raw_len: bits as u8 };
    }
    let sign = ((x ^ p) >> (bits - 1)) as u8 & 1;
    Coded { symbol: 2 + 2 * size as u8 + sign, raw: magnitude & ((1 << kept) - 1), raw_len: kept as u8 }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "distances have at most 32 bits, classes are below 124")]
fn encode_distance(format: Format, detail: u8, p: u32, x: u32) -> Coded {
    let number = format.number();
    let distance = number.difference(u64::from(x), u64::from(p)) as u32;
    let bits = 8 * format.width() as u32;
    let negative = distance >> (bits - 1) & 1;
    let steps = if negative == 1 { distance.wrapping_neg() & (u32::MAX >> (32 - bits)) } else { distance };
    let (class, raw, raw_len) = class_of(detail, steps);
    let symbol = if class == 0 { 0 } else { 2 * class - 1 + negative as u8 };
    Coded { symbol, raw, raw_len }
}

/// Class of a number of steps, and the bits that it keeps.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "lengths are at most 32, classes below 124")]
pub(super) fn class_of(detail: u8, steps: u32) -> (u8, u32, u8) {
    if steps < 2 << detail {
        return (steps as u8, 0, 0);
    }
    let len = (32 - steps.leading_zeros()) as u8;
    let raw_len = len - 1 - detail;
    let below = (steps >> raw_len) as u8 & ((1 << detail) - 1);
    let class = (2 << detail) + ((len - detail - 2) << detail) + below;
    (class, steps & ((1 << raw_len) - 1), raw_len)
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
