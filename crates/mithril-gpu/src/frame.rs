//! Frames on a GPU: the blocks that kernels know by the kernel, some at a time, the others by the CPU.

use crate::lanes::{Lanes, lanes};
use crate::run::{Buffers, Grid, words};
use crate::{Gpu, GpuError};
use mithril_codec::block::{Piece, Rans8Parts, Scratch};
use mithril_codec::transform::fields::Order;
use mithril_codec::{CodecError, checksum};
use mithril_format::FormatError;
use mithril_format::frame::FrameView;

pub(crate) const KERNEL: Lanes = lanes!("rans8_decode");

/// Raw bytes of a batch.
const BATCH_LEN: usize = 32 << 20;

/// Pieces that the kernel has room for: elements of at most four bytes have no more.
const MAX_PIECES: usize = 12;

/// A frame's bytes, and who decoded them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The raw bytes.
    pub bytes: Vec<u8>,
    /// Blocks that a kernel decoded.
    pub n_on_gpu: usize,
    /// Blocks that the CPU decoded.
    pub n_on_cpu: usize,
}

/// A block that the kernel decodes.
struct Job<'a> {
    block_idx: usize,
    coded: &'a [u8],
    parts: Rans8Parts<'a>,
}

impl Gpu {
    /// Decodes a frame that needs no base, and verifies the checksums of its blocks.
    ///
    /// # Errors
    /// When the frame is damaged, as the CPU finds too; when it needs a base; or when the device fails.
    pub fn decode_frame(&self, frame: &[u8]) -> Result<Decoded, GpuError> {
        let view = FrameView::parse(frame)?;
        let raw_len = usize::try_from(view.raw_len()).map_err(|_| out_of_memory())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(raw_len).map_err(|_| out_of_memory())?;
        bytes.resize(raw_len, 0);
        let (mut n_on_gpu, mut n_on_cpu) = (0, 0);
        let (mut buffers, mut scratch) = (Buffers::default(), Scratch::new());
        let per_batch = (BATCH_LEN / (view.header().block_len as usize).max(1)).clamp(1, 65_535);
        for first in (0..view.blocks().len()).step_by(per_batch) {
            let block_idxs = first..(first + per_batch).min(view.blocks().len());
            let mut jobs = Vec::new();
            for block_idx in block_idxs.clone() {
                let entry = &view.blocks()[block_idx];
                let coded = view.coded(block_idx);
                let parts = Rans8Parts::parse(coded, entry.header.raw_len as usize)
                    .map_err(|source| at_block(&view, block_idx, source))?;
                match parts.filter(|parts| parts.split.layout.width <= 4 && parts.pieces.len() <= MAX_PIECES)
                {
                    Some(parts) => jobs.push(Job { block_idx, coded, parts }),
                    None => {
                        let room = room_of(&view, block_idx, &mut bytes);
                        view.decode_block(block_idx, None, room, &mut scratch)?;
                        n_on_cpu += 1;
                    }
                }
            }
            n_on_gpu += jobs.len();
            self.decode_blocks(&view, &jobs, &mut buffers, &mut bytes)?;
        }
        Ok(Decoded { bytes, n_on_gpu, n_on_cpu })
    }

