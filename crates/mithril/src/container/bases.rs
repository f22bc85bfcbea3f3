//! The models that tensors may be based on, found by digest.

use super::frame_source::Fetch;
use super::{Model, OpenTensor};
use crate::Error;
use mithril_format::Digest;
use std::sync::Arc;

/// The base models at hand.
#[derive(Debug, Clone, Default)]
pub struct Bases {
    models: Vec<Arc<Model>>,
}

impl Bases {
    /// No base.
    pub fn none() -> Self {
        Self::default()
    }

    /// These models, in the order in which they are looked through.
    pub fn new(models: impl IntoIterator<Item = Model>) -> Self {
        Self { models: models.into_iter().map(Arc::new).collect() }
    }

    /// These models, which others hold too.
    pub fn shared(models: impl IntoIterator<Item = Arc<Model>>) -> Self {
        Self { models: models.into_iter().collect() }
    }

    /// These bases, and behind them some more.
    #[must_use]
    pub fn and(&self, more: &Self) -> Self {
        Self { models: self.models.iter().chain(&more.models).cloned().collect() }
    }

    /// The models.
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
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
        let (model, tensor_idx) = self.find(digest, name, raw_len)?;
        model.open_with(tensor_idx, fetch)
    }

    /// Finds the tensor whose raw bytes have this digest.
    pub(super) fn find(&self, digest: Digest, name: &str, raw_len: u64) -> Result<(&Model, usize), Error> {
        let fits = |model: &Model, idx: usize| model.tensors()[idx].raw_len == raw_len;
        let named = self.models.iter().filter_map(|model| {
            let idx = model.find(name).filter(|&idx| fits(model, idx))?;
            Some((model, idx))
        });
        let named: Vec<_> = named.collect();
        for &(model, idx) in &named {
            if model.digest(idx)? == digest {
                return Ok((model, idx));
            }
        }
        for model in &self.models {
            for idx in (0..model.tensors().len()).filter(|&idx| fits(model, idx)) {
                if model.digest(idx)? == digest {
                    return Ok((model, idx));
                }
            }
        }
        let reason = match (self.models.as_slice(), named.first()) {
            ([], _) => "no base was given".to_owned(),
            (_, Some((model, idx))) => {
                format!("`{}` in `{}` has digest {}", name, model.name(), model.digest(*idx)?)
            }
            ([model], None) => format!("`{}` has no such tensor", model.name()),
            (models, None) => format!("none of the {} bases has such a tensor", models.len()),
        };
        Err(Error::MissingBase { name: name.to_owned(), digest, reason })
    }
}
