//! What the bytes of a dictionary say about themselves.

use crate::CodecError;
use crate::arch::zdict;
use std::ops::Range;

/// First bytes of a dictionary with a header.
pub const MAGIC: [u8; 4] = 0xEC30_A437u32.to_le_bytes();

/// Lowest id for private use; those below are kept for a registry, and those from 2^31 on too.
pub const MIN_ID: u32 = 32768;

/// The header of a dictionary, or the lack of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its id; a dictionary of bare content has none.
    pub id: Option<u32>,
    /// Bytes before the content.
    pub header_len: usize,
    /// Bytes of content.
    pub content_len: usize,
    /// Offsets that a frame starts from.
    pub repeat_offsets: Option<[u32; 3]>,
}

impl Header {
    /// Reads the header of a dictionary and checks its tables. Bytes without the magic number are bare content.
    ///
    /// # Errors
    /// When there is a header, and it is damaged.
    pub fn parse(dictionary: &[u8]) -> Result<Self, CodecError> {
        if !dictionary.starts_with(&MAGIC) {
            let content_len = dictionary.len();
            return Ok(Self { id: None, header_len: 0, content_len, repeat_offsets: None });
        }
        let id = dictionary.get(4..8).ok_or(CodecError::truncated("dictionary header"))?;
        let id = u32::from_le_bytes(id.try_into().expect("four bytes"));
        let header_len = zdict::header_len(dictionary)
            .filter(|&len| len >= 20)
            .ok_or(CodecError::corrupt("dictionary header: entropy tables or repeat offsets"))?;
        let offsets = &dictionary[repeat_offsets_at(header_len)];
        let offset =
            |idx: usize| u32::from_le_bytes(offsets[4 * idx..4 * idx + 4].try_into().expect("four bytes"));
        Ok(Self {
            id: (id != 0).then_some(id),
            header_len,
            content_len: dictionary.len() - header_len,
            repeat_offsets: Some([offset(0), offset(1), offset(2)]),
        })
    }
}

/// Where the repeat offsets lie: at the end of the header.
pub(super) fn repeat_offsets_at(header_len: usize) -> Range<usize> {
    header_len - 12..header_len
}
