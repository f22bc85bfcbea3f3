//! What the header of an entropy-coded safetensors file says about the file.

use super::invalid;
use crate::{Digest, FormatError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Metadata key of what people and loaders look for.
pub const QUANTIZATION_KEY: &str = "quantization";

/// Metadata key of what restores the original file.
pub const METADATA_KEY: &str = "ecq";

/// The tensor that holds every byte of the original file that belongs to no tensor, as a frame.
pub const SOURCE_TENSOR: &str = "ecq.source";

const VERSION: u32 = 1;

/// Layouts of files that are restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceFormat {
    /// A safetensors file.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

/// The file that was transcoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its layout.
    pub format: SourceFormat,
    /// Its name, without directories.
    pub name: String,
    /// Its bytes.
    pub len: u64,
    /// Its digest, which a restored file must have.
    pub digest: Digest,
}

#[derive(Serialize, Deserialize)]
struct Description {
    version: u32,
    source: Option<SourceText>,
}

#[derive(Serialize, Deserialize)]
struct SourceText {
    format: SourceFormat,
    name: String,
    len: u64,
    blake3: String,
}

/// The metadata of a file: `quantization`, with more keys from the caller, and the source if there is one.
pub fn metadata(
    quantization: BTreeMap<&str, serde_json::Value>,
    source: Option<&Source>,
) -> BTreeMap<String, String> {
    let mut block = serde_json::Map::new();
    block.insert("type".to_owned(), json!("entropy_coded"));
    block.insert("version".to_owned(), json!(VERSION));
    block.insert("n_streams".to_owned(), json!(32));
    block.extend(quantization.into_iter().map(|(key, value)| (key.to_owned(), value)));
    let source = source.map(|source| SourceText {
        format: source.format,
        name: source.name.clone(),
        len: source.len,
        blake3: source.digest.to_string(),
    });
    let description = json!(Description { version: VERSION, source });
    BTreeMap::from([
        (QUANTIZATION_KEY.to_owned(), serde_json::Value::from(block).to_string()),
        (METADATA_KEY.to_owned(), description.to_string()),
    ])
}

/// Whether these are the metadata of an entropy-coded file, and what its source was.
///
/// # Errors
/// When they are of a later version, or do not say what they must.
pub fn read_source(metadata: &BTreeMap<String, String>) -> Result<Option<Option<Source>>, FormatError> {
    let Some(text) = metadata.get(METADATA_KEY) else { return Ok(None) };
    let description: Description = serde_json::from_str(text)
        .map_err(|error| invalid(format!("`{METADATA_KEY}` in the metadata: {error}")))?;
    if description.version != VERSION {
        let found = u8::try_from(description.version).unwrap_or(u8::MAX);
        return Err(FormatError::UnsupportedVersion { found, supported: 1 });
    }
    let Some(source) = description.source else { return Ok(Some(None)) };
    let digest =
        Digest::from_hex(&source.blake3).ok_or_else(|| invalid("the digest of its source is none"))?;
    let is_name = !source.name.is_empty() && !source.name.contains(['/', '\\', '\0']) && source.name != "..";
    if !is_name || source.name == "." {
        return Err(invalid("the name of its source is no file name"));
    }
    let (format, name, len) = (source.format, source.name, source.len);
    Ok(Some(Some(Source { format, name, len, digest })))
}
