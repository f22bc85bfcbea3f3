//! What codes stand for, in singles.
//!
//! A weight is `scale * number + offset`: [`Numbers`] are what codes stand for, [`Groups`] have scales and offsets.
//! Products and sums are rounded one by one, in the order that is written here, so every machine gives the same bits.
//! Blocks of GGUF have the arithmetic of ggml: a scale that is a product is rounded before it meets the code.

use super::Layout;
use crate::Dtype;
use crate::narrow::f16_to_f32;

/// The magnitudes of a 4-bit float.
const FLOAT4: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The values of `IQ4_NL`.
const UNEVEN: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Whether the codes of a layout have values here.
pub const fn has_values(layout: Layout) -> bool {
    matches!(
        layout,
        Layout::MlxAffine
            | Layout::MlxMxfp4
            | Layout::Gguf(
                Dtype::Q4_0
                    | Dtype::Q4_1
                    | Dtype::Q5_0
                    | Dtype::Q5_1
                    | Dtype::Q8_0
                    | Dtype::Q4K
                    | Dtype::Q5K
                    | Dtype::Q6K
                    | Dtype::Iq4Nl
                    | Dtype::Mxfp4
            )
    )
}

/// What codes stand for before they are scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Numbers {
    /// One of sixteen.
    Listed([f32; 16]),
    /// The code less a number, as a signed byte.
    Signed {
        /// That number.
        less: u8,
    },
    /// The code itself.
    Whole,
}

impl Numbers {
    /// The numbers of a layout that [`has_values`], whose codes have so many bits.
    pub fn of(layout: Layout, bits: u8) -> Self {
        let whole = std::array::from_fn(|code| code as f32);
        match layout {
            Layout::Gguf(Dtype::Q4_0) => Self::Listed(whole.map(|code| code - 8.0)),
            Layout::Gguf(Dtype::Iq4Nl) => Self::Listed(UNEVEN),
            Layout::Gguf(Dtype::Mxfp4) | Layout::MlxMxfp4 => Self::Listed(std::array::from_fn(|code| {
                let magnitude = FLOAT4[code % 8];
                if code < 8 { magnitude } else { -magnitude }
            })),
            Layout::Gguf(Dtype::Q5_0) => Self::Signed { less: 16 },
            Layout::Gguf(Dtype::Q6K) => Self::Signed { less: 32 },
            Layout::Gguf(Dtype::Q8_0) => Self::Signed { less: 0 },
            _ if bits <= 4 => Self::Listed(whole),
            _ if bits < 8 => Self::Signed { less: 0 },
            _ => Self::Whole,
        }
    }
}

/// Scales of neighbouring codes: a weight is `scale * number + offset`, the product and the sum rounded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Groups {
    /// Codes of a group.
    pub(crate) len: usize,
    pub(crate) scales: Vec<f32>,
    /// The negative zero where a layout has none: adding it changes nothing, not even a sign.
    pub(crate) offsets: Vec<f32>,
}

impl Groups {
    /// Takes the groups of GGUF blocks, given the planes of [`Layout::sides`], in place of those that it had.
    ///
    /// # Panics
    /// When the type has no values here, or the planes have different numbers of blocks.
    pub fn take_gguf(&mut self, dtype: Dtype, sides: &[&[u8]]) {
        assert!(has_values(Layout::Gguf(dtype)), "{} has no values here", dtype.name());
        self.clear(32);
        let halves = |side: usize| sides[side].as_chunks::<2>().0.iter().map(|bytes| half(*bytes));
        match dtype {
            Dtype::Q4_1 | Dtype::Q5_1 => {
                self.scales.extend(halves(0));
                self.offsets.extend(halves(1));
            }
            Dtype::Q4K | Dtype::Q5K => {
                let (scales, least) = (sides[2].as_chunks::<8>().0, sides[3].as_chunks::<8>().0);
                for (scale, scales) in halves(0).zip(scales) {
                    self.scales.extend(scales.map(|sub| scale * f32::from(sub)));
                }
                for (scale, least) in halves(1).zip(least) {
                    self.offsets.extend(least.map(|sub| -(scale * f32::from(sub))));
                }
            }
            Dtype::Q6K => {
                self.len = 16;
                for (scale, scales) in halves(0).zip(sides[1].as_chunks::<16>().0) {
                    self.scales.extend(scales.map(|sub| scale * f32::from(sub.cast_signed())));
                }
            }
            Dtype::Mxfp4 => self.scales.extend(sides[0].iter().map(|&exponent| power_of_two(exponent))),
            _ => self.scales.extend(halves(0)),
        }
        self.fill_offsets();
    }

    /// Takes the groups of MLX, given scales and, for affine, biases of this type, in place of those that it had.
    ///
    /// # Panics
    /// When the layout is none of MLX's that have values here, or there are not as many biases as scales.
    pub fn take_mlx(&mut self, layout: Layout, group: usize, dtype: Dtype, sides: (&[u8], &[u8])) {
        assert!(matches!(layout, Layout::MlxAffine | Layout::MlxMxfp4) && group > 0, "a layout with values");
        self.clear(group);
        if layout == Layout::MlxMxfp4 {
            self.scales.extend(sides.0.iter().map(|&exponent| power_of_two(exponent)));
        } else {
            extend_floats(&mut self.scales, dtype, sides.0);
            extend_floats(&mut self.offsets, dtype, sides.1);
        }
        self.fill_offsets();
    }

