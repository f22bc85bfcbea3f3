//! One block: some elements to bytes that decode alone, and back.
//!
//! A [`Recipe`] says what to try; the block itself decides what cannot be known before it is seen (constant,
//! dead bits, windows), and is stored as it is when nothing helps. Decoding needs the bytes and what the blocks
//! of a tensor share ([`Shared`]), nothing else.

mod against_base;
mod classed;
mod fields;
mod low_bytes;
mod output;
mod palette;
mod planes;
mod predicted;
mod rans8_parts;
mod recipe;
mod rows;
mod shared;
mod signs;
mod sparse;
pub(crate) mod symbols;
mod untyped;

pub use against_base::least_len;
pub use low_bytes::has_few_low_bytes;
pub use rans8_parts::{Piece, Rans8Parts};
pub use recipe::{Delta, FieldRecipe, Recipe, SymbolCoder};
pub use shared::{Shared, SharedSigns, SharedSymbols, SymbolTables};
pub(crate) use signs::QUAD;

pub(crate) use signs::{
    collect_portable as collect_signs_portable, spread_portable as spread_signs_portable,
};

use crate::CodecError;
use crate::bytes::Cursor;
pub use crate::bytes::Padded;
use crate::checksum::{Checksummer, checksum};
use crate::forever::kind;
use fields::Rows;
use output::{DoesNotFit, Output};

/// Bytes that a coded block may take beyond its raw length: the kind.
pub const MAX_OVERHEAD: usize = 1;

/// Where a block lies in its tensor, and what comes after it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place<'a> {
    /// Where the block's first byte lies in the tensor.
    pub first_byte: u64,
    /// The bytes that will be encoded next, if they are at hand: kernels bring them into the cache.
    pub next: &'a [u8],
    /// The same bytes of the base, if the recipe is one against a base.
    pub base: Option<&'a [u8]>,
}

/// Buffers that blocks reuse; one per thread.
#[derive(Debug, Default)]
pub struct Scratch {
    plane: Vec<u8>,
    bucketed: Vec<u8>,
    room: Vec<u8>,
    bytes: Vec<u8>,
    sign_plane: Vec<u8>,
    bucketed_signs: Vec<u8>,
    inner: Vec<u8>,
    escapes: Vec<u32>,
    rows: Vec<u32>,
    coded: Vec<u8>,
    patches: Vec<(u32, u16)>,
    block: Vec<u8>,
    delta: crate::delta::Scratch,
    prediction: crate::prediction::Scratch,
}

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs with a buffer for a whole block (the base of one that is decoded over it, a copy of one that others may change),
    /// and with the rest of the scratch.
    pub fn with_block<T>(&mut self, work: impl FnOnce(&mut Vec<u8>, &mut Self) -> T) -> T {
        let mut block = std::mem::take(&mut self.block);
        let result = work(&mut block, self);
        self.block = block;
        result
    }
}

/// Encodes a block to the front of `out`, which holds `source.len() + MAX_OVERHEAD` bytes; returns the length.
///
/// # Panics
/// When `out` is too small.
pub fn encode_block(
    recipe: &Recipe,
    shared: &Shared,
    place: Place<'_>,
    source: &[u8],
    scratch: &mut Scratch,
    out: &mut [u8],
) -> usize {
    assert!(out.len() >= source.len() + MAX_OVERHEAD, "a block may not fit its output");
    let mut output = Output::new(&mut out[..source.len() + MAX_OVERHEAD]);
    let raw = RawBlock { source, shared, place };
    match encode_by_recipe(recipe, raw, scratch, &mut output) {
        // A block that saves nothing is stored: it decodes faster.
        Ok(()) if output.len() <= source.len() => output.len(),
        _ => store_block(source, out),
    }
}

/// Stores a block as it is, as [`encode_block`] does with one that saves nothing; returns the length.
///
/// # Panics
/// When `out` does not hold `source.len() + MAX_OVERHEAD` bytes.
pub fn store_block(source: &[u8], out: &mut [u8]) -> usize {
    out[0] = kind::STORED;
    out[1..=source.len()].copy_from_slice(source);
    source.len() + 1
}

