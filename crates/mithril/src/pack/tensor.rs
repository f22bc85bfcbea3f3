//! Decides how a tensor is stored, and codes it.

use super::bases::{BaseFinder, BaseTensor};
use super::layout::Layout;
use super::raw::Raw;
use super::twins::Twins;
use super::{IN_MEMORY_LEN, PackOptions};
use crate::container::{Content, Entry, Rounding};
use crate::{Base, Error, FrameOptions, compress_delta, frame};
use mithril_format::ReadAt;
use mithril_format::frame::FrameHeader;

/// Codes the tensors of a file, one after the other.
pub(super) struct TensorCoder<'a> {
    layout: &'a Layout,
    options: &'a PackOptions,
    twins: Twins<'a>,
    bases: BaseFinder<'a>,
}

/// How a tensor is stored.
pub(super) enum Coded<'a> {
    /// Without bytes of its own.
    Link(Entry),
    /// By a frame of this length, at the front of the buffer that was given.
    Frame(Entry, usize),
    /// By a frame that does not fit memory and is to be made as a stream, against a base if there is one.
    Stream(Entry, Option<BaseTensor<'a>>),
}

impl<'a> TensorCoder<'a> {
    pub(super) fn new(
        source: &'a dyn ReadAt,
        layout: &'a Layout,
        options: &'a PackOptions,
    ) -> Result<Self, Error> {
        let twins = Twins::new(source, layout)?;
        Ok(Self { layout, options, twins, bases: BaseFinder::new(&options.bases, layout) })
    }

    /// Decides how a tensor is stored, and codes it to `out` if it gets a frame that fits memory.
    pub(super) fn code(
        &mut self,
        tensor_idx: usize,
        raw: &Raw<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Coded<'a>, Error> {
        let tensor = &self.layout.tensors[tensor_idx];
        let mut entry = Entry::full(&tensor.name, tensor.dtype, tensor.shape.clone());
        entry.glue_before = self.layout.glue_before[tensor_idx];
        if let Some(earlier) = self.twins.find_equal(tensor_idx, raw)? {
            entry.content = Content::Ref { entry_idx: self.layout.entry_idx(earlier) };
            return Ok(Coded::Link(entry));
        }
        if self.options.digests {
            entry.digest = Some(raw.digest()?);
        }
        if let Some(base) = self.bases.find_equal(tensor, raw, entry.digest)? {
            let base_name = base.name_unless(&tensor.name);
            entry.content = Content::Copy { base: base.digest()?, base_name };
            entry.digest = None;
            return Ok(Coded::Link(entry));
        }
        if let Some(wide) = self.twins.find_wide(tensor_idx, raw)? {
            let entry_idx = self.layout.entry_idx(wide);
            entry.content = Content::Derived { entry_idx, rounding: Rounding::NearestEven };
            return Ok(Coded::Link(entry));
        }
        let options = self.options.frame_options(tensor.dtype, &tensor.shape);
        let base = match self.options.keyframes.contains(&tensor.name) {
            true => None,
            false => self.bases.find_similar(tensor, raw, &options)?,
        };
        let delta = |base: &BaseTensor<'_>| -> Result<Content, Error> {
            let base_name = base.name_unless(&tensor.name);
            Ok(Content::Delta { base: base.digest()?, base_name, len: 0, checksum: 0 })
        };
        let Some(memory) = raw.memory() else {
            if let Some(base) = &base {
                entry.content = delta(base)?;
            }
            return Ok(Coded::Stream(entry, base));
        };
        debug_assert!(raw.len() <= IN_MEMORY_LEN, "large tensors are not read into memory");
        let len = match &base {
            None => compress(memory, &options, out)?,
            Some(base) => {
                let bytes = base.open()?.read_all(self.options.threads)?;
                *out = compress_delta(memory, &Base::with_digest(&bytes, base.digest()?), &options)?;
                // Without a base where that is smaller.
                if FrameHeader::parse(out)?.0.base.is_some() {
                    entry.content = delta(base)?;
                }
                out.len()
            }
        };
        Ok(Coded::Frame(entry, len))
    }
}

/// Compresses to the front of a buffer that is used again; returns the length of the frame. The buffer only grows: what
/// lies behind the frame is left as it is.
pub(super) fn compress(raw: &[u8], options: &FrameOptions, out: &mut Vec<u8>) -> Result<usize, Error> {
    let bound = frame::compress_bound(raw.len(), options);
    if out.len() < bound {
        out.resize(bound, 0);
    }
    frame::compress_into(raw, options, out)
}
