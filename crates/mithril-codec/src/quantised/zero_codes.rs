//! Biases as multiples of their scales.
//!
//! MLX moves the bias of a group to a whole number of steps, so `bias = scale * z` up to the rounding of both. Kept are
//! `z`, the zero code, and how many neighbouring numbers the bias is away from the rounded product: 1.5 bits instead of
//! 16. Products of 16-bit floats are exact as singles, and singles multiply as IEEE says, so every machine predicts the
//! same number.

use crate::Dtype;
use crate::narrow::{f16_to_f32, to_bf16, to_f16};

/// Zero codes and residuals of biases, each of the width of a bias, little-endian.
pub struct ZeroCodes {
    /// 16-bit signed whole numbers.
    pub zero_codes: Vec<u8>,
    /// Distance of the bias from its prediction in neighbouring numbers, as wide as a bias.
    pub residuals: Vec<u8>,
}

/// Whether scales and biases of this type can be coded so.
pub const fn supports(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32)
}

/// Zero codes of biases for their scales.
///
/// # Panics
/// When the type is not supported, or the lengths differ.
pub fn split(dtype: Dtype, scales: &[u8], biases: &[u8]) -> ZeroCodes {
    assert!(scales.len() == biases.len() && supports(dtype), "a scale for every bias");
    let mut coded = ZeroCodes {
        zero_codes: Vec::with_capacity(biases.len()),
        residuals: Vec::with_capacity(biases.len()),
    };
    let width = dtype.unit_len();
    for (scale, bias) in scales.chunks_exact(width).zip(biases.chunks_exact(width)) {
        let (scale, bias_bits) = (value(dtype, scale), bits(bias));
        let ratio = value(dtype, bias) / scale;
        #[expect(clippy::cast_possible_truncation, reason = "a cast of floats saturates, and NaN gives 0")]
        let zero_code = ratio.round() as i16;
        coded.zero_codes.extend(zero_code.to_le_bytes());
        let residual =
            ordered(dtype, bias_bits).wrapping_sub(ordered(dtype, predict(dtype, scale, zero_code)));
        coded.residuals.extend(&residual.to_le_bytes()[..width]);
    }
    coded
}

/// The biases that [`split`] was given.
///
/// # Panics
/// When the type is not supported, or the lengths do not fit.
pub fn join(dtype: Dtype, scales: &[u8], coded: &ZeroCodes) -> Vec<u8> {
    let width = dtype.unit_len();
    let n = scales.len() / width;
    assert!(supports(dtype) && coded.zero_codes.len() == 2 * n && coded.residuals.len() == scales.len());
    let mut biases = Vec::with_capacity(scales.len());
    let zero_codes = coded.zero_codes.as_chunks::<2>().0;
    let residuals = coded.residuals.chunks_exact(width);
    for ((scale, zero_code), residual) in scales.chunks_exact(width).zip(zero_codes).zip(residuals) {
        let predicted = predict(dtype, value(dtype, scale), i16::from_le_bytes(*zero_code));
        let bias = from_ordered(dtype, ordered(dtype, predicted).wrapping_add(bits(residual)));
        biases.extend(&bias.to_le_bytes()[..width]);
    }
    biases
}

/// The bits of the product, rounded to the type. What is no number is predicted as zero: its bits are no machine's own.
fn predict(dtype: Dtype, scale: f32, zero_code: i16) -> u32 {
    let product = scale * f32::from(zero_code);
    if !product.is_finite() {
        return 0;
    }
    match dtype {
        Dtype::F16 => to_f16(product.to_bits()).into(),
        Dtype::Bf16 => to_bf16(product.to_bits()).into(),
        _ => product.to_bits(),
    }
}

fn bits(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(word)
}

fn value(dtype: Dtype, bytes: &[u8]) -> f32 {
    let bits = bits(bytes);
    f32::from_bits(match dtype {
        Dtype::F16 => f16_to_f32(u16::try_from(bits).unwrap_or(0)),
        Dtype::Bf16 => bits << 16,
        _ => bits,
    })
}

/// Bits such that neighbouring numbers have neighbouring bits, also across zero.
fn ordered(dtype: Dtype, bits: u32) -> u32 {
    let sign = 1 << (8 * dtype.unit_len() - 1);
    if bits & sign == 0 { bits | sign } else { !bits & mask(dtype) }
}

fn from_ordered(dtype: Dtype, ordered: u32) -> u32 {
    let (sign, ordered) = (1 << (8 * dtype.unit_len() - 1), ordered & mask(dtype));
    if ordered & sign == 0 { !ordered & mask(dtype) } else { ordered & !sign }
}

fn mask(dtype: Dtype) -> u32 {
    if dtype.unit_len() == 2 { 0xffff } else { u32::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_of_any_bits_come_back() {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
            let mut state = 1u64;
            let mut bytes = |n: usize| -> Vec<u8> {
                (0..n)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        state.to_le_bytes()[7]
                    })
                    .collect()
            };
            let (scales, biases) = (bytes(40_000), bytes(40_000));
            assert_eq!(join(dtype, &scales, &split(dtype, &scales, &biases)), biases, "{dtype:?}");
        }
        // Infinities, NaN, zeros of both signs, denormals: every pair of halves of a coarse grid.
        let grid: Vec<u16> = (0..=u16::MAX).step_by(257).chain([0x7c00, 0xfc00, 0x7e00, 0x8000, 1]).collect();
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        for &scale in &grid {
            for &bias in &grid {
                scales.extend(scale.to_le_bytes());
                biases.extend(bias.to_le_bytes());
            }
        }
        for dtype in [Dtype::F16, Dtype::Bf16] {
            assert_eq!(join(dtype, &scales, &split(dtype, &scales, &biases)), biases, "{dtype:?}");
        }
    }

    #[test]
    fn a_multiple_of_the_scale_has_no_residual() {
        let scales: Vec<u8> = [0.25f32, -1.5, 3.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let biases: Vec<u8> = [-2.0f32, 12.0, -45.0].iter().flat_map(|bias| bias.to_le_bytes()).collect();
        let coded = split(Dtype::F32, &scales, &biases);
        assert_eq!(coded.residuals, [0; 12]);
        let zero_codes: Vec<i16> =
            coded.zero_codes.as_chunks().0.iter().map(|code| i16::from_le_bytes(*code)).collect();
        assert_eq!(zero_codes, [-8, -8, -15]);
    }
}
