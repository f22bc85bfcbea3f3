//! One buffer or tensor to a frame, and back.

use crate::frame_writer::FrameWriter;
use crate::options::{DecodeOptions, FrameOptions};
use crate::pipeline::buffers::zeros;
use crate::plan::Evidence;
use crate::{Base, Error, pipeline, plan};
use mithril_codec::Dtype;
use mithril_format::Digest;
use mithril_format::frame::{FrameView, Trailer};
use mithril_format::limits::MAX_RANK;
use std::ops::Range;

/// Compresses a buffer to a frame.
///
/// ```
/// use mithril::{Dtype, FrameOptions};
/// let weights: Vec<u8> = (0..4096u32).flat_map(|i| (i as f32).sqrt().to_le_bytes()).collect();
/// let options = FrameOptions::default().with_dtype(Dtype::F32).with_shape([64, 64]);
/// let frame = mithril::compress(&weights, &options)?;
/// assert!(frame.len() < weights.len());
/// assert_eq!(mithril::decompress(&frame)?, weights);
/// # Ok::<(), mithril::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` when the shape does not describe exactly these bytes.
pub fn compress(source: &[u8], options: &FrameOptions) -> Result<Vec<u8>, Error> {
    check_rank(options)?;
    let plan = plan::tensor(source, Evidence::All, None, options)?;
    // Fresh zero pages are not touched before they are written, so the bound costs address space only.
    let mut out = zeros(bound(&plan, source.len(), options))?;
    let len = compress_by_plan(source, None, options, plan, &mut out)?;
    out.truncate(len);
    out.shrink_to_fit();
    Ok(out)
}

/// Compresses a buffer to the front of `out`; returns the length of the frame. Allocates nothing of the size of the
/// data. [`compress_bound`] says how large `out` must be.
///
/// # Errors
/// `InvalidArgument` when the shape does not describe exactly these bytes, or `out` is too small.
pub fn compress_into(source: &[u8], options: &FrameOptions, out: &mut [u8]) -> Result<usize, Error> {
    check_rank(options)?;
    let plan = plan::tensor(source, Evidence::All, None, options)?;
    if out.len() < bound(&plan, source.len(), options) {
        return Err(Error::invalid(format!(
            "output of {} bytes may be too small for a frame of {}",
            out.len(),
            source.len()
        )));
    }
    compress_by_plan(source, None, options, plan, out)
}

/// Bytes that the frame of a buffer can take at most.
pub fn compress_bound(source_len: usize, options: &FrameOptions) -> usize {
    let rank = options.shape.as_ref().map_or(0, Vec::len);
    let smallest_block = plan::MIN_BLOCK_LEN;
    pipeline::blocks_bound(source_len, smallest_block)
        + Trailer::len(source_len.div_ceil(smallest_block))
        + HEADER_BOUND
        + 8 * rank
        + options.coding.effort.means().max_shared_share * source_len / 100
}

/// Bytes of a header at most, without shape and shared tables.
const HEADER_BOUND: usize = 96;

