//! A frame inside a larger source, of which any range of raw bytes is decoded alone.

use super::OpenTensor;
use super::running_sum::RunningSum;
use crate::{Error, pipeline};
use mithril_codec::block::Scratch;
use mithril_format::container::StoredFrame;
use mithril_format::frame::{FrameLayout, decode_checked};
use mithril_format::{Fetched, FormatError, ReadAt};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Frames up to this length are fetched whole: one request instead of three.
const WHOLE_LEN: u64 = 4 << 20;

/// Raw bytes that are decoded at a time.
const BATCH_LEN: u64 = 4 << 20;

/// A frame of a container, opened.
pub(super) struct FrameSource<'a> {
    source: Source<'a>,
    layout: FrameLayout,
    /// Kept only where the whole frame is read in order.
    sum: Option<Mutex<RunningSum>>,
}

enum Source<'a> {
    /// Blocks are fetched when they are needed.
    Remote(&'a dyn ReadAt),
    /// All bytes of the frame are here.
    Fetched(Fetched),
}

impl<'a> FrameSource<'a> {
    /// Opens the frame at this place of a source.
    pub(super) fn open(source: &'a dyn ReadAt, frame: StoredFrame) -> Result<Self, Error> {
        let range = frame.offset..frame.end();
        if frame.len <= WHOLE_LEN && source.slice(range.clone()).is_none() {
            let fetched = Fetched::new(source, range).map_err(Error::reading)?;
            return Self::fetched(fetched, frame);
        }
        let layout = FrameLayout::read(source, range)?;
        Ok(Self { source: Source::Remote(source), layout, sum: None })
    }

    /// Opens a frame whose bytes are all there.
    pub(super) fn fetched(bytes: Fetched, frame: StoredFrame) -> Result<Self, Error> {
        let layout = FrameLayout::read(&bytes, frame.offset..frame.end())?;
        Ok(Self { source: Source::Fetched(bytes), layout, sum: None })
    }

    /// The buffer of the frame's bytes, if they were fetched whole.
    pub(super) fn into_fetched(self) -> Option<Vec<u8>> {
        match self.source {
            Source::Fetched(bytes) => Some(bytes.into_inner()),
            Source::Remote(_) => None,
        }
    }

    pub(super) fn layout(&self) -> &FrameLayout {
        &self.layout
    }

    fn bytes_source(&self) -> &dyn ReadAt {
        match &self.source {
            Source::Remote(source) => *source,
            Source::Fetched(bytes) => bytes,
        }
    }

    fn bytes_of(&self, blocks: Range<usize>) -> Result<Cow<'_, [u8]>, Error> {
        let range = self.layout.bytes_of(blocks);
        let source = self.bytes_source();
        let bytes = match source.slice(range.clone()) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(source.read_range(range.clone()).map_err(Error::reading)?),
        };
        if let Some(sum) = &self.sum {
            sum.lock().unwrap_or_else(PoisonError::into_inner).update(range.start, &bytes);
        }
        Ok(bytes)
    }

    /// Sums up the bytes of the frame from now on, while they are read in order.
    pub(super) fn start_sum(&mut self, frame: StoredFrame) -> Result<(), Error> {
        let mut sum = RunningSum::new(frame.offset);
        sum.read_up_to(self.bytes_source(), self.layout.offset_of(0))?;
        self.sum = Some(Mutex::new(sum));
        Ok(())
    }

    /// Compares the sum of the frame's bytes, if it was started.
    pub(super) fn check_sum(&self, frame: StoredFrame) -> Result<(), Error> {
        match &self.sum {
            Some(sum) => sum.lock().unwrap_or_else(PoisonError::into_inner).check(self.bytes_source(), frame),
            None => Ok(()),
        }
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
        let coded = self.bytes_of(first..last + 1)?;
        let raw_start = self.layout.raw_range(first).start;
        let raw_end = self.layout.raw_range(last).end;
        let base = match base {
            None => None,
            Some(base) => {
                let mut bytes = vec![0; small(raw_end - raw_start)];
                base.read_range(raw_start..raw_end, &mut bytes, threads)?;
                Some(bytes)
            }
        };
        let decode = |block_idx: usize, out: &mut [u8], scratch: &mut Scratch| {
            let raw = self.layout.raw_range(block_idx);
            let base =
                base.as_deref().map(|base| &base[small(raw.start - raw_start)..small(raw.end - raw_start)]);
            self.decode_block(block_idx, first, &coded, base, out, scratch)
        };
        let block_len = self.layout.header().block_len as usize;
        if range == (raw_start..raw_end) {
            return Ok(pipeline::decode_each(first, block_len, out, threads, decode)?);
        }
        let mut whole = vec![0; small(raw_end - raw_start)];
        pipeline::decode_each(first, block_len, &mut whole, threads, decode)?;
        let skip = small(range.start - raw_start);
        out.copy_from_slice(&whole[skip..skip + out.len()]);
        Ok(())
    }

    fn decode_block(
        &self,
        block_idx: usize,
        first_block: usize,
        coded: &[u8],
        base: Option<&[u8]>,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), FormatError> {
        let (block, data) = self.layout.block(block_idx, first_block, coded)?;
        let offset = self.layout.offset_of(block_idx);
        decode_checked(self.layout.header(), &block, data, block_idx as u64, offset, base, out, scratch)
    }
}

/// A length that is known to lie in memory.
fn small(len: u64) -> usize {
    usize::try_from(len).expect("a length within a buffer")
}
