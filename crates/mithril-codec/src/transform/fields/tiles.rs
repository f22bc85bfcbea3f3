//! Splitting and joining tiles of 256 elements: the scalar definition, written so that the compiler turns the
//! natural order into vector code.

#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of words by casts, on purpose")]

use super::{FieldSplit, Order, TILE, VECTOR, byte_order, low_mask, piece_len, pieces, set_signs};
use crate::arch::{JoinTiles, kernels};

/// Splits `source` into one plane byte per element and the rest. `plane` has one byte per element, padded to
/// whole vectors; `rest` has `rest_len` bytes.
pub(crate) fn split_tiles(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    let done = kernels().split_tiles(split, source, plane, rest);
    let source = &source[done * usize::from(split.layout.width)..];
    split_tiles_portable(split, source, &mut plane[done..], &mut rest[split.rest_len(done)..]);
}

/// Joins plane and rest to elements.
pub(crate) fn join_tiles(split: &FieldSplit, plane: &[u8], rest: &[u8], out: &mut [u8]) {
    Joiner::new(split).join(plane, None, rest, out);
}

/// Joins the pieces of a block: what its kernel needs is made once.
pub(crate) struct Joiner<'a> {
    split: &'a FieldSplit,
    /// Bytes of the rest of a tile.
    tile_len: usize,
    kernel: Option<Box<dyn JoinTiles>>,
}

impl<'a> Joiner<'a> {
    pub(crate) fn new(split: &'a FieldSplit) -> Self {
        Self { split, tile_len: split.rest_len(TILE), kernel: kernels().tile_joiner(split) }
    }

    /// Bytes of the rest of `n` elements.
    pub(crate) fn rest_len(&self, n: usize) -> usize {
        n / TILE * self.tile_len + if n.is_multiple_of(TILE) { 0 } else { self.split.rest_len(n % TILE) }
    }

    /// Joins plane, rest and, where they are apart, signs to elements.
    pub(crate) fn join(&self, plane: &[u8], signs: Option<&[u8]>, rest: &[u8], out: &mut [u8]) {
        let done = self.kernel.as_ref().map_or(0, |kernel| kernel.join(self.split, plane, signs, rest, out));
        let width = usize::from(self.split.layout.width);
        let (plane, rest, out) = (&plane[done..], &rest[self.rest_len(done)..], &mut out[done * width..]);
        join_tiles_portable(self.split, plane, rest, out);
        if let Some(signs) = signs {
            set_signs(&signs[done..], width, out);
        }
    }
}

/// The meaning of splitting. Inlined into kernels so that it is compiled once for each instruction set.
#[inline(always)]
pub(crate) fn split_tiles_portable(split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) {
    match split.layout.width {
        1 => split_words!(u8, split, source, plane, rest),
        2 => split_words!(u16, split, source, plane, rest),
        4 => split_words!(u32, split, source, plane, rest),
        _ => split_words!(u64, split, source, plane, rest),
    }
}

/// The meaning of joining.
#[inline(always)]
pub(crate) fn join_tiles_portable(split: &FieldSplit, plane: &[u8], rest: &[u8], out: &mut [u8]) {
    match split.layout.width {
        1 => join_words!(u8, split, plane, rest, out),
        2 => join_words!(u16, split, plane, rest, out),
        4 => join_words!(u32, split, plane, rest, out),
        _ => join_words!(u64, split, plane, rest, out),
    }
}

/// Constants of a split in the element's own type.
macro_rules! word_fields {
    ($word:ty, $split:expr) => {{
        let split: &FieldSplit = $split;
        let bits = <$word>::BITS;
        let magnitude = low_mask(bits - u32::from(split.layout.sign)) as $word;
        let flip: $word = if split.layout.flip { 1 << (bits - 1) } else { 0 };
        (bits, magnitude, flip, split.top_shift(), low_mask(split.top_bits()) as $word)
    }};
}

