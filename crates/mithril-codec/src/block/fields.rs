//! Blocks of bit fields: header, packed rest, coded top bits, and coded signs where they are skewed.
//!
//! ```text
//! [1] kind   [1] flags   [1] mantissa   [1] joint   [1] dead   [2] base
//! rest, symbols, signs if coded, low bytes if coded, and the bytes behind the last whole element
//! ```

use super::output::{DoesNotFit, Output};
use super::symbols::{CodedFields, FieldBlock};
use super::{
    FieldRecipe, Padded, RawBlock, Scratch, Shared, SymbolCoder, classed, low_bytes, signs, symbols,
};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::checksum::Checksummer;
use crate::entropy::stream::FOUR_STREAMS_FROM;
use crate::forever::kind;
use crate::transform::fields::{FieldSplit, Layout, Order, VECTOR, split_tiles};

const FLAG_SIGN: u8 = 1 << 2;
const FLAG_FLIP: u8 = 1 << 3;
const FLAG_PACKED: u8 = 1 << 4;
const FLAG_CODED_SIGN: u8 = 1 << 5;
const FLAG_RESERVED: u8 = 1 << 6;
const FLAG_CODED_LOW: u8 = 1 << 7;

/// The rows of a block that lies in a classed matrix; none when the blocks share nothing.
pub(super) fn block_rows(recipe: &FieldRecipe, raw: RawBlock<'_>, scratch: &mut Scratch) -> Vec<u32> {
    let mut rows = std::mem::take(&mut scratch.rows);
    rows.clear();
    let width = usize::from(recipe.layout.width);
    let n = raw.source.len() / width;
    if let Ok(range) = rows_of(raw.shared, raw.place.first_byte, width, n) {
        rows.extend(range);
    }
    rows
}

/// Rows that `n` elements from `first_byte` fill.
fn rows_of(
    shared: &Shared,
    first_byte: u64,
    width: usize,
    n: usize,
) -> Result<std::ops::Range<u32>, CodecError> {
    let Some(row_len) = shared.row_len() else { return Ok(0..0) };
    let misplaced = CodecError::corrupt("block does not hold whole rows");
    let row_bytes = (row_len * width) as u64;
    if !n.is_multiple_of(row_len) || !first_byte.is_multiple_of(row_bytes) {
        return Err(misplaced);
    }
    let first = u32::try_from(first_byte / row_bytes).map_err(|_| misplaced.clone())?;
    let n_rows = u32::try_from(n / row_len).map_err(|_| misplaced.clone())?;
    Ok(first..first.checked_add(n_rows).ok_or(misplaced)?)
}

/// One element in so many outside of the window of sixteen symbols is too many, as each takes three bytes or four; and one
/// byte in so many must be saved.
const CROWDED: usize = 64;

/// As [`encode`], but by 256 symbols where a window of sixteen leaves out many elements and that makes the block smaller:
/// moments of an optimiser, or tensors of different scales one behind the other. They are decoded at a third of the speed.
pub(super) fn encode_crowded_or_not(
    recipe: &FieldRecipe,
    raw: RawBlock<'_>,
    rows: &[u32],
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let in_window = encode(recipe, raw, rows, scratch, out);
    let n = raw.source.len() / usize::from(recipe.layout.width);
    let is_crowded = recipe.coder == SymbolCoder::Rans8
        && (rows.is_empty() || raw.shared.symbols.is_none())
        && scratch.escapes.len() * CROWDED > n;
    if !is_crowded {
        return in_window;
    }
    let len = in_window.map(|()| out.len() - out.len() / CROWDED);
    let wide = FieldRecipe { coder: SymbolCoder::Rans12, ..*recipe };
    let by_wide = encode(&wide, raw, rows, scratch, out.restart());
    match len {
        Ok(len) if by_wide.is_err() || out.len() >= len => encode(recipe, raw, rows, scratch, out.restart()),
        _ => by_wide,
    }
}

