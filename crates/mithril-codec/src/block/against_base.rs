//! Blocks given the same block of a base: equal to it, differences, or exclusive or.
//!
//! * same: `[1] kind` and nothing else;
//! * difference: see [`crate::delta`];
//! * xor: `[1] kind`, then a block of another kind with the exclusive or of the block and its base.

use super::output::{DoesNotFit, Output};
use super::{
    CodedBlock, Delta, MAX_OVERHEAD, Padded, Place, RawBlock, Recipe, Scratch, Shared, decode_block,
    encode_block, encode_by_recipe, fields, low_bytes,
};
use crate::CodecError;
use crate::delta;
use crate::forever::kind;
use crate::transform::fields::{FieldSplit, Order};

/// Encodes against the base, or alone where that is smaller.
pub(super) fn encode(
    recipe: &Delta,
    alone: &Recipe,
    raw: RawBlock<'_>,
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let RawBlock { source, place, .. } = raw;
    let Some(base) = place.base.filter(|base| base.len() == source.len()) else {
        return encode_by_recipe(alone, raw, scratch, out);
    };
    if base == source {
        return out.push(&[kind::SAME]);
    }
    let mut coded = std::mem::take(&mut scratch.coded);
    coded.clear();
    match recipe {
        Delta::Difference(recipe) => {
            coded.push(kind::DIFFERENCE);
            delta::encode(recipe, base, source, &mut scratch.delta, &mut coded);
        }
        Delta::Xor(recipe) => encode_xor(recipe, base, source, scratch, &mut coded),
    }
    let mut written = Err(DoesNotFit);
    if coded.len() > least_len(alone, source) {
        written = encode_by_recipe(alone, raw, scratch, out);
    }
    if written.is_err() || coded.len() < out.len() {
        written = out.restart().push(&coded);
    }
    scratch.coded = coded;
    written
}

fn encode_xor(recipe: &Recipe, base: &[u8], source: &[u8], scratch: &mut Scratch, coded: &mut Vec<u8>) {
    let changed: Vec<u8> = source.iter().zip(base).map(|(x, base)| x ^ base).collect();
    coded.resize(1 + changed.len() + MAX_OVERHEAD, 0);
    coded[0] = kind::XOR;
    let len = encode_block(recipe, &Shared::default(), Place::default(), &changed, scratch, &mut coded[1..]);
    coded.truncate(1 + len);
}

/// Bytes that a block takes at least by this recipe; zero when nothing is known. Bit fields keep their rest as it is, so
/// that dense floats need not be coded twice to know what is smaller.
pub fn least_len(recipe: &Recipe, source: &[u8]) -> usize {
    let Recipe::Fields(recipe) = recipe else { return 0 };
    if super::constant_pattern(source).is_some() {
        return 0;
    }
    let mut split = FieldSplit {
        joint: recipe.joint,
        raw_sign: false,
        ..FieldSplit::plain(recipe.layout, Order::Natural)
    };
    let width = usize::from(recipe.layout.width);
    let n = source.len() / width;
    split.dead = fields::dead_bits(&split, &source[..n * width]);
    if recipe.coded_low && low_bytes::n_coded(&split, &source[..n * width]) > 0 {
        return 0;
    }
    split.rest_len(n / 256 * 256)
}

pub(super) fn decode_same(rest: &[u8], base: Option<&[u8]>, out: &mut [u8]) -> Result<(), CodecError> {
    let base = base_of(base, out)?;
    if !rest.is_empty() {
        return Err(CodecError::corrupt("bytes behind a block that is the same"));
    }
    out.copy_from_slice(base);
    Ok(())
}

pub(super) fn decode_difference(
    block: Padded<'_>,
    base: Option<&[u8]>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let base = base_of(base, out)?;
    delta::decode(block, base, out, &mut scratch.delta)
}

pub(super) fn decode_xor(
    block: Padded<'_>,
    base: Option<&[u8]>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let base = base_of(base, out)?;
    let inner = block.last(block.bytes().len() - 1);
    if matches!(
        inner.bytes().first(),
        Some(&(kind::ROWS | kind::SAME | kind::DIFFERENCE | kind::XOR | kind::PREDICTED))
    ) {
        return Err(CodecError::corrupt("kind of a block within a xor block"));
    }
    let inner = CodedBlock { bytes: inner, first_byte: 0, base: None };
    decode_block(inner, &Shared::default(), out, scratch)?;
    out.iter_mut().zip(base).for_each(|(x, base)| *x ^= base);
    Ok(())
}

/// The base, which a block of these kinds needs, and which is as long as the block.
fn base_of<'a>(base: Option<&'a [u8]>, out: &[u8]) -> Result<&'a [u8], CodecError> {
    base.filter(|base| base.len() == out.len())
        .ok_or(CodecError::corrupt("block that needs a base without one"))
}
