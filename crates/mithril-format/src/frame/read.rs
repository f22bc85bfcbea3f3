//! A whole frame in memory: checked once, then any block on demand.

use super::{BlockHeader, FrameHeader, Trailer};
use crate::FormatError;
use mithril_codec::CodecError;
use mithril_codec::block::{CodedBlock, Padded, Scratch, decode_block, decode_block_and_sum};

/// A frame whose header and trailer are checked.
#[derive(Debug)]
pub struct FrameView<'a> {
    frame: &'a [u8],
    header: FrameHeader,
    blocks: Vec<BlockEntry>,
    raw_len: u64,
}

/// Where a block is, in the frame and in the raw bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEntry {
    /// Where its header starts.
    pub offset: u64,
    /// First raw byte.
    pub raw_offset: u64,
    /// Its header.
    pub header: BlockHeader,
}

impl<'a> FrameView<'a> {
    /// Checks the structure of a frame: header, trailer, and that the blocks between them agree with both. Decodes
    /// nothing.
    ///
    /// # Errors
    /// When the bytes are not exactly one intact frame.
    pub fn parse(frame: &'a [u8]) -> Result<Self, FormatError> {
        let (header, header_len) = FrameHeader::parse(frame)?;
        match parse_blocks(frame, &header, header_len) {
            Ok((blocks, raw_len)) => Ok(Self { frame, header, blocks, raw_len }),
            // The end is looked at first; when it makes no sense, a whole frame before it explains why.
            Err(error) => Err(match frame_len(frame, &header, header_len) {
                Some(len) if len < frame.len() => {
                    FormatError::TrailingData { offset: len as u64, len: (frame.len() - len) as u64 }
                }
                _ => error,
            }),
        }
    }

    /// The frame's header.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// All blocks in order.
    pub fn blocks(&self) -> &[BlockEntry] {
        &self.blocks
    }

    /// Raw bytes of all blocks.
    pub fn raw_len(&self) -> u64 {
        self.raw_len
    }

    /// The first byte of a block's coded bytes: its kind.
    pub fn block_kind(&self, block_idx: usize) -> Option<u8> {
        self.coded_at(self.blocks.get(block_idx)?).first().copied()
    }

    /// A block's coded bytes.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn coded(&self, block_idx: usize) -> &'a [u8] {
        let entry = &self.blocks[block_idx];
        &self.coded_at(entry)[..entry.header.coded_len as usize]
    }

    /// Decodes a block into exactly `out` and verifies its checksum. `base` holds the same bytes of the base, whose
    /// digest the caller has compared; without it, blocks that need it are refused.
    ///
    /// # Errors
    /// When the block is damaged.
    ///
    /// # Panics
    /// When there is no such block or `out` is not of its raw length.
    pub fn decode_block(
        &self,
        block_idx: usize,
        base: Option<&[u8]>,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), FormatError> {
        let entry = &self.blocks[block_idx];
        assert_eq!(out.len(), entry.header.raw_len as usize, "output of a block's raw length");
        let (header, offset, data) = (entry.header, entry.offset, self.coded_at(entry));
        let block = FrameBlock { header, block_idx, offset, data };
        block.decode(&self.header, Verify::Yes, base, out, scratch)
    }

    /// The frame from a block's coded bytes on.
    fn coded_at(&self, entry: &BlockEntry) -> &'a [u8] {
        let at = usize::try_from(entry.offset).expect("a block lies in memory");
        &self.frame[at + BlockHeader::len(self.header.checksums)..]
    }
}

