//! Sizes that a file may claim, checked before anything is allocated for them.

/// Raw bytes of one block.
pub const MAX_BLOCK_LEN: u32 = 32 << 20;

/// Dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// Bytes of the tables that the blocks of a frame share.
pub const MAX_SHARED_LEN: u32 = 64 << 20;

/// Bytes of a safetensors header: the format's own limit.
pub const MAX_SAFETENSORS_HEADER_LEN: u64 = 100_000_000;
