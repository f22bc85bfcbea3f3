//! Puts a frame together: its header, its blocks in order, its trailer.

use crate::FrameOptions;
use crate::options::{HONEST_BLOCK_LEN, honest_output_len};
use crate::pipeline::{self, BlockCoder};
use crate::plan::TensorPlan;
use mithril_codec::block::least_len;
use mithril_format::Digest;
use mithril_format::frame::{BlockHeader, FrameHeader, Trailer};
use std::sync::Arc;

/// A frame that is written from front to back: its head, blocks batch by batch, its tail. A clone that was made before the
/// first block writes the same frame again.
#[derive(Debug, Clone)]
pub(crate) struct FrameWriter {
    coder: Arc<BlockCoder>,
    threads: usize,
    /// What was coded so far.
    trailer: Trailer,
    /// Bytes of those blocks.
    blocks_len: u64,
}

impl FrameWriter {
    /// A frame by this plan, of `raw_len` bytes if that is known.
    pub(crate) fn new(
        plan: TensorPlan,
        options: &FrameOptions,
        raw_len: Option<u64>,
        base: Option<Digest>,
    ) -> Self {
        let header = FrameHeader {
            dtype: options.dtype,
            shape: options.shape.clone(),
            block_len: plan.block_len,
            raw_len,
            checksums: options.checksum,
            shared: plan.shared,
            base,
        };
        let coder = BlockCoder { recipe: plan.recipe, header, changing: options.changing };
        Self {
            coder: Arc::new(coder),
            threads: options.coding.threads,
            trailer: Trailer::default(),
            blocks_len: 0,
        }
    }

