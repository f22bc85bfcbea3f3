//! Runs of a tensor, and what compressing them says about the whole.

use crate::pack::PackOptions;
use crate::{Error, FrameOptions, compress, inspect};
use mithril_format::{Digest, ReadAt, TensorInfo};
use std::time::Instant;

/// Bytes of a run, about.
const RUN_LEN: u64 = 2 << 10;

/// Bytes of a sample at least: less says nothing.
pub(super) const MIN_LEN: u64 = 8 << 10;

/// Shorter rows are not told apart.
const MIN_ROW_ELEMENTS: u64 = 16;

/// Bytes read of a row that is too long, about.
const PIECE_OF_ROW_LEN: u64 = 512;

/// Runs of a tensor, spread evenly.
pub(super) struct Sample {
    bytes: Vec<u8>,
    /// Bytes of every run but the last.
    run_len: usize,
    /// Bytes of a row, when runs are whole rows.
    row_len: Option<u64>,
}

/// What a sample says.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Bytes of the sample.
    sample_len: f64,
    /// Bytes of its frame.
    frame_len: f64,
    /// Blocks of its frame.
    n_blocks: f64,
    /// What a block takes beyond its content.
    per_block: f64,
    /// Raw bytes of a block of a large tensor.
    block_len: f64,
    seconds_per_byte: f64,
    /// Whether it is of a tensor that only some were sampled of.
    is_small: bool,
}

impl Sample {
    /// Reads runs of a tensor, one byte in `share`; none when it is too small. What small tensors leave unread adds up in `credit`, and is
    /// spent on some of them.
    pub(super) fn read(
        source: &dyn ReadAt,
        tensor: &TensorInfo,
        share: u64,
        credit: &mut u64,
    ) -> Result<Option<Self>, Error> {
        let len = tensor.bytes.end - tensor.bytes.start;
        let unit_len = tensor.dtype.unit_len() as u64;
        let (row_len, is_piece) = rows(tensor, unit_len);
        let run_len = match row_len {
            // Pieces of long rows come from as many rows as possible.
            Some(piece_len) if is_piece => piece_len,
            Some(row_len) => (RUN_LEN / row_len).max(1) * row_len,
            None => RUN_LEN / unit_len * unit_len,
        };
        let mut n_runs = len / share / run_len;
        let min_runs = MIN_LEN.div_ceil(run_len);
        if n_runs < min_runs {
            *credit += len / share;
            if *credit < min_runs * run_len || len < min_runs * run_len {
                return Ok(None);
            }
            n_runs = min_runs;
            *credit -= min_runs * run_len;
        }
        let mut bytes = Vec::new();
        let n_places = len / run_len;
        for run in 0..n_runs {
            // The middle of each of `n_runs` parts of equal length.
            let place = (2 * run + 1) * n_places / (2 * n_runs);
            let start = tensor.bytes.start + place * run_len;
            bytes.extend(source.read_range(start..start + run_len).map_err(Error::reading)?);
        }
        let run_len = usize::try_from(run_len).expect("a few KiB");
        Ok(Some(Self { bytes, run_len, row_len }))
    }

    /// Bytes that were read.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// A digest of the sample.
    pub(super) fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// Compresses the sample and half of it.
    pub(super) fn measure(
        &self,
        tensor: &TensorInfo,
        options: &PackOptions,
        share: u64,
    ) -> Result<Measured, Error> {
        let half: Vec<u8> = self.bytes.chunks(self.run_len).step_by(2).flatten().copied().collect();
        let frame_options =
            FrameOptions::default().with_dtype(tensor.dtype).with_coding(options.coding).with_threads(1);
        let measure = |bytes: &[u8]| {
            let started = Instant::now();
            let frame = compress(bytes, &self.shaped(&frame_options, bytes, tensor))?;
            let seconds = started.elapsed().as_secs_f64();
            Ok::<_, Error>((inspect(&frame)?, seconds))
        };
        let (whole_info, whole_seconds) = measure(&self.bytes)?;
        let (half_info, half_seconds) = measure(&half)?;
        let n_blocks = |info: &crate::FrameInfo| info.block_kinds.iter().map(|&(_, n)| n).sum::<u64>() as f64;
        let (len, half_len) = (self.bytes.len() as f64, half.len() as f64);
        let (whole_blocks, half_blocks) = (n_blocks(&whole_info), n_blocks(&half_info));
        // frame = blocks * per_block + bytes * per_byte, twice.
        let determinant = whole_blocks * half_len - half_blocks * len;
        let per_block =
            (whole_info.frame_len as f64 * half_len - half_info.frame_len as f64 * len) / determinant;
        Ok(Measured {
            sample_len: len,
            frame_len: whole_info.frame_len as f64,
            n_blocks: whole_blocks,
            per_block: if per_block.is_finite() { per_block } else { 0.0 },
            block_len: f64::from(whole_info.block_len),
            // What every call takes, however little it is given, is in both; clocks are not exact.
            seconds_per_byte: ((whole_seconds - half_seconds) / (len - half_len))
                .max(whole_seconds / len / 20.0),
            is_small: (tensor.bytes.end - tensor.bytes.start) / share < self.bytes.len() as u64,
        })
    }

