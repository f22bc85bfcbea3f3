//! Blocks of GGUF: codes in the order of the weights, scales in planes of their own.
//!
//! Every split is a rearrangement of bits, so any bytes come back. Codes keep the order in which ggml hands weights to a
//! matrix, which is what kernels multiply.

use super::Layout;
use crate::Dtype;

/// Codes in a block and its bytes, for types that are taken apart.
///
/// # Panics
/// When the type stays whole.
fn unit(dtype: Dtype) -> (usize, usize) {
    assert!(!Layout::Gguf(dtype).sides().is_empty(), "{} stays whole", dtype.name());
    (dtype.elements_per_unit() as usize, dtype.unit_len())
}

/// Takes blocks apart. The planes, one for each of [`Layout::sides`], are appended to.
///
/// # Panics
/// When the type stays whole, or the lengths do not fit.
pub fn split(dtype: Dtype, blocks: &[u8], codes: &mut [u8], sides: &mut [Vec<u8>]) {
    let (n_codes, unit_len) = unit(dtype);
    assert_eq!(blocks.len() / unit_len * n_codes, codes.len(), "a code for every weight");
    for (block, codes) in blocks.chunks_exact(unit_len).zip(codes.chunks_exact_mut(n_codes)) {
        split_one(dtype, block, codes, sides);
    }
}

/// Puts blocks together again.
///
/// # Panics
/// When the type stays whole, or the lengths do not fit.
pub fn join(dtype: Dtype, codes: &[u8], sides: &[&[u8]], blocks: &mut [u8]) {
    let (n_codes, unit_len) = unit(dtype);
    assert_eq!(blocks.len() / unit_len * n_codes, codes.len(), "a code for every weight");
    let lens: Vec<usize> =
        Layout::Gguf(dtype).sides().iter().map(|side| side.per_unit * side.dtype.unit_len()).collect();
    assert!(sides.iter().zip(&lens).all(|(side, len)| side.len() == codes.len() / n_codes * len));
    for (idx, (block, codes)) in
        blocks.chunks_exact_mut(unit_len).zip(codes.chunks_exact(n_codes)).enumerate()
    {
        let side = |plane: usize| &sides[plane][idx * lens[plane]..][..lens[plane]];
        join_one(dtype, codes, side, block);
    }
}

fn split_one(dtype: Dtype, block: &[u8], codes: &mut [u8], sides: &mut [Vec<u8>]) {
    match dtype {
        Dtype::Q4_0 | Dtype::Iq4Nl => {
            sides[0].extend(&block[..2]);
            halves(&block[2..18], codes);
        }
        Dtype::Q4_1 => {
            sides[0].extend(&block[..2]);
            sides[1].extend(&block[2..4]);
            halves(&block[4..20], codes);
        }
        Dtype::Mxfp4 => {
            sides[0].push(block[0]);
            halves(&block[1..17], codes);
        }
        Dtype::Nvfp4 => {
            sides[0].extend(&block[..4]);
            for (quants, codes) in block[4..].chunks_exact(8).zip(codes.chunks_exact_mut(16)) {
                halves(quants, codes);
            }
        }
        Dtype::Q5_0 | Dtype::Q5_1 => {
            sides[0].extend(&block[..2]);
            if dtype == Dtype::Q5_1 {
                sides[1].extend(&block[2..4]);
            }
            let (high, quants) = block[block.len() - 20..].split_at(4);
            halves(quants, codes);
            for (at, code) in codes.iter_mut().enumerate() {
                *code |= (high[at / 8] >> (at % 8) & 1) << 4;
            }
        }
        Dtype::Q8_0 => {
            sides[0].extend(&block[..2]);
            codes.copy_from_slice(&block[2..34]);
        }
        Dtype::Q4K | Dtype::Q5K => {
            sides[0].extend(&block[..2]);
            sides[1].extend(&block[2..4]);
            let (scales, biases) = unpack_scales(&block[4..16]);
            sides[2].extend(scales);
            sides[3].extend(biases);
            for (quants, codes) in block[block.len() - 128..].chunks_exact(32).zip(codes.chunks_exact_mut(64))
            {
                halves(quants, codes);
            }
            if dtype == Dtype::Q5K {
                for (at, code) in codes.iter_mut().enumerate() {
                    *code |= (block[16 + at % 32] >> (at / 32) & 1) << 4;
                }
            }
        }
        _ => {
            sides[0].extend(&block[208..210]);
            sides[1].extend(&block[192..208]);
            for (at, code) in codes.iter_mut().enumerate() {
                let (low, low_shift, high, high_shift) = q6_place(at);
                *code = block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4;
            }
        }
    }
}

