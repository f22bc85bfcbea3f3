//! The number types of tensors: every dtype of safetensors, the quantised blocks of GGUF, and plain bytes.

use crate::transform::fields::Layout;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $text:literal, $elements:literal in $unit:literal;)*) => {
        /// The type of a tensor's elements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype { $($(#[$doc])* $name,)* }

        impl Dtype {
            /// All dtypes, in the order of their numbers.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$name),*];

            /// Its number in files; never changes.
            pub const fn id(self) -> u8 {
                match self { $(Dtype::$name => $id,)* }
            }

            /// The dtype with this number.
            pub const fn from_id(id: u8) -> Option<Self> {
                match id { $($id => Some(Dtype::$name),)* _ => None }
            }

            /// Its name, as safetensors or GGUF spells it.
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$name => $text,)* }
            }

            /// Elements of the smallest unit that blocks are cut into: one, or as many as fill whole bytes or share
            /// a scale.
            pub const fn elements_per_unit(self) -> u32 {
                match self { $(Dtype::$name => $elements,)* }
            }

            const fn unit_bytes(self) -> u32 {
                match self { $(Dtype::$name => $unit,)* }
            }
        }
    };
}

dtypes! {
    /// Bytes of no known type.
    Bytes = 0, "BYTES", 1 in 1;
    /// Truth values, one byte each.
    Bool = 1, "BOOL", 1 in 1;
    /// Unsigned 8-bit integers.
    U8 = 2, "U8", 1 in 1;
    /// Signed 8-bit integers.
    I8 = 3, "I8", 1 in 1;
    /// Unsigned 16-bit integers.
    U16 = 4, "U16", 1 in 2;
    /// Signed 16-bit integers.
    I16 = 5, "I16", 1 in 2;
    /// Unsigned 32-bit integers.
    U32 = 6, "U32", 1 in 4;
    /// Signed 32-bit integers.
    I32 = 7, "I32", 1 in 4;
    /// Unsigned 64-bit integers.
    U64 = 8, "U64", 1 in 8;
    /// Signed 64-bit integers.
    I64 = 9, "I64", 1 in 8;
    /// IEEE half precision.
    F16 = 10, "F16", 1 in 2;
    /// The upper half of an IEEE single.
    Bf16 = 11, "BF16", 1 in 2;
    /// IEEE single precision.
    F32 = 12, "F32", 1 in 4;
    /// IEEE double precision.
    F64 = 13, "F64", 1 in 8;
    /// Complex numbers of two IEEE singles.
    C64 = 14, "C64", 1 in 8;
    /// 8-bit float, 4 exponent and 3 mantissa bits.
    F8E4m3 = 15, "F8_E4M3", 1 in 1;
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5m2 = 16, "F8_E5M2", 1 in 1;
    /// 8-bit power of two.
    F8E8m0 = 17, "F8_E8M0", 1 in 1;
    /// 8-bit float, 4 exponent and 3 mantissa bits, no negative zero.
    F8E4m3Fnuz = 18, "F8_E4M3FNUZ", 1 in 1;
    /// 8-bit float, 5 exponent and 2 mantissa bits, no negative zero.
    F8E5m2Fnuz = 19, "F8_E5M2FNUZ", 1 in 1;
    /// 4-bit float, two to a byte.
    F4 = 20, "F4", 2 in 1;
    /// 6-bit float, 2 exponent and 3 mantissa bits, four to three bytes.
    F6E2m3 = 21, "F6_E2M3", 4 in 3;
    /// 6-bit float, 3 exponent and 2 mantissa bits, four to three bytes.
    F6E3m2 = 22, "F6_E3M2", 4 in 3;
    // 23 to 31 are kept for elements that stand alone.
    /// GGUF: 4-bit quants with a scale, 32 elements in 18 bytes.
    Q4_0 = 32, "Q4_0", 32 in 18;
    /// GGUF: 4-bit quants with a scale and a minimum, 32 elements in 20 bytes.
    Q4_1 = 33, "Q4_1", 32 in 20;
    /// GGUF: 5-bit quants with a scale, 32 elements in 22 bytes.
    Q5_0 = 34, "Q5_0", 32 in 22;
    /// GGUF: 5-bit quants with a scale and a minimum, 32 elements in 24 bytes.
    Q5_1 = 35, "Q5_1", 32 in 24;
    /// GGUF: 8-bit quants with a scale, 32 elements in 34 bytes.
    Q8_0 = 36, "Q8_0", 32 in 34;
    /// GGUF: 8-bit quants with a scale and a sum, 32 elements in 36 bytes.
    Q8_1 = 37, "Q8_1", 32 in 36;
    /// GGUF: 2-bit quants with 4-bit scales and minima, 256 elements in 84 bytes.
    Q2K = 38, "Q2_K", 256 in 84;
    /// GGUF: 3-bit quants with 6-bit scales, 256 elements in 110 bytes.
    Q3K = 39, "Q3_K", 256 in 110;
    /// GGUF: 4-bit quants with 6-bit scales and minima, 256 elements in 144 bytes.
    Q4K = 40, "Q4_K", 256 in 144;
    /// GGUF: 5-bit quants with 6-bit scales and minima, 256 elements in 176 bytes.
    Q5K = 41, "Q5_K", 256 in 176;
    /// GGUF: 6-bit quants with 8-bit scales, 256 elements in 210 bytes.
    Q6K = 42, "Q6_K", 256 in 210;
    /// GGUF: 8-bit quants with a scale and sums, 256 elements in 292 bytes.
    Q8K = 43, "Q8_K", 256 in 292;
    /// GGUF: 2-bit codes of a codebook, 2.06 bits in all, 256 elements in 66 bytes.
    Iq2Xxs = 44, "IQ2_XXS", 256 in 66;
    /// GGUF: 2-bit codes of a codebook, 2.31 bits in all, 256 elements in 74 bytes.
    Iq2Xs = 45, "IQ2_XS", 256 in 74;
    /// GGUF: 3-bit codes of a codebook, 3.06 bits in all, 256 elements in 98 bytes.
    Iq3Xxs = 46, "IQ3_XXS", 256 in 98;
    /// GGUF: 1-bit codes of a codebook, 1.56 bits in all, 256 elements in 50 bytes.
    Iq1S = 47, "IQ1_S", 256 in 50;
    /// GGUF: 4-bit numbers of a table with a scale, 32 elements in 18 bytes.
    Iq4Nl = 48, "IQ4_NL", 32 in 18;
    /// GGUF: 3-bit codes of a codebook, 3.44 bits in all, 256 elements in 110 bytes.
    Iq3S = 49, "IQ3_S", 256 in 110;
    /// GGUF: 2-bit codes of a codebook, 2.56 bits in all, 256 elements in 82 bytes.
    Iq2S = 50, "IQ2_S", 256 in 82;
    /// GGUF: 4-bit numbers of a table with 6-bit scales, 256 elements in 136 bytes.
    Iq4Xs = 51, "IQ4_XS", 256 in 136;
    /// GGUF: 1-bit codes of a codebook, 1.75 bits in all, 256 elements in 56 bytes.
    Iq1M = 52, "IQ1_M", 256 in 56;
    /// GGUF: ternary quants, five to a byte, 256 elements in 54 bytes.
    Tq1_0 = 53, "TQ1_0", 256 in 54;
    /// GGUF: ternary quants of two bits, 256 elements in 66 bytes.
    Tq2_0 = 54, "TQ2_0", 256 in 66;
    /// GGUF: 4-bit floats with a power of two as scale, 32 elements in 17 bytes.
    Mxfp4 = 55, "MXFP4", 32 in 17;
    /// GGUF: 4-bit floats with an 8-bit float as scale for every 16, 64 elements in 36 bytes.
    Nvfp4 = 56, "NVFP4", 64 in 36;
    /// GGUF: 1-bit quants with a scale, 128 elements in 18 bytes.
    Q1_0 = 57, "Q1_0", 128 in 18;
}