    fn shaped(&self, options: &FrameOptions, bytes: &[u8], tensor: &TensorInfo) -> FrameOptions {
        let options = options.clone();
        match self.row_len {
            Some(row_len) => {
                options.with_shape([bytes.len() as u64 / row_len, tensor.dtype.elements_in(row_len)])
            }
            None => options,
        }
    }
}

/// Bytes of the rows that classes may be found for: kernels of convolutions, else the innermost dimension. Rows that are
/// too long to be read whole give pieces, which tell rows apart but not columns.
/// Returns their length, if there are any, and whether they are such pieces.
fn rows(tensor: &TensorInfo, unit_len: u64) -> (Option<u64>, bool) {
    let rank = tensor.shape.len();
    let inner = |from: usize| {
        let elements =
            tensor.shape[from..].iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension))?;
        tensor.dtype.len_of(elements).filter(|&len| elements >= MIN_ROW_ELEMENTS && len % unit_len == 0)
    };
    let views = match rank {
        0 | 1 => return (None, false),
        2 => [inner(1), None],
        _ => [inner(2), inner(rank - 1)],
    };
    let whole = views.into_iter().flatten().find(|&len| len <= RUN_LEN);
    match whole {
        Some(row_len) => (Some(row_len), false),
        None => (Some((PIECE_OF_ROW_LEN / unit_len * unit_len).max(unit_len)), true),
    }
}

impl Measured {
    /// What a block takes beyond its content.
    pub(super) fn per_block(&self) -> f64 {
        self.per_block
    }

    pub(super) fn set_per_block(&mut self, per_block: f64) {
        self.per_block = per_block;
    }

    /// Whether it is of a small tensor.
    pub(super) fn is_small(&self) -> bool {
        self.is_small
    }

    /// What a byte of content takes.
    fn per_byte(&self) -> f64 {
        ((self.frame_len - self.per_block * self.n_blocks) / self.sample_len).max(0.0)
    }

    /// Bytes of the frame, and seconds, of a tensor of so many bytes.
    pub(super) fn predict(&self, len: u64) -> (u64, f64) {
        let len = len as f64;
        let n_blocks = (len / self.block_len).ceil().max(1.0);
        (whole(self.per_byte() * len + self.per_block * n_blocks), self.seconds_per_byte * len)
    }

    /// All samples as one.
    pub(super) fn mean(all: &[&Self]) -> Self {
        let sum = |of: fn(&Self) -> f64| all.iter().map(|measured| of(measured)).sum::<f64>();
        let n = all.len().max(1) as f64;
        let sample_len = sum(|measured| measured.sample_len);
        Self {
            sample_len,
            frame_len: sum(|measured| measured.frame_len),
            n_blocks: sum(|measured| measured.n_blocks),
            per_block: sum(|measured| measured.per_block) / n,
            block_len: sum(|measured| measured.block_len) / n,
            seconds_per_byte: sum(|measured| measured.seconds_per_byte * measured.sample_len) / sample_len,
            is_small: false,
        }
    }
}

/// A positive number of bytes.
pub(super) fn whole(len: f64) -> u64 {
    // Saturating by definition of the language; lengths are far below the limit.
    #[expect(clippy::cast_possible_truncation, reason = "rounded, not negative, and far below 2^53")]
    #[expect(clippy::cast_sign_loss, reason = "not negative")]
    let len = len.max(0.0).round() as u64;
    len
}