macro_rules! split_words {
    ($word:ty, $split:expr, $source:expr, $plane:expr, $rest:expr) => {{
        let (split, mut rest): (&FieldSplit, &mut [u8]) = ($split, $rest);
        let (bits, magnitude, flip, top_shift, top_mask) = word_fields!($word, split);
        let base = u64::from(split.base) as $word;
        let (elements, _) = $source.as_chunks::<{ size_of::<$word>() }>();
        for (tile, plane) in elements.chunks(TILE).zip($plane.chunks_mut(TILE)) {
            let n_vectors = tile.len().div_ceil(VECTOR);
            let mut values = [0 as $word; TILE];
            for (value, bytes) in values.iter_mut().zip(tile) {
                *value = <$word>::from_le_bytes(*bytes) ^ flip;
            }
            if split.order == Order::Packed {
                values = reorder(&values, byte_order(split.layout.width));
            }
            let mut tops = [0u8; TILE];
            for (top, &value) in tops.iter_mut().zip(&values) {
                let index = (((value & magnitude) >> top_shift) & top_mask).wrapping_sub(base);
                *top = index.min(255 as $word) as u8;
            }
            let plane_len = plane.len();
            plane.copy_from_slice(&tops[..plane_len]);
            for group in split.groups() {
                let mut bytes = [0u8; TILE];
                let mask = low_mask(group.n_bits) as u8;
                for (byte, &value) in bytes.iter_mut().zip(&values) {
                    *byte = (value >> group.low) as u8 & mask;
                }
                if group.sign {
                    for (byte, &value) in bytes.iter_mut().zip(&values) {
                        *byte |= ((value >> (bits - 1)) as u8) << group.n_bits;
                    }
                }
                rest = pack_group(&bytes, group.width(), n_vectors, rest);
            }
        }
    }};
}

macro_rules! join_words {
    ($word:ty, $split:expr, $plane:expr, $rest:expr, $out:expr) => {{
        let (split, mut rest): (&FieldSplit, &[u8]) = ($split, $rest);
        let (bits, _, flip, top_shift, top_mask) = word_fields!($word, split);
        let base = u64::from(split.base) as $word;
        let (elements, _) = $out.as_chunks_mut::<{ size_of::<$word>() }>();
        for (tile, plane) in elements.chunks_mut(TILE).zip($plane.chunks(TILE)) {
            let n_vectors = tile.len().div_ceil(VECTOR);
            let mut tops = [0u8; TILE];
            tops[..plane.len()].copy_from_slice(plane);
            let mut values = [0 as $word; TILE];
            for (value, &index) in values.iter_mut().zip(&tops) {
                *value = (((index as $word).wrapping_add(base) & top_mask) << top_shift) ^ flip;
            }
            for group in split.groups() {
                let mut bytes = [0u8; TILE];
                rest = unpack_group(rest, group.width(), n_vectors, &mut bytes);
                let mask = low_mask(group.n_bits) as u8;
                for (value, &byte) in values.iter_mut().zip(&bytes) {
                    *value ^= ((byte & mask) as $word) << group.low;
                }
                if group.sign {
                    for (value, &byte) in values.iter_mut().zip(&bytes) {
                        *value ^= ((byte >> group.n_bits) as $word) << (bits - 1);
                    }
                }
            }
            if split.order == Order::Packed {
                values = undo_reorder(&values, byte_order(split.layout.width));
            }
            for (out, value) in tile.iter_mut().zip(values) {
                *out = value.to_le_bytes();
            }
        }
    }};
}

use {join_words, split_words, word_fields};

/// Elements of every vector in another order: position `p` takes element `order[p]`.
fn reorder<T: Copy>(tile: &[T; TILE], order: [usize; VECTOR]) -> [T; TILE] {
    std::array::from_fn(|at| tile[at / VECTOR * VECTOR + order[at % VECTOR]])
}

/// What [`reorder`] was given.
fn undo_reorder<T: Copy>(tile: &[T; TILE], order: [usize; VECTOR]) -> [T; TILE] {
    let mut natural = *tile;
    for (at, &value) in tile.iter().enumerate() {
        natural[at / VECTOR * VECTOR + order[at % VECTOR]] = value;
    }
    natural
}

/// Writes a group of every element of a tile; returns what is left of `rest`.
#[inline(always)]
fn pack_group<'a>(bytes: &[u8; TILE], width: u32, n_vectors: usize, mut rest: &'a mut [u8]) -> &'a mut [u8] {
    for (shift, width) in pieces(width) {
        let (out, left) = rest.split_at_mut(piece_len(width, n_vectors));
        rest = left;
        match width {
            8 => {
                let len = out.len();
                out.copy_from_slice(&bytes[..len]);
            }
            4 => pack_shared::<2>(bytes, shift, out),
            2 => pack_shared::<4>(bytes, shift, out),
            _ => pack_shared::<8>(bytes, shift, out),
        }
    }
    rest
}

