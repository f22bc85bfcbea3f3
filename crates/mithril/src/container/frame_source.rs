//! A frame inside a larger source, of which any range of raw bytes is decoded alone.

use super::OpenTensor;
use crate::pipeline::ahead::{Ahead, Fetched as FetchedRun, FramePlace, Parts, Taken, WHOLE_LEN};
use crate::{Error, pipeline};
use mithril_codec::block::Scratch;
use mithril_format::container::StoredFrame;
use mithril_format::frame::{FrameBlock, FrameLayout, Verify};
use mithril_format::{Fetched, FormatError, ReadAt};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Raw bytes that are decoded at a time.
const BATCH_LEN: u64 = 4 << 20;

/// A frame of a container, opened.
pub(super) struct FrameSource<'a> {
    source: Source<'a>,
    layout: FrameLayout,
}

enum Source<'a> {
    /// Blocks are fetched when they are needed.
    Remote(&'a dyn ReadAt),
    /// All bytes of the frame are here.
    Fetched(Fetched),
    /// They are here with those of others.
    Ahead(Arc<FetchedRun>),
    /// They come part by part.
    Parts(Parts<'a>),
}

/// What opening a frame reads.
#[derive(Clone, Copy)]
pub(super) enum Fetch<'a> {
    /// All of a small frame, both ends of a large one.
    WholeIfSmall,
    /// Both ends.
    Ends,
    /// What is fetched by a plan; all else as `WholeIfSmall`.
    Ahead(&'a Ahead<'a>),
}

impl Fetch<'_> {
    /// How the frames are fetched that a frame needs besides itself.
    pub(super) fn of_others(self) -> Self {
        match self {
            Self::Ends => Self::WholeIfSmall,
            fetch => fetch,
        }
    }
}

/// Some blocks of a frame that are read and decoded together.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    /// Which they are.
    pub(crate) blocks: Range<usize>,
    /// Where they lie in the source.
    pub(crate) coded: Range<u64>,
    /// Which raw bytes of the frame they hold.
    pub(crate) raw: Range<u64>,
}

impl<'a> FrameSource<'a> {
    /// Opens the frame at this place of a source.
    pub(super) fn open(source: &'a dyn ReadAt, frame: StoredFrame, fetch: Fetch<'a>) -> Result<Self, Error> {
        let range = frame.offset..frame.end();
        if let Fetch::Ahead(ahead) = fetch
            && let Some(taken) = ahead.take(&FramePlace { source, range: range.clone() })
        {
            return Self::open_taken(taken.map_err(Error::reading)?, range);
        }
        let is_whole = !matches!(fetch, Fetch::Ends);
        if is_whole && frame.len <= WHOLE_LEN && source.slice(range.clone()).is_none() {
            let fetched = Fetched::new(source, range.clone()).map_err(Error::reading)?;
            let layout = FrameLayout::read(&fetched, range)?;
            return Ok(Self { source: Source::Fetched(fetched), layout });
        }
        let layout = FrameLayout::read(source, range)?;
        Ok(Self { source: Source::Remote(source), layout })
    }

    /// Opens a frame that was fetched by a plan.
    fn open_taken(taken: Taken<'a>, range: Range<u64>) -> Result<Self, Error> {
        Ok(match taken {
            Taken::Whole(run) => {
                let layout = FrameLayout::read(&*run, range)?;
                Self { source: Source::Ahead(run), layout }
            }
            Taken::Parts(parts) => {
                let layout = FrameLayout::read(&parts.ends(), range)?;
                parts.only_blocks(layout.bytes_of(0..layout.n_blocks()));
                Self { source: Source::Parts(parts), layout }
            }
        })
    }

    pub(super) fn layout(&self) -> &FrameLayout {
        &self.layout
    }

    fn bytes_source(&self) -> &dyn ReadAt {
        match &self.source {
            Source::Remote(source) => *source,
            Source::Fetched(bytes) => bytes,
            Source::Ahead(run) => &**run,
            Source::Parts(parts) => parts,
        }
    }

