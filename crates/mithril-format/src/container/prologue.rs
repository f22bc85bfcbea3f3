//! The first bytes of a container.

use super::section;
use crate::FormatError;
use crate::forever::{CONTAINER_MAGIC, CONTAINER_VERSION, container_flags};
use crate::limits::{MAX_ALIGNMENT_LOG2, MAX_SECTION_LEN};
use mithril_codec::Checksummer;

/// What stands before the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prologue {
    /// Frames start on multiples of two to this power.
    pub alignment_log2: u8,
    /// Flags.
    pub flags: u16,
    /// Coded bytes of the header.
    pub header_len: u32,
    /// Bytes of the header once decoded.
    pub header_raw_len: u32,
    /// Checksum of the bytes before this field and of the coded header.
    checksum: u64,
}

/// Bytes that the checksum covers before the header.
const CHECKED_LEN: usize = 16;

impl Prologue {
    /// Bytes of a prologue.
    pub const LEN: usize = CHECKED_LEN + 8;

    /// Where version, alignment and flags stand, which the footer repeats.
    pub(super) const REPEATED: std::ops::Range<usize> = 4..8;

    /// Prologue and coded header of a container with this header.
    ///
    /// # Errors
    /// When the header is longer than readers accept.
    pub(super) fn write(alignment_log2: u8, header: &[u8]) -> Result<Vec<u8>, FormatError> {
        let too_long = |found: usize| FormatError::Limit {
            what: "container header",
            found: found as u64,
            limit: u64::from(MAX_SECTION_LEN),
            offset: 0,
        };
        let fits = |len: usize| u32::try_from(len).ok().filter(|&len| len <= MAX_SECTION_LEN);
        let coded = section::encode(header);
        let header_raw_len = fits(header.len()).ok_or_else(|| too_long(header.len()))?;
        let header_len = fits(coded.len()).ok_or_else(|| too_long(coded.len()))?;
        let mut out = CONTAINER_MAGIC.to_vec();
        out.extend([CONTAINER_VERSION, alignment_log2]);
        out.extend(container_flags::LINK_RECORDS.to_le_bytes());
        out.extend(header_len.to_le_bytes());
        out.extend(header_raw_len.to_le_bytes());
        let mut sum = Checksummer::default();
        sum.update(&out);
        sum.update(&coded);
        out.extend(sum.finish().to_le_bytes());
        out.extend(coded);
        Ok(out)
    }

    /// Reads the prologue at the front of `bytes`.
    ///
    /// # Errors
    /// When they are no container of a version that this build reads, or claim sizes above the limits.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let magic = &bytes[..bytes.len().min(4)];
        if *magic != CONTAINER_MAGIC[..magic.len()] || magic.is_empty() {
            let found = magic.iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(FormatError::NotAContainer { found });
        }
        if let Some(&version) = bytes.get(4)
            && version != CONTAINER_VERSION
        {
            return Err(FormatError::UnsupportedVersion { found: version, supported: CONTAINER_VERSION });
        }
        let fixed = bytes
            .first_chunk::<{ Self::LEN }>()
            .ok_or(FormatError::Truncated { what: "container prologue", offset: 0 })?;
        let (alignment_log2, flags) = Self::parse_repeated([fixed[4], fixed[5], fixed[6], fixed[7]], 4)?;
        let field = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let (header_len, header_raw_len) = (field(8), field(12));
        if header_len > MAX_SECTION_LEN {
            let (found, limit) = (u64::from(header_len), u64::from(MAX_SECTION_LEN));
            return Err(FormatError::Limit { what: "container header", found, limit, offset: 8 });
        }
        let (_, checksum) = fixed.split_last_chunk::<8>().expect("a prologue ends in a checksum");
        let checksum = u64::from_le_bytes(*checksum);
        Ok(Self { alignment_log2, flags, header_len, header_raw_len, checksum })
    }

    /// Alignment and flags, from the four bytes at `offset` that prologue and footer have in common.
    pub(super) fn parse_repeated(bytes: [u8; 4], offset: u64) -> Result<(u8, u16), FormatError> {
        let [version, alignment_log2, flags_low, flags_high] = bytes;
        if version != CONTAINER_VERSION {
            return Err(FormatError::UnsupportedVersion { found: version, supported: CONTAINER_VERSION });
        }
        let flags = u16::from_le_bytes([flags_low, flags_high]);
        if flags & container_flags::CRITICAL & !container_flags::LINK_RECORDS != 0 {
            let (what, id) = ("container flag", u32::from(flags));
            return Err(FormatError::Unknown { what, id, offset: offset + 2 });
        }
        if alignment_log2 > MAX_ALIGNMENT_LOG2 {
            let (found, limit) = (u64::from(alignment_log2), u64::from(MAX_ALIGNMENT_LOG2));
            return Err(FormatError::Limit { what: "alignment", found, limit, offset: offset + 1 });
        }
        Ok((alignment_log2, flags))
    }

    /// Where the header ends.
    pub fn header_end(&self) -> u64 {
        Self::LEN as u64 + u64::from(self.header_len)
    }

    /// The decoded header, from the bytes of prologue and header.
    ///
    /// # Errors
    /// When they are cut off or damaged.
    pub(super) fn decode_header(&self, bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
        let coded = bytes
            .get(Self::LEN..Self::LEN + self.header_len as usize)
            .ok_or(FormatError::Truncated { what: "container header", offset: Self::LEN as u64 })?;
        let mut sum = Checksummer::default();
        sum.update(&bytes[..CHECKED_LEN]);
        sum.update(coded);
        let (expected, actual) = (self.checksum, sum.finish());
        if expected != actual {
            return Err(FormatError::Checksum { what: "container header", offset: 0, expected, actual });
        }
        section::decode(coded, self.header_raw_len, "container header", Self::LEN as u64)
    }
}
