//! Coded signs: where rows or columns lean to one side, four signs at a time as one rANS8 symbol.
//!
//! Signs are put into buckets like top fields, each bucket cut into fours (its last filled up with zeros), and
//! the fours coded as symbols: `[1] number of streams`, states, stream lengths, streams.

use super::Scratch;
use super::output::{DoesNotFit, Output};
use super::shared::SharedSigns;
use super::symbols::resize_plane;
use crate::CodecError;
use crate::arch::kernels;
use crate::contexts::{Buckets, group_runs};
use crate::entropy::rans8::{
    DecodeState, DecodeTable, EncodeState, EncodeTable, decode_groups, encode_groups,
};
use crate::entropy::stream::FOUR_STREAMS_FROM;
use crate::transform::fields::{set_signs, sign_plane};

/// Signs per symbol.
pub(crate) const QUAD: usize = 4;

/// The identity: symbols are the signs themselves.
const VALUES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

pub(super) fn encode(
    shared: &SharedSigns,
    rows: &[u32],
    width: usize,
    elements: &[u8],
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let n = elements.len() / width;
    let buckets = shared.contexts.buckets(rows).map_err(|_| DoesNotFit)?;
    let Scratch { plane, bucketed, room, bytes, .. } = scratch;
    resize_plane(plane, n);
    resize_plane(bucketed, n);
    sign_plane(width, elements, plane);
    buckets.gather(&plane[..n], bucketed);
    let starts = quad_starts(&buckets);
    bytes.clear();
    for bucket in buckets.ranges() {
        let (whole, last) = bucketed[bucket].as_chunks::<QUAD>();
        let start = bytes.len();
        bytes.resize(start + whole.len(), 0);
        if !kernels().collect_signs(whole, &mut bytes[start..]) {
            collect_portable(whole, &mut bytes[start..]);
        }
        if !last.is_empty() {
            let mut signs = [0; QUAD];
            signs[..last.len()].copy_from_slice(last);
            bytes.push(collect(signs));
        }
    }
    let encode = if bytes.len() < FOUR_STREAMS_FROM { encode_quads::<1> } else { encode_quads::<4> };
    encode(shared, &starts, bytes, room, out)
}

fn encode_quads<const N: usize>(
    shared: &SharedSigns,
    starts: &[usize],
    quads: &mut Vec<u8>,
    room: &mut Vec<u8>,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    quads.resize(quads.len().next_multiple_of(32 * N), 0);
    let room_len = EncodeState::<N>::room_len(quads.len());
    if room.len() < room_len {
        room.resize(room_len, 0);
    }
    let mut state = EncodeState::<N>::new(room, quads.len());
    let mut end = quads.len();
    for (context, n_groups) in group_runs(starts, 32 * N).into_iter().rev() {
        let start = end - n_groups * 32 * N;
        // Groups may hold fours of the next context, so every four must have a frequency.
        if shared.quads[context].bytes().contains(&0) {
            return Err(DoesNotFit);
        }
        encode_groups(&mut state, &EncodeTable::new(&shared.quads[context]), &quads[start..end], &[]);
        end = start;
    }
    out.push(&[u8::try_from(N).unwrap_or(0)])?;
    state.write(out.reserve(state.coded_len())?);
    Ok(())
}

/// Decodes signs and sets them in `elements`; returns how many bytes they took.
pub(super) fn decode(
    data: &[u8],
    shared: &SharedSigns,
    rows: &[u32],
    width: usize,
    elements: &mut [u8],
    scratch: &mut Scratch,
) -> Result<usize, CodecError> {
    let n = elements.len() / width;
    let Scratch { sign_plane, bucketed_signs, bytes: quads, .. } = scratch;
    let (buckets, used) = decode_buckets(data, shared, rows, n, bucketed_signs, quads)?;
    resize_plane(sign_plane, n);
    buckets.scatter(bucketed_signs).next_rows(rows.len(), sign_plane);
    set_signs(&sign_plane[..n], width, elements);
    Ok(used)
}

