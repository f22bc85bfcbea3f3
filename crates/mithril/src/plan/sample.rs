//! What a few elements tell about a tensor: zeros, few distinct values, repeats, and where the exponents lie.

use mithril_codec::block::{FieldRecipe, SymbolCoder};
use mithril_codec::entropy::rans8::{ListedValues, Window};
use mithril_codec::transform::fields::{FieldSplit, Layout, Order};

/// Elements looked at.
const SAMPLED: usize = 256;

/// Counts over a sample of elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sample {
    n: usize,
    zeros: usize,
    distinct: usize,
    repeats: usize,
}

impl Sample {
    /// Looks at 256 elements spread over the data, and at one piece of 4 KiB.
    pub(super) fn of(source: &[u8], width: usize) -> Self {
        let n = source.len() / width;
        let mut sample = Self { n: n.min(SAMPLED), ..Self::default() };
        if n < SAMPLED {
            return sample;
        }
        // One bit per hash: fewer bits set than elements means equal elements.
        let mut seen = [0u64; 64];
        for i in 0..SAMPLED {
            // A step that is no multiple of a power of two does not follow the columns of a matrix.
            let at = (i * (n / SAMPLED) + i * 37 % (n / SAMPLED)).min(n - 1);
            let element = read(source, width, at);
            sample.zeros += usize::from(element == 0);
            let hash = hash(element) >> 52;
            sample.distinct += usize::from(seen[hash as usize / 64] >> (hash % 64) & 1 == 0);
            seen[hash as usize / 64] |= 1 << (hash % 64);
        }
        let piece = &source[source.len() / 2 / 16 * 16..];
        let mut windows = [0u64; 1024];
        for window in piece[..piece.len().min(4096)].windows(8).step_by(4) {
            let window = read(window, 8, 0);
            let slot = &mut windows[(hash(window) >> 54) as usize];
            sample.repeats += usize::from(*slot == window);
            *slot = window;
        }
        sample
    }

    /// Enough zeros for a sparse block to pay: one mask bit per element against all bits of a zero.
    pub(super) fn is_sparse(&self) -> bool {
        self.zeros * 8 > self.n && self.n >= SAMPLED
    }

    /// So few distinct values that a palette may hold them.
    pub(super) fn has_few_values(&self) -> bool {
        self.n >= SAMPLED && self.distinct * 2 < self.n
    }

    /// Enough repeats in a piece for a compressor to be tried.
    pub(super) fn has_repeats(&self) -> bool {
        self.repeats * 8 > 1024 && self.zeros * 2 < self.n
    }
}

/// Whether fewer than half of the elements of a small tensor are distinct. Single bytes always are, so that they count
/// by fours.
pub(super) fn repeats_elements(source: &[u8], width: usize) -> bool {
    let width = width.max(4);
    let n = source.len() / width;
    let mut seen = [0u64; 64];
    for at in 0..n {
        let hash = hash(read(source, width, at)) >> 52;
        seen[hash as usize / 64] |= 1 << (hash % 64);
    }
    let distinct: u32 = seen.iter().map(|bits| bits.count_ones()).sum();
    n >= 8 && (distinct as usize) * 2 < n
}