/// Reads a group of every element of a tile; returns what is left of `rest`.
#[inline(always)]
fn unpack_group<'a>(mut rest: &'a [u8], width: u32, n_vectors: usize, bytes: &mut [u8; TILE]) -> &'a [u8] {
    for (shift, width) in pieces(width) {
        let (piece, left) = rest.split_at(piece_len(width, n_vectors));
        rest = left;
        match width {
            8 => bytes[..piece.len()].copy_from_slice(piece),
            4 => unpack_shared::<2>(piece, shift, bytes),
            2 => unpack_shared::<4>(piece, shift, bytes),
            _ => unpack_shared::<8>(piece, shift, bytes),
        }
    }
    rest
}

/// `SHARED` vectors share each byte of a piece, the first in its lowest bits.
#[inline(always)]
fn pack_shared<const SHARED: usize>(bytes: &[u8; TILE], shift: u32, out: &mut [u8]) {
    let width = 8 / SHARED;
    let mask = u8::MAX >> (8 - width);
    for (vectors, out) in bytes.chunks_exact(SHARED * VECTOR).zip(out.as_chunks_mut::<VECTOR>().0) {
        let mut packed = [0u8; VECTOR];
        for (shared, vector) in vectors.as_chunks::<VECTOR>().0.iter().enumerate() {
            for (packed, &byte) in packed.iter_mut().zip(vector) {
                *packed |= (byte >> shift & mask) << (width * shared);
            }
        }
        *out = packed;
    }
}

