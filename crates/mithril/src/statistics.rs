//! How much information the fields of floating-point numbers carry.

use crate::Error;
use crate::container::OpenTensor;
use mithril_codec::Dtype;

/// Entropies of the fields of a tensor's elements, in bits, each taken alone.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct FieldEntropies {
    /// Of the sign, which has one bit.
    pub sign: f64,
    /// Of the exponent.
    pub exponent: f64,
    /// Of the mantissa: the sum over its bytes, the first of which may have fewer than 8 bits.
    pub mantissa: f64,
    /// Bits of the exponent.
    pub exponent_bits: u32,
    /// Bits of the mantissa.
    pub mantissa_bits: u32,
}

/// Counts of the values of a few bits of each element.
struct Part {
    shift: u32,
    counts: Vec<u64>,
}

impl Part {
    fn new(shift: u32, bits: u32) -> Self {
        Self { shift, counts: vec![0; 1 << bits] }
    }

    fn entropy(&self) -> f64 {
        let n: u64 = self.counts.iter().sum();
        let bits = |count: u64| {
            let share = count as f64 / n as f64;
            -share * share.log2()
        };
        self.counts.iter().filter(|&&count| count > 0).map(|&count| bits(count)).sum()
    }
}

/// The entropies of the fields of a tensor; none for types that are no floats. Reads all of it, in pieces.
///
/// # Errors
/// When the tensor cannot be read.
pub fn field_entropies(
    tensor: &OpenTensor<'_>,
    dtype: Dtype,
    threads: usize,
) -> Result<Option<FieldEntropies>, Error> {
    let Some(layout) = dtype.layout().filter(|_| dtype.is_float()) else { return Ok(None) };
    let width = dtype.unit_len().min(usize::from(layout.width));
    let bits = 8 * u32::from(layout.width);
    let mantissa_bits = u32::from(layout.mantissa);
    let exponent_bits = bits - 1 - mantissa_bits;
    let mut sign = Part::new(bits - 1, 1);
    let mut exponent = Part::new(mantissa_bits, exponent_bits);
    // Bytes from the bottom; the topmost has what is left.
    let mantissa =
        (0..mantissa_bits).step_by(8).map(|shift| Part::new(shift, (mantissa_bits - shift).min(8)));
    let mut mantissa: Vec<Part> = mantissa.collect();
    let mut rest: Vec<u8> = Vec::new();
    tensor.for_each_piece(threads, |piece| {
        rest.extend_from_slice(piece);
        let elements = rest.chunks_exact(width);
        let left = elements.remainder().to_vec();
        for element in elements {
            let code = element.iter().rev().fold(0u64, |code, &byte| code << 8 | u64::from(byte));
            for part in [&mut sign, &mut exponent].into_iter().chain(&mut mantissa) {
                let mask = part.counts.len() as u64 - 1;
                let value = usize::try_from(code >> part.shift & mask).expect("a few bits");
                part.counts[value] += 1;
            }
        }
        rest = left;
        Ok(())
    })?;
    Ok(Some(FieldEntropies {
        sign: sign.entropy(),
        exponent: exponent.entropy(),
        mantissa: mantissa.iter().map(Part::entropy).sum(),
        exponent_bits,
        mantissa_bits,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Bases, Model};

    fn entropies(dtype: &str, bytes: &[u8], n: usize) -> Option<FieldEntropies> {
        let len = bytes.len();
        let header = format!(r#"{{"w":{{"dtype":"{dtype}","shape":[{n}],"data_offsets":[0,{len}]}}}}"#);
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), bytes].concat();
        let model = Model::open("model", Box::new(file), Bases::none()).unwrap();
        let dtype = model.tensors()[0].dtype;
        field_entropies(&model.open_tensor(0).unwrap(), dtype, 1).unwrap()
    }

    #[test]
    fn fields_that_vary_have_the_entropy_of_their_values() {
        // Two signs, one exponent, all values of the mantissa once each.
        let all = (0..128u16).flat_map(|mantissa| [0x3f80 | mantissa, 0xbf80 | mantissa]);
        let bytes: Vec<u8> = all.flat_map(u16::to_le_bytes).collect();
        let found = entropies("BF16", &bytes, 256).unwrap();
        assert_eq!((found.sign, found.exponent), (1.0, 0.0));
        assert!((found.mantissa - 7.0).abs() < 1e-9);
        assert_eq!((found.exponent_bits, found.mantissa_bits), (8, 7));
    }

    #[test]
    fn wide_mantissas_are_summed_over_their_bytes() {
        let bytes: Vec<u8> = (0..=255u8).flat_map(|low| [low, low, 0x80, 0x3f]).collect();
        let found = entropies("F32", &bytes, 256).unwrap();
        assert!((found.mantissa - 16.0).abs() < 1e-9, "{found:?}");
        assert_eq!(found.exponent, 0.0);
    }

    #[test]
    fn integers_have_no_fields() {
        assert_eq!(entropies("I32", &[0; 16], 4), None);
    }
}
