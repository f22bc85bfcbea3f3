//! Derived tensors: the 16-bit copy of 32-bit weights, rounded to the nearest, ties to even.

use mithril_codec::Dtype;
use mithril_codec::narrow::{to_bf16, to_f16};

/// Rounds F32 elements to a 16-bit float type. `wide` holds twice the bytes of `out`.
///
/// # Panics
/// When the type is not BF16 or F16, or the lengths do not fit.
pub(crate) fn round_to(dtype: Dtype, wide: &[u8], out: &mut [u8]) {
    assert_eq!(wide.len(), 2 * out.len(), "two bytes for every four");
    let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(wide.as_chunks::<4>().0);
    match dtype {
        Dtype::Bf16 => {
            pairs.for_each(|(out, wide)| *out = to_bf16(u32::from_le_bytes(*wide)).to_le_bytes());
        }
        Dtype::F16 => {
            pairs.for_each(|(out, wide)| *out = to_f16(u32::from_le_bytes(*wide)).to_le_bytes());
        }
        _ => panic!("no rounding to {}", dtype.name()),
    }
}

/// Whether `narrow` is what rounding `wide` gives.
pub(crate) fn is_rounding_of(dtype: Dtype, wide: &[u8], narrow: &[u8]) -> bool {
    // In pieces that stay in the cache, and so that a difference ends it early.
    let mut rounded = [0; 4096];
    wide.len() == 2 * narrow.len()
        && narrow.chunks(rounded.len()).zip(wide.chunks(2 * rounded.len())).all(|(narrow, wide)| {
            let rounded = &mut rounded[..narrow.len()];
            round_to(dtype, wide, rounded);
            rounded == narrow
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f16_value(half: u16) -> f64 {
        let (exponent, mantissa) = (i32::from(half >> 10 & 0x1f), f64::from(half & 0x3ff));
        let magnitude = match exponent {
            0 => mantissa * 2f64.powi(-24),
            31 if mantissa == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
        };
        if half & 0x8000 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_half_survives_the_way_to_single_and_back() {
        for half in 0..=u16::MAX {
            let value = f16_value(half);
            if value.is_nan() {
                continue;
            }
            #[expect(clippy::cast_possible_truncation, reason = "a half is exact as a single")]
            let bits = (value as f32).to_bits();
            assert_eq!(to_f16(bits), half, "{half:04x}");
        }
    }

    #[test]
    fn halves_are_rounded_to_the_nearest_and_ties_to_even() {
        // Every value between two neighbouring halves, at a quarter, the middle and three quarters.
        for half in 0..0x7bff_u16 {
            let (low, high) = (f16_value(half), f16_value(half + 1));
            let at = |share: f64| {
                #[expect(clippy::cast_possible_truncation, reason = "exact: a single has 13 more bits")]
                let single = (low + (high - low) * share) as f32;
                to_f16(single.to_bits())
            };
            assert_eq!(at(0.25), half);
            assert_eq!(at(0.75), half + 1);
            assert_eq!(at(0.5), half + (half & 1), "{half:04x}");
        }
        assert_eq!(to_f16(65519.996f32.to_bits()), 0x7bff);
        assert_eq!(to_f16(65520f32.to_bits()), 0x7c00);
        assert_eq!(to_f16(f32::NEG_INFINITY.to_bits()), 0xfc00);
        assert_eq!(to_f16(0xffc0_0000), 0xfe00);
        assert_eq!(to_f16(0x7f80_0001), 0x7e00);
    }

    #[test]
    fn bf16_is_rounded_to_the_nearest_and_ties_to_even() {
        assert_eq!(to_bf16(0x3f80_8000), 0x3f80);
        assert_eq!(to_bf16(0x3f81_8000), 0x3f82);
        assert_eq!(to_bf16(0x3f80_8001), 0x3f81);
        assert_eq!(to_bf16(0x7f7f_ffff), 0x7f80);
        assert_eq!(to_bf16(0x7f80_0001), 0x7fc0);
        assert_eq!(to_bf16(0x8000_0000), 0x8000);
    }

    #[test]
    fn one_other_bit_is_no_rounding() {
        let wide: Vec<u8> = (0..9000u32).flat_map(|i| (i as f32).sqrt().to_le_bytes()).collect();
        let mut narrow = vec![0; wide.len() / 2];
        round_to(Dtype::Bf16, &wide, &mut narrow);
        assert!(is_rounding_of(Dtype::Bf16, &wide, &narrow));
        assert!(!is_rounding_of(Dtype::F16, &wide, &narrow));
        narrow[17_001] ^= 1;
        assert!(!is_rounding_of(Dtype::Bf16, &wide, &narrow));
    }
}