/// Decodes the signs of `n` elements, one in a byte, as they stand in their buckets; returns these, and how many bytes
/// the signs took.
pub(super) fn decode_buckets<'a>(
    data: &[u8],
    shared: &'a SharedSigns,
    rows: &[u32],
    n: usize,
    bucketed: &mut Vec<u8>,
    quads: &mut Vec<u8>,
) -> Result<(Buckets<'a>, usize), CodecError> {
    let buckets = shared.contexts.buckets(rows)?;
    if buckets.len() != n {
        return Err(CodecError::corrupt("block does not hold whole rows"));
    }
    resize_plane(bucketed, n);
    let (&n_streams, data) = data.split_first().ok_or(CodecError::truncated("signs"))?;
    let starts = quad_starts(&buckets);
    let end = match n_streams {
        1 => decode_quads::<1>(data, shared, &starts, quads)?,
        4 => decode_quads::<4>(data, shared, &starts, quads)?,
        _ => return Err(CodecError::corrupt("number of rANS8 streams")),
    };
    for (bucket, first) in buckets.ranges().zip(&starts) {
        let (whole, last) = bucketed[bucket].as_chunks_mut::<QUAD>();
        let quads = &quads[*first..];
        if !kernels().spread_signs(quads, whole) {
            spread_portable(quads, whole);
        }
        if !last.is_empty() {
            last.copy_from_slice(&spread(quads[whole.len()])[..last.len()]);
        }
    }
    Ok((buckets, end + 1))
}

fn decode_quads<const N: usize>(
    data: &[u8],
    shared: &SharedSigns,
    starts: &[usize],
    quads: &mut Vec<u8>,
) -> Result<usize, CodecError> {
    let (mut state, end) = DecodeState::<N>::read(data)?;
    let padded = starts.last().copied().unwrap_or(0).next_multiple_of(32 * N);
    if quads.len() < padded {
        quads.resize(padded, 0);
    }
    let mut first = 0;
    for (context, n_groups) in group_runs(starts, 32 * N) {
        let groups = &mut quads[first..first + n_groups * 32 * N];
        decode_groups(&mut state, &DecodeTable::new(&shared.quads[context]), &VALUES, data, groups)?;
        first += groups.len();
    }
    state.finish()?;
    Ok(end)
}

/// Where the fours of each bucket start, and where the last end.
fn quad_starts(buckets: &Buckets<'_>) -> Vec<usize> {
    let mut end = 0;
    let mut starts = vec![0];
    for bucket in buckets.ranges() {
        end += bucket.len().div_ceil(QUAD);
        starts.push(end);
    }
    starts
}

/// Four signs as one symbol: one multiplication collects the lowest bits of four bytes.
#[inline(always)]
fn collect(signs: [u8; QUAD]) -> u8 {
    let [.., symbol] = u32::from_le_bytes(signs).wrapping_mul(0x0102_0408).to_le_bytes();
    symbol & 15
}

/// The meaning of collecting signs. Inlined into the kernel, which is this code compiled for AVX2.
#[inline(always)]
pub(crate) fn collect_portable(signs: &[[u8; QUAD]], quads: &mut [u8]) {
    quads.iter_mut().zip(signs).for_each(|(quad, &signs)| *quad = collect(signs));
}

/// The four signs of a symbol: one multiplication spreads four bits over four bytes.
#[inline(always)]
fn spread(quad: u8) -> [u8; QUAD] {
    ((u32::from(quad) * 0x0020_4081) & 0x0101_0101).to_le_bytes()
}

/// The meaning of spreading signs. Inlined into the kernel, which is this code compiled for AVX2.
#[inline(always)]
pub(crate) fn spread_portable(quads: &[u8], signs: &mut [[u8; QUAD]]) {
    signs.iter_mut().zip(quads).for_each(|(signs, &quad)| *signs = spread(quad));
}
