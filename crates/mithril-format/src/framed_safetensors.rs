//! A valid safetensors file whose tensors are frames: what hubs and loaders accept as a file.
//!
//! A compressed tensor is a 1-D `U8` tensor under its own name, so that a loader that does not know mithril fails on
//! the shape instead of using wrong weights. `__metadata__` keeps the original keys and adds two: `mithril` describes,
//! `mithril_header` is the original header, from which the original file is restored byte for byte. Specified in
//! `docs/format/safetensors.md`.

use crate::limits::MAX_SAFETENSORS_HEADER_LEN;
use crate::{FormatError, ReadAt, ReadError, TensorInfo, safetensors};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Metadata key of the description.
pub const DESCRIPTION_KEY: &str = "mithril";

/// Metadata key of the original header.
pub const HEADER_KEY: &str = "mithril_header";

/// The version that this build writes, and the only one it knows.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Description {
    version: u32,
    /// The tensors that are frames; all others are as they were.
    frames: Vec<String>,
}

/// A safetensors file with frames in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Framed {
    /// The original file up to the end of its header.
    pub head: Vec<u8>,
    /// Its tensors, in the order of their original bytes.
    pub tensors: Vec<FramedTensor>,
}

/// A tensor of such a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FramedTensor {
    /// What it was in the original file.
    pub original: TensorInfo,
    /// Where its bytes lie now.
    pub stored: Range<u64>,
    /// Whether those bytes are a frame.
    pub is_frame: bool,
}

/// Reads the layout of a safetensors file with frames; nothing when there are none.
///
/// # Errors
/// When the source cannot be read, is no safetensors file, or describes frames that it does not have.
pub fn read(source: &dyn ReadAt) -> Result<Option<Framed>, ReadError> {
    let file_len = source.size()?;
    if file_len < 8 {
        return Ok(None);
    }
    let mut first = [0; 8];
    source.read_exact_at(0, &mut first)?;
    let end = safetensors::header_end(first)?;
    if end > file_len {
        return Ok(None);
    }
    let head = source.read_range(0..end)?;
    let metadata = safetensors::metadata(&head)?;
    let (Some(description), Some(header)) = (metadata.get(DESCRIPTION_KEY), metadata.get(HEADER_KEY)) else {
        return Ok(None);
    };
    let description: Description = serde_json::from_str(description)
        .map_err(|error| invalid(format!("`{DESCRIPTION_KEY}` in the metadata: {error}")))?;
    if description.version != VERSION {
        let found = u8::try_from(description.version).unwrap_or(u8::MAX);
        return Err(FormatError::UnsupportedVersion { found, supported: 1 }.into());
    }
    let frames: HashSet<&str> = description.frames.iter().map(String::as_str).collect();
    let original_head = head_of(header.as_bytes());
    // The original header says how long the original file was: its tensors end where it ends.
    let originals = safetensors::tensors(&original_head, u64::MAX)?;
    let stored = safetensors::tensors(&head, file_len)?;
    let stored: HashMap<&str, &TensorInfo> =
        stored.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    if stored.len() != originals.len() {
        return Err(invalid("other tensors than the original header lists".to_owned()).into());
    }
    let mut tensors = Vec::with_capacity(originals.len());
    let mut end = original_head.len() as u64;
    for original in originals {
        if original.bytes.start != end {
            return Err(invalid(format!("original tensor `{}` leaves a hole", original.name)).into());
        }
        end = original.bytes.end;
        let now = stored.get(original.name.as_str());
        let now = now.ok_or_else(|| invalid(format!("tensor `{}` is missing", original.name)))?;
        let is_frame = frames.contains(original.name.as_str());
        if !is_frame && (now.dtype != original.dtype || now.shape != original.shape) {
            return Err(invalid(format!("tensor `{}` is no frame, and has changed", original.name)).into());
        }
        tensors.push(FramedTensor { stored: now.bytes.clone(), original, is_frame });
    }
    Ok(Some(Framed { head: original_head, tensors }))
}

/// The head of a safetensors file with frames. `head` is the original file's, `tensors` are its tensors in the order of
/// their bytes, each with its length now and whether it is a frame.
///
/// # Errors
/// When the original header is no valid one, or the new one would be longer than safetensors allows.
pub fn head(head: &[u8], tensors: &[(&TensorInfo, u64, bool)]) -> Result<Vec<u8>, FormatError> {
    let mut metadata: BTreeMap<String, String> = safetensors::metadata(head)?;
    if metadata.contains_key(DESCRIPTION_KEY) || metadata.contains_key(HEADER_KEY) {
        return Err(invalid("it holds frames already".to_owned()));
    }
    let frames = tensors.iter().filter(|(_, _, is_frame)| *is_frame);
    let frames = frames.map(|(tensor, _, _)| tensor.name.clone()).collect();
    metadata.insert(DESCRIPTION_KEY.to_owned(), json_of(&Description { version: VERSION, frames }));
    let header = std::str::from_utf8(&head[8..]).map_err(|_| invalid("header is not UTF-8".to_owned()))?;
    metadata.insert(HEADER_KEY.to_owned(), header.to_owned());
    let mut json = format!("{{\"__metadata__\":{}", json_of(&metadata));
    let mut at = 0;
    for (tensor, len, is_frame) in tensors {
        let (dtype, shape) = match is_frame {
            true => ("U8", vec![*len]),
            false => (tensor.dtype.name(), tensor.shape.clone()),
        };
        let entry = Entry { dtype, shape: &shape, data_offsets: [at, at + len] };
        json.push_str(&format!(",{}:{}", json_of(&tensor.name), json_of(&entry)));
        at += len;
    }
    json.push('}');
    // Data starts on a multiple of eight, as the official writer has it.
    json.extend(std::iter::repeat_n(' ', json.len().next_multiple_of(8) - json.len()));
    if json.len() as u64 > MAX_SAFETENSORS_HEADER_LEN {
        let limit = MAX_SAFETENSORS_HEADER_LEN;
        return Err(invalid(format!(
            "the header would have {} bytes, above the limit of {limit}",
            json.len()
        )));
    }
    Ok(head_of(json.as_bytes()))
}

#[derive(Serialize)]
struct Entry<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

fn json_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("names and numbers are valid JSON")
}

/// The head of a file with this header: its length, and itself.
fn head_of(header: &[u8]) -> Vec<u8> {
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header);
    head
}

fn invalid(reason: String) -> FormatError {
    FormatError::Foreign { format: "safetensors", reason }
}