pub(super) fn encode(
    recipe: &FieldRecipe,
    raw: RawBlock<'_>,
    rows: &[u32],
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let RawBlock { source, shared, place } = raw;
    let width = usize::from(recipe.layout.width);
    let n = source.len() / width;
    let (elements, tail) = source.split_at(n * width);
    if n == 0 {
        return Err(DoesNotFit);
    }
    let (symbols, signs) =
        if rows.is_empty() { (None, None) } else { (shared.symbols.as_ref(), shared.signs.as_ref()) };
    let signs = signs.filter(|_| recipe.layout.sign);
    let mut split = FieldSplit {
        layout: recipe.layout,
        joint: recipe.joint,
        dead: 0,
        order: Order::Natural,
        raw_sign: recipe.layout.sign && signs.is_none(),
        base: recipe.base,
    };
    // What a reader refuses is not written.
    split.validate().map_err(|_| DoesNotFit)?;
    if recipe.coder == SymbolCoder::Rans8Listed && (symbols.is_some() || split.top_bits() > 6) {
        return Err(DoesNotFit);
    }
    split.dead = dead_bits(&split, elements);
    let n_low = if recipe.coded_low { low_bytes::n_coded(&split, elements) } else { 0 };
    let whole_elements = elements;
    let without_low;
    let elements = if n_low > 0 {
        split.dead = u8::try_from(8 * n_low).map_err(|_| DoesNotFit)?;
        without_low = low_bytes::cleared(elements, width, n_low);
        &without_low
    } else {
        elements
    };
    let fast = symbols.is_none() && recipe.coder != SymbolCoder::Rans12 && n >= FOUR_STREAMS_FROM;
    if fast && split.is_fusable() && n.is_multiple_of(VECTOR) {
        split.order = Order::Packed;
    }
    write_header(&split, n_low > 0, out)?;
    let mut plane = std::mem::take(&mut scratch.plane);
    symbols::resize_plane(&mut plane, n);
    split_tiles(&split, elements, &mut plane[..n.next_multiple_of(32)], out.reserve(split.rest_len(n))?);
    let block = FieldBlock { split: &split, elements, rows, next: place.next };
    let written = symbols::encode(recipe.coder, symbols, &block, &mut plane, scratch, out);
    scratch.plane = plane;
    written?;
    if let Some(signs) = signs {
        signs::encode(signs, rows, width, elements, scratch, out)?;
    }
    low_bytes::encode(whole_elements, width, n_low, out)?;
    out.push(tail)
}

/// The rows of a block in a matrix.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// All from the one that starts at this byte of the tensor.
    From(u64),
    These(&'a [u32]),
}

