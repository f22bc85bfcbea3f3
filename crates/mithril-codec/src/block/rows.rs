//! Rows with dead low bits, or few values of them, apart from the others: tables of fp32 often hold some rows that were
//! once fp16.
//!
//! `[1] kind [1] width [4] row length`, a stream of masks with four rows each (the first in the lowest bit; set for
//! the second part), then two parts: `[4] length` and a block of bit fields with the rows of that part.

use super::fields::{self, Rows, or_of_elements};
use super::output::{DoesNotFit, Output};
use super::{FieldRecipe, Place, RawBlock, Scratch, Shared, has_few_low_bytes};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::stream::{self, Allowed};
use crate::forever::kind;

/// Rows per mask.
const MASKED: usize = 4;

/// A row is set apart when it has at least this many dead bits more than the block.
const MIN_DEAD: u32 = 4;

pub(super) fn encode(
    recipe: &FieldRecipe,
    raw: RawBlock<'_>,
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let RawBlock { source, shared, .. } = raw;
    let width = usize::from(recipe.layout.width);
    let rows = fields::block_rows(recipe, raw, scratch);
    let row_len = shared.row_len().unwrap_or(0);
    let dead: Vec<u32> = match row_len {
        0 => Vec::new(),
        _ => source
            .chunks_exact(row_len * width)
            .map(|row| or_of_elements(row, width).trailing_zeros())
            .collect(),
    };
    let least = dead.iter().copied().min().unwrap_or(0);
    let few_low = |row: &[u8]| recipe.coded_low && has_few_low_bytes(row, width);
    let apart: Vec<bool> = source
        .chunks_exact(row_len.max(1) * width)
        .zip(&dead)
        .map(|(row, &dead)| dead >= least + MIN_DEAD || few_low(row))
        .collect();
    let all_alike = apart.iter().all(|&is_apart| Some(&is_apart) == apart.first());
    // Bytes after the last whole row, as those of an element that is cut off, have no part to be in.
    let is_whole_rows = source.len() == dead.len() * row_len * width;
    if rows.len() != dead.len() || !is_whole_rows || all_alike {
        let result = fields::encode(recipe, raw, &rows, scratch, out);
        scratch.rows = rows;
        return result;
    }
    out.push(&[kind::ROWS, recipe.layout.width])?;
    out.push_u32(row_len)?;
    let mut masks = vec![0u8; dead.len().div_ceil(MASKED)];
    let mut parts = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for (at, (bytes, (&row, &is_apart))) in
        source.chunks_exact(row_len * width).zip(rows.iter().zip(&apart)).enumerate()
    {
        let part = usize::from(is_apart);
        masks[at / MASKED] |= u8::from(is_apart) << (at % MASKED);
        parts[part].0.push(row);
        parts[part].1.extend_from_slice(bytes);
    }
    let mut coded = Vec::new();
    stream::encode_smallest(&masks, Allowed::Entropy, &mut coded);
    out.push(&coded)?;
    for (rows, bytes) in &parts {
        coded.resize(bytes.len() + 512, 0);
        let mut part = Output::new(&mut coded);
        let raw = RawBlock { source: bytes, shared, place: Place::default() };
        fields::encode(recipe, raw, rows, scratch, &mut part)?;
        let len = part.len();
        out.push_u32(len)?;
        out.push(&coded[..len])?;
    }
    Ok(())
}

pub(super) fn decode(
    mut cursor: Cursor<'_>,
    shared: &Shared,
    first_byte: u64,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let width = usize::from(cursor.u8()?);
    let row_len = cursor.len32()?;
    let misplaced = || CodecError::corrupt("rows of a block");
    if !matches!(width, 1 | 2 | 4 | 8) || row_len == 0 {
        return Err(misplaced());
    }
    let row_bytes = row_len.checked_mul(width).ok_or_else(misplaced)?;
    if !out.len().is_multiple_of(row_bytes) || !first_byte.is_multiple_of(row_bytes as u64) {
        return Err(misplaced());
    }
    let first_row = u32::try_from(first_byte / row_bytes as u64).map_err(|_| misplaced())?;
    let n_rows = out.len() / row_bytes;
    let mut masks = vec![0; n_rows.div_ceil(MASKED)];
    stream::decode_into(&mut cursor, &mut masks)?;
    let last_bits = if n_rows.is_multiple_of(MASKED) { MASKED } else { n_rows % MASKED };
    if masks.iter().any(|&mask| mask > 15) || masks.last().is_some_and(|&mask| mask >> last_bits != 0) {
        return Err(CodecError::corrupt("masks of rows"));
    }
    let part_of = |row: usize| usize::from(masks[row / MASKED] >> (row % MASKED) & 1);
    let mut inner = std::mem::take(&mut scratch.inner);
    for part in 0..2 {
        let members: Vec<usize> = (0..n_rows).filter(|&row| part_of(row) == part).collect();
        if members.is_empty() {
            return Err(CodecError::corrupt("rows all in one part"));
        }
        let mut rows = Vec::with_capacity(members.len());
        for &row in &members {
            let row = u32::try_from(row).ok().and_then(|row| first_row.checked_add(row));
            rows.push(row.ok_or_else(misplaced)?);
        }
        let len = cursor.len32()?;
        let block = cursor.take(len)?;
        if block.first() != Some(&kind::FIELDS) {
            return Err(CodecError::corrupt("rows are not bit fields"));
        }
        inner.resize(members.len() * row_bytes, 0);
        fields::decode(block.into(), shared, Rows::These(&rows), None, &mut inner, scratch)?;
        for (&row, bytes) in members.iter().zip(inner.chunks_exact(row_bytes)) {
            out[row * row_bytes..][..row_bytes].copy_from_slice(bytes);
        }
    }
    scratch.inner = inner;
    if cursor.is_empty() { Ok(()) } else { Err(CodecError::corrupt("bytes behind the rows")) }
}
