//! Encoding groups of symbols, backwards: the scalar definition, and the choice of a kernel.

use super::{EncodeTable, LANES, REST, Streams};
use crate::arch::kernels;

/// Where an encoder stands: the lanes of `N` streams, and the bytes written so far, which grow downwards.
#[derive(Debug)]
pub(crate) struct EncodeState<'a, const N: usize> {
    pub(crate) planes: [[u8; 2 * LANES]; N],
    /// Room for each stream; its bytes stand at the end of its part.
    pub(crate) room: &'a mut [u8],
    /// First byte written of each stream, as an offset into `room`.
    pub(crate) at: [usize; N],
    ends: [usize; N],
}

/// Kernels store whole vectors of eight, so they may write this many bytes below a stream's first.
const SLACK: usize = 64;

impl<'a, const N: usize> EncodeState<'a, N> {
    /// Room that `n_symbols` can need, whatever they are: a symbol costs at most one byte.
    pub(crate) fn room_len(n_symbols: usize) -> usize {
        n_symbols + N * SLACK
    }

    /// Starts an encoder for at most `n_symbols` in `room`, which holds `room_len(n_symbols)` bytes.
    pub(crate) fn new(room: &'a mut [u8], n_symbols: usize) -> Self {
        let part = n_symbols / N + SLACK;
        let ends = std::array::from_fn(|stream| (stream + 1) * part);
        let [high, low] = REST.to_be_bytes();
        let mut plane = [low; 2 * LANES];
        plane[..LANES].fill(high);
        Self { planes: [plane; N], room, at: ends, ends }
    }

    /// The streams, and the room that they are written to.
    pub(crate) fn streams(&mut self) -> (Streams<'_>, &mut [u8]) {
        (Streams { planes: &mut self.planes, at: &mut self.at }, self.room)
    }

    /// Bytes that [`EncodeState::write`] writes.
    pub(crate) fn coded_len(&self) -> usize {
        N * (2 * LANES + 4) + self.ends.iter().zip(self.at).map(|(end, at)| end - at).sum::<usize>()
    }

    /// The states of a stream, then its bytes.
    pub(crate) fn states_and_stream(&self, stream: usize) -> [&[u8]; 2] {
        [&self.planes[stream], &self.room[self.at[stream]..self.ends[stream]]]
    }

    /// Writes states, stream lengths and streams to the front of `out`; returns the number of bytes.
    pub(crate) fn write(&self, out: &mut [u8]) -> usize {
        let mut len = 0;
        let mut put = |bytes: &[u8]| {
            out[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        for plane in &self.planes {
            put(plane);
        }
        for (end, at) in self.ends.iter().zip(self.at) {
            let stream_len = u32::try_from(end - at).expect("a block has fewer than 2^32 symbols");
            put(&stream_len.to_le_bytes());
        }
        for (&end, at) in self.ends.iter().zip(self.at) {
            put(&self.room[at..end]);
        }
        len
    }
}

/// Encodes whole groups in front of those encoded before. Every symbol must have a frequency.
///
/// `next` is what the caller reads afterwards: kernels bring it into the cache on the way.
pub(crate) fn encode_groups<const N: usize>(
    state: &mut EncodeState<'_, N>,
    table: &EncodeTable,
    symbols: &[u8],
    next: &[u8],
) {
    let (streams, room) = state.streams();
    if !kernels().rans8_encode(streams, room, table, symbols, next) {
        encode_groups_scalar(state, table, symbols);
    }
}

/// The meaning of every kernel. As in decoding nothing branches on the data, and a division is a product.
pub(crate) fn encode_groups_scalar<const N: usize>(
    state: &mut EncodeState<'_, N>,
    table: &EncodeTable,
    symbols: &[u8],
) {
    // `x * ceil(2^32 / freq) >> 32` is `x / freq`: it is too large by less than `x * freq / 2^32`, which is below `1 / freq`.
    let reciprocals = table.freq.map(|freq| (1u64 << 32).div_ceil(u64::from(freq.max(1))));
    for group in symbols.rchunks_exact(N * LANES) {
        for (stream, symbols) in group.as_chunks::<LANES>().0.iter().enumerate().rev() {
            let (highs, lows) = state.planes[stream].split_at_mut(LANES);
            for ((&symbol, high), low) in symbols.iter().zip(highs).zip(lows).rev() {
                let symbol = usize::from(symbol % 16);
                let freq = u64::from(table.freq[symbol]);
                // The place below the last byte is written in any case: there is always room for one more.
                state.room[state.at[stream] - 1] = *low;
                let gives_byte = u64::from(*high) >= freq;
                state.at[stream] -= usize::from(gives_byte);
                // Written as arithmetic, which stays free of branches: either the high byte alone, or both.
                let keeps_low = u64::from(!gives_byte);
                let x = (u64::from(*high) << (8 * keeps_low)) | (u64::from(*low) * keeps_low);
                let quotient = (x * reciprocals[symbol]) >> 32;
                let [rank, ..] = (x - quotient * freq).to_le_bytes();
                let [quotient, ..] = quotient.to_le_bytes();
                (*high, *low) = (quotient, table.slot(symbol, rank));
            }
        }
    }
}