    /// What comes before the blocks.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut head = Vec::new();
        self.coder.header.write(&mut head);
        head
    }

    /// Codes the blocks that follow to the front of `out`, which has room for [`FrameWriter::blocks_bound`]; returns their
    /// length. Only the last block of a frame may be short. `base` holds the same bytes of the base, if there is one.
    pub(crate) fn encode(&mut self, source: &[u8], base: Option<&[u8]>, out: &mut [u8]) -> usize {
        let first_block = self.trailer.coded_lens.len();
        let (blocks, len) = self.coder.encode(first_block, source, base, self.threads, out);
        self.append(blocks, len);
        len
    }

    /// As [`FrameWriter::encode`], for a frame whose blocks cannot be cut again when they turn out to hold more than readers
    /// take for its length: one block as it is makes up for many thousands.
    pub(crate) fn encode_honest(&mut self, source: &[u8], out: &mut [u8]) -> usize {
        let (n_blocks, raw_len, blocks_len) =
            (self.trailer.coded_lens.len(), self.trailer.raw_len, self.blocks_len);
        let len = self.encode(source, None, out);
        if !self.holds_too_much() {
            return len;
        }
        self.trailer.coded_lens.truncate(n_blocks);
        (self.trailer.raw_len, self.blocks_len) = (raw_len, blocks_len);
        let (first, rest) = source.split_at(self.block_len().min(source.len()));
        let coded_len = self.coder.store(first, out);
        let len = BlockHeader::len(self.coder.header.checksums) + coded_len as usize;
        self.append(Trailer { coded_lens: vec![coded_len], raw_len: first.len() as u64 }, len);
        len + self.encode(rest, None, &mut out[len..])
    }

    /// Counts blocks that were coded apart and follow those so far.
    pub(crate) fn append(&mut self, blocks: Trailer, len: usize) {
        self.trailer.coded_lens.extend(blocks.coded_lens);
        self.trailer.raw_len += blocks.raw_len;
        self.blocks_len += len as u64;
    }

    /// What comes after the blocks.
    pub(crate) fn tail(&self) -> Vec<u8> {
        let mut tail = Vec::new();
        self.trailer.write(&mut tail);
        tail
    }

    /// Writes a whole frame to the front of `out`; returns its length.
    pub(crate) fn write(&mut self, source: &[u8], base: Option<&[u8]>, out: &mut [u8]) -> usize {
        let head = self.head();
        out[..head.len()].copy_from_slice(&head);
        let end = head.len() + self.encode(source, base, &mut out[head.len()..]);
        let tail = self.tail();
        out[end..end + tail.len()].copy_from_slice(&tail);
        end + tail.len()
    }

    /// Whether the blocks so far hold more than readers take for their length. Where there is a base, that is what says how
    /// much a reader takes.
    pub(crate) fn holds_too_much(&self) -> bool {
        self.block_len() > HONEST_BLOCK_LEN
            && self.coder.header.base.is_none()
            && self.trailer.raw_len > honest_output_len(self.blocks_len)
    }

    /// How its blocks are cut and coded, if they share nothing.
    pub(crate) fn unshared_plan(&self) -> Option<TensorPlan> {
        let BlockCoder { recipe, header, .. } = &*self.coder;
        header.shared.is_empty().then(|| TensorPlan::unshared(recipe.clone(), self.block_len()))
    }

    /// Codes blocks of this frame, also on other threads; what they come to is then to be [`FrameWriter::append`]ed.
    pub(crate) fn coder(&self) -> Arc<BlockCoder> {
        Arc::clone(&self.coder)
    }

    /// Raw bytes of every block but the last.
    pub(crate) fn block_len(&self) -> usize {
        self.coder.header.block_len as usize
    }

    /// Raw bytes of whole blocks that take about `len` together.
    pub(crate) fn batch_len(&self, len: u64) -> u64 {
        let block_len = self.block_len() as u64;
        (len / block_len).max(1) * block_len
    }

    /// Bytes that the blocks of `raw_len` raw bytes take at most.
    pub(crate) fn blocks_bound(&self, raw_len: usize) -> usize {
        pipeline::blocks_bound(raw_len, self.block_len())
    }

    /// Raw bytes that were coded.
    pub(crate) fn raw_len(&self) -> u64 {
        self.trailer.raw_len
    }

    /// Bytes that blocks take at least. Counted without coding anything.
    pub(crate) fn least_len(&self, source: &[u8]) -> usize {
        source.chunks(self.block_len()).map(|block| least_len(&self.coder.recipe, block)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Evidence};
    use crate::{Dtype, compress};

    #[test]
    fn batches_and_blocks_coded_apart_give_the_frame_that_is_coded_at_once() {
        let raw: Vec<u8> = (0..300_000u32).flat_map(|i| (i as f32).sqrt().to_le_bytes()).collect();
        let options = FrameOptions::default().with_dtype(Dtype::F32).with_threads(2);
        let plan = plan::tensor(&raw, Evidence::All, None, &options).unwrap();
        let frame = FrameWriter::new(plan, &options, Some(raw.len() as u64), None);
        let batch_len = usize::try_from(frame.batch_len(600 << 10)).unwrap();
        assert!(batch_len > frame.block_len() && batch_len < raw.len());
        let mut out = vec![0; frame.blocks_bound(raw.len())];

        let mut in_batches = frame.clone();
        let mut bytes = in_batches.head();
        for batch in raw.chunks(batch_len) {
            let len = in_batches.encode(batch, None, &mut out);
            bytes.extend(&out[..len]);
        }
        bytes.extend(in_batches.tail());
        assert!(bytes == compress(&raw, &options).unwrap());

        // The last batch is coded first.
        let mut apart = frame.clone();
        let (first, last) = raw.split_at(batch_len);
        let coder = frame.coder();
        let (last, last_len) = coder.encode(batch_len / frame.block_len(), last, None, 1, &mut out);
        let coded_last = out[..last_len].to_vec();
        let (first, first_len) = coder.encode(0, first, None, 1, &mut out);
        apart.append(first, first_len);
        apart.append(last, last_len);
        assert!(bytes == [&apart.head()[..], &out[..first_len], &coded_last, &apart.tail()].concat());
    }
}
