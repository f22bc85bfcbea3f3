//! Singles and their 16-bit relatives: rounded to the nearest, ties to even, and widened.

/// The nearest bf16 of a single, given and returned as bits.
pub fn to_bf16(bits: u32) -> u16 {
    let top = |bits: u32| u16::try_from(bits >> 16).expect("sixteen bits are left");
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        // Dropping the low bits of a NaN could leave an infinity: the quiet bit keeps it a NaN.
        return top(bits) | 0x0040;
    }
    top(bits.wrapping_add(0x7fff + (bits >> 16 & 1)))
}

/// The nearest half of a single, given and returned as bits.
pub fn to_f16(bits: u32) -> u16 {
    let sign = u16::try_from(bits >> 16 & 0x8000).expect("one bit");
    let magnitude = bits & 0x7fff_ffff;
    let narrow = match magnitude {
        0x7f80_0001.. => 0x7e00 | (magnitude >> 13 & 0x03ff),
        // From halfway between the largest finite half and the next power of two: infinity.
        0x477f_f000.. => 0x7c00,
        // Normal halves: the exponent is rebased, the mantissa rounded; a carry goes up into the exponent.
        0x3880_0000.. => (magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1)) >> 13,
        // Denormal halves: the mantissa with its hidden bit, shifted down and rounded.
        0x3300_0000.. => {
            let shift = 126 - (magnitude >> 23);
            let mantissa = magnitude & 0x007f_ffff | 0x0080_0000;
            let half = (1 << (shift - 1)) - 1;
            (mantissa + half + (mantissa >> shift & 1)) >> shift
        }
        _ => 0,
    };
    sign | u16::try_from(narrow).expect("a half has fifteen bits below its sign")
}

/// The single that a half stands for, as bits. Without branches, as products of quantised weights widen many.
pub fn f16_to_f32(half: u16) -> u32 {
    let magnitude = u32::from(half & 0x7fff);
    // Exponent and mantissa in place, times the difference of the biases: exact, denormal halves included.
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23)).to_bits();
    let magnitude = if magnitude < 0x7c00 { finite } else { 0x7f80_0000 | magnitude << 13 };
    u32::from(half >> 15) << 31 | magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_to_the_single_that_rounds_back() {
        for half in 0..=u16::MAX {
            let single = f32::from_bits(f16_to_f32(half));
            assert_eq!(single.is_nan(), half & 0x7fff > 0x7c00, "{half:04x}");
            if !single.is_nan() {
                assert_eq!(to_f16(single.to_bits()), half, "{half:04x}");
            }
        }
        assert_eq!(f32::from_bits(f16_to_f32(0x3c00)), 1.0);
        assert_eq!(f32::from_bits(f16_to_f32(0x0001)), 2f32.powi(-24));
    }
}
