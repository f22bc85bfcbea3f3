//! rANS8: 16 symbols, probabilities in 256ths, 16-bit states, one byte at a time, up to 128 lanes.
//!
//! The idea: a state of 16 bits is two byte planes, so 32 lanes fill two AVX2 registers, and every table has
//! 16 entries, so it fills half a register and is looked up by one shuffle. Nothing is ever gathered from
//! memory. See `docs/format/frame.md`, "rANS8".
//!
//! One step of decoding, for a lane with state `x` in 256..65536:
//! ```text
//! slot = x & 255                     which 256th of the probabilities the state points at
//! symbol, rank = table[slot]         alias table: symbol and the slot's rank within it
//! x = freq[symbol] * (x >> 8) + rank
//! if x < 256: x = x << 8 | next byte of the lane's stream
//! ```
//! Symbols come in groups: with `N` streams of 32 lanes, group `g` holds symbols `32 N g ..`, and the lane `l`
//! of stream `s` codes symbol `32 s + l` of each group. Within a step a stream hands its bytes to the lanes
//! that need one in ascending order. Four streams hide the latency of one another (1, 2, 4, 8 streams: 2.3,
//! 4.4, 6.2, 6.6 G symbols/s); one stream costs less state and serves small arrays.

mod decode;
mod encode;
mod frequencies;
mod listed;
mod window;

pub(crate) use decode::{DecodeState, decode_apart, decode_groups};
pub(crate) use encode::{EncodeState, encode_groups};
pub use frequencies::Frequencies;
pub(crate) use frequencies::{DecodeTable, EncodeTable};

pub use listed::ListedValues;
pub(crate) use listed::Symbols;
pub(crate) use window::COUNTED;
pub use window::Window;
pub(crate) use window::sampled_groups;
pub(crate) use window::values_from;

/// Lanes of one stream.
pub(crate) const LANES: usize = 32;

/// The streams of a coder as kernels take them, one to four: their lanes, and where each goes on.
pub(crate) struct Streams<'a> {
    /// Per stream 32 high bytes, then 32 low bytes: the layout of the file and of the registers.
    pub(crate) planes: &'a mut [[u8; 2 * LANES]],
    /// The next byte of each stream, as an offset into the data; or the last written, into the room.
    pub(crate) at: &'a mut [usize],
}

/// The same of `N` streams.
pub(crate) struct StreamsOf<'a, const N: usize> {
    pub(crate) planes: &'a mut [[u8; 2 * LANES]; N],
    pub(crate) at: &'a mut [usize; N],
}

impl<'a> Streams<'a> {
    /// The streams as arrays, if there are `N`.
    pub(crate) fn of<const N: usize>(self) -> Option<StreamsOf<'a, N>> {
        Some(StreamsOf { planes: self.planes.try_into().ok()?, at: self.at.try_into().ok()? })
    }
}

/// A state at rest: where encoding starts and where decoding must end.
const REST: u16 = 256;

#[cfg(test)]
mod tests;
