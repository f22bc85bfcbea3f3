//! Numbers of the format that can never change: what stands inside coded blocks.
//!
//! Their meaning is in `docs/format/frame.md`. A new number may be added; none may be reused.

/// Kinds of block: the first byte of every coded block.
pub(crate) mod kind {
    pub(crate) const STORED: u8 = 0;
    pub(crate) const CONSTANT: u8 = 1;
    pub(crate) const FIELDS: u8 = 2;
    pub(crate) const PLANES: u8 = 3;
    pub(crate) const PALETTE: u8 = 4;
    pub(crate) const SPARSE: u8 = 5;
    pub(crate) const ROWS: u8 = 6;
    pub(crate) const SAME: u8 = 8;
    pub(crate) const DIFFERENCE: u8 = 9;
    pub(crate) const XOR: u8 = 10;
    pub(crate) const PREDICTED: u8 = 11;
}

/// Coders of the symbols of bit fields.
pub(crate) mod symbols {
    pub(crate) const CONSTANT: u8 = 0;
    pub(crate) const RANS8: u8 = 1;
    pub(crate) const RANS8_SHARED: u8 = 2;
    pub(crate) const RANS12: u8 = 3;
    pub(crate) const RANS12_SHARED: u8 = 4;
    pub(crate) const RANS8_CLASSED: u8 = 5;
    pub(crate) const RANS8_LISTED: u8 = 7;
}

/// Coders of byte streams.
pub(crate) mod stream {
    pub(crate) const STORED: u8 = 0;
    pub(crate) const CONSTANT: u8 = 1;
    pub(crate) const RANS8: u8 = 2;
    pub(crate) const HUFFMAN: u8 = 3;
    pub(crate) const RANS12: u8 = 4;
    pub(crate) const ZSTD: u8 = 5;
    pub(crate) const LZ4: u8 = 6;
    pub(crate) const BROTLI: u8 = 7;
    pub(crate) const ZSTD_METADATA: u8 = 9;
}

/// Dictionaries that streams name by id.
#[cfg(feature = "zstd")]
pub(crate) mod dictionary {
    /// Of metadata: `entropy/metadata.dict`.
    pub(crate) const METADATA: u32 = 62160;
    /// Checksum of its bytes.
    #[cfg(test)]
    pub(crate) const METADATA_SUM: u64 = 0xf256_5c93_b3c8_c3b5;
}

#[cfg(test)]
mod tests {
    #[test]
    fn never_change_these_constants() {
        use super::{kind, stream, symbols};
        let kinds = [
            kind::STORED,
            kind::CONSTANT,
            kind::FIELDS,
            kind::PLANES,
            kind::PALETTE,
            kind::SPARSE,
            kind::ROWS,
            kind::SAME,
            kind::DIFFERENCE,
            kind::XOR,
            kind::PREDICTED,
        ];
        assert_eq!(kinds, [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]);
        let symbols = [
            symbols::CONSTANT,
            symbols::RANS8,
            symbols::RANS8_SHARED,
            symbols::RANS12,
            symbols::RANS12_SHARED,
            symbols::RANS8_CLASSED,
            symbols::RANS8_LISTED,
        ];
        assert_eq!(symbols, [0, 1, 2, 3, 4, 5, 7]);
        let streams = [
            stream::STORED,
            stream::CONSTANT,
            stream::RANS8,
            stream::HUFFMAN,
            stream::RANS12,
            stream::ZSTD,
            stream::LZ4,
            stream::BROTLI,
            stream::ZSTD_METADATA,
        ];
        assert_eq!(streams, [0, 1, 2, 3, 4, 5, 6, 7, 9]);
    }
}
