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
    /// The header names a base by its digest, and blocks may need it.
    pub const BASE: u8 = 16;
    /// All flags that have a meaning.
    pub const KNOWN: u8 = CHECKSUMS | SHAPE | LENGTH | BASE;
}

/// First bytes of a container.
pub const CONTAINER_MAGIC: [u8; 4] = *b"MCKP";

/// Last bytes of a container.
pub const CONTAINER_END: [u8; 4] = *b"MCKF";

/// First bytes of the record before a frame.
pub const RECORD_MAGIC: [u8; 4] = *b"MCKE";

/// The container version that this build writes, and the only one it knows.
pub const CONTAINER_VERSION: u8 = 1;

/// Bits of a container's flags.
pub mod container_flags {
    /// Flags that a reader must know to read the rest; the other half may be ignored.
    pub const CRITICAL: u16 = 0x00ff;
    /// Tensors without a frame have a record too, so that salvage knows them.
    pub const LINK_RECORDS: u16 = 2;
}

/// Kinds of entry, in the low bits of an entry's first byte.
pub mod entry_kind {
    /// A frame of its own.
    pub const FULL: u8 = 0;
    /// The bytes of an earlier entry.
    pub const REF: u8 = 1;
    /// The bytes of a base tensor.
    pub const COPY: u8 = 2;
    /// A frame that needs a base tensor.
    pub const DELTA: u8 = 3;
    /// The rounding of another entry.
    pub const DERIVED: u8 = 4;
    /// Bytes in the index.
    pub const INLINE: u8 = 5;
    /// The bits of the kind.
    pub const MASK: u8 = 0x0f;
}

/// Flags in the high bits of an entry's first byte.
pub mod entry_flags {
    /// The bytes of the original file that belong to no tensor.
    pub const GLUE: u8 = 0x10;
    /// The digest of the raw bytes is there.
    pub const DIGEST: u8 = 0x20;
    /// The base calls the tensor by another name.
    pub const BASE_NAME: u8 = 0x40;
    /// The base of a delta is the base tensor after a step of its optimiser. Without meaning for other kinds.
    pub const STEP: u8 = 0x80;
}

/// How derived tensors are rounded.
pub mod rounding {
    /// To the nearest, ties to even.
    pub const NEAREST_EVEN: u8 = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_change_these_constants() {
        assert_eq!(FRAME_MAGIC, [0x4d, 0x54, 0x48, 0x46]);
        assert_eq!(FRAME_END, [0x4d, 0x54, 0x48, 0x45]);
        assert_eq!(FRAME_VERSION, 1);
        use frame_flags::{BASE, CHECKSUMS, LENGTH, SHAPE};
        assert_eq!([CHECKSUMS, SHAPE, LENGTH, BASE], [1, 2, 4, 16]);
    }

    #[test]
    fn never_change_these_container_constants() {
        let magics = [CONTAINER_MAGIC, CONTAINER_END, RECORD_MAGIC];
        assert_eq!(magics, [*b"MCKP", *b"MCKF", *b"MCKE"]);
        assert_eq!((CONTAINER_VERSION, container_flags::CRITICAL), (1, 0xff));
        use entry_kind::{COPY, DELTA, DERIVED, FULL, INLINE, MASK, REF};
        assert_eq!([FULL, REF, COPY, DELTA, DERIVED, INLINE, MASK], [0, 1, 2, 3, 4, 5, 15]);
        use entry_flags::{BASE_NAME, DIGEST, GLUE, STEP};
        assert_eq!([GLUE, DIGEST, BASE_NAME, STEP], [0x10, 0x20, 0x40, 0x80]);
        assert_eq!(rounding::NEAREST_EVEN, 0);
    }
}
