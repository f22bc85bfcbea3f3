//! One block given the same block of a base: numbers as differences, everything else as exclusive or.
//!
//! # Idea
//!
//! Floats of one sign are in order when their bits are read as integers, so "how far did this weight move" is an
//! integer, counted in units of its last place. How many units to expect follows from the size of the base's
//! weight, which the reader has: it is the context. Within a context most elements have not moved (or have all
//! moved by the same step, its *center*); four such flags are one symbol. Those that did move have a class, the
//! sign and bit length of what is left, and the bits below the leading one are kept as they are.
//!
//! ```text
//! [1] kind  [1] flags  [1] number of rules, rules, rows     how the base gives each element a context
//! a table for each context
//! flags of all contexts, then classes of all contexts       one run of rANS8 symbols
//! bits below the leading ones, escapes, tail
//! ```
//! Contexts depend on the base only, so all flags are decoded at once, then all classes: nothing is decided element
//! by element. The exact rules are in `docs/format/frame.md`, "Difference".

mod classes;
mod contexts;
mod decode;
mod elements_32;
mod encode;
mod encode_passes;
pub(crate) mod encode_words;
mod flags;
mod header;
mod model;
mod number;
mod passes;
pub(crate) mod raw;
pub(crate) mod words;

#[cfg(test)]
mod tests;

pub(crate) use contexts::{ContextRule, count_16};
pub(crate) use decode::decode;
pub(crate) use elements_32::{Centers32, Elements32};
pub(crate) use encode::encode;
pub use model::{common_steps, sampled_bits};
pub(crate) use number::Number;

use crate::transform::fields::Layout;

/// How the blocks of a tensor are coded against those of its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaRecipe {
    /// Layout of the element; only its width, its mantissa and whether it has a sign matter.
    pub layout: Layout,
    /// Contexts per octave of the base: 1 or 2.
    pub per_octave: u8,
    /// Elements of a row, if rows that all moved by the same few steps are to be told apart.
    pub row_len: Option<u32>,
}

/// Contexts of a block at most: their tables are looked up by shuffles.
pub(crate) const MAX_CONTEXTS: usize = 16;

/// Buffers that blocks reuse: those of both paths, and those of each.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Context of every element.
    contexts: Vec<u8>,
    /// What the encoder codes: sign and bit length of every element.
    codes: Vec<u8>,
    /// What the encoder codes below the sign: byte `j` of every element in the `j`-th.
    rests: [Vec<u8>; 8],
    /// Symbols as the coder sees them, context by context.
    bucketed: Vec<u8>,
    /// Flags of each context as a string of bits.
    flags: Vec<u8>,
    /// Symbols of four flags, context by context.
    quads: Vec<u8>,
    room: Vec<u8>,
    passes: PassScratch,
    words: WordScratch,
}

/// Buffers of `passes` and `encode_passes`.
#[derive(Debug, Default)]
struct PassScratch {
    /// One bit per element: whether it is away from its center.
    moved: Vec<u64>,
    /// Context of every moved element.
    moved_contexts: Vec<u8>,
    /// Class symbol of every moved element.
    symbols: Vec<u8>,
    /// Kept bits of every moved element: the part that fills no byte.
    raw_bits: Vec<u8>,
    /// Number of kept bits of every moved element.
    raw_lens: Vec<u8>,
    /// Steps of the moved elements, where they have two bytes.
    steps: Vec<u16>,
    /// One plane of kept bits or bytes on its way.
    plane: Vec<u8>,
}

/// Buffers of `words` and `encode_words`.
#[derive(Debug, Default)]
struct WordScratch {
    /// Codes context by context: what the encoder codes, or what the symbols of the decoder say.
    codes: Vec<u8>,
    /// Planes of single kept bits.
    bits: Vec<u8>,
    /// Planes of kept bytes.
    bytes: Vec<u8>,
}
