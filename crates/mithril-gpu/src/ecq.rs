//! Entropy-coded matrices on a GPU, some blocks at a time.

use crate::lanes::{Lanes, lanes};
use crate::run::{Buffers, Grid, words};
use crate::{Gpu, GpuError};
use mithril_codec::CodecError;
use mithril_codec::ecq::{BlockPlace, Coded};
use std::ops::Range;

pub(crate) const KERNEL: Lanes = lanes!("ecq_decode");

/// Symbols of a batch, unless one block has more: a block has at most 2^24.
const BATCH_SYMBOLS: usize = 32 << 20;

/// Workgroups along one dimension of the grid.
const GRID_WIDTH: usize = 1024;

impl Gpu {
    /// Decodes the symbols of all blocks with the padding of their rows, and verifies the sums of the blocks: what
    /// `Coded::decode_symbols` gives, bit for bit.
    ///
    /// # Errors
    /// When a block is damaged, as the CPU finds too, or the device fails.
    pub fn decode_symbols(&self, coded: &Coded<'_>) -> Result<Vec<u8>, GpuError> {
        let shape = coded.shape();
        let mut symbols = Vec::new();
        let n_symbols = shape.rows() * shape.padded_columns();
        symbols
            .try_reserve_exact(n_symbols)
            .map_err(|_| GpuError::Device { reason: "the matrix does not fit into memory".to_owned() })?;
        symbols.resize(n_symbols, 0);
        let slots = words(coded.slots().into_iter().map(|(symbol, rank, frequency)| {
            u32::from(symbol) | u32::from(rank) << 8 | u32::from(frequency) << 16
        }));
        let mut buffers = Buffers::default();
        let per_batch = (BATCH_SYMBOLS / shape.n_symbols(0)).max(1);
        for first in (0..shape.n_blocks()).step_by(per_batch) {
            let blocks = first..(first + per_batch).min(shape.n_blocks());
            let at = |block_idx: usize| shape.rows_of(block_idx).start * shape.padded_columns();
            let end = at(blocks.end - 1) + shape.n_symbols(blocks.end - 1);
            let room = &mut symbols[at(first)..end];
            self.decode_batch(coded, blocks.clone(), &slots, &mut buffers, room)?;
            for (block_idx, symbols) in blocks.zip(room.chunks(shape.n_symbols(0))) {
                coded.verify_block(block_idx, symbols)?;
            }
        }
        Ok(symbols)
    }

    fn decode_batch(
        &self,
        coded: &Coded<'_>,
        blocks: Range<usize>,
        slots: &[u8],
        buffers: &mut Buffers,
        room: &mut [u8],
    ) -> Result<(), GpuError> {
        let shape = coded.shape();
        let bytes = coded.bytes_of(blocks.clone());
        let within = |at: usize| at - bytes.start;
        let mut descriptions = Vec::with_capacity(8 * blocks.len());
        let mut out_at = 0;
        for block_idx in blocks.clone() {
            let n_symbols = shape.n_symbols(block_idx);
            let (kind, argument, at, stream) = match coded.place(block_idx)? {
                BlockPlace::Packed(at) => (0, 0, within(at), 0..0),
                BlockPlace::Constant(symbol) => (1, usize::from(symbol), 0, 0..0),
                BlockPlace::Rans8 { table, states_at, stream } => {
                    (2, table, within(states_at), within(stream.start)..within(stream.end))
                }
            };
            let fields = [kind, argument, at, stream.start, stream.end, n_symbols, out_at, 0];
            descriptions.extend(fields.map(word));
            out_at += n_symbols;
        }
        let params = words([blocks.len(), GRID_WIDTH].map(word));
        let inputs: [&[u8]; 4] = [&params, &words(descriptions), &coded.compressed()[bytes], slots];
        let grid = Grid { x: word(blocks.len().min(GRID_WIDTH)), y: word(blocks.len().div_ceil(GRID_WIDTH)) };
        match self.run(&self.symbols, buffers, &inputs, grid, room)? {
            None => Ok(()),
            Some(_) => {
                let what = "a block's stream does not end where its symbols do";
                Err(CodecError::Corrupt { what }.into())
            }
        }
    }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("batches have fewer than 2^32 symbols and bytes")
}
