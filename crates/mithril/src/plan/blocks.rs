//! How long blocks are: the lengths that plans choose from, and that cost models count blocks by.

use mithril_format::limits::MAX_BLOCK_LEN;

/// Raw bytes of the smallest block that a plan asks for.
pub const MIN_BLOCK_LEN: usize = 1 << 15;

/// Elements of a block with tables of its own. 32 K cost 0.3 % of size; 128 K gain 0.1 % and lose speed in small caches.
pub(super) const OWN_TABLES: usize = 1 << 16;

/// Elements of a block with shared classes: states and tables are then a hundredth of a bit per element.
pub(super) const SHARED_TABLES: usize = 1 << 19;

/// Elements of a block against a base. Twice as many gain 1 % of a fine-tune's size, but no longer fit a small cache with
/// their base.
pub(super) const AGAINST_BASE: usize = 1 << 17;

/// Raw bytes of a block that a compressor with a window works on.
pub(super) const COMPRESSOR: usize = 4 << 20;

/// Raw bytes of blocks of unknown type in which little repeats itself.
pub(super) const UNTYPED: [usize; 3] = [512 << 10, 128 << 10, MIN_BLOCK_LEN];

/// Raw bytes of a block of a tensor that is coded in batches, so that a batch holds whole ones with little left over.
pub(super) const MAX_IN_BATCHES: usize = 4 << 20;

/// Bytes of the states of a coder, which every block has.
pub(super) const STATES_LEN: u64 = 320;

/// A length that a header can hold.
pub(super) fn block_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX).min(MAX_BLOCK_LEN)
}

/// Elements of every block when `n` of them are cut to blocks of about this many, as evenly as whole vectors allow.
pub(super) fn evenly(n: usize, about: usize) -> usize {
    let n = n.max(1);
    let n_blocks = ((n + about / 2) / about).max(1);
    n.div_ceil(n_blocks).next_multiple_of(256).max(MIN_BLOCK_LEN)
}

/// Rows that make a block with shared tables of about the usual size, in whole tiles where that is possible.
pub(super) fn rows_per_block(row_len: usize) -> usize {
    let whole_tiles = 256 >> row_len.trailing_zeros().min(8);
    let rows = (SHARED_TABLES / row_len).max(1);
    if rows > whole_tiles { rows / whole_tiles * whole_tiles } else { rows }
}
