//! A frame that is read piece by piece: its header and where its blocks are, without the blocks.

use super::{BlockHeader, FrameHeader, Trailer};
use crate::{FormatError, ReadAt, ReadError};
use std::borrow::Cow;
use std::ops::Range;

/// Bytes read from each end at first: more than header and trailer of all but the largest frames take.
const END_LEN: u64 = 16 << 10;

/// Header and trailer of a frame inside a larger source.
#[derive(Debug)]
pub struct FrameLayout {
    header: FrameHeader,
    /// Where the frame starts in the source.
    start: u64,
    /// Where the header of every block starts in the frame, and where the last one ends.
    block_starts: Vec<u64>,
    raw_len: u64,
}

impl FrameLayout {
    /// Reads both ends of the frame that lies at `range` of a source: two requests, more when they are large.
    ///
    /// # Errors
    /// When the source cannot be read, or those bytes are not exactly one frame.
    pub fn read(source: &(impl ReadAt + ?Sized), range: Range<u64>) -> Result<Self, ReadError> {
        let frame_len = range.end - range.start;
        let piece = |at: Range<u64>| {
            let at = range.start + at.start..range.start + at.end;
            match source.slice(at.clone()) {
                Some(bytes) => Ok(Cow::Borrowed(bytes)),
                None => source.read_range(at).map(Cow::Owned),
            }
        };
        let mut front = piece(0..frame_len.min(END_LEN))?;
        let in_front = |error: FormatError| error.within(range.start);
        let header_len = FrameHeader::len(&front).map_err(in_front)?.unwrap_or(front.len());
        if header_len > front.len() {
            front = piece(0..frame_len.min(header_len as u64))?;
        }
        let (header, header_len) = FrameHeader::parse(&front).map_err(in_front)?;
        let mut back = piece(frame_len - frame_len.min(END_LEN)..frame_len)?;
        let trailer_len =
            Trailer::len_at_end(&back).map_err(|error| error.within(range.end - back.len() as u64))?;
        if trailer_len > back.len() as u64 {
            back = piece(frame_len - frame_len.min(trailer_len)..frame_len)?;
        }
        let (trailer, marker) =
            Trailer::parse_at_end(&back).map_err(|error| error.within(range.end - back.len() as u64))?;
        let end = frame_len - (back.len() - marker) as u64;
        let mut block_starts = Vec::with_capacity(trailer.coded_lens.len() + 1);
        let mut at = header_len as u64;
        for &coded_len in &trailer.coded_lens {
            block_starts.push(at);
            at += BlockHeader::len(header.checksums) as u64 + u64::from(coded_len);
        }
        block_starts.push(at);
        let raw_len = trailer.raw_len;
        let n_blocks = raw_len.div_ceil(u64::from(header.block_len));
        if at != end || n_blocks != trailer.coded_lens.len() as u64 {
            let what = "blocks and trailer do not meet";
            return Err(FormatError::Corrupt { what, offset: range.start + at }.into());
        }
        if header.raw_len.is_some_and(|len| len != raw_len) {
            let what = "raw lengths do not agree";
            return Err(FormatError::Corrupt { what, offset: range.start + end }.into());
        }
        header.check_shape(raw_len).map_err(in_front)?;
        Ok(Self { header, start: range.start, block_starts, raw_len })
    }

    /// The frame's header.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// Raw bytes of all blocks.
    pub fn raw_len(&self) -> u64 {
        self.raw_len
    }

    /// How many blocks there are.
    pub fn n_blocks(&self) -> usize {
        self.block_starts.len() - 1
    }

    /// Where some consecutive blocks lie in the source.
    ///
    /// # Panics
    /// When there are no such blocks.
    pub fn bytes_of(&self, blocks: Range<usize>) -> Range<u64> {
        self.start + self.block_starts[blocks.start]..self.start + self.block_starts[blocks.end]
    }

    /// Raw bytes of a block.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn raw_range(&self, block_idx: usize) -> Range<u64> {
        assert!(block_idx < self.n_blocks(), "one of the frame's blocks");
        let block_len = u64::from(self.header.block_len);
        let start = block_idx as u64 * block_len;
        start..(start + block_len).min(self.raw_len)
    }

    /// The header of a block and its coded bytes with what follows them. `bytes` are those of consecutive blocks from
    /// `first_block` on.
    ///
    /// # Errors
    /// When the block's header is not what the trailer says.
    ///
    /// # Panics
    /// When the block is not among those bytes.
    pub fn block<'a>(
        &self,
        block_idx: usize,
        first_block: usize,
        bytes: &'a [u8],
    ) -> Result<(BlockHeader, &'a [u8]), FormatError> {
        let at = self.block_starts[block_idx] - self.block_starts[first_block];
        let at = usize::try_from(at).expect("blocks that lie in memory");
        let offset = self.offset_of(block_idx);
        let corrupt = |what| FormatError::Corrupt { what, offset };
        let header = BlockHeader::parse(&bytes[at..], &self.header, offset)?;
        let header = header.ok_or(corrupt("blocks end before the trailer's last"))?;
        let header_len = BlockHeader::len(self.header.checksums);
        let len = self.block_starts[block_idx + 1] - self.block_starts[block_idx];
        if u64::from(header.coded_len) + header_len as u64 != len {
            return Err(corrupt("block and trailer disagree about a length"));
        }
        let raw = self.raw_range(block_idx);
        if u64::from(header.raw_len) != raw.end - raw.start {
            return Err(corrupt("a short block before the last"));
        }
        Ok((header, &bytes[at + header_len..]))
    }

    /// Where a block starts in the source, for messages.
    pub fn offset_of(&self, block_idx: usize) -> u64 {
        self.start + self.block_starts[block_idx]
    }
}
