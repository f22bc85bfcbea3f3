//! The number types of tensors: every dtype of safetensors, and plain bytes.

use crate::transform::fields::Layout;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $text:literal, $bits:literal;)*) => {
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

            /// Its name, as safetensors spells it.
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$name => $text,)* }
            }

            /// Bits of one element.
            pub const fn bits(self) -> u32 {
                match self { $(Dtype::$name => $bits,)* }
            }
        }
    };
}

dtypes! {
    /// Bytes of no known type.
    Bytes = 0, "BYTES", 8;
    /// Truth values, one byte each.
    Bool = 1, "BOOL", 8;
    /// Unsigned 8-bit integers.
    U8 = 2, "U8", 8;
    /// Signed 8-bit integers.
    I8 = 3, "I8", 8;
    /// Unsigned 16-bit integers.
    U16 = 4, "U16", 16;
    /// Signed 16-bit integers.
    I16 = 5, "I16", 16;
    /// Unsigned 32-bit integers.
    U32 = 6, "U32", 32;
    /// Signed 32-bit integers.
    I32 = 7, "I32", 32;
    /// Unsigned 64-bit integers.
    U64 = 8, "U64", 64;
    /// Signed 64-bit integers.
    I64 = 9, "I64", 64;
    /// IEEE half precision.
    F16 = 10, "F16", 16;
    /// The upper half of an IEEE single.
    Bf16 = 11, "BF16", 16;
    /// IEEE single precision.
    F32 = 12, "F32", 32;
    /// IEEE double precision.
    F64 = 13, "F64", 64;
    /// Complex numbers of two IEEE singles.
    C64 = 14, "C64", 64;
    /// 8-bit float, 4 exponent and 3 mantissa bits.
    F8E4m3 = 15, "F8_E4M3", 8;
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5m2 = 16, "F8_E5M2", 8;
    /// 8-bit power of two.
    F8E8m0 = 17, "F8_E8M0", 8;
    /// 8-bit float, 4 exponent and 3 mantissa bits, no negative zero.
    F8E4m3Fnuz = 18, "F8_E4M3FNUZ", 8;
    /// 8-bit float, 5 exponent and 2 mantissa bits, no negative zero.
    F8E5m2Fnuz = 19, "F8_E5M2FNUZ", 8;
    /// 4-bit float, two to a byte.
    F4 = 20, "F4", 4;
    /// 6-bit float, 2 exponent and 3 mantissa bits, four to three bytes.
    F6E2m3 = 21, "F6_E2M3", 6;
    /// 6-bit float, 3 exponent and 2 mantissa bits, four to three bytes.
    F6E3m2 = 22, "F6_E3M2", 6;
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

    /// Bytes of the smallest unit that blocks are cut into: an element, or a group of them that fills bytes.
    pub const fn unit_len(self) -> usize {
        match self.bits() {
            4 => 1,
            6 => 3,
            bits => bits as usize / 8,
        }
    }

    /// Bytes that `n_elements` take, if they fill whole bytes and fit the address space.
    pub fn len_of(self, n_elements: u64) -> Option<u64> {
        let bits = n_elements.checked_mul(u64::from(self.bits()))?;
        bits.is_multiple_of(8).then_some(bits / 8)
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
        for (id, &dtype) in (0u8..).zip(Dtype::ALL) {
            assert_eq!(dtype.id(), id);
            assert_eq!(Dtype::from_id(id), Some(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
            assert_eq!(Dtype::from_name(&dtype.name().to_lowercase()), Some(dtype));
        }
        assert_eq!(Dtype::from_id(23), None);
        assert_eq!(Dtype::from_name("F128"), None);
    }

    #[test]
    fn lengths_that_do_not_fill_bytes_are_refused() {
        assert_eq!(Dtype::F4.len_of(3), None);
        assert_eq!(Dtype::F4.len_of(4), Some(2));
        assert_eq!(Dtype::F6E2m3.len_of(4), Some(3));
        assert_eq!(Dtype::F64.len_of(u64::MAX / 8), None);
    }
}
