//! What kernels of more than one instruction set look up.

use crate::transform::fields::FieldSplit;

/// Shuffles for all masks of eight lanes, as indices into a 16-byte half: `[0]` for its lower eight bytes,
/// `[1]` for its upper eight.
pub(super) type MaskShuffles = [[u64; 256]; 2];

/// Moves the bytes of the lanes whose mask bit is set to the right end of the eight.
pub(super) static COMPACT: MaskShuffles = compact_shuffles();

const fn compact_shuffles() -> MaskShuffles {
    let mut shuffles = [[0; 256]; 2];
    let mut mask: usize = 0;
    while mask < 256 {
        let mut to = 8 - mask.count_ones();
        let mut lane = 0;
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                shuffles[0][mask] |= lane << (8 * to);
                shuffles[1][mask] |= (lane + 8) << (8 * to);
                to += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    shuffles
}

/// What top field and rest add to elements of one byte with a rest of four bits: for each of sixteen symbols, and for each
/// nibble. Both are put together by an exclusive or.
pub(super) fn byte_tables(split: &FieldSplit, values: &[u8; 16]) -> ([u8; 16], [u8; 16]) {
    let flip = if split.layout.flip { 0x80 } else { 0 };
    let magnitude = 0xff >> u32::from(split.layout.sign);
    let tops = values.map(|top| (top << split.top_shift()) & magnitude ^ flip);
    let kept = split.kept_bits();
    let mut nibbles = [0u8; 16];
    for (nibble, bits) in (0u8..).zip(&mut nibbles) {
        let sign = if split.raw_sign { nibble >> kept << 7 } else { 0 };
        *bits = (nibble & !(0xff << kept)) << split.dead | sign;
    }
    (tops, nibbles)
}