/// Refuses shapes that a header cannot hold.
pub(crate) fn check_rank(options: &FrameOptions) -> Result<(), Error> {
    match options.shape.as_ref().map(Vec::len) {
        Some(rank) if rank > MAX_RANK => {
            Err(Error::invalid(format!("shape of {rank} dimensions, at most {MAX_RANK} are possible")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn bound(plan: &plan::TensorPlan, source_len: usize, options: &FrameOptions) -> usize {
    // Blocks are cut shorter when the frame turns out to hold too much for its length.
    let block_len = if plan.may_hold_too_much() { plan::MIN_BLOCK_LEN } else { plan.block_len as usize };
    pipeline::blocks_bound(source_len, block_len)
        + Trailer::len(source_len.div_ceil(block_len))
        + HEADER_BOUND
        + 8 * options.shape.as_ref().map_or(0, Vec::len)
        + plan.shared.to_bytes().len()
}

/// Writes a frame to the front of `out`, which holds `bound` bytes; returns its length.
pub(crate) fn compress_by_plan(
    source: &[u8],
    base: Option<&Base<'_>>,
    options: &FrameOptions,
    plan: plan::TensorPlan,
    out: &mut [u8],
) -> Result<usize, Error> {
    let writer = |plan| FrameWriter::new(plan, options, Some(source.len() as u64), base.map(Base::digest));
    let base = base.map(Base::bytes);
    let mut frame = writer(plan);
    let len = frame.write(source, base, out);
    if !frame.holds_too_much() {
        return Ok(len);
    }
    let (len, piece_len) = (source.len(), source.len());
    let mut plan = match frame.unshared_plan() {
        Some(plan) => plan,
        None => plan::tensor(source, Evidence::Sample { len, piece_len }, None, options)?,
    };
    plan.shorten(options.dtype);
    Ok(writer(plan).write(source, base, out))
}

/// Decompresses a frame. Needs nothing but its bytes.
///
/// # Errors
/// When the bytes are not exactly one intact frame, or hold more than the default limit of [`DecodeOptions`].
pub fn decompress(frame: &[u8]) -> Result<Vec<u8>, Error> {
    decompress_with(frame, &DecodeOptions::default())
}

/// As [`decompress`], with a choice of threads and limits.
///
/// # Errors
/// As [`decompress`].
pub fn decompress_with(frame: &[u8], options: &DecodeOptions) -> Result<Vec<u8>, Error> {
    let view = parse_alone(frame)?;
    let limit = options.output_limit(frame.len());
    let too_large = Error::TooLarge { raw_len: view.raw_len(), limit };
    let len = usize::try_from(view.raw_len()).ok().filter(|_| view.raw_len() <= limit).ok_or(too_large)?;
    let mut out = zeros(len)?;
    pipeline::decode_blocks(&view, 0, None, &mut out, options.threads)?;
    Ok(out)
}

/// Decompresses a frame into a buffer of exactly its raw length. Allocates nothing of the size of the data.
///
/// # Errors
/// When the bytes are not exactly one intact frame, or `out` has another length. `out` may then hold part of the data.
pub fn decompress_into(frame: &[u8], out: &mut [u8], options: &DecodeOptions) -> Result<(), Error> {
    let view = parse_alone(frame)?;
    if view.raw_len() != out.len() as u64 {
        return Err(Error::invalid(format!(
            "frame holds {} bytes, output has {}",
            view.raw_len(),
            out.len()
        )));
    }
    Ok(pipeline::decode_blocks(&view, 0, None, out, options.threads)?)
}

/// Decompresses some raw bytes of a frame, and decodes only the blocks that hold them.
///
/// # Errors
/// When those blocks or the frame's structure are damaged, or the range lies outside.
pub fn decompress_range(frame: &[u8], range: Range<u64>, options: &DecodeOptions) -> Result<Vec<u8>, Error> {
    let view = parse_alone(frame)?;
    if range.start > range.end || range.end > view.raw_len() {
        return Err(Error::invalid(format!(
            "range {range:?} lies outside the frame's {} bytes",
            view.raw_len()
        )));
    }
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let block_len = u64::from(view.header().block_len);
    let (first, last) = (range.start / block_len, (range.end - 1) / block_len);
    let raw_start = first * block_len;
    let raw_end = ((last + 1) * block_len).min(view.raw_len());
    let limit = options.output_limit(frame.len());
    let too_large = || Error::TooLarge { raw_len: raw_end - raw_start, limit };
    let len = usize::try_from(raw_end - raw_start)
        .ok()
        .filter(|_| raw_end - raw_start <= limit)
        .ok_or_else(too_large)?;
    let mut out = zeros(len)?;
    let first = usize::try_from(first).map_err(|_| too_large())?;
    pipeline::decode_blocks(&view, first, None, &mut out, options.threads)?;
    let skip = usize::try_from(range.start - raw_start).map_err(|_| too_large())?;
    let keep = usize::try_from(range.end - range.start).map_err(|_| too_large())?;
    out.drain(..skip);
    out.truncate(keep);
    Ok(out)
}

/// A frame that needs nothing but its bytes.
fn parse_alone(frame: &[u8]) -> Result<FrameView<'_>, Error> {
    let view = FrameView::parse(frame)?;
    match view.header().base {
        Some(expected) => Err(Error::BaseMismatch { expected, actual: None }),
        None => Ok(view),
    }
}

/// What a frame holds, without decoding it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameInfo {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Dimensions, if it is a tensor.
    pub shape: Option<Vec<u64>>,
    /// Raw bytes.
    pub raw_len: u64,
    /// Bytes of the frame.
    pub frame_len: u64,
    /// Raw bytes of a block.
    pub block_len: u32,
    /// Whether blocks carry checksums.
    pub checksums: bool,
    /// Digest of the base that it needs, if it needs one.
    pub base: Option<Digest>,
    /// How many blocks there are of each kind.
    pub block_kinds: Vec<(&'static str, u64)>,
}

/// Describes a frame. Checks its structure and decodes nothing.
///
/// # Errors
/// When the bytes are not exactly one intact frame.
pub fn inspect(frame: &[u8]) -> Result<FrameInfo, Error> {
    let view = FrameView::parse(frame)?;
    Ok(FrameInfo {
        dtype: view.header().dtype,
        shape: view.header().shape.clone(),
        raw_len: view.raw_len(),
        frame_len: frame.len() as u64,
        block_len: view.header().block_len,
        checksums: view.header().checksums,
        base: view.header().base,
        block_kinds: name_kinds((0..view.blocks().len()).filter_map(|block_idx| view.block_kind(block_idx))),
    })
}

/// How many blocks there are of each kind, by name.
pub(crate) fn name_kinds(kinds: impl IntoIterator<Item = u8>) -> Vec<(&'static str, u64)> {
    // 7 is no kind.
    let names = [
        "stored",
        "constant",
        "fields",
        "planes",
        "palette",
        "sparse",
        "rows",
        "unknown",
        "same",
        "difference",
        "xor",
        "predicted",
    ];
    let mut counts = [0; 12];
    for kind in kinds.into_iter().map(usize::from) {
        counts[if kind < counts.len() { kind } else { 7 }] += 1;
    }
    names.into_iter().zip(counts).filter(|&(_, count)| count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effort;

    /// Two states of a tensor of 16-bit floats with no block in common: one with rows of different scales, one of all bit
    /// patterns.
    fn states() -> [Vec<u8>; 2] {
        let mixed = |i: u32| i.wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b) >> 16;
        let halves = |number: fn(u32, u32) -> u32| -> Vec<u8> {
            (0..40_000).flat_map(|i| number(i, mixed(i)).to_le_bytes().into_iter().take(2)).collect()
        };
        [halves(|i, mixed| mixed & 0x807f | (0x70 + i / 256 % 9) << 7), halves(|_, mixed| mixed)]
    }

    #[test]
    fn a_plan_of_other_bytes_gives_frames_that_decode() {
        let [a, b] = states();
        let constant = vec![7; a.len()];
        let contents = [&a, &b, &constant];
        for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
            let dtypes = [Dtype::Bf16, Dtype::F32, Dtype::F16, Dtype::U16, Dtype::Bytes];
            // What is searched for longest needs no more than two kinds of numbers.
            let n_dtypes = if effort == Effort::Max { 2 } else { dtypes.len() };
            for &dtype in &dtypes[..n_dtypes] {
                let shape =
                    dtype.layout().map(|layout| vec![40, a.len() as u64 / u64::from(layout.width) / 40]);
                let mut options = FrameOptions::default().with_dtype(dtype).with_effort(effort);
                options.shape = shape;
                for seen in contents {
                    for written in contents {
                        let plan = plan::tensor(seen, Evidence::All, None, &options).unwrap();
                        let mut out = vec![0; compress_bound(written.len(), &options)];
                        let len = compress_by_plan(written, None, &options, plan, &mut out).unwrap();
                        assert!(decompress(&out[..len]).unwrap() == *written, "{effort:?} {dtype:?}");
                        let plan = plan::tensor(seen, Evidence::All, Some(&b), &options).unwrap();
                        let base = Base::new(&b);
                        let len = compress_by_plan(written, Some(&base), &options, plan, &mut out).unwrap();
                        let decoded = crate::decompress_delta(&out[..len], &base).unwrap();
                        assert!(decoded == *written, "{effort:?} {dtype:?} against a base");
                    }
                }
            }
        }
    }
}