/// Decodes a block that is known to be of this kind. Returns whether `sum` has taken the decoded bytes.
pub(super) fn decode(
    block: Padded<'_>,
    shared: &Shared,
    rows: Rows<'_>,
    sum: Option<&mut Checksummer>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<bool, CodecError> {
    let mut cursor = Cursor::new(block.bytes(), "bit fields");
    let (split, n_low) = read_header(&mut cursor)?;
    let width = usize::from(split.layout.width);
    let n = out.len() / width;
    let (elements, tail) = out.split_at_mut(n * width);
    if split.order == Order::Packed && !n.is_multiple_of(VECTOR) {
        return Err(CodecError::corrupt("packed order of a broken vector"));
    }
    let rest = cursor.take(split.rest_len(n))?;
    let mut next_rows = Vec::new();
    let rows = match rows {
        Rows::These(rows) => rows,
        Rows::From(first_byte) => {
            next_rows.extend(rows_of(shared, first_byte, width, n).unwrap_or(0..0));
            &next_rows
        }
    };
    let coded = CodedFields { symbols: block.last(cursor.rest().len()), split: &split, rest };
    let has_coded_signs = split.layout.sign && !split.raw_sign;
    let mut sum = sum.filter(|_| n_low == 0);
    let is_summed = if cursor.rest().first().is_some_and(|&coder| classed::is_classed(coder)) {
        let sum = sum.as_deref_mut();
        let is_summed = sum.is_some();
        let used = classed::decode(&coded, shared, rows, sum, elements, scratch)?;
        cursor.take(used)?;
        is_summed
    } else {
        let sum = sum.as_deref_mut().filter(|_| !has_coded_signs);
        let (used, is_summed) = symbols::decode(&coded, sum, elements, scratch)?;
        cursor.take(used)?;
        if has_coded_signs {
            let signs =
                shared.signs.as_ref().ok_or(CodecError::corrupt("coded signs without their tables"))?;
            let used = signs::decode(cursor.rest(), signs, rows, width, elements, scratch)?;
            cursor.take(used)?;
        }
        is_summed
    };
    low_bytes::decode(&mut cursor, width, n_low, elements, scratch)?;
    if cursor.rest().len() != tail.len() {
        return Err(CodecError::corrupt("bytes behind the bit fields"));
    }
    tail.copy_from_slice(cursor.rest());
    if let Some(sum) = sum
        && is_summed
    {
        sum.update(tail);
    }
    Ok(is_summed)
}

fn write_header(split: &FieldSplit, coded_low: bool, out: &mut Output<'_>) -> Result<(), DoesNotFit> {
    let Layout { width, mantissa, sign, flip } = split.layout;
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let flags = u8::try_from(width.trailing_zeros()).unwrap_or(0)
        | flag(sign, FLAG_SIGN)
        | flag(flip, FLAG_FLIP)
        | flag(split.order == Order::Packed, FLAG_PACKED)
        | flag(sign && !split.raw_sign, FLAG_CODED_SIGN)
        | flag(coded_low, FLAG_CODED_LOW);
    out.push(&[kind::FIELDS, flags, mantissa, split.joint, split.dead])?;
    out.push(&split.base.to_le_bytes())
}

/// The split of a block, and how many low bytes of its elements are coded apart; they count as dead.
pub(super) fn read_header(cursor: &mut Cursor<'_>) -> Result<(FieldSplit, usize), CodecError> {
    let [_, flags, mantissa, joint, dead] = cursor.array()?;
    if flags & FLAG_RESERVED != 0 {
        return Err(CodecError::Unsupported { what: "bit field flags", id: u32::from(flags) });
    }
    let has = |flag: u8| flags & flag != 0;
    let layout = Layout { width: 1 << (flags & 3), mantissa, sign: has(FLAG_SIGN), flip: has(FLAG_FLIP) };
    if has(FLAG_CODED_SIGN) && !layout.sign {
        return Err(CodecError::corrupt("coded signs of elements without a sign"));
    }
    let split = FieldSplit {
        layout,
        joint,
        dead,
        order: if has(FLAG_PACKED) { Order::Packed } else { Order::Natural },
        raw_sign: layout.sign && !has(FLAG_CODED_SIGN),
        base: cursor.u16()?,
    };
    split.validate()?;
    if !has(FLAG_CODED_LOW) {
        return Ok((split, 0));
    }
    if dead == 0 || !dead.is_multiple_of(8) {
        return Err(CodecError::corrupt("coded low bits that are no bytes"));
    }
    Ok((split, usize::from(dead) / 8))
}

/// Low bits that are zero in every element, within the rest. Few elements settle nearly every block; only when
/// they leave a chance is the whole block looked at.
pub(super) fn dead_bits(split: &FieldSplit, elements: &[u8]) -> u8 {
    let width = usize::from(split.layout.width);
    let limit = u8::try_from(split.top_shift()).unwrap_or(0);
    let n = elements.len() / width;
    if n == 0 || limit == 0 {
        return 0;
    }
    let sampled =
        (0..64).map(|i| read_element(elements, width, i * n / 64)).fold(0, |seen, element| seen | element);
    if sampled & 1 == 1 {
        return 0;
    }
    let seen = or_of_elements(elements, width);
    u8::try_from(seen.trailing_zeros()).unwrap_or(u8::MAX).min(limit)
}

/// All elements or-ed together.
pub(super) fn or_of_elements(elements: &[u8], width: usize) -> u64 {
    let (words, tail) = elements.as_chunks::<8>();
    let mut seen = words.iter().fold(0, |seen, word| seen | u64::from_le_bytes(*word));
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    seen |= u64::from_le_bytes(last);
    // A word holds several elements: fold them onto the lowest.
    let mut span = 64;
    while span > 8 * width {
        span /= 2;
        seen |= seen >> span;
    }
    seen
}

/// One element as a number.
pub(super) fn read_element(elements: &[u8], width: usize, at: usize) -> u64 {
    let mut word = [0; 8];
    word[..width].copy_from_slice(&elements[at * width..][..width]);
    u64::from_le_bytes(word)
}
