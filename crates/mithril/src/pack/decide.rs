//! Codes tensors that have a base, and decides whether they are stored against it.
//!
//! There is one rule: a delta is stored that is smaller than the frame alone, if the budget of all deltas has room for it.
//! Whether it has is known when all tensors before are counted; threads wait for that here, and nowhere else.

use super::budget::Ticket;
use super::delta_stream::{self, DeltaStream, Held};
use super::raw::Raw;
use super::tensor::{FoundBase, against, compress};
use crate::container::Entry;
use crate::frame_writer::FrameWriter;
use crate::pipeline::buffers::{Buffer, Buffers};
use crate::{Base, Error, FrameOptions, Stored, compress_delta_into, frame};
use mithril_format::Digester;

/// Codes a tensor that lies in memory; the entry then says how it is stored.
pub(super) fn in_memory<'b>(
    raw: &[u8],
    base: &FoundBase<'_>,
    entry: &mut Entry,
    ticket: &Ticket<'_>,
    options: &FrameOptions,
    buffers: &'b Buffers,
) -> Result<Buffer<'b>, Error> {
    let FoundBase { tensor, moments } = base;
    let mut bytes = buffers.take(raw.len())?;
    tensor.open()?.read_range(0..raw.len() as u64, &mut bytes, options.coding.threads)?;
    let step = match moments {
        Some(moments) => moments.apply_to(raw, &mut bytes)?,
        None => None,
    };
    let base = match step {
        Some(_) => Base::new(&bytes),
        None => Base::with_digest(&bytes, tensor.digest()?),
    };
    let mut out = buffers.take(frame::compress_bound(raw.len(), options))?;
    let (len, stored) = compress_delta_into(raw, &base, options, &mut out)?;
    out.truncate(len);
    if stored == Stored::Alone {
        return Ok(out);
    }
    let delta = against(entry, tensor, step)?;
    if !ticket.fits(&delta, len as u64) {
        return compress(raw, options, buffers);
    }
    *entry = delta;
    Ok(out)
}

/// The delta of a tensor that does not fit memory.
pub(super) struct StreamedDelta<'m, 'a> {
    pub(super) entry: Entry,
    /// Its bytes, unless they are too many: they are then coded again.
    pub(super) held: Held,
    pub(super) stream: DeltaStream<'m, 'a>,
}

/// The delta of a tensor that does not fit memory, or the frame without the base that is stored instead, which `alone` plans.
/// Nothing that is written can be taken back, so that all of it is coded before.
pub(super) fn streamed<'m, 'a>(
    raw: &Raw<'m>,
    base: &'m FoundBase<'a>,
    entry: &Entry,
    ticket: &Ticket<'_>,
    options: &FrameOptions,
    (mut held, digester): (Held, Option<&mut Digester>),
    alone: impl FnOnce() -> Result<FrameWriter, Error>,
) -> Result<Result<StreamedDelta<'m, 'a>, FrameWriter>, Error> {
    let stream = DeltaStream::new(raw, base, options)?;
    let entry = against(entry, &base.tensor, stream.step()?)?;
    stream.encode(digester, &mut held)?;
    let alone = alone()?;
    let is_smaller = !delta_stream::is_at_most(held.len(), raw, &alone)?;
    let is_delta = is_smaller && ticket.fits(&entry, held.len());
    Ok(if is_delta { Ok(StreamedDelta { entry, held, stream }) } else { Err(alone) })
}
