//! Encoding groups of symbols, backwards: the scalar definition, and the choice of a kernel.

use super::{EncodeTable, LANES, REST};

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
    match crate::arch::avx2() {
        Some(avx2) => avx2.rans8_encode(state, table, symbols, next),
        None => encode_groups_scalar(state, table, symbols),
    }
}

/// The meaning of every kernel.
pub(crate) fn encode_groups_scalar<const N: usize>(
    state: &mut EncodeState<'_, N>,
    table: &EncodeTable,
    symbols: &[u8],
) {
    for group in symbols.rchunks_exact(N * LANES) {
        for (stream, symbols) in group.chunks_exact(LANES).enumerate().rev() {
            let plane = &mut state.planes[stream];
            for (lane, &symbol) in symbols.iter().enumerate().rev() {
                let symbol = usize::from(symbol);
                let freq = u16::from(table.freq[symbol]);
                let mut x = u16::from_be_bytes([plane[lane], plane[LANES + lane]]);
                if x >> 8 >= freq {
                    let [high, low] = x.to_be_bytes();
                    state.at[stream] -= 1;
                    state.room[state.at[stream]] = low;
                    x = u16::from(high);
                }
                let [_, rank] = (x % freq).to_be_bytes();
                let [_, quotient] = (x / freq).to_be_bytes();
                (plane[lane], plane[LANES + lane]) = (quotient, table.slot(symbol, rank));
            }
        }
    }
}
