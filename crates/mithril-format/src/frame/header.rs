//! The headers of frames and of blocks.

use crate::forever::{FRAME_MAGIC, FRAME_VERSION, frame_flags};
use crate::limits::{MAX_BLOCK_LEN, MAX_RANK, MAX_SHARED_LEN};
use crate::{Digest, FormatError};
use mithril_codec::block::Shared;
use mithril_codec::{Dtype, checksum};

/// What a frame says about its content before the first block.
#[derive(Debug)]
pub struct FrameHeader {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Dimensions, if it is a tensor.
    pub shape: Option<Vec<u64>>,
    /// Raw bytes of every block but the last.
    pub block_len: u32,
    /// Raw bytes of all blocks, unless the frame was written before they were known.
    pub raw_len: Option<u64>,
    /// Whether every block carries a checksum.
    pub checksums: bool,
    /// What the blocks share.
    pub shared: Shared,
    /// Digest of the raw bytes of the base, if the blocks may need one. It has the same dtype and length.
    pub base: Option<Digest>,
}

/// Bytes before the shape.
const FIXED_LEN: usize = 24;

impl FrameHeader {
    /// Appends the header.
    ///
    /// # Panics
    /// When the shared tables or the rank exceed their limits.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let shape = self.shape.as_deref().unwrap_or(&[]);
        let shared = self.shared.to_bytes();
        let shared_len = u32::try_from(shared.len()).ok().filter(|&len| len <= MAX_SHARED_LEN);
        let rank = u8::try_from(shape.len()).ok().filter(|&rank| usize::from(rank) <= MAX_RANK);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.extend(FRAME_MAGIC);
        out.push(FRAME_VERSION);
        out.push(
            flag(self.checksums, frame_flags::CHECKSUMS)
                | flag(self.shape.is_some(), frame_flags::SHAPE)
                | flag(self.raw_len.is_some(), frame_flags::LENGTH)
                | flag(self.base.is_some(), frame_flags::BASE),
        );
        out.push(self.dtype.id());
        out.push(rank.expect("rank within its limit"));
        out.extend(self.block_len.to_le_bytes());
        out.extend(shared_len.expect("shared tables within their limit").to_le_bytes());
        out.extend(self.raw_len.unwrap_or(0).to_le_bytes());
        for dimension in shape {
            out.extend(dimension.to_le_bytes());
        }
        if let Some(base) = &self.base {
            out.extend(base.0);
        }
        out.extend(shared);
        let sum = checksum(&out[start..]);
        out.extend(sum.to_le_bytes());
    }

    /// Bytes of the header that starts with these bytes, once there are enough to tell.
    ///
    /// # Errors
    /// When they are no frame of a version that this build reads, or claim sizes above the limits.
    pub fn len(bytes: &[u8]) -> Result<Option<usize>, FormatError> {
        let magic = &bytes[..bytes.len().min(4)];
        if *magic != FRAME_MAGIC[..magic.len()] {
            let found = magic.iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(FormatError::NotAFrame { found });
        }
        if let Some(&version) = bytes.get(4)
            && version != FRAME_VERSION
        {
            return Err(FormatError::UnsupportedVersion { found: version, supported: FRAME_VERSION });
        }
        let Some(fixed) = bytes.first_chunk::<FIXED_LEN>() else { return Ok(None) };
        let rank = usize::from(fixed[7]);
        if rank > MAX_RANK {
            return Err(FormatError::Limit {
                what: "rank",
                found: rank as u64,
                limit: MAX_RANK as u64,
                offset: 7,
            });
        }
        let shared_len = u32_at(fixed, 12);
        if shared_len > MAX_SHARED_LEN {
            let (found, limit) = (u64::from(shared_len), u64::from(MAX_SHARED_LEN));
            return Err(FormatError::Limit { what: "shared length", found, limit, offset: 12 });
        }
        Ok(Some(FIXED_LEN + 8 * rank + base_len(fixed[5]) + shared_len as usize + 8))
    }

    /// Reads a header; returns it and its length.
    ///
    /// # Errors
    /// When the bytes are cut off, damaged, or written by a later version.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), FormatError> {
        let truncated = FormatError::Truncated { what: "frame header", offset: 0 };
        let len = Self::len(bytes)?.ok_or(truncated.clone())?;
        let header = bytes.get(..len).ok_or(truncated)?;
        let (body, sum) = header.split_at(len - 8);
        let (expected, actual) = (u64_at(sum, 0), checksum(body));
        if expected != actual {
            return Err(FormatError::Checksum { what: "frame header", offset: 0, expected, actual });
        }
        let flags = body[5];
        if flags & !frame_flags::KNOWN != 0 {
            return Err(FormatError::Unknown { what: "flag", id: u32::from(flags), offset: 5 });
        }
        let dtype = Dtype::from_id(body[6]).ok_or(FormatError::Unknown {
            what: "dtype",
            id: u32::from(body[6]),
            offset: 6,
        })?;
        let rank = usize::from(body[7]);
        let block_len = u32_at(body, 8);
        if block_len == 0
            || block_len > MAX_BLOCK_LEN
            || !(block_len as usize).is_multiple_of(dtype.unit_len())
        {
            let (found, limit) = (u64::from(block_len), u64::from(MAX_BLOCK_LEN));
            return Err(FormatError::Limit { what: "block length", found, limit, offset: 8 });
        }
        let has = |flag: u8| flags & flag != 0;
        let raw_len = u64_at(body, 16);
        if !has(frame_flags::LENGTH) && raw_len != 0 {
            return Err(FormatError::Corrupt { what: "a raw length that is not flagged", offset: 16 });
        }
        let dimensions: Vec<u64> =
            body[FIXED_LEN..FIXED_LEN + 8 * rank].chunks_exact(8).map(|d| u64_at(d, 0)).collect();
        let shape = match has(frame_flags::SHAPE) {
            true => Some(dimensions),
            false if rank == 0 => None,
            false => return Err(FormatError::Corrupt { what: "a shape that is not flagged", offset: 7 }),
        };
        let shape_end = FIXED_LEN + 8 * rank;
        let shared_at = shape_end + base_len(flags);
        let base = body[shape_end..shared_at].first_chunk().map(|digest| Digest(*digest));
        let shared = Shared::parse(&body[shared_at..])
            .map_err(|source| FormatError::Shared { offset: shared_at as u64, source })?;
        let header = Self {
            dtype,
            shape,
            block_len,
            raw_len: has(frame_flags::LENGTH).then_some(raw_len),
            checksums: has(frame_flags::CHECKSUMS),
            shared,
            base,
        };
        if let Some(raw_len) = header.raw_len {
            header.check_shape(raw_len)?;
        }
        Ok((header, len))
    }

    /// The shape, if there is one, must describe exactly the raw bytes.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_shape(&self, raw_len: u64) -> Result<(), FormatError> {
        let Some(shape) = &self.shape else { return Ok(()) };
        let n_elements = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
        if n_elements.and_then(|n| self.dtype.len_of(n)) == Some(raw_len) {
            Ok(())
        } else {
            Err(FormatError::Corrupt { what: "shape and raw length do not agree", offset: FIXED_LEN as u64 })
        }
    }
}