    fn decode_blocks(
        &self,
        view: &FrameView<'_>,
        jobs: &[Job<'_>],
        buffers: &mut Buffers,
        bytes: &mut [u8],
    ) -> Result<(), GpuError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let (mut blocks, mut data, mut slots, mut escapes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut out_words = 0;
        let mut places = Vec::with_capacity(jobs.len());
        for job in jobs {
            places.push(4 * out_words);
            blocks.extend(description(job, data.len(), out_words, escapes.len() / 8));
            data.extend_from_slice(job.coded);
            data.resize(data.len().next_multiple_of(4), 0);
            slots.extend(words(job.parts.slots.iter().map(|&(value, rank, frequency)| {
                u32::from(value) | u32::from(rank) << 8 | u32::from(frequency) << 16
            })));
            escapes.extend(words(
                job.parts.escapes.iter().flat_map(|&(element, top)| [element, u32::from(top)]),
            ));
            out_words += element_bytes(&job.parts).div_ceil(4);
        }
        let mut room = vec![0; 4 * out_words];
        let grid = Grid { x: word(jobs.len()), y: 1 };
        let inputs: [&[u8]; 4] = [&words(blocks), &data, &slots, &escapes];
        let fault = self.run(&self.rans8, buffers, &inputs, grid, &mut room)?;
        if let Some(job) = fault.and_then(|job| jobs.get(job as usize)) {
            let source = CodecError::Corrupt { what: "rANS8 streams do not end where the symbols do" };
            return Err(at_block(view, job.block_idx, source));
        }
        for (job, place) in jobs.iter().zip(places) {
            let (elements, tail) =
                room_of(view, job.block_idx, bytes).split_at_mut(element_bytes(&job.parts));
            elements.copy_from_slice(&room[place..place + elements.len()]);
            tail.copy_from_slice(job.parts.tail);
            verify(view, job.block_idx, bytes)?;
        }
        Ok(())
    }
}

/// What the kernel knows of a block, in the order of its `Block`.
fn description(job: &Job<'_>, data_at: usize, out_at: usize, escapes_at: usize) -> Vec<u32> {
    let parts = &job.parts;
    let split = &parts.split;
    let stream = |idx: usize| parts.streams.get(idx).copied().unwrap_or((0, 0));
    let streams: [_; 4] = std::array::from_fn(stream);
    let pieces = |field: fn(&Piece) -> u32| {
        let padding = std::iter::repeat_n(0, MAX_PIECES - parts.pieces.len());
        parts.pieces.iter().map(field).chain(padding).collect::<Vec<_>>()
    };
    // Vectors stand at multiples of four words.
    let mut words = vec![word(data_at + parts.rest_at), word(data_at + parts.states_at), 0, 0];
    words.extend(streams.map(|(at, _)| word(data_at + at)));
    words.extend(streams.map(|(_, end)| word(data_at + end)));
    words.extend([
        word(parts.streams.len()),
        word(parts.n_elements),
        word(out_at),
        word(escapes_at),
        word(parts.escapes.len()),
        u32::from(split.layout.width),
        u32::from(split.layout.mantissa - split.joint),
        split.top_bits(),
        u32::from(split.base),
        u32::from(split.order == Order::Packed),
        u32::from(split.layout.flip),
        word(parts.pieces.len()),
    ]);
    words.extend(pieces(|piece| piece.bits));
    words.extend(pieces(|piece| piece.low));
    words.extend(pieces(|piece| piece.n_kept));
    words
}

/// Bytes of the whole elements of a block.
fn element_bytes(parts: &Rans8Parts<'_>) -> usize {
    parts.n_elements * usize::from(parts.split.layout.width)
}

/// Where a block's raw bytes go.
fn room_of<'a>(view: &FrameView<'_>, block_idx: usize, bytes: &'a mut [u8]) -> &'a mut [u8] {
    let entry = &view.blocks()[block_idx];
    let at = usize::try_from(entry.raw_offset).expect("within the raw bytes, which are in memory");
    &mut bytes[at..][..entry.header.raw_len as usize]
}

fn verify(view: &FrameView<'_>, block_idx: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
    if !view.header().checksums {
        return Ok(());
    }
    let actual = checksum(room_of(view, block_idx, bytes));
    let entry = &view.blocks()[block_idx];
    let expected = entry.header.checksum;
    if actual == expected {
        return Ok(());
    }
    let (block_idx, offset) = (block_idx as u64, entry.offset);
    Err(FormatError::BlockChecksum { block_idx, offset, expected, actual }.into())
}

fn at_block(view: &FrameView<'_>, block_idx: usize, source: CodecError) -> GpuError {
    let offset = view.blocks()[block_idx].offset;
    FormatError::Block { block_idx: block_idx as u64, offset, source }.into()
}

fn out_of_memory() -> GpuError {
    GpuError::Device { reason: "the frame's raw bytes do not fit into memory".to_owned() }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("batches have fewer than 2^32 bytes")
}
