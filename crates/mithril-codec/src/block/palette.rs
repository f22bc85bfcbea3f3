//! Palettes: blocks with at most 256 distinct elements, such as dequantised weights.
//!
//! `[1] kind [1] width [1] number of distinct elements - 1`, those elements in ascending order of their value as
//! unsigned numbers, a stream with the number of each element, and the bytes behind the last whole element.

use super::fields::read_element;
use super::output::{DoesNotFit, Output};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::lz::Compressor;
use crate::entropy::stream::{self, Allowed};
use crate::forever::kind;

/// Distinct elements that a palette holds.
const MAX_ENTRIES: usize = 256;

pub(super) fn encode(
    width: u8,
    compressors: &[Compressor],
    source: &[u8],
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let width = usize::from(width);
    let n = source.len() / width;
    let entries = distinct(source, width, n).ok_or(DoesNotFit)?;
    let mut coded = vec![kind::PALETTE, u8::try_from(width).map_err(|_| DoesNotFit)?];
    coded.push(u8::try_from(entries.len().checked_sub(1).ok_or(DoesNotFit)?).map_err(|_| DoesNotFit)?);
    for entry in &entries {
        coded.extend(&entry.to_le_bytes()[..width]);
    }
    let indices: Vec<u8> = (0..n)
        .map(|at| {
            entries
                .binary_search(&read_element(source, width, at))
                .ok()
                .and_then(|index| u8::try_from(index).ok())
        })
        .collect::<Option<_>>()
        .ok_or(DoesNotFit)?;
    stream::encode_smallest(&indices, Allowed::Compressors(compressors), &mut coded);
    coded.extend(&source[n * width..]);
    out.push(&coded)
}

/// The distinct elements in ascending order, unless there are too many.
fn distinct(source: &[u8], width: usize, n: usize) -> Option<Vec<u64>> {
    let mut entries: Vec<u64> = Vec::with_capacity(MAX_ENTRIES);
    let mut last = None;
    for at in 0..n {
        let element = read_element(source, width, at);
        if last == Some(element) {
            continue;
        }
        last = Some(element);
        if let Err(place) = entries.binary_search(&element) {
            if entries.len() == MAX_ENTRIES {
                return None;
            }
            entries.insert(place, element);
        }
    }
    Some(entries)
}

pub(super) fn decode(mut cursor: Cursor<'_>, out: &mut [u8]) -> Result<(), CodecError> {
    let width = usize::from(cursor.u8()?);
    if !matches!(width, 1 | 2 | 4 | 8) {
        return Err(CodecError::corrupt("width of a palette"));
    }
    let n_entries = usize::from(cursor.u8()?) + 1;
    let entries = cursor.take(n_entries * width)?;
    if (1..n_entries).any(|at| read_element(entries, width, at - 1) >= read_element(entries, width, at)) {
        return Err(CodecError::corrupt("entries of a palette do not ascend"));
    }
    let mut indices = vec![0; out.len() / width];
    stream::decode_into(&mut cursor, &mut indices)?;
    for (element, index) in out.chunks_exact_mut(width).zip(&indices) {
        let at = usize::from(*index) * width;
        element.copy_from_slice(
            entries.get(at..at + width).ok_or(CodecError::corrupt("number beyond the palette"))?,
        );
    }
    let tail_len = out.len() % width;
    let tail_at = out.len() - tail_len;
    out[tail_at..].copy_from_slice(cursor.take(tail_len)?);
    if cursor.is_empty() { Ok(()) } else { Err(CodecError::corrupt("bytes behind the palette")) }
}
