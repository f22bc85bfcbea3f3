//! The last bytes of a container: where the index is, and the digest of the whole.

use super::{Prologue, section};
use crate::forever::CONTAINER_END;
use crate::limits::MAX_SECTION_LEN;
use crate::{Digest, Digester, FormatError};
use mithril_codec::checksum;

/// What a reader looks at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// Where the header ends and the first record starts.
    pub data_offset: u64,
    /// Frames start on multiples of two to this power.
    pub alignment_log2: u8,
    /// The flags of the prologue.
    pub flags: u16,
    /// Where the index starts.
    pub index_offset: u64,
    /// Coded bytes of the index.
    pub index_len: u32,
    /// Bytes of the index once decoded.
    pub index_raw_len: u32,
    /// Checksum of the coded index.
    pub index_checksum: u64,
    /// Digest of prologue, header and index, which holds a checksum of every frame.
    pub digest: Digest,
}

/// Bytes that the footer's own checksum covers.
const CHECKED_LEN: usize = 4 * 8 + 2 * 4 + Digest::LEN;

/// Bytes without a meaning yet.
const RESERVED: [u8; 4] = [0; 4];

impl Footer {
    /// Bytes of a footer.
    pub const LEN: usize = CHECKED_LEN + 8 + 4;

    /// Appends index and footer; `head` is the container's prologue and header.
    ///
    /// # Errors
    /// When the index is longer than readers accept.
    pub(super) fn write(
        index_raw: &[u8],
        index_offset: u64,
        head: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Self, FormatError> {
        let prologue = Prologue::parse(head)?;
        let coded = section::encode(index_raw);
        let fits = |len: usize| {
            let limit = u64::from(MAX_SECTION_LEN);
            u32::try_from(len).ok().filter(|&len| len <= MAX_SECTION_LEN).ok_or(FormatError::Limit {
                what: "index",
                found: len as u64,
                limit,
                offset: index_offset,
            })
        };
        let footer = Self {
            data_offset: head.len() as u64,
            alignment_log2: prologue.alignment_log2,
            flags: prologue.flags,
            index_offset,
            index_len: fits(coded.len())?,
            index_raw_len: fits(index_raw.len())?,
            index_checksum: checksum(&coded),
            digest: digest(head, &coded),
        };
        out.extend(&coded);
        let start = out.len();
        out.extend(footer.data_offset.to_le_bytes());
        // Repeated here, because a reader of single tensors never sees the prologue.
        out.extend(&head[Prologue::REPEATED]);
        out.extend(RESERVED);
        out.extend(footer.index_offset.to_le_bytes());
        out.extend(footer.index_len.to_le_bytes());
        out.extend(footer.index_raw_len.to_le_bytes());
        out.extend(footer.index_checksum.to_le_bytes());
        out.extend(footer.digest.0);
        let sum = checksum(&out[start..]);
        out.extend(sum.to_le_bytes());
        out.extend(CONTAINER_END);
        Ok(footer)
    }

    /// Reads the footer of a file of `file_len` bytes from its last bytes.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn parse(last: &[u8; Self::LEN], file_len: u64) -> Result<Self, FormatError> {
        let offset = file_len.saturating_sub(Self::LEN as u64);
        let (body, end) = last.split_at(CHECKED_LEN);
        if end[8..] != CONTAINER_END {
            return Err(FormatError::NoFooter { offset });
        }
        let u64_at = |bytes: &[u8], at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let (expected, actual) = (u64_at(end, 0), checksum(body));
        if expected != actual {
            return Err(FormatError::Checksum { what: "container footer", offset, expected, actual });
        }
        let u32_at = |at: usize| u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let mut digest = Digest([0; Digest::LEN]);
        digest.0.copy_from_slice(&body[CHECKED_LEN - Digest::LEN..]);
        let (alignment_log2, flags) =
            Prologue::parse_repeated([body[8], body[9], body[10], body[11]], offset + 8)?;
        if body[12..16] != RESERVED {
            return Err(FormatError::Unknown { what: "footer field", id: u32_at(12), offset: offset + 12 });
        }
        let footer = Self {
            data_offset: u64_at(body, 0),
            alignment_log2,
            flags,
            index_offset: u64_at(body, 16),
            index_len: u32_at(24),
            index_raw_len: u32_at(28),
            index_checksum: u64_at(body, 32),
            digest,
        };
        if footer.index_offset.checked_add(u64::from(footer.index_len)) != Some(offset) {
            return Err(FormatError::Corrupt { what: "index and footer do not meet", offset });
        }
        if footer.data_offset > Prologue::LEN as u64 + u64::from(MAX_SECTION_LEN) {
            let (found, limit) = (footer.data_offset, Prologue::LEN as u64 + u64::from(MAX_SECTION_LEN));
            return Err(FormatError::Limit { what: "container header", found, limit, offset });
        }
        if footer.index_len > MAX_SECTION_LEN {
            let (found, limit) = (u64::from(footer.index_len), u64::from(MAX_SECTION_LEN));
            return Err(FormatError::Limit { what: "index", found, limit, offset });
        }
        Ok(footer)
    }

    /// The decoded index.
    pub(super) fn decode_index(&self, coded: &[u8]) -> Result<Vec<u8>, FormatError> {
        let (expected, actual) = (self.index_checksum, checksum(coded));
        if expected != actual {
            let offset = self.index_offset;
            return Err(FormatError::Checksum { what: "index", offset, expected, actual });
        }
        section::decode(coded, self.index_raw_len, "index", self.index_offset)
    }
}

/// The digest of a container: of its prologue and header, and of its coded index.
pub(super) fn digest(head: &[u8], index_coded: &[u8]) -> Digest {
    let mut digester = Digester::default();
    digester.update(head);
    digester.update(index_coded);
    digester.finish()
}
