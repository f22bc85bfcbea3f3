//! What contexts expect of elements of two and four bytes, in the form that kernels take.

use super::header::EXACT_FROM;
use super::{MAX_CONTEXTS, model};

/// Centers and exact differences of all contexts.
#[derive(Debug, Default)]
pub(crate) struct Centers32 {
    pub(crate) centers: [u32; MAX_CONTEXTS],
    pub(crate) exact: [[u32; MAX_CONTEXTS]; 2],
    /// 1 for contexts that have exact differences.
    pub(crate) has_exact: [u32; MAX_CONTEXTS],
}

/// Elements of the base, and what their contexts expect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elements32<'a> {
    pub(crate) sign: bool,
    pub(crate) centers: &'a Centers32,
    /// Context of every element.
    pub(crate) contexts: &'a [u8],
    pub(crate) base: &'a [u8],
}

impl Centers32 {
    /// What the encoder codes for an element at its center.
    pub(crate) const STILL_CODE: u8 = model::STILL;
    /// What the encoder codes for an element at an exact difference.
    pub(crate) const EXACT_CODES: [u8; 2] = model::EXACT;
    /// The first of the two symbols of exact differences.
    pub(crate) const EXACT_FROM: u8 = EXACT_FROM;

    /// From the center and the exact differences of each context.
    pub(super) fn new(contexts: impl Iterator<Item = (u64, Option<[u64; 2]>)>) -> Self {
        let mut all = Self::default();
        // Differences are modulo the width of the element.
        let low = |x: u64| u32::try_from(x & u64::from(u32::MAX)).unwrap_or(0);
        for (at, (center, exact)) in contexts.enumerate().take(MAX_CONTEXTS) {
            all.centers[at] = low(center);
            if let Some(exact) = exact {
                all.has_exact[at] = 1;
                all.exact[0][at] = low(exact[0]);
                all.exact[1][at] = low(exact[1]);
            }
        }
        all
    }
}