/// A block to encode, and what its tensor knows of it.
#[derive(Clone, Copy)]
struct RawBlock<'a> {
    source: &'a [u8],
    shared: &'a Shared,
    place: Place<'a>,
}

fn encode_by_recipe(
    recipe: &Recipe,
    raw: RawBlock<'_>,
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let RawBlock { source, place, .. } = raw;
    if let Recipe::AgainstBase { delta, alone } = recipe {
        return against_base::encode(delta, alone, raw, scratch, out);
    }
    if matches!(recipe, Recipe::Predicted) && place.base == Some(source) {
        return out.push(&[kind::SAME]);
    }
    if let Some(pattern) = constant_pattern(source) {
        return out.push(&[kind::CONSTANT]).and(out.push(pattern));
    }
    match recipe {
        Recipe::Stored | Recipe::AgainstBase { .. } => Err(DoesNotFit),
        Recipe::Predicted => predicted::encode(raw, scratch, out),
        Recipe::Fields(recipe) => {
            let rows = fields::block_rows(recipe, raw, scratch);
            let result = fields::encode_crowded_or_not(recipe, raw, &rows, scratch, out);
            scratch.rows = rows;
            result
        }
        Recipe::Rows(recipe) => rows::encode(recipe, raw, scratch, out),
        Recipe::Planes { width, compressors } => planes::encode(*width, compressors, source, out),
        Recipe::Untyped { compressors } => untyped::encode(compressors, source, out),
        Recipe::Runs { run_lens, compressors } => planes::encode_runs(run_lens, compressors, source, out),
        Recipe::Palette { width, compressors, otherwise } => {
            match palette::encode(*width, compressors, source, out) {
                Ok(()) => Ok(()),
                Err(DoesNotFit) => encode_by_recipe(otherwise, raw, scratch, out.restart()),
            }
        }
        Recipe::Sparse { width, nonzero } => sparse::encode(*width, nonzero, source, scratch, out),
    }
}

/// A coded block, and what its frame knows of it.
#[derive(Debug, Clone, Copy)]
pub struct CodedBlock<'a> {
    /// Its bytes.
    pub bytes: Padded<'a>,
    /// Where its first raw byte lies in the tensor.
    pub first_byte: u64,
    /// What the base has in this place, for frames that have one.
    pub base: Option<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for CodedBlock<'a> {
    /// The first block of a tensor without a base, with nothing after it.
    fn from(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.into(), first_byte: 0, base: None }
    }
}

/// Decodes a block into exactly `out`.
///
/// # Errors
/// When the block is damaged or needs something that this build does not know.
pub fn decode_block(
    block: CodedBlock<'_>,
    shared: &Shared,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    decode_taking(block, shared, None, out, scratch).map(|_| ())
}

