//! Numbers of the format that can never change.

/// First bytes of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"MTHF";

/// Last bytes of a frame.
pub const FRAME_END: [u8; 4] = *b"MTHE";

/// The version that this build writes, and the only one it knows.
pub const FRAME_VERSION: u8 = 1;

/// Bits of a frame's flags byte.
pub mod frame_flags {
    /// Every block carries a checksum of its raw bytes.
    pub const CHECKSUMS: u8 = 1;
    /// The header has a shape.
    pub const SHAPE: u8 = 2;
    /// The header has the raw length; without it the frame was written before its end was known.
    pub const LENGTH: u8 = 4;
    /// All flags that have a meaning.
    pub const KNOWN: u8 = CHECKSUMS | SHAPE | LENGTH;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_change_these_constants() {
        assert_eq!(FRAME_MAGIC, [0x4d, 0x54, 0x48, 0x46]);
        assert_eq!(FRAME_END, [0x4d, 0x54, 0x48, 0x45]);
        assert_eq!(FRAME_VERSION, 1);
        assert_eq!([frame_flags::CHECKSUMS, frame_flags::SHAPE, frame_flags::LENGTH], [1, 2, 4]);
    }
}
