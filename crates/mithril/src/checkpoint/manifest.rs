//! The manifest of a checkpoint: the object whose appearance commits it. Specified in `docs/format/store.md`.

use super::CheckpointError;
use super::error::about;
use super::saved;
use super::tensors::Metadata;
use crate::Dtype;
use crate::container::EntryKind;
use mithril_format::Digest;
use mithril_format::container::section;
use mithril_format::limits::MAX_SECTION_LEN;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashSet;

/// Version of the manifest's layout.
pub(super) const VERSION: u64 = 1;

/// Bytes of a manifest that a reader accepts.
pub(super) const MAX_LEN: u64 = 256 << 20;

/// Most objects that a checkpoint may be spread over.
pub(super) const MAX_OBJECTS: usize = 10_000;

/// What a checkpoint may claim in all, in bytes: sums of lengths stay within their type.
pub(super) const MAX_TOTAL: u64 = 1 << 60;

const MAGIC: &str = "mithril checkpoint";
/// First bytes of a compressed manifest; an uncompressed one starts with a brace.
const CODED_MAGIC: [u8; 4] = *b"MMFT";
const SUM_PREFIX: &str = "blake3 ";

/// Everything about a checkpoint but its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    pub(super) format: String,
    pub(super) version: u64,
    /// Key of the checkpoint.
    pub key: String,
    /// Random name of this save: 32 hexadecimal digits.
    pub generation: String,
    /// Training step; see [`Manifest::has_step`].
    pub step: u64,
    /// Whether the step was given or named by the key. Without, `step` is the highest that the store had: it only says
    /// what the checkpoint comes after. Missing where an earlier build wrote the manifest.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) step_given: Option<bool>,
    /// Number of the save: one more than the highest in its store. Orders checkpoints of the same step. Earlier builds
    /// counted from the checkpoint that it was stored against.
    pub sequence: u64,
    /// Key and generation of the checkpoint it was stored against.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub previous: Option<Previous>,
    /// Program that wrote it.
    pub writer: String,
    /// Effort that it was compressed with.
    pub effort: String,
    /// Data objects: first those of this save, `n_own` of them, then those of earlier saves that it needs, from old to
    /// new.
    pub objects: Vec<DataObject>,
    /// How many of the objects belong to this save.
    pub n_own: usize,
    /// Objects that are kept for a manifest which is about to take this one's place.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub pinned: Vec<String>,
    /// Tensors, in the order of their bytes.
    pub tensors: Vec<StoredTensor>,
    /// Bytes of the files or tensors that were saved.
    pub raw_len: u64,
    /// Seconds that the save took up to its commit.
    pub seconds: f64,
    /// When it was saved, as RFC 3339 has it: seconds of UTC, by the clock of the writer. For people: nothing depends on it.
    /// Missing where an earlier build wrote the manifest, or where the clock was wrong by ages.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub saved: Option<String>,
    /// The user's own metadata.
    #[serde(skip_serializing_if = "Metadata::is_empty", default)]
    pub metadata: Metadata,
}

/// Which save another one was stored against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Previous {
    /// Its key.
    pub key: String,
    /// Its generation.
    pub generation: String,
}

impl Previous {
    pub(super) fn new(manifest: &Manifest) -> Self {
        Self { key: manifest.key.clone(), generation: manifest.generation.clone() }
    }
}

/// A container that holds data of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DataObject {
    /// Its key in the storage.
    pub object: String,
    /// Key of the checkpoint that it was written for.
    pub key: String,
    /// Its bytes.
    pub len: u64,
    /// Digest of all its bytes.
    #[serde(with = "hex")]
    pub digest: Digest,
    /// Digest of its header and index, which holds a checksum of every frame.
    #[serde(with = "hex")]
    pub container: Digest,
    /// Name of the file that it restores to; none for tensors that came from memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
}

