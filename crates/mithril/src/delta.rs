//! A tensor given another one of the same type and length: its earlier checkpoint, the model it was tuned from.
//!
//! The frame names its base by a 256-bit digest of the base's bytes, which is compared before a byte is decoded.

use crate::frame::{bound, check_rank, compress, compress_bound, compress_by_plan};
use crate::options::{DecodeOptions, FrameOptions};
use crate::pipeline::buffers::zeros;
use crate::plan::Evidence;
use crate::{Error, pipeline, plan};
use mithril_format::Digest;
use mithril_format::frame::FrameView;

/// The bytes of a base, and their digest.
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    bytes: &'a [u8],
    digest: Digest,
}

impl<'a> Base<'a> {
    /// Hashes the bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, digest: Digest::of(bytes) }
    }

    /// For a caller that has hashed these bytes before: whoever gives a wrong digest decodes wrong bytes, which only the
    /// checksums of the blocks then tell.
    pub fn with_digest(bytes: &'a [u8], digest: Digest) -> Self {
        Self { bytes, digest }
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Their digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// Compresses a tensor against its base. The frame is never larger than that of [`compress`](crate::compress); if it
/// would be, that one is returned, which needs no base.
///
/// ```
/// use mithril::{Base, Dtype, FrameOptions};
/// let step = |lr: f32| -> Vec<u8> { (1..5000).flat_map(|i| (i as f32 + lr).sqrt().to_le_bytes()).collect() };
/// let (earlier, later) = (step(0.0), step(1e-3));
/// let base = Base::new(&earlier);
/// let options = FrameOptions::default().with_dtype(Dtype::F32);
/// let frame = mithril::compress_delta(&later, &base, &options)?;
/// assert!(frame.len() < mithril::compress(&later, &options)?.len());
/// assert_eq!(mithril::decompress_delta(&frame, &base)?, later);
/// # Ok::<(), mithril::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` when the base has another length, or the shape does not describe exactly these bytes.
pub fn compress_delta(current: &[u8], base: &Base<'_>, options: &FrameOptions) -> Result<Vec<u8>, Error> {
    let mut out = zeros(compress_bound(current.len(), options))?;
    let (len, _) = compress_delta_into(current, base, options, &mut out)?;
    out.truncate(len);
    out.shrink_to_fit();
    Ok(out)
}

/// Which of the two frames was smaller that a tensor with a base can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// The one against the base.
    Delta,
    /// The one that needs no base.
    Alone,
}

/// As [`compress_delta`], to the front of `out`; returns the length of the frame, and which it is.
/// [`compress_bound`](crate::compress_bound) says how large `out` must be. Allocates nothing of the size of the data,
/// unless the base may be of no use.
///
/// # Errors
/// As [`compress_delta`], and `InvalidArgument` when `out` is too small.
pub fn compress_delta_into(
    current: &[u8],
    base: &Base<'_>,
    options: &FrameOptions,
    out: &mut [u8],
) -> Result<(usize, Stored), Error> {
    check_rank(options)?;
    let mut plan = plan::tensor(current, Evidence::All, Some(base.bytes), options)?;
    let alone = plan.alone.take();
    if out.len() < bound(&plan, current.len(), options) {
        let (room, len) = (out.len(), current.len());
        return Err(Error::invalid(format!("output of {room} bytes may be too small for a frame of {len}")));
    }
    let len = compress_by_plan(current, Some(base), options, plan, out)?;
    // Coded alone only where that might be smaller: dense floats that gain from their base are not coded twice.
    if alone.is_some_and(|alone| len > alone.least_len(current)) {
        let alone = compress(current, options)?;
        if alone.len() <= len {
            out[..alone.len()].copy_from_slice(&alone);
            return Ok((alone.len(), Stored::Alone));
        }
    }
    Ok((len, Stored::Delta))
}

