//! Codes a tensor against its base when neither fits memory.

use super::raw::Raw;
use crate::container::OpenTensor;
use crate::{Error, FrameOptions, pipeline, plan};
use mithril_format::Digest;
use mithril_format::frame::{FrameHeader, Trailer};
use std::io::Write;

/// Raw bytes that are planned from, and that are coded at a time.
const BATCH_LEN: u64 = 8 << 20;

/// Writes the frame of a tensor against a base of the same length, batch by batch.
pub(super) fn encode(
    raw: &Raw<'_>,
    base: &OpenTensor<'_>,
    digest: Digest,
    options: &FrameOptions,
    out: &mut impl Write,
) -> Result<(), Error> {
    let read = |range: std::ops::Range<u64>| -> Result<(Vec<u8>, Vec<u8>), Error> {
        let current = raw.read(range.clone())?;
        let mut before = vec![0; current.len()];
        base.read_range(range, &mut before, options.threads)?;
        Ok((current, before))
    };
    let unit = options.dtype.unit_len() as u64;
    let (current, before) = read(0..raw.len().min(BATCH_LEN) / unit * unit)?;
    let mut plan_options = options.clone();
    // Rows and columns of the whole matrix are not at hand.
    plan_options.shape = None;
    let mut plan = plan::tensor_against(&current, &before, &plan_options)?;
    if !plan.shared.is_empty() {
        plan = plan::tensor_against(&current, &before, &plan_options.with_effort(crate::Effort::Fast))?;
    }
    let max_block_len = BATCH_LEN / 2 / unit * unit;
    plan.block_len = plan.block_len.min(u32::try_from(max_block_len).unwrap_or(u32::MAX));
    let header = FrameHeader {
        dtype: options.dtype,
        shape: options.shape.clone(),
        block_len: plan.block_len,
        raw_len: Some(raw.len()),
        checksums: options.checksum,
        base: Some(digest),
        shared: std::mem::take(&mut plan.shared),
    };
    let mut bytes = Vec::new();
    header.write(&mut bytes);
    out.write_all(&bytes).map_err(Error::writing)?;

    let block_len = u64::from(header.block_len);
    let batch_len = (BATCH_LEN / block_len).max(1) * block_len;
    let mut trailer = Trailer::default();
    let mut at = 0;
    while at < raw.len() {
        let end = (at + batch_len).min(raw.len());
        let (current, before) = read(at..end)?;
        bytes.resize(pipeline::blocks_bound(current.len(), header.block_len as usize), 0);
        let first_block = trailer.coded_lens.len();
        let (batch, len) = pipeline::encode_blocks(
            &plan,
            &header,
            first_block,
            &current,
            Some(&before),
            options.threads,
            &mut bytes,
        );
        out.write_all(&bytes[..len]).map_err(Error::writing)?;
        trailer.coded_lens.extend(batch.coded_lens);
        trailer.raw_len += batch.raw_len;
        at = end;
    }
    bytes.clear();
    trailer.write(&mut bytes);
    out.write_all(&bytes).map_err(Error::writing)
}
