//! Coded matrices times a vector on a GPU: weights go from their codes into sums.

use crate::lanes::{Lanes, lanes};
use crate::run::{Buffers, Grid, words};
use crate::{Gpu, GpuError};
use mithril_codec::CodecError;
use mithril_codec::ecq::{BlockPlace, Coded};

pub(crate) const LEVELS_KERNEL: Lanes = lanes!("ecq_gemv");
pub(crate) const FIXED12_KERNEL: &str = include_str!("../kernels/fixed12_gemv.wgsl");

/// Workgroups along one dimension of the grid.
const GRID_WIDTH: usize = 1024;

/// Columns whose whole-number sum certainly fits: levels and activations are at most 127.
const MAX_COLUMNS: usize = mithril_codec::ecq::gemv::MAX_COLUMNS;

/// Rows that a workgroup of the kernel for 12 bits takes.
const ROWS: usize = 8;

impl Gpu {
    /// Sums of levels times 8-bit activations, one for every row: what `Coded::dot_levels` gives, bit for bit.
    ///
    /// The vector has an activation for every column; padding counts as zero. As on the CPU, sums of blocks are for who
    /// keeps a matrix to check once; that streams end where they must is checked here.
    ///
    /// # Errors
    /// When the vector or the levels do not fit the matrix, a block is damaged, or the device fails.
    pub fn dot_levels(&self, coded: &Coded<'_>, levels: &[i8], x: &[i8]) -> Result<Vec<i32>, GpuError> {
        let shape = coded.shape();
        let padded = shape.padded_columns();
        if shape.low_bits() > 4 || levels.len() != 1 << (4 + shape.low_bits()) {
            return Err(CodecError::Corrupt { what: "levels that do not fit the codes" }.into());
        }
        if x.len() != shape.columns() || padded > MAX_COLUMNS {
            return Err(CodecError::Corrupt { what: "a vector that does not fit the matrix" }.into());
        }
        let mut blocks = Vec::with_capacity(8 * shape.n_blocks());
        for block_idx in 0..shape.n_blocks() {
            let rows = shape.rows_of(block_idx);
            let (kind, argument, at, stream) = match coded.place(block_idx)? {
                BlockPlace::Packed(at) => (0, 0, at, 0..0),
                BlockPlace::Constant(symbol) => (1, usize::from(symbol), 0, 0..0),
                BlockPlace::Rans8 { table, states_at, stream } => (2, table, states_at, stream),
            };
            let fields = [kind, argument, at, stream.start, stream.end, rows.start, rows.len(), 0];
            blocks.extend(fields.into_iter().map(word).collect::<Result<Vec<u32>, GpuError>>()?);
        }
        let slots = coded.slots().into_iter().map(|(symbol, rank, frequency)| {
            u32::from(symbol) | u32::from(rank) << 8 | u32::from(frequency) << 16
        });
        let mut factors: Vec<i8> = levels.to_vec();
        factors.resize(256, 0);
        factors.extend(x);
        factors.resize(256 + padded, 0);
        let factors = factors.into_iter().map(|factor| i32::from(factor).cast_unsigned());
        let params = [padded, usize::from(shape.low_bits()), shape.n_blocks(), GRID_WIDTH];
        let params = params.into_iter().map(word).collect::<Result<Vec<u32>, GpuError>>()?;
        let inputs: [&[u8]; 6] = [
            &words(params),
            &words(blocks),
            self.bounded(coded.compressed())?,
            self.bounded(coded.low_plane())?,
            &words(slots),
            &words(factors),
        ];
        let mut out = vec![0; 4 * shape.rows()];
        let fault =
            self.run(&self.levels, &mut Buffers::default(), &inputs, grid(shape.n_blocks())?, &mut out)?;
        if fault.is_some() {
            let what = "a block's stream does not end where its symbols do";
            return Err(CodecError::Corrupt { what }.into());
        }
        Ok(out.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect())
    }

    /// Products of bf16 weights in 12 bits, one for every row: what `Coded::dot_bf16` gives, in the arithmetic that the
    /// kernel states. Escapes count as zero.
    ///
    /// # Errors
    /// When the vector does not fit the matrix, it has blocks that are entropy-coded, or the device fails.
    pub fn dot_fixed12(
        &self,
        coded: &Coded<'_>,
        first_exponent: u8,
        x: &[f32],
    ) -> Result<Vec<f32>, GpuError> {
        let shape = coded.shape();
        let padded = shape.padded_columns();
        if shape.low_bits() != 8 || x.len() != shape.columns() {
            return Err(CodecError::Corrupt { what: "a vector that does not fit the matrix" }.into());
        }
        let block = |block_idx: usize| match coded.place(block_idx)? {
            BlockPlace::Packed(at) => word(at),
            BlockPlace::Constant(symbol) => Ok(1 << 31 | u32::from(symbol)),
            BlockPlace::Rans8 { .. } => {
                Err(CodecError::Corrupt { what: "weights of 12 bits that are entropy-coded" }.into())
            }
        };
        let blocks = (0..shape.n_blocks()).map(block).collect::<Result<Vec<u32>, GpuError>>()?;
        let params = [padded, shape.rows(), shape.rows_per_block(), usize::from(first_exponent), GRID_WIDTH];
        let params = params.into_iter().map(word).collect::<Result<Vec<u32>, GpuError>>()?;
        let mut padded_x = x.to_vec();
        padded_x.resize(padded, 0.0);
        let inputs: [&[u8]; 5] = [
            &words(params),
            &words(blocks),
            self.bounded(coded.compressed())?,
            self.bounded(coded.low_plane())?,
            &words(padded_x.into_iter().map(f32::to_bits)),
        ];
        let mut out = vec![0; 4 * shape.rows()];
        let grid = grid(shape.rows().div_ceil(ROWS))?;
        self.run(&self.fixed12, &mut Buffers::default(), &inputs, grid, &mut out)?;
        Ok(out.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// Bytes that a kernel can see as one buffer.
    fn bounded<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], GpuError> {
        let (has, needs) = (self.info().buffer_len.min(1 << 31), bytes.len() as u64);
        if needs > has {
            let adapter = self.info().name.clone();
            return Err(GpuError::Limit { adapter, what: "buffer length", has, needs });
        }
        Ok(bytes)
    }
}

fn grid(n_workgroups: usize) -> Result<Grid, GpuError> {
    Ok(Grid { x: word(n_workgroups.min(GRID_WIDTH))?, y: word(n_workgroups.div_ceil(GRID_WIDTH))? })
}

fn word(number: usize) -> Result<u32, GpuError> {
    u32::try_from(number)
        .map_err(|_| CodecError::Corrupt { what: "a matrix too large for 32-bit addresses" }.into())
}