/// Bytes of the base's digest in a header with these flags.
fn base_len(flags: u8) -> usize {
    if flags & frame_flags::BASE != 0 { Digest::LEN } else { 0 }
}

/// What stands before the coded bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Coded bytes.
    pub coded_len: u32,
    /// Raw bytes.
    pub raw_len: u32,
    /// Checksum of the raw bytes; zero where the frame has none.
    pub checksum: u64,
}

impl BlockHeader {
    /// Bytes of a block header.
    pub const fn len(checksums: bool) -> usize {
        if checksums { 16 } else { 8 }
    }

    /// Writes the header to the front of `out`.
    pub fn write(&self, checksums: bool, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.coded_len.to_le_bytes());
        out[4..8].copy_from_slice(&self.raw_len.to_le_bytes());
        if checksums {
            out[8..16].copy_from_slice(&self.checksum.to_le_bytes());
        }
    }

    /// Reads a header, or nothing at the end of the blocks. `offset` is where it stands, for messages.
    ///
    /// # Errors
    /// When it is cut off or its sizes are impossible.
    pub fn parse(bytes: &[u8], header: &FrameHeader, offset: u64) -> Result<Option<Self>, FormatError> {
        let truncated = FormatError::Truncated { what: "block header", offset };
        let coded_len = u32::from_le_bytes(*bytes.first_chunk().ok_or(truncated.clone())?);
        if coded_len == 0 {
            return Ok(None);
        }
        let bytes = bytes.get(..Self::len(header.checksums)).ok_or(truncated)?;
        let raw_len = u32_at(bytes, 4);
        if raw_len == 0 || raw_len > header.block_len {
            let (found, limit) = (u64::from(raw_len), u64::from(header.block_len));
            return Err(FormatError::Limit {
                what: "raw length of a block",
                found,
                limit,
                offset: offset + 4,
            });
        }
        if u64::from(coded_len) > u64::from(raw_len) + mithril_codec::block::MAX_OVERHEAD as u64 {
            let (found, limit) = (u64::from(coded_len), u64::from(raw_len) + 1);
            return Err(FormatError::Limit { what: "coded length of a block", found, limit, offset });
        }
        let checksum = if header.checksums { u64_at(bytes, 8) } else { 0 };
        Ok(Some(Self { coded_len, raw_len, checksum }))
    }
}

/// Four little-endian bytes at a place that is known to exist.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

/// Eight little-endian bytes at a place that is known to exist.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}