/// The blocks between header and trailer, checked against both, and their raw bytes.
fn parse_blocks(
    frame: &[u8],
    header: &FrameHeader,
    header_len: usize,
) -> Result<(Vec<BlockEntry>, u64), FormatError> {
    let (trailer, end) = Trailer::parse_at_end(frame)?;
    // Grown as blocks are found: an entry takes eight times what the trailer says of a block.
    let mut blocks = Vec::new();
    let mut at = header_len;
    let mut raw_offset = 0u64;
    let n_blocks = trailer.coded_lens.len();
    for (block_idx, &coded_len) in trailer.coded_lens.iter().enumerate() {
        let offset = at as u64;
        let before_end = frame.get(at..end).ok_or(FormatError::Truncated { what: "block header", offset })?;
        let block = BlockHeader::parse(before_end, header, offset)?
            .ok_or(FormatError::Corrupt { what: "blocks end before the trailer's last", offset })?;
        if block.coded_len != coded_len {
            return Err(FormatError::Corrupt { what: "block and trailer disagree about a length", offset });
        }
        if block_idx + 1 < n_blocks && block.raw_len != header.block_len {
            return Err(FormatError::Corrupt { what: "a short block before the last", offset });
        }
        blocks.push(BlockEntry { offset, raw_offset, header: block });
        raw_offset += u64::from(block.raw_len);
        at += BlockHeader::len(header.checksums) + coded_len as usize;
    }
    if at != end {
        return Err(FormatError::Corrupt { what: "blocks and trailer do not meet", offset: at as u64 });
    }
    if trailer.raw_len != raw_offset || header.raw_len.is_some_and(|len| len != raw_offset) {
        return Err(FormatError::Corrupt { what: "raw lengths do not agree", offset: end as u64 });
    }
    header.check_shape(raw_offset)?;
    Ok((blocks, raw_offset))
}

/// Bytes of the frame at the front of `bytes`, found block by block; none when it is cut off or damaged.
fn frame_len(bytes: &[u8], header: &FrameHeader, header_len: usize) -> Option<usize> {
    let (mut at, mut n_blocks) = (header_len, 0);
    while let Some(block) = BlockHeader::parse(bytes.get(at..)?, header, at as u64).ok()? {
        at += BlockHeader::len(header.checksums) + block.coded_len as usize;
        n_blocks += 1;
    }
    let end = at + Trailer::len(n_blocks);
    let (trailer, marker) = Trailer::parse_at_end(bytes.get(..end)?).ok()?;
    (marker == at && trailer.coded_lens.len() == n_blocks).then_some(end)
}

/// A block of a frame, and where it lies.
#[derive(Debug, Clone, Copy)]
pub struct FrameBlock<'a> {
    /// What its header says.
    pub header: BlockHeader,
    /// Its number in the frame.
    pub block_idx: usize,
    /// Where its header starts, for errors.
    pub offset: u64,
    /// Its coded bytes, and what follows them in memory, which is not used.
    pub data: &'a [u8],
}

/// Whether the checksum of a block is compared, if its frame has checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// It is.
    Yes,
    /// It is not: for blocks that others are made from, whose checksums are compared.
    No,
}

impl FrameBlock<'_> {
    /// Decodes the block into exactly `out`. `base` is as in [`FrameView::decode_block`].
    ///
    /// # Errors
    /// When the block is damaged, as far as that shows.
    pub fn decode(
        &self,
        frame: &FrameHeader,
        verify: Verify,
        base: Option<&[u8]>,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), FormatError> {
        let Self { header, block_idx, offset, data } = *self;
        let block_idx = block_idx as u64;
        let refused = |source: CodecError| FormatError::Block { block_idx, offset, source };
        let bytes = Padded::new(data, header.coded_len as usize);
        let block = CodedBlock {
            bytes: bytes.ok_or_else(|| refused(CodecError::Truncated { what: "block" }))?,
            first_byte: block_idx * u64::from(frame.block_len),
            base: base.filter(|_| frame.base.is_some()),
        };
        if verify == Verify::No || !frame.checksums {
            return decode_block(block, &frame.shared, out, scratch).map_err(refused);
        }
        let actual = decode_block_and_sum(block, &frame.shared, out, scratch).map_err(refused)?;
        let expected = header.checksum;
        if actual == expected {
            Ok(())
        } else {
            Err(FormatError::BlockChecksum { block_idx, offset, expected, actual })
        }
    }
}