/// Or-s the parts that [`pack_shared`] packed into the bytes they belong to.
#[inline(always)]
fn unpack_shared<const SHARED: usize>(piece: &[u8], shift: u32, bytes: &mut [u8; TILE]) {
    let width = 8 / SHARED;
    let mask = u8::MAX >> (8 - width);
    for (packed, vectors) in piece.as_chunks::<VECTOR>().0.iter().zip(bytes.chunks_exact_mut(SHARED * VECTOR))
    {
        for (shared, vector) in vectors.as_chunks_mut::<VECTOR>().0.iter_mut().enumerate() {
            for (byte, &packed) in vector.iter_mut().zip(packed) {
                *byte |= (packed >> (width * shared) & mask) << shift;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Layout;
    use super::super::signs::set_signs_portable;
    use super::*;
    use crate::arch::{KernelSet, kernel_sets, with_kernels};
    use crate::sizes;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect()
    }

    /// Every split that an encoder may choose, and more.
    fn splits() -> Vec<FieldSplit> {
        let mut splits = Vec::new();
        for layout in [(1, 2), (1, 3), (2, 7), (2, 10), (4, 23), (8, 52)].map(|(w, m)| Layout::float(w, m)) {
            for order in [Order::Natural, Order::Packed] {
                for joint in 0..=4 {
                    for dead in [0, 1, 3, 7, 13, 16, 23] {
                        for raw_sign in [true, false] {
                            splits.push(FieldSplit { layout, joint, dead, order, raw_sign, base: 0 });
                        }
                    }
                }
            }
        }
        for (width, mantissa) in [(1, 0), (1, 1), (1, 4), (1, 8), (2, 3), (4, 15), (8, 40), (8, 64)] {
            for flip in [true, false] {
                let layout = Layout { width, mantissa, sign: false, flip };
                splits.push(FieldSplit { raw_sign: false, ..FieldSplit::plain(layout, Order::Natural) });
            }
        }
        let layout = Layout { width: 2, mantissa: 10, sign: false, flip: false };
        splits.extend([Order::Natural, Order::Packed].map(|order| FieldSplit::plain(layout, order)));
        splits.retain(|split| split.validate().is_ok());
        splits
    }

    /// Elements whose dead bits are zero and whose coded field fits the plane.
    fn elements(split: &FieldSplit, n: usize, seed: u64) -> Vec<u8> {
        let width = split.width() as usize;
        let flip = if split.layout.flip { 1 << (split.width() * 8 - 1) } else { 0 };
        let mut bytes = noise(n * width, seed);
        for element in bytes.chunks_mut(width) {
            let mut word = [0; 8];
            word[..width].copy_from_slice(element);
            let mut value = u64::from_le_bytes(word) & !low_mask(u32::from(split.dead));
            let sign = if split.layout.sign && split.raw_sign {
                value >> (split.width() * 8 - 1) << (split.width() * 8 - 1)
            } else {
                0
            };
            value = sign
                | (split.top(value) & 0xff).min(254) << split.top_shift()
                | value & low_mask(split.top_shift());
            element.copy_from_slice(&((value ^ flip).to_le_bytes()[..width]));
        }
        bytes
    }

    fn check(split: &FieldSplit, n: usize) {
        let bytes = elements(split, n, n as u64 * 77 + 5);
        let padded = n.div_ceil(VECTOR) * VECTOR;
        let (mut plane, mut rest) = (vec![0; padded], vec![0; split.rest_len(n)]);
        split_tiles(split, &bytes, &mut plane, &mut rest);
        let (mut plane_portable, mut rest_portable) = (vec![0; padded], vec![0; split.rest_len(n)]);
        split_tiles_portable(split, &bytes, &mut plane_portable, &mut rest_portable);
        assert!(plane == plane_portable && rest == rest_portable, "{split:?} n {n}");
        for (at, &index) in plane[..n].iter().enumerate() {
            let element = split.element_at(at);
            if element < n {
                let width = split.width() as usize;
                let mut word = [0; 8];
                word[..width].copy_from_slice(&bytes[element * width..][..width]);
                assert_eq!(u64::from(index), split.top(u64::from_le_bytes(word)), "{split:?} n {n} at {at}");
            }
        }
        let join = |kernels: KernelSet, plane: &[u8], rest: &[u8]| {
            let mut joined = vec![1; bytes.len()];
            with_kernels(kernels, || join_tiles(split, plane, rest, &mut joined));
            joined
        };
        // Bytes that nobody has split are joined alike, too.
        let (any_plane, any_rest) = (noise(padded, 3 + n as u64), noise(rest.len(), 4 + n as u64));
        let any = join(KernelSet::Scalar, &any_plane, &any_rest);
        for kernels in kernel_sets() {
            assert_eq!(join(kernels, &plane, &rest), bytes, "{kernels:?} {split:?} n {n}");
            assert_eq!(join(kernels, &any_plane, &any_rest), any, "{kernels:?} {split:?} n {n}");
        }
        if split.layout.sign && !split.raw_sign {
            let mut signs = noise(n, 5 + n as u64);
            signs.iter_mut().for_each(|sign| *sign &= 1);
            let mut signed = any;
            set_signs_portable(&signs, split.width() as usize, &mut signed);
            for kernels in kernel_sets() {
                let mut joined = vec![1; bytes.len()];
                with_kernels(kernels, || {
                    Joiner::new(split).join(&any_plane, Some(&signs), &any_rest, &mut joined);
                });
                assert_eq!(joined, signed, "{kernels:?} {split:?} n {n}");
            }
        }
    }

    #[test]
    fn every_split_joins_back_for_all_short_lengths() {
        let splits = splits();
        assert!(splits.len() > 100);
        for split in splits.iter().step_by(sizes(1, 67)) {
            for n in (0..sizes(40, 0))
                .chain([255, 256, 257, 288, 400, 512, 777])
                .step_by(sizes(1, 3))
                .take(sizes(47, 1))
            {
                check(split, n);
            }
        }
        for split in splits.iter().filter(|split| split.order == Order::Packed).step_by(sizes(1, 67)) {
            (0..=400).step_by(sizes(1, 201)).for_each(|n| check(split, n));
        }
    }

    #[test]
    fn elements_outside_the_plane_are_marked_by_255() {
        let split = FieldSplit { base: 100, ..FieldSplit::plain(Layout::float(8, 52), Order::Natural) };
        let values = [0.0f64, 1.0, f64::INFINITY, 1e-300];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (mut plane, mut rest) = (vec![0; 32], vec![0; split.rest_len(4)]);
        split_tiles(&split, &bytes, &mut plane, &mut rest);
        assert_eq!(plane[..4], [255, 255, 255, 255]);
    }
}