/// A tensor, and what restoring it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// Name of its dtype.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub raw_len: u64,
    /// Bytes of its own frame.
    pub stored_len: u64,
    /// How it is stored: `full`, `delta`, `copy`, `ref`, `derived` or `inline`.
    pub kind: String,
    /// Digest of its bytes.
    #[serde(with = "hex")]
    pub digest: Digest,
    /// Number of the object whose container lists it.
    pub object: usize,
    /// Number of the object whose frame its bytes come from: another one for a copy.
    pub holder: usize,
    /// Numbers of the objects that are read to restore it, besides the holder.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub needs: Vec<usize>,
    /// Deltas that are undone to restore it.
    pub depth: u32,
    /// Bytes of all frames that are read to restore it.
    pub restore_len: u64,
    /// Bytes of the full frame at the end of its chain.
    pub full_len: u64,
}

impl StoredTensor {
    /// How it is stored.
    pub fn entry_kind(&self) -> Option<EntryKind> {
        EntryKind::ALL.into_iter().find(|kind| kind.name() == self.kind)
    }

    /// Type of its elements.
    pub fn dtype(&self) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|dtype| dtype.name() == self.dtype)
    }
}

impl Manifest {
    /// The objects that this save wrote.
    pub fn own(&self) -> &[DataObject] {
        &self.objects[..self.n_own]
    }

    /// The objects of earlier saves that it needs.
    pub fn needed(&self) -> &[DataObject] {
        &self.objects[self.n_own..]
    }

    /// All objects that may not be removed.
    pub(super) fn kept_objects(&self) -> impl Iterator<Item = &str> {
        let listed = self.objects.iter().map(|object| object.object.as_str());
        listed.chain(self.pinned.iter().map(String::as_str))
    }

    /// Bytes that this save wrote as data.
    pub fn stored_len(&self) -> u64 {
        self.own().iter().map(|object| object.len).sum()
    }

    /// Deltas that are undone to restore the tensor that needs most.
    pub fn depth(&self) -> u32 {
        self.tensors.iter().map(|tensor| tensor.depth).max().unwrap_or(0)
    }