    fn clear(&mut self, len: usize) {
        self.len = len;
        self.scales.clear();
        self.offsets.clear();
    }

    fn fill_offsets(&mut self) {
        if self.offsets.is_empty() {
            self.offsets.resize(self.scales.len(), -0.0);
        }
        assert_eq!(self.offsets.len(), self.scales.len(), "an offset for every scale");
    }

    /// The weights of codes.
    ///
    /// # Panics
    /// When there is not a group for all of them, or a place for each.
    pub fn weights(&self, numbers: &Numbers, codes: &[u8], out: &mut [f32]) {
        assert_eq!(codes.len(), out.len(), "a place for every weight");
        assert_eq!(self.scales.len(), codes.len().div_ceil(self.len), "scales for every code");
        let groups = codes.chunks(self.len).zip(out.chunks_mut(self.len));
        for ((codes, out), (&scale, &offset)) in groups.zip(self.scales.iter().zip(&self.offsets)) {
            match numbers {
                Numbers::Listed(listed) => {
                    let listed = listed.map(|number| scale * number + offset);
                    each(codes, out, |code| listed[usize::from(code & 15)]);
                }
                Numbers::Signed { less } => {
                    let number = |code: u8| f32::from(code.wrapping_sub(*less).cast_signed());
                    each(codes, out, |code| scale * number(code) + offset);
                }
                Numbers::Whole => each(codes, out, |code| scale * f32::from(code) + offset),
            }
        }
    }
}

/// The values of codes of GGUF blocks, given the planes of [`Layout::sides`].
///
/// # Panics
/// When the type has no values here, or the lengths do not fit.
pub fn of_gguf(dtype: Dtype, codes: &[u8], sides: &[&[u8]], out: &mut [f32]) {
    let layout = Layout::Gguf(dtype);
    let mut groups = Groups::default();
    groups.take_gguf(dtype, sides);
    groups.weights(&Numbers::of(layout, layout.bits().unwrap_or(8)), codes, out);
}

fn each(codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    codes.iter().zip(out).for_each(|(&code, out)| *out = value(code));
}

/// Two to the power of an exponent with a bias of 127; the least is a denormal, the greatest is no number.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

fn half(bytes: [u8; 2]) -> f32 {
    f32::from_bits(f16_to_f32(u16::from_le_bytes(bytes)))
}

fn extend_floats(out: &mut Vec<f32>, dtype: Dtype, plane: &[u8]) {
    let halves = plane.as_chunks::<2>().0.iter();
    match dtype {
        Dtype::F16 => out.extend(halves.map(|bytes| half(*bytes))),
        Dtype::Bf16 => {
            out.extend(halves.map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)))
        }
        _ => out.extend(plane.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_formats() {
        let half = |value: f32| crate::narrow::to_f16(value.to_bits()).to_le_bytes();
        let mut out = [0.0; 32];
        let mut codes = [3u8; 32];
        codes[31] = 15;
        of_gguf(Dtype::Q4_0, &codes, &[&half(0.5)], &mut out);
        assert_eq!((out[0], out[31]), (-2.5, 3.5));
        of_gguf(Dtype::Q4_1, &codes, &[&half(0.5), &half(-1.0)], &mut out);
        assert_eq!((out[0], out[31]), (0.5, 6.5));
        of_gguf(Dtype::Iq4Nl, &codes, &[&half(2.0)], &mut out);
        assert_eq!((out[0], out[31]), (-130.0, 226.0));
        of_gguf(Dtype::Mxfp4, &codes, &[&[128]], &mut out);
        assert_eq!((out[0], out[31]), (3.0, -12.0));
        codes[0] = 0xff;
        of_gguf(Dtype::Q8_0, &codes, &[&half(0.25)], &mut out);
        assert_eq!((out[0], out[1]), (-0.25, 0.75));
        let (codes, mut out) = ([5u8; 256], [0.0; 256]);
        let (scales, least): (Vec<u8>, Vec<u8>) = ((1..9).collect(), (2..10).collect());
        of_gguf(Dtype::Q4K, &codes, &[&half(0.5), &half(0.25), &scales, &least], &mut out);
        assert_eq!((out[0], out[32], out[255]), (2.0, 4.25, 17.75));
        let scales: Vec<u8> = (250..=255).chain(0..10).collect();
        of_gguf(Dtype::Q6K, &codes, &[&half(0.5), &scales], &mut out);
        assert_eq!((out[0], out[255]), (81.0, -121.5));
        let mut out = [0.0; 4];
        let (scales, biases) = ([0.5f32, 2.0], [-1.0f32, 1.0]);
        let bytes =
            |values: [f32; 2]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let mut groups = Groups::default();
        groups.take_mlx(Layout::MlxAffine, 2, Dtype::F32, (&bytes(scales), &bytes(biases)));
        groups.weights(&Numbers::of(Layout::MlxAffine, 4), &[1, 2, 3, 4], &mut out);
        assert_eq!(out, [-0.5, 0.0, 7.0, 9.0]);
    }

    #[test]
    fn every_layout_with_values_is_one_that_is_taken_apart() {
        for dtype in Dtype::ALL.iter().copied().filter(|dtype| has_values(Layout::Gguf(*dtype))) {
            assert!(!Layout::Gguf(dtype).sides().is_empty(), "{dtype:?}");
        }
    }
}