    fn bytes_of(&self, blocks: Range<usize>) -> Result<Cow<'_, [u8]>, Error> {
        let range = self.layout.bytes_of(blocks);
        let source = self.bytes_source();
        Ok(match source.slice(range.clone()) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(source.read_range(range).map_err(Error::reading)?),
        })
    }

    /// Blocks from `first_block` on, of about so many raw bytes; none behind the last.
    pub(super) fn batch(&self, first_block: usize, raw_len: u64) -> Option<Batch> {
        let n_blocks = self.layout.n_blocks();
        if first_block >= n_blocks {
            return None;
        }
        let n = usize::try_from(raw_len / u64::from(self.layout.header().block_len)).unwrap_or(n_blocks);
        Some(self.batch_of(first_block..n_blocks.min(first_block + n.max(1))))
    }

    fn batch_of(&self, blocks: Range<usize>) -> Batch {
        let raw = self.layout.raw_range(blocks.start).start..self.layout.raw_range(blocks.end - 1).end;
        Batch { coded: self.layout.bytes_of(blocks.clone()), raw, blocks }
    }

    /// Decodes a range of raw bytes into exactly `out`, reading only the blocks that hold it. The range lies in the
    /// frame.
    pub(super) fn read_range(
        &self,
        range: Range<u64>,
        base: Option<&OpenTensor<'_>>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<(), Error> {
        let block_len = u64::from(self.layout.header().block_len);
        let blocks_per_batch = (BATCH_LEN / block_len).max(1);
        let mut at = range.start;
        let mut rest = out;
        while at < range.end {
            // Batches start where blocks do, so that only the ends of the range are decoded aside.
            let batch_end = (at / block_len + blocks_per_batch) * block_len;
            let end = batch_end.min(range.end);
            let (piece, left) = rest.split_at_mut(small(end - at));
            self.read_batch(at..end, base, piece, threads)?;
            (at, rest) = (end, left);
        }
        Ok(())
    }

    fn read_batch(
        &self,
        range: Range<u64>,
        base: Option<&OpenTensor<'_>>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<(), Error> {
        let block_len = u64::from(self.layout.header().block_len);
        let first = small(range.start / block_len);
        let last = small((range.end - 1) / block_len);
        let batch = self.batch_of(first..last + 1);
        let coded = self.bytes_of(batch.blocks.clone())?;
        if range == batch.raw {
            return self.decode_batch(&batch, &coded, base, out, threads);
        }
        let mut whole = vec![0; small(batch.raw.end - batch.raw.start)];
        self.decode_batch(&batch, &coded, base, &mut whole, threads)?;
        let skip = small(range.start - batch.raw.start);
        out.copy_from_slice(&whole[skip..skip + out.len()]);
        Ok(())
    }

    /// Decodes a batch, whose coded bytes are at hand, into exactly its raw bytes.
    pub(super) fn decode_batch(
        &self,
        batch: &Batch,
        coded: &[u8],
        base: Option<&OpenTensor<'_>>,
        out: &mut [u8],
        threads: usize,
    ) -> Result<(), Error> {
        // The base is decoded to where its blocks are replaced one by one: a buffer of its own for every level of a chain
        // would be fresh pages, which cost as much as decoding.
        if let Some(base) = base {
            base.read_range(batch.raw.clone(), out, threads)?;
        }
        let (header, first) = (self.layout.header(), batch.blocks.start);
        let decode = |block_idx: usize, out: &mut [u8], scratch: &mut Scratch| match base {
            None => self.block(block_idx, first, coded)?.decode(header, Verify::Yes, None, out, scratch),
            Some(_) => pipeline::decode_over_base(out, scratch, |base, out, scratch| {
                let block = self.block(block_idx, first, coded)?;
                block.decode(header, Verify::Yes, Some(base), out, scratch)
            }),
        };
        let block_len = header.block_len as usize;
        Ok(pipeline::decode_each(first, block_len, out, threads, decode)?)
    }

    /// Decodes a range of raw bytes that starts and ends between blocks, given those of the base. Blocks of which others are
    /// made need not be verified.
    pub(super) fn decode_over(
        &self,
        range: Range<u64>,
        base: &[u8],
        out: &mut [u8],
        verify: Verify,
    ) -> Result<(), Error> {
        let block_len = u64::from(self.layout.header().block_len);
        let blocks = small(range.start / block_len)..small(range.end.div_ceil(block_len));
        let coded = self.bytes_of(blocks.clone())?;
        let pieces = base.chunks(small(block_len)).zip(out.chunks_mut(small(block_len)));
        pipeline::with_scratch(|scratch| {
            for (block_idx, (base, out)) in blocks.clone().zip(pieces) {
                let block = self.block(block_idx, blocks.start, &coded)?;
                block.decode(self.layout.header(), verify, Some(base), out, scratch)?;
            }
            Ok(())
        })
    }

    /// A block in the coded bytes from `first_block` on.
    fn block<'b>(
        &self,
        block_idx: usize,
        first_block: usize,
        coded: &'b [u8],
    ) -> Result<FrameBlock<'b>, FormatError> {
        let (header, data) = self.layout.block(block_idx, first_block, coded)?;
        Ok(FrameBlock { header, block_idx, offset: self.layout.offset_of(block_idx), data })
    }
}

/// A length that is known to lie in memory.
fn small(len: u64) -> usize {
    usize::try_from(len).expect("a length within a buffer")
}
