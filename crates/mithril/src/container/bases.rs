//! The models that tensors may be based on, found by digest.

use super::frame_source::Fetch;
use super::lineage::{Lineage, SharedReader};
use super::{Model, OpenTensor, Reader};
use crate::Error;
use crate::pipeline::ahead::FramePlace;
use mithril_format::{Digest, ReadAt};
use std::sync::Arc;

/// The base models at hand.
#[derive(Debug, Clone, Default)]
pub struct Bases {
    models: Vec<Arc<Model>>,
    /// Containers that what is looked for lies in before it is looked for in models.
    lineage: Option<Arc<Lineage>>,
}

/// Where a base tensor is, with all that it needs itself.
pub(super) enum Found<'a> {
    InModel(&'a Model, usize),
    /// In a container whose own bases are these.
    InLineage(&'a Reader<Box<dyn ReadAt>>, usize, &'a Bases),
}

impl<'a> Found<'a> {
    fn open_with(self, fetch: Fetch<'a>) -> Result<OpenTensor<'a>, Error> {
        match self {
            Self::InModel(model, tensor_idx) => model.open_with(tensor_idx, fetch),
            Self::InLineage(reader, entry_idx, bases) => reader.open_fetched(entry_idx, bases, fetch),
        }
    }

    /// As [`Reader::list_frames`]; a plain tensor has none.
    pub(super) fn list_frames(self, frames: &mut Vec<FramePlace<'a>>) -> Result<(), Error> {
        match self {
            Self::InModel(model, tensor_idx) => model.list_frames(tensor_idx, frames),
            Self::InLineage(reader, entry_idx, bases) => reader.list_frames(entry_idx, bases, frames),
        }
    }
}

impl Bases {
    /// No base.
    pub fn none() -> Self {
        Self::default()
    }

    /// These models, in the order in which they are looked through.
    pub fn new(models: impl IntoIterator<Item = Model>) -> Self {
        Self::shared(models.into_iter().map(Arc::new))
    }

    /// These models, which others hold too.
    pub fn shared(models: impl IntoIterator<Item = Arc<Model>>) -> Self {
        Self { models: models.into_iter().collect(), lineage: None }
    }

    /// The containers that the tensors of newer ones are stored against.
    pub(crate) fn of_lineage(lineage: Lineage) -> Self {
        Self { models: Vec::new(), lineage: Some(Arc::new(lineage)) }
    }

    /// These bases, and after them the models of others.
    #[must_use]
    pub fn and(&self, more: &Self) -> Self {
        let models = self.models.iter().chain(&more.models).cloned().collect();
        Self { models, lineage: self.lineage.clone() }
    }

    /// The models.
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }

    /// The containers of the lineage, from old to new.
    pub(crate) fn lineage_readers(&self) -> &[SharedReader] {
        self.lineage.as_ref().map_or(&[], |lineage| lineage.readers())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Opens the tensor whose raw bytes have this digest: one that has the name, else any of the same length.
    pub(crate) fn open(&self, digest: Digest, name: &str, raw_len: u64) -> Result<OpenTensor<'_>, Error> {
        self.open_with(digest, name, raw_len, Fetch::WholeIfSmall)
    }

    /// As [`Bases::open`], fetched as it is said.
    pub(super) fn open_with<'a>(
        &'a self,
        digest: Digest,
        name: &str,
        raw_len: u64,
        fetch: Fetch<'a>,
    ) -> Result<OpenTensor<'a>, Error> {
        self.find(digest, name, raw_len)?.open_with(fetch)
    }

    /// Finds the tensor whose raw bytes have this digest: one that can be read with what is at hand, which not every tensor
    /// of that digest can.
    pub(super) fn find(&self, digest: Digest, name: &str, raw_len: u64) -> Result<Found<'_>, Error> {
        if let Some((reader, entry_idx)) =
            self.lineage.as_ref().and_then(|lineage| lineage.find((digest, raw_len)))
        {
            return Ok(Found::InLineage(reader, entry_idx, self));
        }
        let fits = |model: &Model, idx: usize| model.tensors()[idx].raw_len == raw_len;
        let named = self.models.iter().filter_map(|model| {
            let idx = model.find(name).filter(|&idx| fits(model, idx))?;
            Some((&**model, idx))
        });
        let named: Vec<_> = named.collect();
        let others = self.models.iter().flat_map(|model| {
            (0..model.tensors().len()).filter(|&idx| fits(model, idx)).map(|idx| (&**model, idx))
        });
        // What is wrong with those that would be right but for it.
        let mut reason = None;
        for (model, idx) in named.iter().copied().chain(others) {
            let is_known = model.known_digest(idx);
            if is_known.is_some_and(|known| known != digest) {
                continue;
            }
            match model.resolve(idx).and_then(|()| model.digest(idx)) {
                Ok(found) if found == digest => return Ok(Found::InModel(model, idx)),
                Ok(_) => {}
                Err(error) => {
                    reason.get_or_insert_with(|| format!("`{}` lists it, but {error}", model.name()));
                }
            }
        }
        let reason = reason.unwrap_or_else(|| self.why_missing(name, named.first().copied()));
        Err(Error::MissingBase { name: name.to_owned(), digest, reason })
    }

    /// What there is instead of a tensor that was not found.
    fn why_missing(&self, name: &str, named: Option<(&Model, usize)>) -> String {
        if let Some(lineage) = &self.lineage {
            return format!(
                "none of the {} earlier objects that are listed holds it",
                lineage.readers().len()
            );
        }
        match (self.models.as_slice(), named) {
            ([], _) => "no base was given".to_owned(),
            (_, Some((model, idx))) => match model.digest(idx) {
                Ok(digest) => format!("`{name}` in `{}` has digest {digest}", model.name()),
                Err(error) => error.to_string(),
            },
            ([model], None) => format!("`{}` has no such tensor", model.name()),
            (models, None) => format!("none of the {} bases has such a tensor", models.len()),
        }
    }
}
