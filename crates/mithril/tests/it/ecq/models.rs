//! Quantised models from fixed seeds. Golden files are made of them, so what is here stays as it is.

use mithril::Dtype;
use mithril::convert::ecq::{self, Layout, bit_packing};

fn low_byte(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

/// The bf16 of a single, cut off.
fn upper_half(single: f32) -> [u8; 2] {
    let [_, _, low, high] = single.to_le_bytes();
    [low, high]
}

/// Numbers from a fixed seed.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    /// A bell over the codes of so many bits.
    pub(crate) fn code(&mut self, bits: u8) -> u8 {
        let sum: u64 = (0..4).map(|_| self.next(1 << bits)).sum();
        low_byte(sum / 4)
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| low_byte(self.next(256))).collect()
    }
}

pub(crate) type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

/// A safetensors file of tensors, with metadata.
pub(crate) fn safetensors_of(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::json!({"format": "mlx"}));
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend(bytes);
    }
    let header = serde_json::Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// bf16 numbers near `scale`, as bytes.
pub(crate) fn bf16s(numbers: &mut Numbers, n: usize, scale: f32) -> Vec<u8> {
    let one = |numbers: &mut Numbers| {
        let value = scale * (0.5 + numbers.next(1000) as f32 / 1000.0);
        upper_half(value)
    };
    (0..n).flat_map(|_| one(numbers)).collect()
}

/// A module as MLX packs it: `weight`, `scales` and, for affine, `biases` of whole steps.
pub(crate) fn mlx_module(
    name: &str,
    mode: &str,
    bits: u8,
    group: usize,
    rows: usize,
    columns: usize,
) -> Vec<Tensor> {
    let mut numbers = Numbers::new(7 + u64::from(bits) + group as u64);
    let codes: Vec<u8> = (0..rows * columns).map(|_| numbers.code(bits)).collect();
    let mut packed = vec![0; codes.len() * usize::from(bits) / 8];
    bit_packing::pack(bits, &codes, &mut packed);
    let words = columns * usize::from(bits) / 32;
    let weight = (format!("{name}.weight"), "U32", vec![rows, words], packed);
    let n = rows * columns / group;
    if mode != "affine" {
        let scales = (0..n).map(|_| 118 + low_byte(numbers.next(4))).collect();
        return vec![weight, (format!("{name}.scales"), "U8", vec![rows, columns / group], scales)];
    }
    let scales = bf16s(&mut numbers, n, 0.01);
    let mut bias = |scale: &[u8; 2]| {
        let value =
            f32::from_bits(u32::from(u16::from_le_bytes(*scale)) << 16) * -(numbers.next(4) as f32 + 6.0);
        upper_half(value)
    };
    let biases = scales.as_chunks().0.iter().flat_map(&mut bias).collect();
    let side = |suffix: &str, bytes| (format!("{name}.{suffix}"), "BF16", vec![rows, columns / group], bytes);
    vec![weight, side("scales", scales), side("biases", biases)]
}

/// A GGUF file of tensors of these types, rows of 512 weights.
pub(crate) fn gguf_of(tensors: &[(&str, Dtype, u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(1u64.to_le_bytes());
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    text(&mut file, "general.architecture");
    file.extend(8u32.to_le_bytes());
    text(&mut file, "llama");
    let mut offset = 0;
    for (name, dtype, kind, bytes) in tensors {
        text(&mut file, name);
        file.extend(2u32.to_le_bytes());
        let rows = dtype.elements_in(bytes.len() as u64) / 512;
        file.extend(512u64.to_le_bytes());
        file.extend(rows.to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend((offset as u64).to_le_bytes());
        offset += bytes.len().next_multiple_of(32);
    }
    for (_, _, _, bytes) in tensors {
        file.resize(file.len().next_multiple_of(32), 0xee);
        file.extend(bytes);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file
}

/// Blocks whose codes are a bell and whose scales are close to each other.
pub(crate) fn gguf_blocks(dtype: Dtype, rows: usize) -> Vec<u8> {
    let layout = Layout::Gguf(dtype);
    let mut numbers = Numbers::new(u64::from(dtype.id()));
    let n = rows * 512;
    let Some(bits) = layout.bits() else {
        return numbers.bytes(n / dtype.elements_per_unit() as usize * dtype.unit_len());
    };
    let codes: Vec<u8> = (0..n).map(|_| numbers.code(bits)).collect();
    let n_units = n / dtype.elements_per_unit() as usize;
    let plane = |side: &ecq::Side, numbers: &mut Numbers| -> Vec<u8> {
        let n = n_units * side.per_unit;
        match side.dtype {
            Dtype::F16 => {
                (0..n).flat_map(|_| (0x2400 + u16::from(low_byte(numbers.next(200)))).to_le_bytes()).collect()
            }
            _ => (0..n).map(|_| 20 + low_byte(numbers.next(30))).collect(),
        }
    };
    let sides: Vec<Vec<u8>> = layout.sides().iter().map(|side| plane(side, &mut numbers)).collect();
    let sides: Vec<&[u8]> = sides.iter().map(Vec::as_slice).collect();
    let mut blocks = vec![0; n_units * dtype.unit_len()];
    ecq::gguf::join(dtype, &codes, &sides, &mut blocks);
    blocks
}

/// All types with their numbers in GGUF.
pub(crate) const GGUF_TYPES: [(Dtype, u32); 13] = [
    (Dtype::Q4_0, 2),
    (Dtype::Q4_1, 3),
    (Dtype::Q5_0, 6),
    (Dtype::Q5_1, 7),
    (Dtype::Q8_0, 8),
    (Dtype::Q4K, 12),
    (Dtype::Q5K, 13),
    (Dtype::Q6K, 14),
    (Dtype::Iq4Nl, 20),
    (Dtype::Mxfp4, 39),
    (Dtype::Nvfp4, 40),
    (Dtype::Q2K, 10),
    (Dtype::Iq2Xxs, 16),
];
