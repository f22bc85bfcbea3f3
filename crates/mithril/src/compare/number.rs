//! The elements of a tensor as numbers: their values, and their places in the order of all numbers of their type.

use mithril_codec::Dtype;

/// How the bits of an element are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// Unsigned, also what has no numeric meaning.
    Unsigned,
    /// Two's complement.
    Signed,
    /// Sign, exponent, mantissa.
    Float(Float),
}

/// A floating-point type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Float {
    bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// What the largest exponent means.
    top: Top,
    /// No negative zero: its bits are the only NaN.
    one_zero: bool,
}

/// What the largest exponent of a floating-point type means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Top {
    /// Infinity with an empty mantissa, else NaN.
    Special,
    /// NaN with a full mantissa, else numbers.
    OneNan,
    /// Numbers.
    Finite,
}

impl Number {
    /// How elements of this type are read; `None` for types whose elements are no single number.
    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        let float =
            |bits, mantissa_bits, bias, top| Float { bits, mantissa_bits, bias, top, one_zero: false };
        Some(match dtype {
            Dtype::Bool | Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => Self::Unsigned,
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => Self::Signed,
            Dtype::F16 => Self::Float(float(16, 10, 15, Top::Special)),
            Dtype::Bf16 => Self::Float(float(16, 7, 127, Top::Special)),
            Dtype::F32 => Self::Float(float(32, 23, 127, Top::Special)),
            Dtype::F64 => Self::Float(float(64, 52, 1023, Top::Special)),
            Dtype::F8E4m3 => Self::Float(float(8, 3, 7, Top::OneNan)),
            Dtype::F8E5m2 => Self::Float(float(8, 2, 15, Top::Special)),
            Dtype::F8E4m3Fnuz => Self::Float(Float { one_zero: true, ..float(8, 3, 8, Top::Finite) }),
            Dtype::F8E5m2Fnuz => Self::Float(Float { one_zero: true, ..float(8, 2, 16, Top::Finite) }),
            Dtype::F4 => Self::Float(float(4, 1, 1, Top::Finite)),
            Dtype::F6E2m3 => Self::Float(float(6, 3, 1, Top::Finite)),
            Dtype::F6E3m2 => Self::Float(float(6, 2, 3, Top::Finite)),
            _ => return None,
        })
    }

    /// The value of an element of `bits` bits.
    pub(super) fn value(self, code: u64, bits: u32) -> f64 {
        match self {
            Self::Unsigned => code as f64,
            Self::Signed => signed(code, bits) as f64,
            Self::Float(float) => float.value(code),
        }
    }

    /// The place of an element in the order of all numbers of its type: neighbours are one apart, and so are the two
    /// zeros and nothing.
    pub(super) fn place(self, code: u64, bits: u32) -> i128 {
        match self {
            Self::Unsigned => i128::from(code),
            Self::Signed => i128::from(signed(code, bits)),
            Self::Float(float) => float.place(code),
        }
    }
}

fn signed(code: u64, bits: u32) -> i64 {
    let shift = 64 - bits;
    (code << shift).cast_signed() >> shift
}

impl Float {
    fn value(self, code: u64) -> f64 {
        let sign_bit = 1 << (self.bits - 1);
        let magnitude = code & (sign_bit - 1);
        let sign = if code & sign_bit != 0 { -1.0 } else { 1.0 };
        if self.one_zero && code == sign_bit {
            return f64::NAN;
        }
        let mantissa_mask = (1 << self.mantissa_bits) - 1;
        let (exponent, mantissa) = (magnitude >> self.mantissa_bits, magnitude & mantissa_mask);
        let largest = (sign_bit - 1) >> self.mantissa_bits;
        if exponent == largest {
            match self.top {
                Top::Special if mantissa == 0 => return sign * f64::INFINITY,
                Top::Special => return f64::NAN,
                Top::OneNan if mantissa == mantissa_mask => return f64::NAN,
                _ => {}
            }
        }
        let scale = i32::try_from(exponent.max(1)).unwrap_or(i32::MAX) - self.bias;
        let implicit = if exponent > 0 { mantissa_mask + 1 } else { 0 };
        let mantissa_bits = i32::try_from(self.mantissa_bits).unwrap_or(i32::MAX);
        // In two steps: the power alone may be too small for a double that the product is not.
        let fraction = (implicit + mantissa) as f64 * 2f64.powi(-mantissa_bits);
        sign * fraction * 2f64.powi(scale)
    }

    fn place(self, code: u64) -> i128 {
        let sign_bit = 1 << (self.bits - 1);
        let magnitude = i128::from(code & (sign_bit - 1));
        if code & sign_bit != 0 { -magnitude } else { magnitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(dtype: Dtype, code: u64) -> f64 {
        Number::of(dtype).unwrap().value(code, dtype.bits())
    }

    #[test]
    fn wide_floats_have_the_values_that_the_language_gives_them() {
        for code in (0..=u32::MAX).step_by(65_521) {
            let expected = f64::from(f32::from_bits(code));
            let found = value(Dtype::F32, u64::from(code));
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{code:08x}");
        }
        for code in [0, 1, 0x000f_ffff_ffff_ffff, 0x0010_0000_0000_0000, 0x7fef_ffff_ffff_ffff, 1 << 63] {
            assert_eq!(value(Dtype::F64, code), f64::from_bits(code), "{code:016x}");
        }
        for code in 0..=0xffffu16 {
            let expected = f64::from(f32::from_bits(u32::from(code) << 16));
            let found = value(Dtype::Bf16, u64::from(code));
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{code:04x}");
        }
    }

    #[test]
    fn narrow_floats_have_the_values_of_their_standards() {
        let cases = [
            (Dtype::F16, 0x3c00, 1.0),
            (Dtype::F16, 0x7bff, 65504.0),
            (Dtype::F16, 0x0001, 2f64.powi(-24)),
            (Dtype::F8E4m3, 0x7e, 448.0),
            (Dtype::F8E4m3, 0x01, 2f64.powi(-9)),
            (Dtype::F8E5m2, 0x7b, 57344.0),
            (Dtype::F8E5m2, 0x7c, f64::INFINITY),
            (Dtype::F8E4m3Fnuz, 0x7f, 240.0),
            (Dtype::F8E5m2Fnuz, 0x7f, 57344.0),
            (Dtype::F4, 0x7, 6.0),
            (Dtype::F4, 0x9, -0.5),
            (Dtype::F6E2m3, 0x1f, 7.5),
            (Dtype::F6E3m2, 0x1f, 28.0),
            (Dtype::I8, 0xff, -1.0),
            (Dtype::I64, u64::MAX, -1.0),
            (Dtype::U64, 1 << 40, 1_099_511_627_776.0),
        ];
        for (dtype, code, expected) in cases {
            assert_eq!(value(dtype, code), expected, "{} {code:x}", dtype.name());
        }
        assert!(value(Dtype::F8E4m3, 0x7f).is_nan());
        assert!(value(Dtype::F8E4m3Fnuz, 0x80).is_nan());
    }

    #[test]
    fn neighbours_are_one_place_apart() {
        let place = |dtype: Dtype, code| Number::of(dtype).unwrap().place(code, dtype.bits());
        assert_eq!(place(Dtype::F32, 0x3f80_0001) - place(Dtype::F32, 0x3f80_0000), 1);
        assert_eq!(place(Dtype::F32, 0x8000_0000), place(Dtype::F32, 0));
        assert_eq!(place(Dtype::F32, 1) - place(Dtype::F32, 0x8000_0001), 2);
        assert_eq!(place(Dtype::I16, 0xffff), -1);
    }
}
