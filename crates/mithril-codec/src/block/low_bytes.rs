//! Low bytes of elements that are no noise: streams of their own beside the bit fields.
//!
//! Mantissas of trained weights are noise, and their bits are copied. But rows of an embedding that training never touched
//! still have the low bits that they were made with, and weight decay moves all of them by the same few steps: then a
//! low byte has few values, none of which need be zero. The streams stand in the place of dead bits: the fields are
//! those of elements whose low bytes are cleared.

use super::Scratch;
use super::fields::read_element;
use super::output::{DoesNotFit, Output};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::order_0_65536ths;
use crate::entropy::stream::{self, Allowed};
use crate::transform::fields::FieldSplit;

/// Elements that settle whether low bytes are coded.
const SAMPLED: usize = 4096;

/// Fewer elements do not pay for tables and states.
const MIN_ELEMENTS: usize = 1024;

/// An eighth of a bit per element must be saved: less is not worth decoding slower.
const MIN_SAVED: u64 = (1 << 16) / 8;

/// What a sample's entropy lacks for each value in it: half of a nat (by Miller and Madow), in 65536ths of a bit.
const LACKING: u64 = 47_274;

/// Elements of a row that are looked at; random bytes have 57 values among them.
const ROW_SAMPLED: usize = 64;

/// A row with at most so many distinct low bytes among those is set apart.
const FEW: u32 = 32;

/// How many low bytes of the elements are worth coding. A sample tells.
pub(super) fn n_coded(split: &FieldSplit, elements: &[u8]) -> usize {
    let width = usize::from(split.layout.width);
    let n = elements.len() / width;
    let most = split.top_shift() as usize / 8;
    if n < MIN_ELEMENTS || most == 0 {
        return 0;
    }
    let n_sampled = n.min(SAMPLED);
    let step = n / n_sampled;
    let mut counts = vec![[0u32; 256]; most];
    for i in 0..n_sampled {
        // A step that is no multiple of a power of two does not follow the columns of a matrix.
        let element = read_element(elements, width, i * step + i * 37 % step);
        for (counts, byte) in counts.iter_mut().zip(element.to_le_bytes()) {
            counts[usize::from(byte)] += 1;
        }
    }
    let (mut raw, mut coded) = (0, 0);
    let mut best = (MIN_SAVED * n_sampled as u64, 0);
    for (at, counts) in counts.iter().enumerate() {
        let dead = u64::from(split.dead).saturating_sub(8 * at as u64).min(8);
        raw += ((8 - dead) << 16) * n_sampled as u64;
        coded += entropy_65536ths(counts);
        let saved = raw.saturating_sub(coded);
        if saved > best.0 {
            best = (saved, at + 1);
        }
    }
    best.1
}

/// Bits of a plane of which a sample has these counts, in 65536ths.
fn entropy_65536ths(counts: &[u32; 256]) -> u64 {
    let n_values = counts.iter().filter(|&&count| count > 0).count() as u64;
    order_0_65536ths(counts) + n_values.saturating_sub(1) * LACKING
}

/// Whether the lowest bytes of a row are so few that it is better coded apart from others.
pub fn has_few_low_bytes(row: &[u8], width: usize) -> bool {
    let n = row.len() / width;
    if n < ROW_SAMPLED || width < 2 {
        return false;
    }
    let mut seen = [0u64; 4];
    for i in 0..ROW_SAMPLED {
        let byte = row[i * n / ROW_SAMPLED * width];
        seen[usize::from(byte / 64)] |= 1 << (byte % 64);
    }
    seen.iter().map(|bits| bits.count_ones()).sum::<u32>() <= FEW
}

/// The elements without their low bytes.
pub(super) fn cleared(elements: &[u8], width: usize, n_low: usize) -> Vec<u8> {
    let mut cleared = elements.to_vec();
    cleared.chunks_exact_mut(width).for_each(|element| element[..n_low].fill(0));
    cleared
}

/// Writes the low bytes: one stream for each, lowest first.
pub(super) fn encode(
    elements: &[u8],
    width: usize,
    n_low: usize,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let (mut plane, mut coded) = (Vec::with_capacity(elements.len() / width), Vec::new());
    for at in 0..n_low {
        plane.clear();
        plane.extend(elements.chunks_exact(width).map(|element| element[at]));
        coded.clear();
        stream::encode_smallest(&plane, Allowed::Entropy, &mut coded);
        out.push(&coded)?;
    }
    Ok(())
}

