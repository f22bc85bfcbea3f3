//! Decides how a tensor is stored.

use super::PackOptions;
use super::assumed::Assumed;
use super::bases::{BaseFinder, BaseTensor};
use super::layout::Layout;
use super::moment_finder::MomentFinder;
use super::moments::Moments;
use super::raw::Raw;
use super::twins::{Rounded, Twins};
use crate::container::{Content, Entry, Rounding, Step};
use crate::pipeline::buffers::{Buffer, Buffers};
use crate::{Error, FrameOptions, frame};
use mithril_format::{Digest, ReadAt};

/// Decides about the tensors of a file, one after the other.
pub(super) struct TensorChooser<'a> {
    layout: &'a Layout,
    options: &'a PackOptions,
    twins: Twins<'a>,
    bases: BaseFinder<'a>,
    moments: Option<MomentFinder<'a>>,
}

/// A base tensor, and the moments that tell where it went, if they shall and are there.
pub(super) struct FoundBase<'a> {
    pub(super) tensor: BaseTensor<'a>,
    pub(super) moments: Option<Moments<'a>>,
}

/// How a tensor is stored.
pub(super) enum Choice<'a> {
    /// Without bytes of its own.
    Link(Entry),
    /// By a frame, against a base if there is one.
    Frame(Entry, Option<FoundBase<'a>>),
}

impl<'a> TensorChooser<'a> {
    pub(super) fn new(
        source: &'a dyn ReadAt,
        layout: &'a Layout,
        options: &'a PackOptions,
        assumed: &'a Assumed,
    ) -> Result<Self, Error> {
        let twins = Twins::new(source, layout, options.keeps_digests(), assumed)?;
        let bases = BaseFinder::new(&options.bases, layout);
        let assumed = options.keeps_digests().then_some(assumed);
        let moments = options.from_moments.then(|| MomentFinder::new(source, layout, assumed));
        Ok(Self { layout, options, twins, bases, moments })
    }

    /// Says what was written of a tensor that does not lie in memory as a whole.
    pub(super) fn wrote(&mut self, tensor_idx: usize, digest: Option<Digest>) {
        self.twins.wrote(tensor_idx, digest);
    }

    /// Fails when a tensor changed that others are made from.
    pub(super) fn check_assumed(&self) -> Result<(), Error> {
        self.twins.check_assumed()
    }

    /// Decides how a tensor is stored. What does not lie in memory is read again when it is coded, and its digest is known
    /// only then.
    pub(super) fn choose(&mut self, tensor_idx: usize, raw: &Raw<'_>) -> Result<Choice<'a>, Error> {
        let tensor = &self.layout.tensors[tensor_idx];
        let mut entry = Entry::full(&tensor.name, tensor.dtype, tensor.shape.clone());
        entry.glue_before = self.layout.glue_before[tensor_idx];
        if Entry::can_be_inline(raw.len()) {
            // Less than what names its like elsewhere, so nothing is looked for.
            let inline = Entry::inline(entry.name, entry.dtype, entry.shape, &raw.read(0..raw.len())?);
            return Ok(Choice::Link(Entry { glue_before: entry.glue_before, ..inline }));
        }
        if let Some(earlier) = self.twins.find_equal(tensor_idx, raw)? {
            entry.content = Content::Ref { entry_idx: self.layout.entry_idx(earlier) };
            self.twins.wrote(tensor_idx, self.twins.written(earlier));
            return Ok(Choice::Link(entry));
        }
        let is_compared = raw.is_in_memory() || !self.options.bases.is_empty();
        let digest = match is_compared && self.twins.has_digests() {
            true => Some(raw.digest()?),
            false => None,
        };
        if let Some(base) = self.bases.find_equal(tensor, raw, digest)? {
            let base_name = base.name_unless(&tensor.name);
            let base = base.digest()?;
            entry.content = Content::Copy { base, base_name };
            self.twins.wrote(tensor_idx, Some(base));
            return Ok(Choice::Link(entry));
        }
        if let Some(Rounded { wide_idx, digest }) = self.twins.find_wide(tensor_idx, raw)? {
            let entry_idx = self.layout.entry_idx(wide_idx);
            entry.content = Content::Derived { entry_idx, rounding: Rounding::NearestEven };
            entry.digest = digest.filter(|_| self.options.digests);
            self.twins.wrote(tensor_idx, digest);
            return Ok(Choice::Link(entry));
        }
        if raw.is_in_memory() {
            entry.digest = digest.filter(|_| self.options.digests);
            self.twins.wrote(tensor_idx, digest);
        }
        let options = self.options.frame_options(tensor.dtype, &tensor.shape);
        let base = match self.options.delta_budget.allows(&tensor.name) {
            false => None,
            true => self.bases.find_similar(tensor, raw, &options)?,
        };
        let Some(base) = base else { return Ok(Choice::Frame(entry, None)) };
        let moments = match &mut self.moments {
            Some(finder) => finder.find(tensor_idx, raw, &base, &self.bases)?,
            None => None,
        };
        Ok(Choice::Frame(entry, Some(FoundBase { tensor: base, moments })))
    }
}

/// The entry of a tensor, if it is stored against a base.
pub(super) fn against(entry: &Entry, base: &BaseTensor<'_>, step: Option<Step>) -> Result<Entry, Error> {
    let base_name = base.name_unless(&entry.name);
    let step = step.map(Box::new);
    let content = Content::Delta { base: base.digest()?, base_name, step, len: 0, checksum: 0 };
    Ok(Entry { content, ..entry.clone() })
}

/// Compresses a tensor that lies in memory.
pub(super) fn compress<'b>(
    raw: &[u8],
    options: &FrameOptions,
    buffers: &'b Buffers,
) -> Result<Buffer<'b>, Error> {
    let mut out = buffers.take(frame::compress_bound(raw.len(), options))?;
    let len = frame::compress_into(raw, options, &mut out)?;
    out.truncate(len);
    Ok(out)
}
