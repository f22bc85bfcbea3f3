//! What is known of a model file without decoding it.

use crate::failure::Failure;
use crate::source::Source;
use mithril::container::{Content, Entry, Header, Model};
use mithril::{Digest, Dtype};

/// What is known of a model file.
pub(super) struct Survey<'a> {
    pub(super) name: String,
    /// `container`, or the format of a plain file.
    pub(super) kind: &'static str,
    pub(super) file_len: u64,
    pub(super) is_packed: bool,
    pub(super) header: Option<Header>,
    pub(super) digest: Option<String>,
    /// Raw and stored bytes that belong to no tensor.
    pub(super) glue: Option<(u64, u64)>,
    pub(super) tensors: Vec<Tensor<'a>>,
}

/// What is known of a tensor.
pub(super) struct Tensor<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a [u64],
    pub(super) raw_len: u64,
    /// Bytes of its frame, in a container.
    pub(super) stored_len: Option<u64>,
    /// How it is stored, in a container.
    pub(super) kind: Option<&'static str>,
    /// What it gets its bytes from, or is stored against.
    pub(super) origin: Origin<'a>,
    /// How many blocks there are of each kind.
    pub(super) blocks: Vec<(&'static str, u64)>,
}

/// What a tensor gets its bytes from, or is stored against.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin<'a> {
    /// Nothing else.
    Own,
    /// This tensor of the file.
    Tensor(&'a str),
    /// The tensor of a base with this digest.
    Base(&'a Digest),
}

impl<'a> Survey<'a> {
    /// Looks at a model: its index, and the headers of its frames.
    pub(super) fn of(source: &Source, model: &'a Model) -> Result<Self, Failure> {
        let refused = |error: &mithril::Error| Failure::model(&source.name, error);
        let mut survey = Self {
            name: source.name.clone(),
            kind: model.kind(),
            file_len: source.len.unwrap_or(0),
            is_packed: false,
            header: None,
            digest: None,
            glue: None,
            tensors: Vec::new(),
        };
        let Some(reader) = model.container() else {
            let tensors = model.tensors().iter().map(|tensor| Tensor {
                name: &tensor.name,
                dtype: tensor.dtype,
                shape: &tensor.shape,
                raw_len: tensor.raw_len,
                stored_len: None,
                kind: None,
                origin: Origin::Own,
                blocks: Vec::new(),
            });
            survey.tensors = tensors.collect();
            return Ok(survey);
        };
        survey.is_packed = true;
        survey.header = Some(reader.header().map_err(|error| refused(&error))?);
        survey.digest = Some(reader.directory().digest().to_string());
        for (entry_idx, entry) in reader.entries().iter().enumerate() {
            let stored_len = entry.stored_len();
            if entry.glue {
                survey.glue = Some((entry.raw_len(), stored_len));
                continue;
            }
            let frame = reader.describe(entry_idx).map_err(|error| refused(&error))?;
            survey.tensors.push(Tensor {
                name: &entry.name,
                dtype: entry.dtype,
                shape: &entry.shape,
                raw_len: entry.raw_len(),
                stored_len: Some(stored_len),
                kind: Some(entry.kind().name()),
                origin: Origin::of(entry, reader.entries()),
                blocks: frame.map_or_else(Vec::new, |frame| frame.block_kinds),
            });
        }
        Ok(survey)
    }

    /// Raw bytes of all tensors.
    pub(super) fn raw_len(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.raw_len).sum()
    }

    /// What the file says about itself, in words.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = Vec::new();
        let n_elements: u64 = self.tensors.iter().map(|tensor| tensor.n_elements()).sum();
        facts.push(("kind", self.kind.to_owned()));
        if let Some(header) = &self.header {
            if let Some(original) = &header.original {
                let (name, format) = (original.name.escape_debug(), &original.format);
                facts.push(("original", format!("{name}, {format}, {} bytes", original.len)));
            }
            if let Some(compression) = &header.compression {
                let level = compression.level.map_or(String::new(), |level| format!(", level {level}"));
                facts.push(("effort", format!("{}{level}", compression.effort)));
            }
            if !header.bases.is_empty() {
                let names: Vec<&str> = header.bases.iter().map(|base| base.name.as_str()).collect();
                facts.push(("bases", names.join(", ")));
            }
            if let Some(step) = header.step {
                facts.push(("step", step.to_string()));
            }
            for (key, value) in &header.metadata {
                facts.push(("metadata", format!("{}: {value}", key.escape_debug())));
            }
            facts.push(("written by", header.writer.clone()));
        }
        if let Some(digest) = &self.digest {
            facts.push(("digest", digest.clone()));
        }
        if let Some((raw_len, stored_len)) = self.glue {
            facts.push(("outside tensors", format!("{raw_len} -> {stored_len} bytes")));
        }
        let original_len = self.header.as_ref().and_then(|header| header.original.as_ref());
        let size = match original_len {
            Some(original) => {
                let ratio = self.file_len as f64 / original.len.max(1) as f64;
                format!("{} bytes, ratio {ratio:.4}", self.file_len)
            }
            None => format!("{} bytes", self.file_len),
        };
        facts.push(("size", size));
        facts.push(("tensors", format!("{} of {n_elements} elements", self.tensors.len())));
        facts
    }
}

impl<'a> Origin<'a> {
    fn of(entry: &'a Entry, entries: &'a [Entry]) -> Self {
        match &entry.content {
            Content::Ref { entry_idx } | Content::Derived { entry_idx, .. } => {
                entries.get(*entry_idx).map_or(Self::Own, |target| Self::Tensor(&target.name))
            }
            Content::Copy { base, .. } | Content::Delta { base, .. } => Self::Base(base),
            Content::Full { .. } | Content::Inline { .. } => Self::Own,
        }
    }

    /// The name or digest.
    pub(super) fn text(self) -> Option<String> {
        match self {
            Self::Own => None,
            Self::Tensor(name) => Some(name.to_owned()),
            Self::Base(digest) => Some(digest.to_string()),
        }
    }
}

impl Tensor<'_> {
    pub(super) fn n_elements(&self) -> u64 {
        self.shape.iter().fold(1, |n: u64, &dimension| n.saturating_mul(dimension))
    }

    /// Stored by raw bytes, in a container.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.stored_len.map(|stored_len| stored_len as f64 / self.raw_len.max(1) as f64)
    }

    pub(super) fn bits_per_element(&self) -> f64 {
        8.0 * self.stored_len.unwrap_or(self.raw_len) as f64 / self.n_elements().max(1) as f64
    }

    pub(super) fn blocks_in_words(&self) -> String {
        let kinds: Vec<String> = self.blocks.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        match (self.origin.text(), kinds.as_slice()) {
            (Some(of), []) => format!("of {}", of.escape_debug()),
            _ => kinds.join(", "),
        }
    }
}
