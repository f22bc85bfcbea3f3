//! DFloat11: the exponents of BF16 weights as Huffman bits that GPU threads enter at known places.
//!
//! A weight parts into its exponent, which is coded, and a byte of sign and mantissa, which is kept. The coded bits are
//! cut into chunks of a few bytes, one for each GPU thread, and workgroups of threads; `gaps` says where the first code
//! of a chunk starts, `output_positions` which element a workgroup starts with. Bytes and rules: `docs/format/df11.md`.
//!
//! * [`Profile`] counts exponents, [`Plan`] makes codes and tables of the counts, [`Encoder`] writes the bits.
//! * [`Coded`] is one coded run of weights, checked; it decodes on many lanes.
//! * [`two_phase`] decodes as a GPU does, thread by thread: the definition that a kernel is compared with.
//!
//! The coder of [`crate::entropy::huffman`] cannot stand in: DF11 has codes of up to 32 bits that are not canonical,
//! an end symbol inside the code, and bits in the opposite order. All three follow from what its readers expect.

mod code;
mod coded;
mod decode;
mod encode;
mod tables;
#[cfg(test)]
mod tests;
pub mod two_phase;

pub use coded::{Coded, Parts};
pub use decode::Decoder;
pub use encode::{Encoder, EntryPoints, Plan, Profile, WorkgroupSizes};

/// The longest code: a gap has five bits.
const LONGEST_CODE: u8 = 32;

/// From this value on, a byte of a table names another table.
const FIRST_TAG: u8 = 240;

/// Bits of one gap.
const GAP_BITS: usize = 5;

/// How many GPU threads share a workgroup, and how many coded bytes each of them owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    threads_per_block: u32,
    bytes_per_thread: u32,
}

impl Default for Geometry {
    /// What the `dfloat11` package writes: 512 threads of 8 bytes.
    fn default() -> Self {
        Self { threads_per_block: 512, bytes_per_thread: 8 }
    }
}

impl Geometry {
    /// The geometry of these numbers, or nothing if no kernel could use it.
    ///
    /// The prefix sum of the kernel needs a power of two of threads, a GPU takes at most 1024, and gaps fill whole bytes
    /// from 8 on. A thread owns a multiple of 8 bytes; the kernel of the package knows 8 only.
    #[must_use]
    pub fn new(threads_per_block: u32, bytes_per_thread: u32) -> Option<Self> {
        let threads_fit = threads_per_block.is_power_of_two() && (8..=1024).contains(&threads_per_block);
        let bytes_fit = bytes_per_thread.is_multiple_of(8) && (8..=1024).contains(&bytes_per_thread);
        (threads_fit && bytes_fit).then_some(Self { threads_per_block, bytes_per_thread })
    }

    /// Threads of a workgroup.
    #[must_use]
    pub fn threads_per_block(self) -> u32 {
        self.threads_per_block
    }

    /// Coded bytes of a thread.
    #[must_use]
    pub fn bytes_per_thread(self) -> u32 {
        self.bytes_per_thread
    }

    /// Shared memory in bytes that the kernel asks for when a workgroup holds this many elements.
    #[must_use]
    pub fn shared_memory_len(self, n_elements: u64) -> u64 {
        u64::from(self.threads_per_block) * 4 + 4 + n_elements * 2
    }

    fn n_threads(self) -> usize {
        self.threads_per_block as usize
    }

    fn chunk_bits(self) -> usize {
        self.bytes_per_thread as usize * 8
    }

    fn workgroup_bits(self) -> usize {
        self.n_threads() * self.chunk_bits()
    }

    fn n_workgroups(self, encoded_len: usize) -> usize {
        encoded_len.div_ceil(self.workgroup_bits() / 8)
    }

    fn gaps_len(self, n_workgroups: usize) -> usize {
        n_workgroups * self.n_threads() * GAP_BITS / 8
    }
}

/// Why weights cannot be DF11. What the package writes wrongly or fails on is refused as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unencodable {
    /// There is nothing to code.
    #[error("no elements")]
    Empty,
    /// Tables use these values for something else.
    #[error(
        "an exponent of {0}: tables hold exponents below 240, so no infinities, NaN or numbers from 2^113 on"
    )]
    Exponent(u8),
    /// The end symbol has the first code, so that the first place of the table stays empty.
    #[error("too few different exponents")]
    FewExponents,
    /// A table would have no number.
    #[error("codes need {0} tables besides the first, and 16 have numbers")]
    TooManyTables(usize),
    /// A table would have no way to it.
    #[error("the end symbol alone fills a step between tables")]
    GapBetweenTables,
    /// The kernel counts bytes with 31 bits and elements with 32.
    #[error("{n_elements} elements in {encoded_len} bytes are too many for one run")]
    TooLong {
        /// Elements.
        n_elements: u64,
        /// Bytes of coded exponents.
        encoded_len: u64,
    },
}

/// A BF16 number from its exponent and its byte of sign and mantissa.
#[inline(always)]
fn join(exponent: u8, sign_mantissa: u8) -> u16 {
    u16::from(sign_mantissa & 0x80) << 8 | u16::from(exponent) << 7 | u16::from(sign_mantissa & 0x7f)
}

/// The exponent of a BF16 number.
#[inline(always)]
fn exponent(number: u16) -> u8 {
    (number >> 7).to_le_bytes()[0]
}

/// The sign and the mantissa of a BF16 number in one byte.
#[inline(always)]
fn sign_mantissa(number: u16) -> u8 {
    // Not by its two bytes: the compiler makes vector code of this, and loads single bytes for those.
    (number >> 8 & 0x80 | number & 0x7f).to_le_bytes()[0]
}