/// Decodes a block as [`decode_block`] does and returns the checksum of its raw bytes, which is taken on the way where
/// that is faster.
///
/// # Errors
/// As [`decode_block`].
pub fn decode_block_and_sum(
    block: CodedBlock<'_>,
    shared: &Shared,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<u64, CodecError> {
    let mut sum = Checksummer::default();
    let is_summed = decode_taking(block, shared, Some(&mut sum), out, scratch)?;
    Ok(if is_summed { sum.finish() } else { checksum(out) })
}

/// Decodes a block; returns whether `sum` has taken its raw bytes.
fn decode_taking(
    block: CodedBlock<'_>,
    shared: &Shared,
    sum: Option<&mut Checksummer>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<bool, CodecError> {
    let CodedBlock { bytes, first_byte, base } = block;
    let mut cursor = Cursor::new(bytes.bytes(), "block");
    match cursor.u8()? {
        kind::STORED => {
            let raw = cursor.rest();
            if raw.len() != out.len() {
                return Err(CodecError::corrupt("stored block of another size"));
            }
            out.copy_from_slice(raw);
        }
        kind::CONSTANT => fill_constant(cursor.rest(), out)?,
        kind::FIELDS => return fields::decode(bytes, shared, Rows::From(first_byte), sum, out, scratch),
        kind::PLANES => planes::decode(cursor, out, scratch)?,
        kind::PALETTE => palette::decode(cursor, out)?,
        kind::SPARSE => sparse::decode(cursor, out, scratch)?,
        kind::ROWS => rows::decode(cursor, shared, first_byte, out, scratch)?,
        kind::SAME => against_base::decode_same(cursor.rest(), base, out)?,
        kind::DIFFERENCE => against_base::decode_difference(bytes, base, out, scratch)?,
        kind::XOR => against_base::decode_xor(bytes, base, out, scratch)?,
        kind::PREDICTED => predicted::decode(cursor, shared, block, out, scratch)?,
        id => return Err(CodecError::Unsupported { what: "block kind", id: u32::from(id) }),
    }
    Ok(false)
}

/// Whether blocks of this kind can be decoded with their base only.
pub const fn needs_base(kind: u8) -> bool {
    matches!(kind, kind::SAME | kind::DIFFERENCE | kind::XOR)
}

/// The shortest pattern of 1, 2, 4 or 8 bytes that a whole block repeats.
fn constant_pattern(source: &[u8]) -> Option<&[u8]> {
    [1, 2, 4, 8].into_iter().filter(|&len| len < source.len()).find_map(|len| {
        // The first bytes settle nearly every case; comparing the block with itself shifted settles the rest.
        let head = &source[..source.len().min(64)];
        (head[len..] == head[..head.len() - len] && source[len..] == source[..source.len() - len])
            .then(|| &source[..len])
    })
}

fn fill_constant(pattern: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    if !matches!(pattern.len(), 1 | 2 | 4 | 8) {
        return Err(CodecError::corrupt("constant of an odd length"));
    }
    let (half, other_half) = pattern.split_at(pattern.len() / 2);
    if pattern.len() >= out.len() || half == other_half {
        return Err(CodecError::corrupt("constant that is not the shortest"));
    }
    for chunk in out.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::fields::Layout;

    /// Finite floats with exponents like those of weights, and some far from them.
    fn floats(n: usize, layout: Layout) -> Vec<u8> {
        let width = usize::from(layout.width);
        let mut state = 3u64;
        let mut bytes = Vec::with_capacity(n * width);
        for i in 0..n {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let below = u64::from((state >> 40 | 1 << 9).trailing_zeros());
            let exponent = if i % 97 == 5 { 1 } else { 14 - below };
            let mantissa = state >> 20 & ((1 << layout.mantissa) - 1);
            let sign = if layout.sign { state >> 63 } else { 0 };
            let element = sign << (8 * width - 1) | exponent << layout.mantissa | mantissa;
            bytes.extend(&element.to_le_bytes()[..width]);
        }
        bytes
    }

    #[test]
    fn tiles_are_finished_and_summed_at_any_place_of_the_output() {
        let halves_without_sign = Layout { width: 2, mantissa: 10, sign: false, flip: false };
        let layouts = [(2, 7), (2, 10), (4, 23), (1, 3)].map(|(width, m)| Layout::float(width, m));
        for layout in layouts.into_iter().chain([halves_without_sign]) {
            let listed = layout == halves_without_sign;
            let coder = if listed { SymbolCoder::Rans8Listed } else { SymbolCoder::Rans8 };
            let recipe = Recipe::Fields(FieldRecipe { layout, joint: 0, base: 0, coder, coded_low: false });
            let source = floats(16_384 + 96, layout);
            let (shared, mut scratch) = (Shared::default(), Scratch::new());
            let mut coded = vec![0; source.len() + MAX_OVERHEAD];
            let len = encode_block(&recipe, &shared, Place::default(), &source, &mut scratch, &mut coded);
            assert_eq!(coded[0], kind::FIELDS);
            // As in a frame, where kernels may look at what follows, and alone.
            coded.truncate(len);
            for slack in [0, 4096] {
                coded.resize(len + slack, 0xee);
                for at in (0..64).chain([100]) {
                    let mut raw = vec![0x5a; source.len() + 200];
                    let out = &mut raw[at..at + source.len()];
                    let bytes = Padded::new(&coded, len).unwrap();
                    let block = CodedBlock { bytes, first_byte: 0, base: None };
                    let sum = decode_block_and_sum(block, &shared, out, &mut scratch).unwrap();
                    assert_eq!(sum, checksum(&source), "{layout:?} at {at}, {slack}");
                    let (before, rest) = raw.split_at(at);
                    let (decoded, after) = rest.split_at(source.len());
                    assert!(decoded == source, "{layout:?} at {at}, {slack}");
                    assert!(before.iter().chain(after).all(|&byte| byte == 0x5a), "{layout:?} at {at}");
                }
            }
        }
    }

    #[test]
    fn exponents_beyond_a_window_of_sixteen_are_coded_by_256_symbols() {
        let layout = Layout::float(4, 23);
        let coder = SymbolCoder::Rans8;
        let recipe = Recipe::Fields(FieldRecipe { layout, joint: 0, base: 0, coder, coded_low: false });
        // One exponent of forty, each as often as the others.
        let mixed = |i: u32| i.wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
        let wide = (0..16_500).flat_map(|i| ((70 + i % 40) << 23 | mixed(i) >> 9).to_le_bytes());
        let source: Vec<u8> = wide.collect();
        let (shared, mut scratch) = (Shared::default(), Scratch::new());
        let mut coded = vec![0; source.len() + MAX_OVERHEAD];
        let len = encode_block(&recipe, &shared, Place::default(), &source, &mut scratch, &mut coded);
        // Sign and mantissa, and log2(40) = 5.33 bits.
        let bits = 8 * len / 16_500;
        assert!(coded[0] == kind::FIELDS && bits == 29, "kind {} of {bits} bits", coded[0]);
        let mut raw = vec![0; source.len()];
        decode_block(coded[..len].into(), &shared, &mut raw, &mut scratch).unwrap();
        assert!(raw == source);
    }

    #[test]
    fn what_a_reader_refuses_is_stored_instead() {
        let source: Vec<u8> = (0..4000u32).flat_map(|i| ((i * i % 977) << 12).to_le_bytes()).collect();
        let good = FieldRecipe {
            layout: Layout { width: 4, mantissa: 16, sign: false, flip: false },
            joint: 0,
            base: 0,
            coder: SymbolCoder::Rans12,
            coded_low: false,
        };
        let layout = good.layout;
        let recipes = [
            (good, kind::FIELDS),
            (FieldRecipe { layout: Layout { sign: true, flip: true, ..layout }, ..good }, kind::STORED),
            (FieldRecipe { layout: Layout { mantissa: 24, ..layout }, base: 1, ..good }, kind::STORED),
            (FieldRecipe { layout: Layout { mantissa: 22, ..layout }, base: 1024, ..good }, kind::STORED),
            (FieldRecipe { joint: 1, ..good }, kind::STORED),
            (FieldRecipe { joint: 17, ..good }, kind::STORED),
        ];
        for (recipe, kind) in recipes {
            let (shared, mut scratch) = (Shared::default(), Scratch::new());
            let mut coded = vec![0; source.len() + MAX_OVERHEAD];
            let place = Place::default();
            let len =
                encode_block(&Recipe::Fields(recipe), &shared, place, &source, &mut scratch, &mut coded);
            assert_eq!(coded[0], kind, "{recipe:?}");
            let mut raw = vec![0; source.len()];
            decode_block(coded[..len].into(), &shared, &mut raw, &mut scratch).unwrap();
            assert!(raw == source, "{recipe:?}");
        }
    }
}
