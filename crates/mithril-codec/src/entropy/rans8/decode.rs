//! Decoding groups of symbols: the scalar definition, and the choice of a kernel.

use super::{DecodeTable, LANES, REST, Streams};
use crate::CodecError;
use crate::arch::kernels;
use crate::bytes::Cursor;

/// Where a decoder stands: the lanes of `N` streams, and how far each stream has been read.
#[derive(Debug, Clone)]
pub(crate) struct DecodeState<const N: usize> {
    /// Per stream 32 high bytes, then 32 low bytes: the layout of the file and of the registers.
    pub(crate) planes: [[u8; 2 * LANES]; N],
    /// Next byte of each stream, as an offset into the data.
    pub(crate) at: [usize; N],
    /// End of each stream.
    pub(crate) ends: [usize; N],
}

impl<const N: usize> DecodeState<N> {
    /// Reads states and stream lengths; returns the state and the number of bytes up to the end of the streams.
    pub(crate) fn read(data: &[u8]) -> Result<(Self, usize), CodecError> {
        let mut cursor = Cursor::new(data, "rANS8 states");
        let mut planes = [[0; 2 * LANES]; N];
        for plane in &mut planes {
            *plane = cursor.array()?;
            if plane[..LANES].contains(&0) {
                return Err(CodecError::corrupt("rANS8 state below its range"));
            }
        }
        let (mut at, mut ends) = ([0; N], [0; N]);
        let mut end = N * (2 * LANES + 4);
        for (at, ends) in at.iter_mut().zip(&mut ends) {
            *at = end;
            end = end.checked_add(cursor.len32()?).ok_or(CodecError::truncated("rANS8 stream"))?;
            *ends = end;
        }
        if end > data.len() {
            return Err(CodecError::truncated("rANS8 stream"));
        }
        Ok((Self { planes, at, ends }, end))
    }

    /// The state of streams that lie anywhere in the data.
    pub(crate) fn of_streams(
        planes: [[u8; 2 * LANES]; N],
        at: [usize; N],
        ends: [usize; N],
    ) -> Result<Self, CodecError> {
        if planes.iter().any(|plane| plane[..LANES].contains(&0)) {
            return Err(CodecError::corrupt("rANS8 state below its range"));
        }
        Ok(Self { planes, at, ends })
    }

    /// The streams as kernels take them.
    pub(crate) fn streams(&mut self) -> Streams<'_> {
        Streams { planes: &mut self.planes, at: &mut self.at }
    }

    /// Whether every lane stands where encoding started.
    pub(crate) fn is_at_rest(&self) -> bool {
        let [rest_high, rest_low] = REST.to_be_bytes();
        self.planes
            .iter()
            .all(|p| p[..LANES].iter().all(|&h| h == rest_high) && p[LANES..].iter().all(|&l| l == rest_low))
    }

    /// After the last symbol every stream must be read to its end and every lane be at rest.
    pub(crate) fn finish(&self) -> Result<(), CodecError> {
        if self.is_at_rest() && self.at == self.ends {
            Ok(())
        } else {
            Err(CodecError::corrupt("rANS8 streams do not end where the symbols do"))
        }
    }
}

/// Decodes whole groups: `out[i] = values[symbol i]`. The length of `out` is a multiple of `32 N`.
///
/// # Errors
/// `Truncated` when a stream runs past the end of `data`.
pub(crate) fn decode_groups<const N: usize>(
    state: &mut DecodeState<N>,
    table: &DecodeTable,
    values: &[u8; 16],
    data: &[u8],
    out: &mut [u8],
) -> Result<(), CodecError> {
    let done = kernels().rans8_decode(state.streams(), table, values, data, out);
    if done == out.len() {
        return Ok(());
    }
    let slots = Slots::new(table, values);
    out[done..].chunks_exact_mut(N * LANES).try_for_each(|group| decode_group(state, &slots, data, group))
}

/// Decodes streams that each have an output of their own. The outputs have one length, a multiple of 32.
///
/// # Errors
/// `Truncated` when a stream runs past the end of `data`.
pub(crate) fn decode_apart<const N: usize>(
    state: &mut DecodeState<N>,
    table: &DecodeTable,
    data: &[u8],
    mut outs: [&mut [u8]; N],
) -> Result<(), CodecError> {
    let done = kernels().rans8_decode_apart(state.streams(), table, data, &mut outs);
    let len = outs.first().map_or(0, |out| out.len());
    if done == len {
        return Ok(());
    }
    let slots = Slots::new(table, &std::array::from_fn(|symbol| u8::try_from(symbol).unwrap_or(0)));
    let mut group = [[0; LANES]; N];
    for at in (done..len).step_by(LANES) {
        decode_group(state, &slots, data, group.as_flattened_mut())?;
        for (out, symbols) in outs.iter_mut().zip(&group) {
            out[at..at + LANES].copy_from_slice(symbols);
        }
    }
    Ok(())
}

/// What each value of a state's low byte says, looked up at once: the byte to give out, rank and frequency.
pub(crate) struct Slots([u32; 256]);

impl Slots {
    pub(crate) fn new(table: &DecodeTable, values: &[u8; 16]) -> Self {
        let mut slots = [0; 256];
        for (slot, entry) in (0..=255).zip(&mut slots) {
            let (symbol, rank) = table.symbol_and_rank(slot);
            let symbol = usize::from(symbol);
            *entry = u32::from_le_bytes([values[symbol], rank, table.freq[symbol], 0]);
        }
        Self(slots)
    }
}

/// One group, the meaning of every kernel. Whether a lane needs a byte is as good as random, so nothing branches on it:
/// without kernels bf16 decodes at 0.7 GB/s so, and at 0.24 with a branch.
pub(crate) fn decode_group<const N: usize>(
    state: &mut DecodeState<N>,
    slots: &Slots,
    data: &[u8],
    group: &mut [u8],
) -> Result<(), CodecError> {
    for (stream, out) in group.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let (left, at) = (data.get(state.at[stream]..).unwrap_or(&[]), &mut state.at[stream]);
        // A step takes at most a byte for each lane.
        let mut window = [0; LANES];
        match left.first_chunk() {
            Some(next) => window = *next,
            None => window[..left.len()].copy_from_slice(left),
        }
        let mut taken = 0;
        let (highs, lows) = state.planes[stream].split_at_mut(LANES);
        for ((out, high), low) in out.iter_mut().zip(highs).zip(lows) {
            let [value, rank, freq, _] = slots.0[usize::from(*low)].to_le_bytes();
            let x = u16::from(freq) * u16::from(*high) + u16::from(rank);
            let with_next = x << 8 | u16::from(window[taken % LANES]);
            let needs_byte = x < REST;
            taken += usize::from(needs_byte);
            *out = value;
            [*high, *low] = if needs_byte { with_next } else { x }.to_be_bytes();
        }
        if taken > left.len() {
            return Err(CodecError::truncated("rANS8 stream"));
        }
        *at += taken;
    }
    Ok(())
}
