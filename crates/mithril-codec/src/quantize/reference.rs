//! What the formats of MLX make of weights: the error of each, to set beside ours.
//!
//! Scales are kept exactly here, as MLX keeps them in 16 bits: the difference is below 0.02 dB.

/// A format of MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// Whole codes of so many bits with a scale and a bias for every group.
    Affine {
        /// 2 to 8.
        bits: u8,
        /// Codes of a group.
        group: usize,
    },
    /// 4-bit floats with a power of two for every 32.
    Mxfp4,
    /// 4-bit floats with an 8-bit float for every 16.
    Nvfp4,
}

/// The magnitudes of a 4-bit float.
const FLOAT4: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

impl Reference {
    /// The format of this name: `affine4-g64`, `mxfp4`, `nvfp4`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "mxfp4" => Some(Self::Mxfp4),
            "nvfp4" => Some(Self::Nvfp4),
            _ => {
                let (bits, group) = name.strip_prefix("affine")?.split_once("-g")?;
                let (bits, group) = (bits.parse().ok()?, group.parse().ok()?);
                let fits = matches!(bits, 2..=6 | 8) && matches!(group, 32 | 64 | 128);
                fits.then_some(Self::Affine { bits, group })
            }
        }
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Affine { bits, group } => format!("affine{bits}-g{group}"),
            Self::Mxfp4 => "mxfp4".to_owned(),
            Self::Nvfp4 => "nvfp4".to_owned(),
        }
    }

    /// Bits per weight that it stores.
    pub fn bits_per_weight(self) -> f64 {
        match self {
            Self::Affine { bits, group } => f64::from(bits) + 32.0 / group as f64,
            Self::Mxfp4 => 4.25,
            Self::Nvfp4 => 4.5,
        }
    }

    fn group(self) -> usize {
        match self {
            Self::Affine { group, .. } => group,
            Self::Mxfp4 => 32,
            Self::Nvfp4 => 16,
        }
    }

    /// Sum of squared errors over rows of so many weights. The last group of a row may be short. Of weights of larger
    /// magnitude than `outlier` the error does not count, only what they do to their groups.
    pub fn squared_error(self, columns: usize, outlier: f32, weights: &[f32]) -> f64 {
        let mut error = 0f64;
        let largest = weights.iter().fold(0f32, |most, weight| most.max(weight.abs()));
        for row in weights.chunks_exact(columns.max(1)) {
            for group in row.chunks(self.group()) {
                error += match self {
                    Self::Affine { bits, .. } => affine_error(bits, outlier, group),
                    Self::Mxfp4 => float4_error(power_of_two(group), outlier, group),
                    Self::Nvfp4 => float4_error(eight_bit_scale(group, largest), outlier, group),
                };
            }
        }
        error
    }
}

/// The edge of larger magnitude is moved onto a whole code.
fn affine_error(bits: u8, outlier: f32, group: &[f32]) -> f64 {
    let (low, high) = group.iter().fold((f32::MAX, f32::MIN), |(low, high), &w| (low.min(w), high.max(w)));
    let most = f32::from((1u16 << bits) - 1);
    let is_low = low.abs() > high.abs();
    let mut scale = ((high - low) / most).max(1e-7);
    if !is_low {
        scale = -scale;
    }
    let edge = if is_low { low } else { high };
    let steps = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps != 0.0 {
        scale = edge / steps;
        bias = edge;
    }
    let error = |&w: &f32| {
        let code = ((w - bias) / scale).round_ties_even().clamp(0.0, most);
        f64::from(w - (code * scale + bias)).powi(2)
    };
    group.iter().filter(|weight| weight.abs() <= outlier).map(error).sum()
}

fn power_of_two(group: &[f32]) -> f32 {
    let most = group.iter().fold(0f32, |most, w| most.max(w.abs()));
    if most == 0.0 { 1.0 } else { (most / 6.0).log2().round().exp2() }
}

/// The nearest 8-bit float of four exponent bits, below a scale for the whole tensor that makes the largest fit.
fn eight_bit_scale(group: &[f32], largest: f32) -> f32 {
    let most = group.iter().fold(0f32, |most, w| most.max(w.abs()));
    if most == 0.0 || largest == 0.0 {
        return 1.0;
    }
    let scale = most / 6.0;
    let exponent = scale.log2().floor().max(-6.0);
    let unit = (exponent - 3.0).exp2();
    ((scale / unit).round_ties_even() * unit).max(unit)
}

fn float4_error(scale: f32, outlier: f32, group: &[f32]) -> f64 {
    let error = |&w: &f32| {
        let x = w.abs() / scale;
        let nearest = FLOAT4.iter().map(|level| (x - level).abs()).fold(f32::MAX, f32::min);
        f64::from(nearest * scale).powi(2)
    };
    group.iter().filter(|weight| weight.abs() <= outlier).map(error).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_users_type() {
        for name in ["affine4-g64", "affine2-g128", "affine8-g32", "mxfp4", "nvfp4"] {
            assert_eq!(Reference::from_name(name).unwrap().name(), name);
        }
        for name in ["affine7-g64", "affine4-g48", "affine4", "int4", ""] {
            assert_eq!(Reference::from_name(name), None, "{name}");
        }
        assert_eq!(Reference::Affine { bits: 4, group: 64 }.bits_per_weight(), 4.5);
    }

    #[test]
    fn weights_that_a_format_holds_have_no_error() {
        let weights: Vec<f32> = (0..64u8).map(|i| f32::from(i % 16) * 0.5 - 4.0).collect();
        assert!(Reference::Affine { bits: 4, group: 64 }.squared_error(64, f32::MAX, &weights) < 1e-9);
        let weights: Vec<f32> =
            (0..32).map(|i| FLOAT4[i % 8] * if i % 3 == 0 { -0.25 } else { 0.25 }).collect();
        assert!(Reference::Mxfp4.squared_error(32, f32::MAX, &weights) < 1e-9);
        assert!(Reference::Nvfp4.squared_error(32, f32::MAX, &weights) < 1e-9);
    }
}
