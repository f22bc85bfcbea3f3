//! Streams of bytes, each with the coder that makes it smallest.
//!
//! `[1] coder`, then for a constant stream `[1] byte`, for all others `[4] coded_len` and that many bytes.
//! The reader knows from elsewhere how many bytes the stream decodes to.

use super::lz::{self, Compressor};
use super::rans8::{
    DecodeState, DecodeTable, EncodeState, EncodeTable, Frequencies, decode_groups, encode_groups,
};
use super::{huffman, rans12};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::forever::stream::{BROTLI, CONSTANT, HUFFMAN, LZ4, RANS8, RANS12, STORED, ZSTD, ZSTD_METADATA};

/// What an encoder may use for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed<'a> {
    /// Coders of single symbols only.
    Entropy,
    /// Coders of single symbols and these compressors.
    Compressors(&'a [Compressor]),
}

/// The stream of some bytes, in the coder that makes it smallest: an entropy coder or one of these compressors.
///
/// # Panics
/// When there are 2^32 bytes or more.
pub fn encode(bytes: &[u8], compressors: &[Compressor]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_smallest(bytes, Allowed::Compressors(compressors), &mut out);
    out
}

/// The stream of some bytes, stored as they are.
///
/// # Panics
/// When there are 2^32 bytes or more.
pub fn store(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).expect("a stream has fewer than 2^32 bytes");
    let mut out = vec![STORED];
    out.extend(len.to_le_bytes());
    out.extend(bytes);
    out
}

/// Decodes bytes that are exactly one stream into exactly `out`.
///
/// # Errors
/// When they are damaged, or hold another number of bytes.
pub fn decode(coded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    let mut cursor = Cursor::new(coded, "stream");
    decode_into(&mut cursor, out)?;
    if cursor.is_empty() { Ok(()) } else { Err(CodecError::corrupt("bytes behind a stream")) }
}

/// Appends `bytes` in the coder whose output is smallest; on a tie, the simplest.
pub(crate) fn encode_smallest(bytes: &[u8], allowed: Allowed<'_>, out: &mut Vec<u8>) {
    let mut histogram = [0u32; 256];
    for &byte in bytes {
        histogram[usize::from(byte)] += 1;
    }
    if let Some(&first) = bytes.first()
        && histogram[usize::from(first)] as usize == bytes.len()
    {
        out.extend([CONSTANT, first]);
        return;
    }
    let table = rans12::FrequencyTable::from_counts(&histogram);
    let mut best = (bytes.len(), STORED);
    let mut consider = |len: usize, coder: u8| {
        if len < best.0 {
            best = (len, coder);
        }
    };
    if let Some(nibbles) = Nibbles::of(&histogram) {
        consider(nibbles.coded_len(&histogram), RANS8);
    }
    consider(huffman::coded_len(&histogram), HUFFMAN);
    if let Some(table) = &table {
        consider(rans12_len(table, &histogram), RANS12);
    }
    let mut compressed = Vec::new();
    if let Allowed::Compressors(compressors) = allowed {
        for compressor in compressors {
            if let Some(candidate) = compressor.compress(bytes)
                && candidate.len() < best.0
            {
                best = (candidate.len(), compressor.id());
                compressed = candidate;
            }
        }
    }
    out.push(best.1);
    let len_at = out.len();
    out.extend([0; 4]);
    match (best.1, &table) {
        (RANS8, _) => encode_nibbles(bytes, &histogram, out),
        (HUFFMAN, _) => huffman::encode(bytes, out),
        (RANS12, Some(table)) => {
            table.write(out);
            let runs = [rans12::Run { len: bytes.len(), table_idx: 0 }];
            rans12::encode(bytes, &runs, std::slice::from_ref(table), out);
        }
        (ZSTD | LZ4 | BROTLI | ZSTD_METADATA, _) => out.extend(&compressed),
        _ => out.extend(bytes),
    }
    let coded_len = u32::try_from(out.len() - len_at - 4).expect("a block has fewer than 2^32 bytes");
    out[len_at..len_at + 4].copy_from_slice(&coded_len.to_le_bytes());
}

/// Reads the next stream off `cursor` into exactly `out`.
///
/// # Errors
/// When the stream is damaged, does not fill `out`, or needs a coder that this build lacks.
pub(crate) fn decode_into(cursor: &mut Cursor<'_>, out: &mut [u8]) -> Result<(), CodecError> {
    let coder = cursor.u8()?;
    if coder == CONSTANT {
        out.fill(cursor.u8()?);
        return Ok(());
    }
    let len = cursor.len32()?;
    let coded = cursor.take(len)?;
    match coder {
        STORED if coded.len() == out.len() => {
            out.copy_from_slice(coded);
            Ok(())
        }
        STORED => Err(CodecError::corrupt("stored stream of another size")),
        RANS8 => decode_nibbles(coded, out),
        HUFFMAN => huffman::decode_into(coded, out),
        RANS12 => {
            let mut cursor = Cursor::new(coded, "rANS12 table");
            let table = rans12::DecodeTable::new(&rans12::FrequencyTable::read(&mut cursor)?);
            let runs = [rans12::Run { len: out.len(), table_idx: 0 }];
            rans12::decode_into(cursor.rest(), &runs, std::slice::from_ref(&table), out)
        }
        _ => lz::decompress_into(coder, coded, out),
    }
}

