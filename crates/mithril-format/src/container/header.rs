//! The JSON header of a container: what is known before the first tensor is written.

use crate::FormatError;
use crate::limits::MAX_PATH_LEN;
use crate::tensor_info::shown;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a container is about. Fields that a reader does not know are ignored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Header {
    /// Program that wrote it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub writer: String,
    /// The file that unpacking gives back, if the container is one packed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<Original>,
    /// How it was compressed. For people; decoding does not need it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Where the tensors that entries are based on were found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<BaseHint>,
    /// Training step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Files of a packed directory, in the order of their bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PackedFile>,
    /// The user's own metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, serde_json::Value>,
}

/// A file that was packed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Original {
    /// Its name, without directories.
    pub name: String,
    /// Its format, as users know it: `safetensors`, `PyTorch`, `GGUF`, ...
    pub format: String,
    /// Its length.
    pub len: u64,
}

impl Original {
    /// A file of this name, format and length.
    pub fn new(name: impl Into<String>, format: impl Into<String>, len: u64) -> Self {
        Self { name: name.into(), format: format.into(), len }
    }
}

/// How a container was compressed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Compression {
    /// `fast`, `balanced` or `max`.
    pub effort: String,
    /// Level of general compressors, where one was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<i32>,
}

impl Compression {
    /// Compression at this effort.
    pub fn new(effort: impl Into<String>, level: Option<i32>) -> Self {
        Self { effort: effort.into(), level }
    }
}

/// Where a base was found. A hint for people: what counts is the digest of every tensor.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BaseHint {
    /// Name of the base file or directory.
    pub name: String,
}

impl BaseHint {
    /// A base of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// A file of a packed directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PackedFile {
    /// Its place below the directory, with `/` between names.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Its length.
    pub len: u64,
    /// Name of the file beside this container that holds it; none when its bytes are in this container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_as: Option<String>,
    /// What a symbolic link points to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

impl PackedFile {
    /// A file at this place.
    pub fn new(path: impl Into<String>, mode: u32, len: u64) -> Self {
        Self { path: path.into(), mode, len, packed_as: None, link: None }
    }
}

impl Header {
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a header holds nothing that JSON cannot")
    }

    pub(super) fn from_json(json: &[u8]) -> Result<Self, FormatError> {
        // A list would do for a struct, and an empty one for this struct.
        if !json.trim_ascii_start().starts_with(b"{") {
            return Err(invalid("no JSON object".to_owned()));
        }
        let header: Self = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        header.check_names()?;
        Ok(header)
    }

    /// People write files under these names: none may lead out of the directory that they write to.
    pub(super) fn check_names(&self) -> Result<(), FormatError> {
        let is_plain = |name: &str| is_safe_path(name) && name != "." && !name.contains(['/', '\\']);
        let is_below = |path: &str| !path.is_empty() && is_safe_path(path);
        let mut names = self.original.iter().map(|original| original.name.as_str());
        let packed = self.files.iter().filter_map(|file| file.packed_as.as_deref());
        let mut paths = self.files.iter().map(|file| file.path.as_str()).chain(packed);
        match names.find(|name| !is_plain(name)).or(paths.find(|path| !is_below(path))) {
            None => Ok(()),
            Some(name) => Err(invalid(format!("`{}` is no safe file name", shown(name)))),
        }
    }
}

/// Whether a path stays below the directory that it is joined to: no NUL, no `..` between slashes, not absolute.
fn is_safe_path(path: &str) -> bool {
    path.len() <= MAX_PATH_LEN
        && !path.contains('\0')
        && !path.starts_with('/')
        && !path.split(['/', '\\']).any(|part| part == "..")
}

fn invalid(reason: String) -> FormatError {
    FormatError::Json { what: "container header", offset: super::Prologue::LEN as u64, reason }
}
