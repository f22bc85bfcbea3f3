//! The quantised formats, by numbers that never change.

use crate::Dtype;

/// What the codes of a matrix mean, and where their scales stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Codes of any packing; whatever scales them stays as it is.
    Codes,
    /// MLX: `scale * code + bias` for every group.
    MlxAffine,
    /// MLX: 4-bit floats, a power of two for every 32.
    MlxMxfp4,
    /// MLX: 8-bit floats, a power of two for every 32.
    MlxMxfp8,
    /// MLX: 4-bit floats, an 8-bit float for every 16.
    MlxNvfp4,
    /// A block format of GGUF.
    Gguf(Dtype),
    /// Our own quantiser: a scale for every row times a level for every code.
    Levels,
    /// bf16 weights: exponents as symbols, signs and mantissas as low bits.
    Bf16,
    /// Our own quantiser: scales for every row and for every column times a level for every code.
    CrossLevels,
}

/// A plane of values beside the codes of a block format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// What its tensor is called.
    pub name: &'static str,
    /// Type of its values.
    pub dtype: Dtype,
    /// Values in a block.
    pub per_unit: usize,
}

const fn side(name: &'static str, dtype: Dtype, per_unit: usize) -> Side {
    Side { name, dtype, per_unit }
}

impl Layout {
    /// Its number in files. Block formats of GGUF have the numbers of their dtypes.
    pub const fn id(self) -> u8 {
        match self {
            Self::Codes => 0,
            Self::MlxAffine => 1,
            Self::MlxMxfp4 => 2,
            Self::MlxMxfp8 => 3,
            Self::MlxNvfp4 => 4,
            Self::Levels => 5,
            Self::Bf16 => 6,
            Self::CrossLevels => 7,
            Self::Gguf(dtype) => dtype.id(),
        }
    }

    /// The layout with this number.
    pub fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::Codes,
            1 => Self::MlxAffine,
            2 => Self::MlxMxfp4,
            3 => Self::MlxMxfp8,
            4 => Self::MlxNvfp4,
            5 => Self::Levels,
            6 => Self::Bf16,
            7 => Self::CrossLevels,
            id => Self::Gguf(Dtype::from_id(id).filter(|dtype| !Self::Gguf(*dtype).sides().is_empty())?),
        })
    }

    /// Its name, as reports and the metadata of files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Codes => "codes",
            Self::MlxAffine => "affine",
            Self::MlxMxfp4 => "mxfp4",
            Self::MlxMxfp8 => "mxfp8",
            Self::MlxNvfp4 => "nvfp4",
            Self::Levels => "levels",
            Self::Bf16 => "bf16",
            Self::CrossLevels => "cross_levels",
            Self::Gguf(dtype) => dtype.name(),
        }
    }

    /// Bits of a code, where the layout decides.
    pub const fn bits(self) -> Option<u8> {
        match self {
            Self::MlxMxfp4 | Self::MlxNvfp4 => Some(4),
            Self::MlxMxfp8 => Some(8),
            Self::Bf16 => Some(12),
            Self::Gguf(dtype) => match dtype {
                Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Iq4Nl | Dtype::Q4K | Dtype::Mxfp4 | Dtype::Nvfp4 => {
                    Some(4)
                }
                Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q5K => Some(5),
                Dtype::Q6K => Some(6),
                Dtype::Q8_0 => Some(8),
                _ => None,
            },
            Self::Codes | Self::MlxAffine | Self::Levels | Self::CrossLevels => None,
        }
    }

    /// Bits of a code that stand below its symbol: all but the highest four.
    pub const fn low_bits(bits: u8) -> u8 {
        bits.saturating_sub(4)
    }

    /// The planes beside the codes of a block format; nothing for other layouts and for blocks that stay whole.
    pub const fn sides(self) -> &'static [Side] {
        const D: &[Side] = &[side("scales", Dtype::F16, 1)];
        const DM: &[Side] = &[side("scales", Dtype::F16, 1), side("biases", Dtype::F16, 1)];
        const K: &[Side] = &[
            side("scales", Dtype::F16, 1),
            side("biases", Dtype::F16, 1),
            side("sub_scales", Dtype::U8, 8),
            side("sub_biases", Dtype::U8, 8),
        ];
        const Q6: &[Side] = &[side("scales", Dtype::F16, 1), side("sub_scales", Dtype::I8, 16)];
        const MX: &[Side] = &[side("scales", Dtype::U8, 1)];
        const NV: &[Side] = &[side("scales", Dtype::U8, 4)];
        match self {
            Self::Gguf(Dtype::Q4_0 | Dtype::Iq4Nl | Dtype::Q5_0 | Dtype::Q8_0) => D,
            Self::Gguf(Dtype::Q4_1 | Dtype::Q5_1) => DM,
            Self::Gguf(Dtype::Q4K | Dtype::Q5K) => K,
            Self::Gguf(Dtype::Q6K) => Q6,
            Self::Gguf(Dtype::Mxfp4) => MX,
            Self::Gguf(Dtype::Nvfp4) => NV,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_change_these_numbers() {
        let own = [0, 1, 2, 3, 4, 5, 6, 7].map(|id| Layout::from_id(id).unwrap());
        assert_eq!(
            own.map(Layout::name),
            ["codes", "affine", "mxfp4", "mxfp8", "nvfp4", "levels", "bf16", "cross_levels"]
        );
        let known: Vec<u8> = (0..=255).filter(|&id| Layout::from_id(id).is_some()).collect();
        assert_eq!(known, [0, 1, 2, 3, 4, 5, 6, 7, 32, 33, 34, 35, 36, 40, 41, 42, 48, 55, 56]);
        for id in known {
            assert_eq!(Layout::from_id(id).unwrap().id(), id);
        }
    }
}
