//! What codes stand for, in singles.
//!
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

/// The values of codes of GGUF blocks, given the planes of [`Layout::sides`].
///
/// # Panics
/// When the type has no values here, or the lengths do not fit.
pub fn of_gguf(dtype: Dtype, codes: &[u8], sides: &[&[u8]], out: &mut [f32]) {
    let per_block = dtype.elements_per_unit() as usize;
    assert!(has_values(Layout::Gguf(dtype)) && codes.len() == out.len(), "a value for every code");
    assert_eq!(codes.len() % per_block, 0, "whole blocks");
    let half = |side: usize, block: usize| f16_at(sides[side], block);
    for (block, (codes, out)) in
        codes.chunks_exact(per_block).zip(out.chunks_exact_mut(per_block)).enumerate()
    {
        match dtype {
            Dtype::Q4_1 | Dtype::Q5_1 => {
                let (scale, least) = (half(0, block), half(1, block));
                each(codes, out, |code| scale * f32::from(code) + least);
            }
            Dtype::Q4_0 | Dtype::Q5_0 => {
                let (scale, middle) = (half(0, block), if dtype == Dtype::Q4_0 { 8.0 } else { 16.0 });
                each(codes, out, |code| scale * (f32::from(code) - middle));
            }
            Dtype::Q8_0 => {
                let scale = half(0, block);
                each(codes, out, |code| scale * f32::from(code.cast_signed()));
            }
            Dtype::Iq4Nl => {
                let scale = half(0, block);
                each(codes, out, |code| scale * UNEVEN[usize::from(code & 15)]);
            }
            Dtype::Q4K | Dtype::Q5K => {
                let (scale, least) = (half(0, block), half(1, block));
                for (sub, (codes, out)) in codes.chunks_exact(32).zip(out.chunks_exact_mut(32)).enumerate() {
                    let scale = scale * f32::from(sides[2][8 * block + sub]);
                    let least = least * f32::from(sides[3][8 * block + sub]);
                    each(codes, out, |code| scale * f32::from(code) - least);
                }
            }
            Dtype::Q6K => {
                let scale = half(0, block);
                for (sub, (codes, out)) in codes.chunks_exact(16).zip(out.chunks_exact_mut(16)).enumerate() {
                    let scale = scale * f32::from(sides[1][16 * block + sub].cast_signed());
                    each(codes, out, |code| scale * (f32::from(code) - 32.0));
                }
            }
            _ => {
                let scale = power_of_two(sides[0][block]);
                each(codes, out, |code| scale * float4(code));
            }
        }
    }
}

/// The values of codes of MLX, given scales and, for affine, biases of this type, one for every group.
///
/// # Panics
/// When the layout is none of MLX's that have values here, or the lengths do not fit.
pub fn of_mlx(
    layout: Layout,
    group: usize,
    dtype: Dtype,
    codes: &[u8],
    sides: (&[u8], &[u8]),
    out: &mut [f32],
) {
    assert!(has_values(layout) && group > 0 && codes.len() == out.len(), "a value for every code");
    for (idx, (codes, out)) in codes.chunks(group).zip(out.chunks_mut(group)).enumerate() {
        if layout == Layout::MlxMxfp4 {
            let scale = power_of_two(sides.0[idx]);
            each(codes, out, |code| scale * float4(code));
        } else {
            let (scale, bias) = (float_at(dtype, sides.0, idx), float_at(dtype, sides.1, idx));
            each(codes, out, |code| scale * f32::from(code) + bias);
        }
    }
}

fn each(codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    codes.iter().zip(out).for_each(|(&code, out)| *out = value(code));
}

fn float4(code: u8) -> f32 {
    let magnitude = FLOAT4[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Two to the power of an exponent with a bias of 127; the least is a denormal, the greatest is no number.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

fn f16_at(plane: &[u8], idx: usize) -> f32 {
    float_at(Dtype::F16, plane, idx)
}

fn float_at(dtype: Dtype, plane: &[u8], idx: usize) -> f32 {
    let half = || u16::from_le_bytes([plane[2 * idx], plane[2 * idx + 1]]);
    f32::from_bits(match dtype {
        Dtype::F16 => f16_to_f32(half()),
        Dtype::Bf16 => u32::from(half()) << 16,
        _ => {
            let at = 4 * idx;
            u32::from_le_bytes([plane[at], plane[at + 1], plane[at + 2], plane[at + 3]])
        }
    })
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
        of_mlx(Layout::MlxAffine, 2, Dtype::F32, &[1, 2, 3, 4], (&bytes(scales), &bytes(biases)), &mut out);
        assert_eq!(out, [-0.5, 0.0, 7.0, 9.0]);
    }

    #[test]
    fn every_layout_with_values_is_one_that_is_taken_apart() {
        for dtype in Dtype::ALL.iter().copied().filter(|dtype| has_values(Layout::Gguf(*dtype))) {
            assert!(!Layout::Gguf(dtype).sides().is_empty(), "{dtype:?}");
        }
    }
}
