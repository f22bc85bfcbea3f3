//! Codes of 1 to 8 bits, one after the other from the lowest bit of the first byte on.
//!
//! That is how MLX packs every width (3, 5 and 6 bits run across bytes), and how GPTQ, AWQ and compressed-tensors fill
//! their 32-bit words on little-endian machines, up to the order of columns, which does not matter to codes.

/// Takes codes out of packed bytes.
///
/// # Panics
/// When `out` has another number of codes than the bytes hold, or `bits` is not 1 to 8.
pub fn unpack(bits: u8, packed: &[u8], out: &mut [u8]) {
    let width = check(bits, packed.len(), out.len());
    // Eight codes take `bits` bytes, whatever the width.
    for (packed, out) in packed.chunks(width).zip(out.chunks_mut(8)) {
        let mut word = [0; 8];
        word[..packed.len()].copy_from_slice(packed);
        let word = u64::from_le_bytes(word);
        for (at, out) in (0u32..).zip(out) {
            *out = word.unbounded_shr(at * u32::from(bits)).to_le_bytes()[0] & (u8::MAX >> (8 - bits));
        }
    }
}

/// Packs codes; bits above the lowest `bits` must be zero.
///
/// # Panics
/// As [`unpack`].
pub fn pack(bits: u8, codes: &[u8], out: &mut [u8]) {
    let width = check(bits, out.len(), codes.len());
    for (codes, out) in codes.chunks(8).zip(out.chunks_mut(width)) {
        let mut word = 0u64;
        for (at, &code) in (0u32..).zip(codes) {
            word |= u64::from(code).unbounded_shl(at * u32::from(bits));
        }
        out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
    }
}

fn check(bits: u8, packed_len: usize, n_codes: usize) -> usize {
    assert!((1..=8).contains(&bits), "codes of 1 to 8 bits");
    assert_eq!(8 * packed_len, usize::from(bits) * n_codes, "codes fill their bytes");
    usize::from(bits)
}

/// An 8-bit float of four exponent bits with the exponent in front: symbols are exponents then, and the sign and the
/// mantissa low bits. Its own inverse is [`exponent_back`].
pub fn exponent_first(float: u8) -> u8 {
    (float & 0x78) << 1 | float >> 7 << 3 | float & 7
}

/// The float that [`exponent_first`] was given.
pub fn exponent_back(code: u8) -> u8 {
    (code & 0xf0) >> 1 | (code & 8) << 4 | code & 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_every_width_come_back() {
        for bits in 1..=8u8 {
            for eighths in 1..20usize {
                let packed: Vec<u8> =
                    (0..eighths * usize::from(bits)).map(|i| u8::try_from(i * 89 % 251).unwrap()).collect();
                let mut codes = vec![0; 8 * eighths];
                unpack(bits, &packed, &mut codes);
                assert!(codes.iter().all(|&code| u32::from(code) < 1 << bits));
                let mut back = vec![0; packed.len()];
                pack(bits, &codes, &mut back);
                assert_eq!(back, packed, "{bits} bits");
            }
        }
        let mut codes = [0; 4];
        unpack(6, &[0b1100_0001, 0b0000_1111, 0b1111_1100], &mut codes);
        assert_eq!(codes, [1, 0b11_1111, 0, 0b11_1111]);
    }

    #[test]
    fn floats_with_their_exponent_in_front_come_back() {
        for float in 0..=255u8 {
            assert_eq!(exponent_back(exponent_first(float)), float);
            assert_eq!(exponent_first(float) >> 4, float >> 3 & 15);
        }
    }
}