    /// Bytes of all frames that a restore reads.
    pub fn restore_len(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.restore_len).sum()
    }

    /// Whether the step is its own, and not that of what was saved before.
    pub fn has_step(&self) -> bool {
        self.step_given != Some(false)
    }

    /// The order of checkpoints: by step, then as they followed each other, then by generation. Never by time.
    pub(super) fn order(&self) -> (u64, u64, &str) {
        (self.step, self.sequence, &self.generation)
    }

    /// The bytes of its object: compressed where that makes them fewer.
    pub fn write(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec(self).expect("a manifest holds nothing that JSON cannot");
        let coded = u32::try_from(json.len()).ok().filter(|&len| len <= MAX_SECTION_LEN).map(|len| {
            let mut coded = len.to_le_bytes().to_vec();
            coded.extend(section::encode(&json));
            coded
        });
        match coded {
            Some(coded) if coded.len() < json.len() => {
                [CODED_MAGIC.as_slice(), &Digest::of(&coded).0, &coded].concat()
            }
            _ => {
                let sum = Digest::of(&json);
                json.extend(format!("\n{SUM_PREFIX}{sum}\n").into_bytes());
                json
            }
        }
    }

    /// The JSON text of an object, whose digest is right.
    fn text<'a>(key: &str, object: &str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, CheckpointError> {
        let invalid = |reason: &str| CheckpointError::InvalidFormat { what: format!("`{object}`: {reason}") };
        let check = |expected: Digest, actual: Digest| match expected == actual {
            true => Ok(()),
            false => Err(CheckpointError::ChecksumMismatch { object: object.to_owned(), expected, actual }),
        };
        if let Some(rest) = bytes.strip_prefix(&CODED_MAGIC) {
            let parts = rest.split_first_chunk::<32>();
            let (sum, summed) = parts.ok_or_else(|| invalid("it is cut off"))?;
            check(Digest(*sum), Digest::of(summed))?;
            let parts = summed.split_first_chunk::<4>();
            let (raw_len, coded) = parts.ok_or_else(|| invalid("it is cut off"))?;
            let offset = (bytes.len() - coded.len()) as u64;
            let json = section::decode(coded, u32::from_le_bytes(*raw_len), "manifest", offset);
            return Ok(Cow::Owned(json.map_err(|error| about(key)(error.into()))?));
        }
        let body = bytes.strip_suffix(b"\n").and_then(|bytes| {
            let at = bytes.iter().rposition(|&byte| byte == b'\n')?;
            Some((&bytes[..at], std::str::from_utf8(&bytes[at + 1..]).ok()?))
        });
        let (json, sum) = body.ok_or_else(|| invalid("it is cut off"))?;
        let expected = sum.strip_prefix(SUM_PREFIX).and_then(Digest::from_hex);
        check(expected.ok_or_else(|| invalid("it does not end with its digest"))?, Digest::of(json))?;
        Ok(Cow::Borrowed(json))
    }

    /// Reads the manifest of a key; checks its sum before its text, and every number in it before it is used.
    ///
    /// # Errors
    /// `InvalidFormat`, `ChecksumMismatch`, `UnsupportedVersion` or `Compression`; `object` is what messages call it.
    pub fn parse(key: &str, object: &str, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let invalid =
            |reason: String| CheckpointError::InvalidFormat { what: format!("`{object}`: {reason}") };
        let json = Self::text(key, object, bytes)?;
        let json = &*json;
        #[derive(Deserialize)]
        struct Front {
            format: String,
            version: u64,
        }
        let front: Front = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        if front.format != MAGIC {
            return Err(invalid("it is no manifest of a checkpoint".to_owned()));
        }
        if front.version != VERSION {
            return Err(CheckpointError::UnsupportedVersion {
                key: key.to_owned(),
                found: front.version,
                supported: VERSION,
            });
        }
        let manifest: Self = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        manifest.check(key).map_err(|reason| invalid(reason.to_owned()))?;
        Ok(manifest)
    }

    pub(super) fn check(&self, key: &str) -> Result<(), &'static str> {
        if self.key != key {
            return Err("it is the manifest of another key");
        }
        if self.generation.len() != 32 || !self.generation.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("its generation is not 32 hexadecimal digits");
        }
        let n_objects = self.objects.len();
        if self.n_own == 0 || self.n_own > n_objects || n_objects > MAX_OBJECTS {
            return Err("it has an impossible number of objects");
        }
        if !self
            .objects
            .iter()
            .all(|object| object.object.starts_with("data/") && crate::storage::is_key(&object.object))
        {
            return Err("an object lies outside of the data");
        }
        // It is shown as it is.
        if self.saved.as_deref().is_some_and(|time| !saved::is_time(time)) {
            return Err("the time at which it was saved is none");
        }
        let mut listed = HashSet::with_capacity(n_objects);
        if !self.objects.iter().all(|object| listed.insert(object.object.as_str())) {
            return Err("an object is listed twice");
        }
        let lens =
            self.objects.iter().map(|object| object.len).chain(self.tensors.iter().flat_map(|tensor| {
                [
                    tensor.raw_len,
                    tensor.stored_len,
                    tensor.restore_len,
                    tensor.full_len,
                    u64::from(tensor.depth),
                ]
            }));
        let total = lens.chain([self.raw_len]).try_fold(0u64, u64::checked_add);
        if total.is_none_or(|total| total > MAX_TOTAL) || self.sequence > MAX_TOTAL {
            return Err("its lengths are impossible");
        }
        let fits = |idx: &usize| *idx < n_objects;
        for tensor in &self.tensors {
            if !fits(&tensor.object) || !fits(&tensor.holder) || !tensor.needs.iter().all(fits) {
                return Err("a tensor needs an object that is not listed");
            }
            if tensor.entry_kind().is_none() || tensor.dtype().is_none() {
                return Err("a tensor of unknown kind or dtype");
            }
        }
        Ok(())
    }

    pub(super) fn magic() -> String {
        MAGIC.to_owned()
    }
}

/// Digests as hexadecimal digits.
mod hex {
    use mithril_format::Digest;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(digest)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        Digest::from_hex(&text).ok_or_else(|| D::Error::custom("no digest of 64 hexadecimal digits"))
    }
}