/// Decompresses a frame that [`compress_delta`] made. Also takes frames that need no base.
///
/// # Errors
/// When the bytes are not exactly one intact frame, or the base is another than the frame was made with.
pub fn decompress_delta(frame: &[u8], base: &Base<'_>) -> Result<Vec<u8>, Error> {
    let view = FrameView::parse(frame)?;
    let wanted = base_for(&view, base)?;
    // A frame against a base holds as many bytes as the base, which is in memory; one without is limited as usual.
    if wanted.is_none() {
        return crate::decompress(frame);
    }
    let mut out = zeros(base.bytes.len())?;
    pipeline::decode_blocks(&view, 0, wanted, &mut out, 0)?;
    Ok(out)
}

/// As [`decompress_delta`], into a buffer of exactly the raw length.
///
/// # Errors
/// As [`decompress_delta`], and when `out` has another length. `out` may then hold part of the data, but nothing is
/// written before the base has been checked.
pub fn decompress_delta_into(
    frame: &[u8],
    base: &Base<'_>,
    out: &mut [u8],
    options: &DecodeOptions,
) -> Result<(), Error> {
    let view = FrameView::parse(frame)?;
    check_len(&view, out.len())?;
    let base = base_for(&view, base)?;
    Ok(pipeline::decode_blocks(&view, 0, base, out, options.threads)?)
}

/// Turns a buffer that holds the base into what the frame holds, in place. Hashes the buffer first; see
/// [`apply_known_into`] for a buffer whose digest is known.
///
/// # Errors
/// When the bytes are not exactly one intact frame, or the buffer does not hold the frame's base: then it is
/// unchanged. When a block turns out damaged, that block is unchanged, but others may have been brought up to date:
/// the buffer is then neither of the two.
pub fn apply_into(frame: &[u8], live: &mut [u8], options: &DecodeOptions) -> Result<(), Error> {
    let view = FrameView::parse(frame)?;
    check_len(&view, live.len())?;
    let digest = if view.header().base.is_some() { Digest::of(live) } else { Digest([0; Digest::LEN]) };
    apply(&view, live, digest, options)
}

/// As [`apply_into`] for a buffer with this digest, which is not computed again.
///
/// # Errors
/// As [`apply_into`].
pub fn apply_known_into(
    frame: &[u8],
    live: &mut [u8],
    digest: Digest,
    options: &DecodeOptions,
) -> Result<(), Error> {
    let view = FrameView::parse(frame)?;
    check_len(&view, live.len())?;
    apply(&view, live, digest, options)
}

fn apply(
    view: &FrameView<'_>,
    live: &mut [u8],
    digest: Digest,
    options: &DecodeOptions,
) -> Result<(), Error> {
    if let Some(expected) = view.header().base.filter(|expected| *expected != digest) {
        return Err(Error::BaseMismatch { expected, actual: Some(digest) });
    }
    let block_len = view.header().block_len as usize;
    pipeline::decode_each(0, block_len, live, options.threads, |block_idx, live, scratch| {
        pipeline::decode_over_base(live, scratch, |base, live, scratch| {
            view.decode_block(block_idx, Some(base), live, scratch)
        })
    })?;
    Ok(())
}

fn check_len(view: &FrameView<'_>, len: usize) -> Result<(), Error> {
    if view.raw_len() == len as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("frame holds {} bytes, output has {len}", view.raw_len())))
}

/// The bytes of the base if the frame needs one and this is it.
fn base_for<'a>(view: &FrameView<'_>, base: &Base<'a>) -> Result<Option<&'a [u8]>, Error> {
    match view.header().base {
        None => Ok(None),
        Some(expected) if expected != base.digest => {
            Err(Error::BaseMismatch { expected, actual: Some(base.digest) })
        }
        Some(_) if view.raw_len() != base.bytes.len() as u64 => {
            let (raw_len, len) = (view.raw_len(), base.bytes.len());
            Err(Error::invalid(format!("frame holds {raw_len} bytes, its base has {len}")))
        }
        Some(_) => Ok(Some(base.bytes)),
    }
}