impl Dtype {
    /// The dtype of this name: safetensors' spelling in any case, or a common short one (`fp32`, `float16`,
    /// `half`, `fp8_e4m3`, `int8`, `raw`).
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        if let Some(dtype) = Self::ALL.iter().copied().find(|dtype| dtype.name() == name) {
            return Some(dtype);
        }
        Some(match name.as_str() {
            "RAW" | "BYTE" => Self::Bytes,
            "BFLOAT16" => Self::Bf16,
            "FP16" | "FLOAT16" | "HALF" => Self::F16,
            "FP32" | "FLOAT32" | "FLOAT" => Self::F32,
            "FP64" | "FLOAT64" | "DOUBLE" => Self::F64,
            "COMPLEX64" => Self::C64,
            "FP8_E4M3" | "FLOAT8_E4M3FN" => Self::F8E4m3,
            "FP8_E5M2" | "FLOAT8_E5M2" => Self::F8E5m2,
            "FP4" => Self::F4,
            "INT8" => Self::I8,
            "INT16" => Self::I16,
            "INT32" => Self::I32,
            "INT64" => Self::I64,
            "UINT8" => Self::U8,
            "UINT16" => Self::U16,
            "UINT32" => Self::U32,
            "UINT64" => Self::U64,
            _ => return None,
        })
    }

    /// Bytes of the smallest unit that blocks are cut into.
    pub const fn unit_len(self) -> usize {
        self.unit_bytes() as usize
    }

    /// Bits of one element; rounded down where elements of a unit share a scale.
    pub const fn bits(self) -> u32 {
        8 * self.unit_bytes() / self.elements_per_unit()
    }

    /// Bits per element, shares of scales counted.
    pub fn bits_per_element(self) -> f64 {
        8.0 * f64::from(self.unit_bytes()) / f64::from(self.elements_per_unit())
    }

    /// Whether its elements share scales, so that only whole units have a meaning.
    pub const fn is_quantized(self) -> bool {
        self.id() >= 32
    }

    /// Bytes of the parts of a quantised block that are of one kind: the bytes of its scales one by one, then quants and
    /// high bits. Nothing for other types, and for blocks that no file holds.
    pub const fn run_lens(self) -> &'static [u8] {
        match self {
            Self::Q4_0 | Self::Iq4Nl | Self::Q1_0 => &[1, 1, 16],
            Self::Q4_1 => &[1, 1, 1, 1, 16],
            Self::Q5_0 => &[1, 1, 4, 16],
            Self::Q5_1 => &[1, 1, 1, 1, 4, 16],
            Self::Q8_0 => &[1, 1, 32],
            Self::Q8_1 => &[1, 1, 1, 1, 32],
            Self::Q2K => &[16, 64, 1, 1, 1, 1],
            Self::Q3K => &[32, 64, 12, 1, 1],
            Self::Q4K => &[1, 1, 1, 1, 4, 4, 4, 128],
            Self::Q5K => &[1, 1, 1, 1, 4, 4, 4, 32, 128],
            Self::Q6K => &[128, 64, 16, 1, 1],
            Self::Iq2Xxs => &[1, 1, 64],
            Self::Iq2Xs => &[1, 1, 64, 8],
            Self::Iq3Xxs => &[1, 1, 64, 32],
            Self::Iq1S => &[1, 1, 32, 16],
            Self::Iq3S => &[1, 1, 64, 8, 32, 4],
            Self::Iq2S => &[1, 1, 32, 32, 8, 8],
            Self::Iq4Xs => &[1, 1, 1, 1, 4, 128],
            Self::Iq1M => &[32, 16, 8],
            Self::Tq1_0 => &[48, 4, 1, 1],
            Self::Tq2_0 => &[64, 1, 1],
            Self::Mxfp4 => &[1, 16],
            Self::Nvfp4 => &[4, 32],
            _ => &[],
        }
    }

    /// Bytes that `n_elements` take, if they are whole units and fit the address space.
    pub fn len_of(self, n_elements: u64) -> Option<u64> {
        let per_unit = u64::from(self.elements_per_unit());
        let n_units = n_elements.is_multiple_of(per_unit).then_some(n_elements / per_unit)?;
        // The bits must fit, too: part of the format.
        n_units.checked_mul(8 * u64::from(self.unit_bytes())).map(|bits| bits / 8)
    }

    /// Elements in `len` bytes; those of a unit that is cut off are left out.
    pub fn elements_in(self, len: u64) -> u64 {
        let unit_len = u64::from(self.unit_bytes());
        let per_unit = u64::from(self.elements_per_unit());
        (len / unit_len).saturating_mul(per_unit)
    }

    /// Its bit fields, for types whose top bits are worth coding apart from the rest.
    pub const fn layout(self) -> Option<Layout> {
        Some(match self {
            Self::Bf16 => Layout::float(2, 7),
            Self::F16 => Layout::float(2, 10),
            Self::F32 | Self::C64 => Layout::float(4, 23),
            Self::F64 => Layout::float(8, 52),
            Self::F8E4m3 | Self::F8E4m3Fnuz => Layout::float(1, 3),
            Self::F8E5m2 | Self::F8E5m2Fnuz => Layout::float(1, 2),
            Self::F8E8m0 => Layout { width: 1, mantissa: 0, sign: false, flip: false },
            Self::I8 => Layout { width: 1, mantissa: 4, sign: false, flip: true },
            Self::U8 => Layout { width: 1, mantissa: 4, sign: false, flip: false },
            _ => return None,
        })
    }

    /// Whether it is a floating-point type with a sign and a mantissa.
    pub const fn is_float(self) -> bool {
        matches!(self.layout(), Some(Layout { sign: true, .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_to_the_dtype() {
        for (id, &dtype) in (0u8..23).chain(32..58).zip(Dtype::ALL) {
            assert_eq!(dtype.id(), id);
            assert_eq!(Dtype::from_id(id), Some(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
            assert_eq!(Dtype::from_name(&dtype.name().to_lowercase()), Some(dtype));
            assert_eq!(dtype.is_quantized(), id >= 32);
        }
        assert_eq!(Dtype::ALL.len(), 49);
        assert_eq!(Dtype::from_id(23), None);
        assert_eq!(Dtype::from_id(58), None);
        assert_eq!(Dtype::from_name("F128"), None);
    }

    #[test]
    fn lengths_that_do_not_fill_units_are_refused() {
        assert_eq!(Dtype::F4.len_of(3), None);
        assert_eq!(Dtype::F4.len_of(4), Some(2));
        assert_eq!(Dtype::F6E2m3.len_of(4), Some(3));
        assert_eq!(Dtype::F64.len_of(u64::MAX / 8), None);
        assert_eq!(Dtype::U8.len_of(u64::MAX / 8), Some(u64::MAX / 8));
        assert_eq!(Dtype::U8.len_of(u64::MAX / 8 + 1), None);
        assert_eq!(Dtype::Q4_1.len_of(64), Some(40));
        assert_eq!(Dtype::Q4_1.len_of(48), None);
        assert_eq!(Dtype::Q6K.elements_in(421), 512);
    }

    #[test]
    fn runs_make_up_a_block() {
        for &dtype in Dtype::ALL {
            let len: usize = dtype.run_lens().iter().copied().map(usize::from).sum();
            let expected = if dtype.is_quantized() && dtype != Dtype::Q8K { dtype.unit_len() } else { 0 };
            assert_eq!(len, expected, "{dtype:?}");
        }
    }

    #[test]
    fn bits_are_those_of_an_element() {
        let bits = [Dtype::Bool, Dtype::F4, Dtype::F6E3m2, Dtype::C64, Dtype::Q4_0].map(Dtype::bits);
        assert_eq!(bits, [8, 4, 6, 64, 4]);
        assert_eq!(Dtype::Q4_0.bits_per_element(), 4.5);
    }
}
