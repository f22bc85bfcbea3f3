//! Sparse blocks: which elements are not zero, and those elements as a block of their own.
//!
//! `[1] kind [1] width [4] number of elements that are not zero`, a stream of masks with four elements each (the
//! first in the lowest bit), `[4] length` of the inner block, the inner block, and the bytes behind the last
//! whole element. The inner block is no sparse block and has no shared tables.

use super::output::{DoesNotFit, Output};
use super::{MAX_OVERHEAD, Place, Recipe, Scratch, Shared, decode_block, encode_block};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::stream::{self, Allowed};
use crate::forever::kind;

/// Elements per mask.
const MASKED: usize = 4;

pub(super) fn encode(
    width: u8,
    nonzero: &Recipe,
    source: &[u8],
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let width = usize::from(width);
    let n = source.len() / width;
    let (mut masks, mut kept) = (Vec::with_capacity(n / MASKED + 1), Vec::new());
    for four in source[..n * width].chunks(MASKED * width) {
        let mut mask = 0;
        for (bit, element) in four.chunks_exact(width).enumerate() {
            if element.iter().any(|&byte| byte != 0) {
                mask |= 1 << bit;
                kept.extend(element);
            }
        }
        masks.push(mask);
    }
    let mut coded = vec![kind::SPARSE, u8::try_from(width).map_err(|_| DoesNotFit)?];
    coded.extend(u32::try_from(kept.len() / width).map_err(|_| DoesNotFit)?.to_le_bytes());
    stream::encode_smallest(&masks, Allowed::Entropy, &mut coded);
    let len_at = coded.len();
    coded.resize(len_at + 4 + kept.len() + MAX_OVERHEAD, 0);
    let len =
        encode_block(nonzero, &Shared::default(), Place::default(), &kept, scratch, &mut coded[len_at + 4..]);
    coded.truncate(len_at + 4 + len);
    coded[len_at..len_at + 4].copy_from_slice(&u32::try_from(len).map_err(|_| DoesNotFit)?.to_le_bytes());
    coded.extend(&source[n * width..]);
    out.push(&coded)
}

pub(super) fn decode(
    mut cursor: Cursor<'_>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let width = usize::from(cursor.u8()?);
    if !matches!(width, 1 | 2 | 4 | 8) {
        return Err(CodecError::corrupt("width of a sparse block"));
    }
    let n = out.len() / width;
    let n_kept = cursor.len32()?;
    if n_kept > n {
        return Err(CodecError::corrupt("more elements than a sparse block holds"));
    }
    let mut masks = vec![0; n.div_ceil(MASKED)];
    stream::decode_into(&mut cursor, &mut masks)?;
    let last_bits = if n.is_multiple_of(MASKED) { MASKED } else { n % MASKED };
    let counted: u32 = masks.iter().map(|mask| mask.count_ones()).sum();
    if counted as usize != n_kept
        || masks.last().is_some_and(|&mask| mask >> last_bits != 0)
        || masks.iter().any(|&mask| mask > 15)
    {
        return Err(CodecError::corrupt("masks of a sparse block"));
    }
    let len = cursor.len32()?;
    let inner = cursor.take(len)?;
    let nested = [kind::SPARSE, kind::ROWS, kind::SAME, kind::DIFFERENCE, kind::XOR, kind::PREDICTED];
    if inner.first().is_some_and(|kind| nested.contains(kind)) {
        return Err(CodecError::corrupt("sparse block within a sparse block"));
    }
    let mut kept = std::mem::take(&mut scratch.inner);
    kept.resize(n_kept * width, 0);
    let decoded = decode_block(inner.into(), &Shared::default(), &mut kept, scratch);
    let keeps_zero = has_zero(&kept, width);
    let mut next = kept.chunks_exact(width);
    for (four, mask) in out[..n * width].chunks_mut(MASKED * width).zip(&masks) {
        for (bit, element) in four.chunks_exact_mut(width).enumerate() {
            let value = if mask >> bit & 1 == 1 { next.next() } else { None };
            match value {
                Some(value) => element.copy_from_slice(value),
                None => element.fill(0),
            }
        }
    }
    scratch.inner = kept;
    decoded?;
    if keeps_zero {
        return Err(CodecError::corrupt("sparse block that keeps a zero"));
    }
    let tail_len = out.len() % width;
    let tail_at = out.len() - tail_len;
    out[tail_at..].copy_from_slice(cursor.take(tail_len)?);
    if cursor.is_empty() { Ok(()) } else { Err(CodecError::corrupt("bytes behind the sparse block")) }
}

/// Whether an element is zero. By arrays of known length, whose comparison is one instruction.
fn has_zero(elements: &[u8], width: usize) -> bool {
    match width {
        1 => elements.contains(&0),
        2 => elements.as_chunks::<2>().0.contains(&[0; 2]),
        4 => elements.as_chunks::<4>().0.contains(&[0; 4]),
        _ => elements.as_chunks::<8>().0.contains(&[0; 8]),
    }
}
