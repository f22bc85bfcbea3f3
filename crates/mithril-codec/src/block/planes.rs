//! Byte planes: byte `j` of every element together, each plane a stream of its own.
//!
//! `[1] kind [1] width`, then one stream per plane, then the bytes behind the last whole element. Width 0 means
//! nibbles: the low halves of all bytes, then the high halves.

use super::Scratch;
use super::output::{DoesNotFit, Output};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::lz::Compressor;
use crate::entropy::stream::{self, Allowed};
use crate::forever::kind;

/// Elements that have more bytes are not split.
const MAX_WIDTH: u8 = 16;

pub(super) fn encode(
    width: u8,
    compressors: &[Compressor],
    source: &[u8],
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let mut coded = vec![kind::PLANES, width];
    let allowed = Allowed::Compressors(compressors);
    let mut plane = Vec::new();
    match width {
        0 => {
            for shift in [0, 4] {
                plane.clear();
                plane.extend(source.iter().map(|byte| byte >> shift & 15));
                stream::encode_smallest(&plane, allowed, &mut coded);
            }
        }
        1 => stream::encode_smallest(source, allowed, &mut coded),
        _ => {
            let elements = source.chunks_exact(usize::from(width));
            let tail = elements.remainder();
            for byte in 0..usize::from(width) {
                plane.clear();
                plane.extend(elements.clone().map(|element| element[byte]));
                stream::encode_smallest(&plane, allowed, &mut coded);
            }
            coded.extend(tail);
        }
    }
    out.push(&coded)
}

pub(super) fn decode(
    mut cursor: Cursor<'_>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let width = cursor.u8()?;
    let plane = &mut scratch.bytes;
    match width {
        0 => {
            plane.resize(out.len(), 0);
            for shift in [0, 4] {
                stream::decode_into(&mut cursor, plane)?;
                for (byte, nibble) in out.iter_mut().zip(plane.iter()) {
                    let (below, above) = if shift == 0 { (0, *nibble) } else { (*byte, nibble << 4) };
                    if *nibble > 15 {
                        return Err(CodecError::corrupt("nibble above 15"));
                    }
                    *byte = below | above;
                }
            }
        }
        1 => stream::decode_into(&mut cursor, out)?,
        2..=MAX_WIDTH => {
            let width = usize::from(width);
            plane.resize(out.len() / width, 0);
            for byte in 0..width {
                stream::decode_into(&mut cursor, plane)?;
                for (element, value) in out.chunks_exact_mut(width).zip(plane.iter()) {
                    element[byte] = *value;
                }
            }
            let tail_len = out.len() % width;
            let tail_at = out.len() - tail_len;
            out[tail_at..].copy_from_slice(cursor.take(tail_len)?);
        }
        _ => return Err(CodecError::corrupt("width of byte planes")),
    }
    if cursor.is_empty() { Ok(()) } else { Err(CodecError::corrupt("bytes behind the byte planes")) }
}
