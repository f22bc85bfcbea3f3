//! The record before every frame: what salvage needs when the index is lost.

use super::entry::EntryKind;
use crate::FormatError;
use crate::forever::{RECORD_MAGIC, entry_flags, entry_kind};
use crate::limits::MAX_NAME_LEN;
use mithril_codec::checksum;

/// Number, kind and name of the entry whose frame follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Number of the entry in the index.
    pub entry_idx: u32,
    /// Whether the frame holds the glue.
    pub glue: bool,
    /// Whether the frame is full or a delta.
    pub kind: EntryKind,
    /// Name of the tensor.
    pub name: String,
}

/// Magic, entry number, kind, a zero, length of the name.
const FIXED_LEN: usize = 12;

impl Record {
    /// Bytes of the record of a name.
    pub fn len(name: &str) -> usize {
        FIXED_LEN + name.len() + 8
    }

    /// Appends the record.
    ///
    /// # Panics
    /// When the name is longer than the limit.
    pub fn write(&self, out: &mut Vec<u8>) {
        assert!(self.name.len() <= MAX_NAME_LEN, "a name within its limit");
        let start = out.len();
        out.extend(RECORD_MAGIC);
        out.extend(self.entry_idx.to_le_bytes());
        out.push(self.kind.id() | if self.glue { entry_flags::GLUE } else { 0 });
        out.push(0);
        out.extend(u16::try_from(self.name.len()).expect("limited above").to_le_bytes());
        out.extend(self.name.as_bytes());
        let sum = checksum(&out[start..]);
        out.extend(sum.to_le_bytes());
    }

    /// Reads the record at the front of `bytes`; returns it and its length. `offset` is where it stands.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn parse(bytes: &[u8], offset: u64) -> Result<(Self, usize), FormatError> {
        let truncated = FormatError::Truncated { what: "record", offset };
        let fixed = bytes.first_chunk::<FIXED_LEN>().ok_or(truncated.clone())?;
        if fixed[..4] != RECORD_MAGIC {
            return Err(FormatError::Corrupt { what: "no record before a frame", offset });
        }
        let name_len = usize::from(u16::from_le_bytes([fixed[10], fixed[11]]));
        let (body, rest) = bytes.split_at_checked(FIXED_LEN + name_len).ok_or(truncated.clone())?;
        let expected = u64::from_le_bytes(*rest.first_chunk().ok_or(truncated)?);
        let actual = checksum(body);
        if expected != actual {
            return Err(FormatError::Checksum { what: "record", offset, expected, actual });
        }
        let corrupt = |what| FormatError::Corrupt { what, offset };
        let kind = EntryKind::from_id(fixed[8] & entry_kind::MASK)
            .filter(|kind| matches!(kind, EntryKind::Full | EntryKind::Delta))
            .filter(|_| fixed[8] & !(entry_kind::MASK | entry_flags::GLUE) == 0 && fixed[9] == 0)
            .ok_or(corrupt("record of something that has no frame"))?;
        let name = std::str::from_utf8(&body[FIXED_LEN..]).ok().filter(|name| super::is_safe_name(name));
        let record = Self {
            entry_idx: u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            glue: fixed[8] & entry_flags::GLUE != 0,
            kind,
            name: name.ok_or(corrupt("record with an impossible name"))?.to_owned(),
        };
        Ok((record, FIXED_LEN + name_len + 8))
    }
}
