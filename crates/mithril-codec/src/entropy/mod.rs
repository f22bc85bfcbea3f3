//! Entropy coders: symbols to fewer bytes, and back.

pub mod huffman;
pub mod lz;
#[cfg(feature = "zstd")]
mod metadata;
pub mod rans12;
pub mod rans8;
pub mod stream;

/// What symbols with these counts take by an ideal coder that knows the counts, in 65536ths of a bit.
pub fn order_0_65536ths(counts: &[u32]) -> u64 {
    let n: u64 = counts.iter().copied().map(u64::from).sum();
    let of_counts = counts.iter().copied().filter(|&count| count > 0).map(u64::from);
    (n * log2_65536ths(n)).saturating_sub(of_counts.map(|count| count * log2_65536ths(count)).sum())
}

/// The binary logarithm of a count in 65536ths of a bit, by integers alone: what planners compare must not depend on a
/// machine's mathematics library. Zero counts as one.
pub fn log2_65536ths(count: u64) -> u64 {
    let count = count.max(1);
    let shift = (64 - count.leading_zeros()).saturating_sub(12);
    let mantissa = u16::try_from(count >> shift).unwrap_or(4095);
    u64::from(rans12::log2_65536ths(mantissa)) + (u64::from(shift) << 16)
}
