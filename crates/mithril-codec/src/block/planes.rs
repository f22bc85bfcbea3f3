//! Byte planes: byte `j` of every element together, each plane a stream of its own.
//!
//! `[1] kind [1] width`, then one stream per plane, then the bytes behind the last whole element. Width 0 means
//! nibbles: the low halves of all bytes, then the high halves. Behind a width above 16 stand runs, `[1] number [1] length`
//! each: their bytes of every element are one stream.

use super::Scratch;
use super::output::{DoesNotFit, Output};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::entropy::lz::Compressor;
use crate::entropy::stream::{self, Allowed};
use crate::forever::kind;

/// Elements of more bytes are quantised blocks, and have runs.
const MAX_PLANES: u8 = 16;

pub(super) fn encode(
    width: u8,
    compressors: &[Compressor],
    source: &[u8],
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    out.push(&coded(width, compressors, source).ok_or(DoesNotFit)?)
}

/// The block, whatever its size, unless there are no planes of this width.
pub(super) fn coded(width: u8, compressors: &[Compressor], source: &[u8]) -> Option<Vec<u8>> {
    if width > MAX_PLANES {
        return None;
    }
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
    Some(coded)
}

/// Run `k` of every element together, each run in the coder that makes it smallest.
pub(super) fn encode_runs(
    run_lens: &[u8],
    compressors: &[Compressor],
    source: &[u8],
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let width: usize = run_lens.iter().copied().map(usize::from).sum();
    let (Ok(coded_width), Ok(n_runs)) = (u8::try_from(width), u8::try_from(run_lens.len())) else {
        return Err(DoesNotFit);
    };
    if coded_width <= MAX_PLANES || run_lens.contains(&0) {
        return Err(DoesNotFit);
    }
    let mut coded = vec![kind::PLANES, coded_width, n_runs];
    coded.extend(run_lens);
    let elements = source.chunks_exact(width);
    let mut run = Vec::with_capacity(source.len());
    let mut at = 0;
    for len in run_lens.iter().copied().map(usize::from) {
        run.clear();
        elements.clone().for_each(|element| run.extend_from_slice(&element[at..at + len]));
        stream::encode_smallest(&run, Allowed::Compressors(compressors), &mut coded);
        at += len;
    }
    coded.extend(elements.remainder());
    out.push(&coded)
}

fn decode_runs(
    width: usize,
    cursor: &mut Cursor<'_>,
    out: &mut [u8],
    run: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let n_runs = usize::from(cursor.u8()?);
    let run_lens = cursor.take(n_runs)?;
    if run_lens.contains(&0) || run_lens.iter().copied().map(usize::from).sum::<usize>() != width {
        return Err(CodecError::corrupt("runs that do not make up an element"));
    }
    let n = out.len() / width;
    let mut at = 0;
    for len in run_lens.iter().copied().map(usize::from) {
        run.resize(n * len, 0);
        stream::decode_into(cursor, run)?;
        for (element, bytes) in out.chunks_exact_mut(width).zip(run.chunks_exact(len)) {
            element[at..at + len].copy_from_slice(bytes);
        }
        at += len;
    }
    let (_, tail) = out.split_at_mut(n * width);
    tail.copy_from_slice(cursor.take(tail.len())?);
    Ok(())
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
        2..=MAX_PLANES => {
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
        _ => decode_runs(usize::from(width), &mut cursor, out, plane)?,
    }
    if cursor.is_empty() { Ok(()) } else { Err(CodecError::corrupt("bytes behind the byte planes")) }
}