/// Size of a stream in rANS12, table and states included.
fn rans12_len(table: &rans12::FrequencyTable, histogram: &[u32; 256]) -> usize {
    let bits = table.cost_bits(histogram) / 256;
    usize::try_from(bits / 8)
        .unwrap_or(usize::MAX)
        .saturating_add(table.coded_len() + rans12::STATES_LEN + 64)
}

/// The byte and frequency range of a stream that fits rANS8: sixteen consecutive values at most.
struct Nibbles {
    offset: u8,
    frequencies: Frequencies,
}

/// Streams of fewer symbols take one rANS8 stream, which has less state to store.
pub(crate) const FOUR_STREAMS_FROM: usize = 16384;

impl Nibbles {
    fn of(histogram: &[u32; 256]) -> Option<Self> {
        let first = histogram.iter().position(|&n| n > 0)?;
        let window = &histogram[first..(first + 16).min(256)];
        if histogram.iter().map(|&n| u64::from(n)).sum::<u64>()
            != window.iter().map(|&n| u64::from(n)).sum::<u64>()
        {
            return None;
        }
        let mut counts = [0; 16];
        counts[..window.len()].copy_from_slice(window);
        Some(Self { offset: u8::try_from(first).ok()?, frequencies: Frequencies::from_counts(&counts) })
    }

    /// Size of the stream, up to a few bytes.
    fn coded_len(&self, histogram: &[u32; 256]) -> usize {
        let mut bits = 0;
        let mut n = 0usize;
        for (&count, &freq) in histogram[usize::from(self.offset)..].iter().zip(self.frequencies.bytes()) {
            bits += u64::from(count) * u64::from((8 << 16) - rans12::log2_65536ths(u16::from(freq.max(1))));
            n += count as usize;
        }
        let states = if n < FOUR_STREAMS_FROM { 68 } else { 272 };
        usize::try_from(bits >> 19).unwrap_or(usize::MAX) + states + 18 + 16
    }
}

/// `[1] offset, [16] frequencies, [1] number of streams`, states, stream lengths, streams.
fn encode_nibbles(bytes: &[u8], histogram: &[u32; 256], out: &mut Vec<u8>) {
    let Some(Nibbles { offset, frequencies }) = Nibbles::of(histogram) else { return };
    out.push(offset);
    out.extend(frequencies.bytes());
    // Symbols that pad the last group must have a frequency; the first one has.
    let padding = bytes.first().copied().unwrap_or(offset);
    let mut symbols: Vec<u8> = bytes.iter().map(|byte| byte - offset).collect();
    if bytes.len() < FOUR_STREAMS_FROM {
        pad::<1>(&mut symbols, padding - offset);
        append_rans8::<1>(&symbols, &frequencies, out);
    } else {
        pad::<4>(&mut symbols, padding - offset);
        append_rans8::<4>(&symbols, &frequencies, out);
    }
}

fn pad<const N: usize>(symbols: &mut Vec<u8>, padding: u8) {
    symbols.resize(symbols.len().next_multiple_of(32 * N), padding);
}

fn append_rans8<const N: usize>(symbols: &[u8], frequencies: &Frequencies, out: &mut Vec<u8>) {
    let mut room = vec![0; EncodeState::<N>::room_len(symbols.len())];
    let mut state = EncodeState::<N>::new(&mut room, symbols.len());
    encode_groups(&mut state, &EncodeTable::new(frequencies), symbols, &[]);
    out.push(u8::try_from(N).unwrap_or(0));
    let at = out.len();
    out.resize(at + state.coded_len(), 0);
    state.write(&mut out[at..]);
}

fn decode_nibbles(coded: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    let mut cursor = Cursor::new(coded, "rANS8 table");
    let offset = cursor.u8()?;
    let table = DecodeTable::new(&Frequencies::parse(cursor.array()?)?);
    let mut values = [0; 16];
    for (symbol, value) in (0..).zip(&mut values) {
        *value = offset.wrapping_add(symbol);
    }
    match cursor.u8()? {
        1 => decode_rans8::<1>(cursor.rest(), &table, &values, out),
        4 => decode_rans8::<4>(cursor.rest(), &table, &values, out),
        _ => Err(CodecError::corrupt("number of rANS8 streams")),
    }
}

fn decode_rans8<const N: usize>(
    data: &[u8],
    table: &DecodeTable,
    values: &[u8; 16],
    out: &mut [u8],
) -> Result<(), CodecError> {
    let (mut state, end) = DecodeState::<N>::read(data)?;
    if end != data.len() {
        return Err(CodecError::corrupt("bytes behind a rANS8 stream"));
    }
    let whole = out.len() / (32 * N) * (32 * N);
    let (groups, last) = out.split_at_mut(whole);
    decode_groups(&mut state, table, values, data, groups)?;
    if !last.is_empty() {
        let mut group = [0; 128];
        decode_groups(&mut state, table, values, data, &mut group[..32 * N])?;
        last.copy_from_slice(&group[..last.len()]);
    }
    state.finish()
}
