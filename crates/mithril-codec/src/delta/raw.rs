//! Kept bits of the moved elements: whole bytes as bytes, the bits above them as strings of single bits.
//!
//! An element that keeps `8 b + r` bits has its low byte in the first byte plane and so on, and its top `r` bits in
//! the first `r` bit planes. Planes hold the elements that reach them, in order, and nothing for the others, so
//! their lengths follow from the classes.

use super::flags::keep_flagged;
use crate::CodecError;
use crate::arch::kernels;
use crate::bytes::Cursor;
use std::borrow::Cow;

/// Bytes behind a plane of bits that kernels may touch.
pub(super) const SLACK: usize = 16;

/// Kept bytes of an element at most.
const MAX_BYTES: usize = 8;

/// How many elements keep how many bits.
pub(crate) type RawCounts = [usize; 64];

/// Elements that reach each plane of bits, and each plane of bytes.
pub(super) fn plane_lens(counts: &RawCounts) -> ([usize; 7], [usize; MAX_BYTES]) {
    let (mut bits, mut bytes) = ([0; 7], [0; MAX_BYTES]);
    for (len, &count) in counts.iter().enumerate() {
        bits[..len % 8].iter_mut().for_each(|n| *n += count);
        bytes[..len / 8].iter_mut().for_each(|n| *n += count);
    }
    (bits, bytes)
}

/// Planes as they stand in a block.
#[derive(Debug)]
pub(crate) struct Planes<'a> {
    /// Strings of bits.
    pub(super) bits: [&'a [u8]; 7],
    pub(super) bytes: [&'a [u8]; MAX_BYTES],
}

/// Takes all planes off `cursor`.
pub(super) fn planes<'a>(cursor: &mut Cursor<'a>, counts: &RawCounts) -> Result<Planes<'a>, CodecError> {
    let (bit_lens, byte_lens) = plane_lens(counts);
    let mut planes = Planes { bits: [&[]; 7], bytes: [&[]; MAX_BYTES] };
    for (plane, &n) in planes.bits.iter_mut().zip(&bit_lens) {
        let string = cursor.take(n.div_ceil(8))?;
        if !n.is_multiple_of(8) && string.last().is_some_and(|last| last >> (n % 8) != 0) {
            return Err(CodecError::corrupt("fill bits of a bit plane"));
        }
        *plane = string;
    }
    for (plane, &n) in planes.bytes.iter_mut().zip(&byte_lens) {
        *plane = cursor.take(n)?;
    }
    Ok(planes)
}

/// Reads all planes off `cursor`: the single bits of every element to `bits`, and the byte planes as they stand.
pub(crate) fn read<'a>(
    cursor: &mut Cursor<'a>,
    raw_lens: &[u8],
    counts: &RawCounts,
    padded: &mut Vec<u8>,
    bits: &mut Vec<u8>,
) -> Result<[&'a [u8]; MAX_BYTES], CodecError> {
    let planes = planes(cursor, counts)?;
    spread(&planes, raw_lens, padded, bits);
    Ok(planes.bytes)
}

/// The single bits of every element.
pub(super) fn spread(planes: &Planes<'_>, raw_lens: &[u8], padded: &mut Vec<u8>, bits: &mut Vec<u8>) {
    bits.clear();
    bits.resize(raw_lens.len(), 0);
    for (plane, string) in (0u8..).zip(planes.bits).take_while(|(_, string)| !string.is_empty()) {
        padded.clear();
        padded.extend_from_slice(string);
        padded.extend([0; SLACK]);
        add_plane(plane, padded, raw_lens, bits);
    }
}

/// All strings of bits, with so many bytes behind the last, and at which bit each starts. They stand at the front of `kept`,
/// and are copied only where too little is behind them.
pub(super) fn strings<'a>(
    planes: &Planes<'_>,
    kept: &'a [u8],
    slack: usize,
    copy: &'a mut Vec<u8>,
) -> (&'a [u8], [usize; 7]) {
    let mut end = 0;
    let starts = planes.bits.map(|plane| {
        let start = 8 * end;
        end += plane.len();
        start
    });
    if kept.len() >= end + slack {
        return (kept, starts);
    }
    copy.clear();
    copy.extend_from_slice(&kept[..end]);
    copy.resize(end + slack, 0);
    (copy, starts)
}

/// Hands the bits of a plane to the elements that reach it.
fn add_plane(plane: u8, string: &[u8], raw_lens: &[u8], bits: &mut [u8]) {
    let (done, mut at) = kernels().delta_add_bits(plane, string, raw_lens, bits);
    for (bits, &len) in bits[done..].iter_mut().zip(&raw_lens[done..]) {
        if len % 8 > plane {
            *bits |= (string[at / 8] >> (at % 8) & 1) << plane;
            at += 1;
        }
    }
}

/// Appends all planes; `bits` are the top bits of every element, `low_bytes` gives byte `j` below them of all elements.
pub(crate) fn write<'a>(
    raw_lens: &[u8],
    counts: &RawCounts,
    bits: &[u8],
    low_bytes: impl Fn(usize) -> Cow<'a, [u8]>,
    out: &mut Vec<u8>,
) {
    let (bit_lens, byte_lens) = plane_lens(counts);
    for (plane, &n) in (0u8..).zip(&bit_lens) {
        if n == 0 {
            break;
        }
        let start = out.len();
        out.resize(start + n.div_ceil(8) + SLACK, 0);
        take_plane(plane, raw_lens, bits, &mut out[start..]);
        out.truncate(start + n.div_ceil(8));
    }
    let (mut reaching, mut kept) = (Vec::new(), Vec::new());
    for (plane, _) in byte_lens.iter().enumerate().filter(|(_, n)| **n > 0) {
        let least = u8::try_from(8 * (plane + 1)).unwrap_or(u8::MAX);
        flag_from(raw_lens, least, &mut reaching);
        keep_flagged(&low_bytes(plane), &reaching, &mut kept);
        out.extend_from_slice(&kept);
    }
}

/// One bit for each length that is at least this.
fn flag_from(raw_lens: &[u8], least: u8, words: &mut Vec<u64>) {
    words.resize(raw_lens.len().div_ceil(64), 0);
    let done = kernels().delta_flag_from(raw_lens, least, words);
    for (word, lens) in words[done..].iter_mut().zip(raw_lens[64 * done..].chunks(64)) {
        *word = lens.iter().rev().fold(0, |word, &len| word << 1 | u64::from(len >= least));
    }
}

/// Collects the bits of a plane from the elements that reach it.
fn take_plane(plane: u8, raw_lens: &[u8], bits: &[u8], string: &mut [u8]) {
    let (done, mut at) = kernels().delta_take_bits(plane, raw_lens, bits, string);
    for (bits, &len) in bits[done..].iter().zip(&raw_lens[done..]) {
        if len % 8 > plane {
            string[at / 8] |= (bits >> plane & 1) << (at % 8);
            at += 1;
        }
    }
}