/// Reads the low bytes into elements that lack them.
pub(super) fn decode(
    cursor: &mut Cursor<'_>,
    width: usize,
    n_low: usize,
    elements: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let plane = &mut scratch.bytes;
    plane.resize(elements.len() / width, 0);
    for at in 0..n_low {
        stream::decode_into(cursor, plane)?;
        for (element, byte) in elements.chunks_exact_mut(width).zip(plane.iter()) {
            element[at] = *byte;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::block::{
        FieldRecipe, MAX_OVERHEAD, Place, Recipe, Scratch, Shared, SymbolCoder, SymbolTables,
        decode_block_and_sum, encode_block,
    };
    use crate::transform::fields::Layout;
    use crate::{Contexts, checksum};

    /// Floats of four bytes with random mantissas; in those that `has_few` picks, the lowest 13 bits have three values.
    fn floats(n: usize, has_few: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut state = 5u64;
        let mut bytes = Vec::with_capacity(4 * n);
        for i in 0..n {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let exponent = 120 - u64::from((state >> 50 | 1 << 9).trailing_zeros());
            let low = if has_few(i) { [0x1c1a, 0x1b3e, 0x1ab3][i % 3] } else { state >> 20 & 0x1fff };
            let element = state >> 63 << 31 | exponent << 23 | (state >> 33 & 0x3ff) << 13 | low;
            bytes.extend(&element.to_le_bytes()[..4]);
        }
        bytes
    }

    fn coded_len(recipe: &Recipe, shared: &Shared, source: &[u8]) -> usize {
        let mut scratch = Scratch::new();
        let mut coded = vec![0; source.len() + MAX_OVERHEAD];
        let len = encode_block(recipe, shared, Place::default(), source, &mut scratch, &mut coded);
        let mut raw = vec![0; source.len()];
        let sum = decode_block_and_sum(coded[..len].into(), shared, &mut raw, &mut scratch).unwrap();
        assert!(raw == source && sum == checksum(source), "{recipe:?}");
        len
    }

    fn recipes(coded_low: bool) -> [FieldRecipe; 2] {
        let plain = FieldRecipe {
            layout: Layout::float(4, 23),
            joint: 0,
            base: 0,
            coder: SymbolCoder::Rans8,
            coded_low,
        };
        [plain, FieldRecipe { joint: 2, base: 300, coder: SymbolCoder::Rans12, ..plain }]
    }

    #[test]
    fn low_bytes_of_few_values_are_coded_and_noise_is_not() {
        for n in [1024, 1055, 40_000] {
            for at in 0..2 {
                let len = |coded_low: bool, source: &[u8]| {
                    coded_len(&Recipe::Fields(recipes(coded_low)[at]), &Shared::default(), source)
                };
                let mut source = floats(n, |_| true);
                source.extend([1, 2, 3]);
                // Nine bits of thirteen, less what tables and states take.
                assert!(len(true, &source) + n < len(false, &source) + 700, "{n} elements, {at}");
                let source = floats(n, |_| false);
                assert_eq!(len(true, &source), len(false, &source));
            }
        }
    }

    #[test]
    fn rows_with_few_low_bytes_are_coded_apart() {
        let (n_rows, row_len) = (200, 96);
        let shared = Shared::new(
            Some((Contexts::new(vec![0; n_rows], vec![0; row_len]), SymbolTables::Rans8PerBlock)),
            None,
        );
        let source = floats(n_rows * row_len, |i| i / row_len % 10 == 3);
        let [recipe, _] = recipes(true);
        let (rows, fields) = (Recipe::Rows(recipe), Recipe::Fields(recipe));
        assert!(coded_len(&rows, &shared, &source) + 1000 < coded_len(&fields, &shared, &source));
        // All rows alike need no parts.
        let source = floats(n_rows * row_len, |_| true);
        assert_eq!(coded_len(&rows, &shared, &source), coded_len(&fields, &shared, &source));
    }
}