fn join_one<'a>(dtype: Dtype, codes: &[u8], side: impl Fn(usize) -> &'a [u8], block: &mut [u8]) {
    match dtype {
        Dtype::Q4_0 | Dtype::Iq4Nl => {
            block[..2].copy_from_slice(side(0));
            from_halves(codes, &mut block[2..18]);
        }
        Dtype::Q4_1 => {
            block[..2].copy_from_slice(side(0));
            block[2..4].copy_from_slice(side(1));
            from_halves(codes, &mut block[4..20]);
        }
        Dtype::Mxfp4 => {
            block[0] = side(0)[0];
            from_halves(codes, &mut block[1..17]);
        }
        Dtype::Nvfp4 => {
            block[..4].copy_from_slice(side(0));
            for (quants, codes) in block[4..].chunks_exact_mut(8).zip(codes.chunks_exact(16)) {
                from_halves(codes, quants);
            }
        }
        Dtype::Q5_0 | Dtype::Q5_1 => {
            block[..2].copy_from_slice(side(0));
            if dtype == Dtype::Q5_1 {
                block[2..4].copy_from_slice(side(1));
            }
            let at = block.len() - 20;
            let (high, quants) = block[at..].split_at_mut(4);
            from_halves(codes, quants);
            high.fill(0);
            for (at, code) in codes.iter().enumerate() {
                high[at / 8] |= (code >> 4 & 1) << (at % 8);
            }
        }
        Dtype::Q8_0 => {
            block[..2].copy_from_slice(side(0));
            block[2..34].copy_from_slice(codes);
        }
        Dtype::Q4K | Dtype::Q5K => {
            block[..2].copy_from_slice(side(0));
            block[2..4].copy_from_slice(side(1));
            pack_scales(side(2), side(3), &mut block[4..16]);
            let at = block.len() - 128;
            for (quants, codes) in block[at..].chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
                from_halves(codes, quants);
            }
            if dtype == Dtype::Q5K {
                block[16..48].fill(0);
                for (at, code) in codes.iter().enumerate() {
                    block[16 + at % 32] |= (code >> 4 & 1) << (at / 32);
                }
            }
        }
        _ => {
            block.fill(0);
            block[208..210].copy_from_slice(side(0));
            block[192..208].copy_from_slice(side(1));
            for (at, code) in codes.iter().enumerate() {
                let (low, low_shift, high, high_shift) = q6_place(at);
                block[low] |= (code & 15) << low_shift;
                block[high] |= (code >> 4 & 3) << high_shift;
            }
        }
    }
}

/// Low nibbles are the first half of the codes, high nibbles the second.
fn halves(quants: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(quants.len());
    for ((low, high), quant) in low.iter_mut().zip(high).zip(quants) {
        (*low, *high) = (quant & 15, quant >> 4);
    }
}

fn from_halves(codes: &[u8], quants: &mut [u8]) {
    let (low, high) = codes.split_at(quants.len());
    for ((low, high), quant) in low.iter().zip(high).zip(quants) {
        *quant = low & 15 | high << 4;
    }
}

/// Byte and shift of the low nibble and of the two high bits of a code of `Q6_K`.
fn q6_place(at: usize) -> (usize, usize, usize, usize) {
    let (half, quarter, lane) = (at / 128, at / 32 % 4, at % 32);
    (64 * half + 32 * (quarter % 2) + lane, 4 * (quarter / 2), 128 + 32 * half + lane, 2 * quarter)
}

/// Eight scales and eight minima of six bits in twelve bytes: the last four of each are spread over the top bits.
fn unpack_scales(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut biases) = ([0; 8], [0; 8]);
    for j in 0..4 {
        (scales[j], biases[j]) = (packed[j] & 63, packed[j + 4] & 63);
        scales[j + 4] = packed[j + 8] & 15 | packed[j] >> 6 << 4;
        biases[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4;
    }
    (scales, biases)
}

fn pack_scales(scales: &[u8], biases: &[u8], packed: &mut [u8]) {
    for j in 0..4 {
        packed[j] = scales[j] & 63 | scales[j + 4] >> 4 << 6;
        packed[j + 4] = biases[j] & 63 | biases[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | biases[j + 4] << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantised::Side;

    /// The types that are taken apart.
    fn dtypes() -> impl Iterator<Item = Dtype> {
        Dtype::ALL.iter().copied().filter(|dtype| !Layout::Gguf(*dtype).sides().is_empty())
    }

    #[test]
    fn blocks_of_any_bits_come_back() {
        for dtype in dtypes() {
            let (n_codes, unit_len) = unit(dtype);
            let mut state = u64::from(dtype.id());
            let blocks: Vec<u8> = (0..300 * unit_len)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    state.to_le_bytes()[7]
                })
                .collect();
            let mut codes = vec![0; 300 * n_codes];
            let layout = Layout::Gguf(dtype);
            let mut sides = vec![Vec::new(); layout.sides().len()];
            split(dtype, &blocks, &mut codes, &mut sides);
            let bits = layout.bits().unwrap();
            assert!(codes.iter().all(|&code| u32::from(code) < 1 << bits), "{dtype:?}");
            let mut back = vec![0xaa; blocks.len()];
            let sides: Vec<&[u8]> = sides.iter().map(Vec::as_slice).collect();
            join(dtype, &codes, &sides, &mut back);
            assert_eq!(back, blocks, "{dtype:?}");
            // Nothing is kept twice: codes and planes have the bits of the block.
            let width = |side: &Side| match (side.dtype, side.per_unit) {
                (Dtype::U8, 8) => 6,
                (dtype, _) => 8 * dtype.unit_len(),
            };
            let side_bits: usize = layout.sides().iter().map(|side| side.per_unit * width(side)).sum();
            assert_eq!(side_bits + usize::from(bits) * n_codes, 8 * unit_len, "{dtype:?}");
        }
    }

    #[test]
    fn codes_stand_in_the_order_of_the_weights() {
        // ggml: weight 17 of a Q4_0 block is the high nibble of its second byte of quants.
        let mut block = [0u8; 18];
        block[3] = 0x90;
        let mut codes = [0; 32];
        split(Dtype::Q4_0, &block, &mut codes, &mut [Vec::new()]);
        assert_eq!(codes.iter().position(|&code| code == 9), Some(17));
        // Q6_K: weight 128 + 96 + 5 has its low nibble in the high half of ql[64 + 32 + 5].
        let mut block = [0u8; 210];
        block[64 + 32 + 5] = 0x70;
        block[128 + 32 + 5] = 0x80;
        let mut codes = [0; 256];
        split(Dtype::Q6K, &block, &mut codes, &mut [Vec::new(), Vec::new()]);
        assert_eq!(codes.iter().position(|&code| code == 7 + 32), Some(128 + 96 + 5));
    }
}