fn hash(value: u64) -> u64 {
    value.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

pub(super) fn read(source: &[u8], width: usize, at: usize) -> u64 {
    let mut word = [0; 8];
    word[..width].copy_from_slice(&source[at * width..][..width]);
    u64::from_le_bytes(word)
}

/// The base of a plane, from the largest coded fields of a sample: small values matter least when they escape.
pub(super) fn base(source: &[u8], layout: Layout, joint: u8) -> u16 {
    let split = FieldSplit { joint, ..FieldSplit::plain(layout, Order::Natural) };
    if split.top_bits() <= 8 {
        return 0;
    }
    let width = usize::from(layout.width);
    let n = source.len() / width;
    let step = (n / 4096).max(1);
    let infinite = (1 << split.top_bits()) - (1 << joint);
    let tops =
        (0..n).step_by(step).map(|at| split.top(read(source, width, at))).filter(|&top| top < infinite);
    let highest = tops.max().unwrap_or(255);
    u16::try_from((highest + (8 << joint)).saturating_sub(255)).unwrap_or(u16::MAX)
}

/// Elements that are looked at to see whether signs are worth coding.
const SIGNS_SAMPLED: usize = 4096;

/// Half floats that are looked at one behind the other: a line of the cache.
const SIGN_RUN: usize = 32;

/// Bits of an escape: its position and its top field.
const ESCAPE_BITS: u64 = 24;

/// The layout that codes sign and exponent as one field, where nearly all signs are equal: a half float whose highest
/// six bits are the field. Wider exponents leave no room for the sign in a byte.
pub(super) fn sign_and_exponent(source: &[u8], layout: Layout) -> Option<Layout> {
    let Layout { width: 2, mantissa: 10, sign: true, .. } = layout else { return None };
    // Elements that follow each other come with one read of memory: single ones took a sixth of the time of encoding.
    let runs = source.as_chunks::<2>().0.as_chunks::<SIGN_RUN>().0;
    let step = runs.len() / (SIGNS_SAMPLED / SIGN_RUN);
    if step == 0 {
        return None;
    }
    let mut together = [0; 256];
    for i in 0..SIGNS_SAMPLED / SIGN_RUN {
        for element in &runs[i * step + i * 37 % step] {
            together[usize::from(u16::from_le_bytes(*element) >> 10)] += 1;
        }
    }
    let mut exponents = [0; 256];
    for (top, &count) in together.iter().enumerate() {
        exponents[top % 32] += count;
    }
    let raw_signs = 256 * SIGNS_SAMPLED as u64;
    let apart = Window::of_counts(&exponents).cost_bits(&exponents, ESCAPE_BITS) + raw_signs;
    let joined = ListedValues::of_counts(&together).cost_bits(&together, ESCAPE_BITS);
    // A sixteenth of a bit: what a sample of this size cannot tell from nothing is left alone.
    (joined + raw_signs / 16 < apart).then_some(Layout { sign: false, ..layout })
}

/// The layout whose field has the sign, too, where every sampled element has the same: second moments of an optimiser,
/// scales, variances. One bit is saved of each; the few elements that are otherwise escape.
pub(super) fn without_equal_signs(source: &[u8], layout: Layout) -> Layout {
    let width = usize::from(layout.width);
    let n = source.len() / width;
    // Single bytes keep their nibbles, which are coded faster.
    if width == 1 || !layout.sign || n == 0 {
        return layout;
    }
    let step = (n / SIGNS_SAMPLED).max(1);
    let is_negative = |at: usize| read(source, width, at) >> (8 * width - 1) == 1;
    let first = is_negative(0);
    let all_equal = (0..n / step).all(|i| is_negative(i * step + i * 37 % step) == first);
    if all_equal { Layout { sign: false, ..layout } } else { layout }
}

/// The layout for 256 symbols: whole bytes, or exponents with two mantissa bits.
pub(super) fn wide_fields(source: &[u8], layout: Layout) -> FieldRecipe {
    if layout.width == 1 {
        let layout = Layout { width: 1, mantissa: 0, sign: false, flip: false };
        return FieldRecipe { layout, joint: 0, base: 0, coder: SymbolCoder::Rans12, coded_low: false };
    }
    // Every mantissa bit halves the octaves that a byte has room for. What lies below them escapes: zeros, and what is
    // left of dead channels.
    let joint = [2, 1].into_iter().find(|&joint| escape_share(source, layout, joint) < MAX_ESCAPE_SHARE);
    let joint = joint.unwrap_or(0);
    FieldRecipe {
        layout,
        joint,
        base: base(source, layout, joint),
        coder: SymbolCoder::Rans12,
        coded_low: true,
    }
}

/// Elements of a thousand whose top field may lie below the base: each costs four bytes more, and two mantissa bits save
/// a twentieth of a bit of all others.
const MAX_ESCAPE_SHARE: usize = 2;

/// Elements of a thousand of a sample whose top field lies below the base.
fn escape_share(source: &[u8], layout: Layout, joint: u8) -> usize {
    let base = u64::from(base(source, layout, joint));
    let split = FieldSplit { joint, ..FieldSplit::plain(layout, Order::Natural) };
    let width = usize::from(layout.width);
    let n = source.len() / width;
    let step = (n / ESCAPES_SAMPLED).max(1);
    let sampled = (0..n / step).map(|i| i * step + i * 37 % step);
    let below = sampled.filter(|&at| split.top(read(source, width, at)) < base).count();
    1000 * below / (n / step).max(1)
}

/// Elements that are looked at to see how many escape.
const ESCAPES_SAMPLED: usize = 1 << 14;
