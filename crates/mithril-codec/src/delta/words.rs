//! The elements of a difference block, 64 at a time and in one go, where the CPU has AVX-512; `passes` is the definition.
//!
//! Flags and classes of a context are put together while they still stand in the order of the coder: one byte for each
//! element says all that follows from its symbols. Handing these bytes to the elements is then the only step that looks
//! at every context, and everything behind it happens in registers.

use super::decode::{Differences, Symbols};
use super::flags::Source;
use super::header::{Context, EXACT_FROM};
use super::raw;
use super::{Centers32, MAX_CONTEXTS, Number, Scratch, WordScratch};
use crate::arch::WordKernels;

/// What the symbols of an element say: whether it is away from its center, in which direction, whether there is a
/// leading one above its kept bits, and how many it keeps.
pub(crate) const MOVED: u8 = 1 << 7;
pub(crate) const NEGATIVE: u8 = 1 << 6;
pub(crate) const LEADING: u8 = 1 << 5;
pub(crate) const KEPT: u8 = LEADING - 1;
/// Elements at one of the exact differences of their context. They keep nothing and are not marked as moved, so that no
/// step from the center is added.
pub(crate) const EXACT: [u8; 2] = [LEADING, NEGATIVE];

/// Words of 64 elements that kernels take together.
pub(crate) const TILE_WORDS: usize = 16;

/// Bytes behind codes, and behind bits, that kernels may touch.
const SLACK: usize = 64 * (TILE_WORDS + 1);
const BITS_SLACK: usize = 8 * (TILE_WORDS + 2);

/// In place of the context of an element that does not exist, and of a context that no element has.
const NO_ELEMENT: u8 = u8::MAX;
const NO_CONTEXT: u8 = u8::MAX - 1;

/// Where the codes and kept bits of the next elements are.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    pub(crate) sign: bool,
    /// Centers and exact differences, if any context has others than zero.
    pub(crate) centers: Option<&'a Centers32>,
    /// The codes of all contexts that have any, one behind the other.
    pub(crate) codes: &'a [u8],
    /// Contexts with codes, and where those of the next elements start; others have the number of none.
    pub(crate) codes_at: [(u8, usize); MAX_CONTEXTS],
    pub(crate) n_contexts: usize,
    /// Planes of single bits, one behind the other, and the bit where each goes on.
    pub(crate) bits: &'a [u8],
    pub(crate) bits_at: [usize; 7],
    /// What is left of the planes of bytes.
    pub(crate) bytes: [&'a [u8]; 3],
}

/// The kernels that this takes, if the CPU has them and there are such for the number.
pub(super) fn kernels(number: Number) -> Option<&'static dyn WordKernels> {
    crate::arch::kernels().delta_words().filter(|_| matches!(number.width, 2 | 4))
}

/// Moves every element of the base by its difference, if there are kernels for that; returns whether.
pub(super) fn apply(
    differences: &Differences<'_>,
    base: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> bool {
    let Differences { number, tables, symbols, planes, kept } = differences;
    let number = *number;
    let Some(kernels) = kernels(number) else { return false };
    let Scratch { contexts, bucketed, flags, words: WordScratch { codes, bits, .. }, .. } = scratch;
    let (codes_at, n_contexts) = join(kernels, tables, symbols, bucketed, flags, codes);
    let (bits, bits_at) = raw::strings(planes, kept.with_padding(), BITS_SLACK, bits);
    let plain = tables.iter().all(|context| context.center == 0 && context.exact.is_none());
    let centers = Centers32::new(tables.iter().map(|context| (context.center, context.exact)));
    let mut walk = Walk {
        sign: number.sign,
        centers: (!plain).then_some(&centers),
        codes,
        codes_at,
        n_contexts,
        bits,
        bits_at,
        bytes: [planes.bytes[0], planes.bytes[1], planes.bytes[2]],
    };
    let n = contexts.len();
    let whole = n / 64 * 64;
    let word_len = 64 * number.width;
    let mut words = |contexts: &[u8], base: &[u8], out: &mut [u8]| match number.width {
        2 => kernels.move_16(&mut walk, contexts, base, out),
        _ => kernels.move_32(&mut walk, contexts, base, out),
    };
    words(&contexts[..whole], &base[..whole * number.width], &mut out[..whole * number.width]);
    // The last elements as a whole word: those that do not exist are in no context.
    let (mut last_contexts, mut last_base, mut last_out) = ([NO_ELEMENT; 64], [0; 256], [0; 256]);
    let last = whole * number.width..n * number.width;
    last_contexts[..n - whole].copy_from_slice(&contexts[whole..]);
    last_base[..last.len()].copy_from_slice(&base[last.clone()]);
    words(&last_contexts, &last_base[..word_len], &mut last_out[..word_len]);
    out[last.clone()].copy_from_slice(&last_out[..last.len()]);
    true
}

/// Makes the codes of all elements of the contexts that have any, in the order of the coder. Returns these contexts, where
/// the codes of each start, and how many contexts these are.
fn join(
    kernels: &dyn WordKernels,
    tables: &[Context],
    symbols: &Symbols,
    classes: &[u8],
    flags: &[u8],
    codes: &mut Vec<u8>,
) -> ([(u8, usize); MAX_CONTEXTS], usize) {
    // Those behind the last have a number that no element has.
    let mut codes_at = [(NO_CONTEXT, 0); MAX_CONTEXTS];
    let (mut n_contexts, mut end) = (0, 0);
    // Codes of one context may be written over the start of the next, which come later.
    codes.resize(symbols.n_in_context.iter().sum::<usize>() + SLACK, 0);
    for (at, context) in tables.iter().enumerate() {
        let n = symbols.n_in_context[at];
        let code_of: [u8; 16] = std::array::from_fn(|symbol| code(context, symbol.to_le_bytes()[0]));
        let classes = &classes[symbols.starts[at]..];
        match symbols.sources[at] {
            Source::None => continue,
            Source::All => kernels.codes_of_all(&code_of, classes, &mut codes[end..], n),
            Source::Bits(first) => {
                kernels.codes_of_flagged(&code_of, &flags[first / 8..], classes, &mut codes[end..], n);
            }
        }
        codes_at[n_contexts] = (at.to_le_bytes()[0], end);
        n_contexts += 1;
        end += n;
    }
    (codes_at, n_contexts)
}

/// What a class symbol of a context says.
fn code(context: &Context, symbol: u8) -> u8 {
    if symbol >= EXACT_FROM && context.exact.is_some() {
        return EXACT[usize::from(symbol - EXACT_FROM)];
    }
    let negative = if symbol & 1 == 1 { NEGATIVE } else { 0 };
    let leading = if symbol > 1 { LEADING } else { 0 };
    // At most 31 for elements of four bytes.
    MOVED | negative | leading | context.raw_len(symbol) & KEPT
}
