//! A plane of 1, 2, 4 or 8 bits per symbol, laid out for vectors.
//!
//! 64 symbols with `n` bits take `8 n` bytes: symbol `i` stands in byte `i mod 8n`, from bit `n (i div 8n)` on. So a
//! register of bytes holds neighbouring symbols after one shift and one mask, for every `n`.

/// Packs values, whose number is a multiple of 64; bits above the lowest `n` are left out.
///
/// # Panics
/// When the lengths do not fit.
pub fn pack(n: u8, values: &[u8], out: &mut [u8]) {
    let piece_len = 8 * usize::from(n);
    assert_eq!(values.len() / 64 * piece_len, out.len(), "a plane has a place for every value");
    if n == 0 {
        return;
    }
    let mask = mask(n);
    for (values, out) in values.as_chunks::<64>().0.iter().zip(out.chunks_exact_mut(piece_len)) {
        out.fill(0);
        for (group, values) in (0u8..).zip(values.chunks_exact(piece_len)) {
            for (out, value) in out.iter_mut().zip(values) {
                *out |= (value & mask) << (n * group);
            }
        }
    }
}

/// Unpacks what [`pack`] packed.
///
/// # Panics
/// When the lengths do not fit.
pub fn unpack(n: u8, plane: &[u8], out: &mut [u8]) {
    let piece_len = 8 * usize::from(n);
    assert_eq!(out.len() / 64 * piece_len, plane.len(), "a plane has a place for every value");
    if n == 0 {
        out.fill(0);
        return;
    }
    let mask = mask(n);
    for (out, plane) in out.as_chunks_mut::<64>().0.iter_mut().zip(plane.chunks_exact(piece_len)) {
        for (group, out) in (0u8..).zip(out.chunks_exact_mut(piece_len)) {
            for (out, byte) in out.iter_mut().zip(plane) {
                *out = byte >> (n * group) & mask;
            }
        }
    }
}

fn mask(n: u8) -> u8 {
    u8::MAX >> (8 - n)
}
