//! Class symbols of the moved elements: by context for the coder, by element for everything else.

use super::MAX_CONTEXTS;
use crate::arch::kernels;

/// Bytes behind the buckets that kernels may touch.
pub(super) const SLACK: usize = 64;

/// Takes the symbols of all contexts in the order of the elements. `starts[c]` is where those of context `c` begin;
/// `bucketed` has `SLACK` bytes behind its last.
pub(super) fn merge(
    moved_contexts: &[u8],
    mut starts: [usize; MAX_CONTEXTS],
    bucketed: &[u8],
    symbols: &mut Vec<u8>,
) {
    symbols.resize(moved_contexts.len(), 0);
    let done = kernels().delta_merge_classes(moved_contexts, &mut starts, bucketed, symbols);
    for (symbol, &context) in symbols[done..].iter_mut().zip(&moved_contexts[done..]) {
        let at = &mut starts[usize::from(context)];
        *symbol = bucketed[*at];
        *at += 1;
    }
}

/// The other way: puts every symbol into the bucket of its context.
pub(super) fn split(
    moved_contexts: &[u8],
    mut starts: [usize; MAX_CONTEXTS],
    symbols: &[u8],
    bucketed: &mut [u8],
) {
    let done = kernels().delta_split_classes(moved_contexts, &mut starts, symbols, bucketed);
    for (&symbol, &context) in symbols[done..].iter().zip(&moved_contexts[done..]) {
        let at = &mut starts[usize::from(context)];
        bucketed[*at] = symbol;
        *at += 1;
    }
}
