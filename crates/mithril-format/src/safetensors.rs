//! The header of safetensors files: which tensor lies where.
//!
//! `[8 bytes]` header length, the header in JSON, the tensors' bytes. What the official parser accepts is accepted, but
//! for a header with one name twice. Packing also takes files that it does not accept: with one name twice, with holes
//! between tensors, with bytes behind them.

use crate::checked_reader::CheckedReader;
use crate::limits::{MAX_RANK, MAX_SAFETENSORS_HEADER_LEN};
use crate::tensor_info::{in_order, len_of_shape, shown};
use crate::{FormatError, ReadAt, ReadError};
use mithril_codec::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

pub use crate::tensor_info::TensorInfo;

const FORMAT: &str = "safetensors";

/// Bytes up to the end of the header, from the first eight bytes of a file.
///
/// # Errors
/// When the header is longer than safetensors allows.
pub fn header_end(first: [u8; 8]) -> Result<u64, FormatError> {
    let len = u64::from_le_bytes(first);
    if len > MAX_SAFETENSORS_HEADER_LEN {
        return Err(invalid(format!(
            "header of {len} bytes is above the limit of {MAX_SAFETENSORS_HEADER_LEN}"
        )));
    }
    Ok(8 + len)
}

/// Reads the tensors that a header lists, in the order of their bytes.
///
/// `head` is the file up to the end of its header, `file_len` the length of the whole file.
///
/// # Errors
/// When the header is no valid JSON, a tensor does not lie in the file or does not fit its shape, or two tensors share
/// bytes or a name.
pub fn tensors(head: &[u8], file_len: u64) -> Result<Vec<TensorInfo>, FormatError> {
    in_order(listed(head, file_len)?, FORMAT)
}

/// The texts that a header has under `__metadata__`. `head` is the file up to the end of its header.
///
/// # Errors
/// When the header is no valid JSON, or the metadata are something else than texts.
pub fn metadata(head: &[u8]) -> Result<BTreeMap<String, String>, FormatError> {
    Ok(json(head)?.metadata)
}

/// The tensors of a file, in the order of their bytes.
///
/// # Errors
/// As [`tensors`], when bytes behind the header belong to no tensor, or when the file cannot be read.
pub fn read(source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    let head = read_head(&reader)?;
    let tensors = tensors(&head, reader.len())?;
    let mut end = head.len() as u64;
    for tensor in &tensors {
        if tensor.bytes.start != end {
            let name = shown(&tensor.name);
            return Err(invalid(format!("bytes before tensor `{name}` belong to no tensor")).into());
        }
        end = tensor.bytes.end;
    }
    if end != reader.len() {
        let len = reader.len() - end;
        return Err(invalid(format!("{len} bytes behind the last tensor belong to no tensor")).into());
    }
    Ok(tensors)
}

/// The tensors that packing a file tells apart: also of one with bytes that belong to no tensor, or with names that stand
/// twice, of which the last one counts.
///
/// # Errors
/// As [`tensors`] otherwise, or when the file cannot be read.
pub fn read_to_pack(source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    Ok(tensors_to_pack(&read_head(&reader)?, reader.len())?)
}

/// As [`read_to_pack`], of the file up to the end of its header.
///
/// # Errors
/// As [`read_to_pack`].
pub fn tensors_to_pack(head: &[u8], file_len: u64) -> Result<Vec<TensorInfo>, FormatError> {
    let mut tensors = listed(head, file_len)?;
    // The sort keeps the order of equal names.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors.dedup_by(|later, earlier| {
        let is_same = later.name == earlier.name;
        if is_same {
            std::mem::swap(later, earlier);
        }
        is_same
    });
    in_order(tensors, FORMAT)
}

/// A file up to the end of its header.
fn read_head(reader: &CheckedReader<'_>) -> Result<Vec<u8>, ReadError> {
    let first = reader.start(8)?;
    let first = first.first_chunk().ok_or_else(|| invalid("no room for the header length"))?;
    reader.read(0, header_end(*first)?, "header")
}

/// Whether the start of a file looks like safetensors: a header length that fits the file, then an object.
pub(crate) fn is_plausible(start: &[u8], file_len: u64) -> bool {
    let Some((first, json)) = start.split_first_chunk() else { return false };
    header_end(*first).is_ok_and(|end| end <= file_len && end > 9)
        && json.trim_ascii_start().starts_with(b"{")
}

/// The tensors in the order of the header.
fn listed(head: &[u8], file_len: u64) -> Result<Vec<TensorInfo>, FormatError> {
    let header = json(head)?;
    let end = head.first_chunk().map_or(Ok(0), |first| header_end(*first))?;
    let mut tensors = Vec::with_capacity(header.entries.len());
    for (name, entry) in header.entries {
        let reason = |reason: String| invalid(format!("tensor `{}`: {reason}", shown(&name)));
        let (dtype, shape, bytes) = place(entry, end, file_len).map_err(reason)?;
        tensors.push(TensorInfo { name, dtype, shape, bytes });
    }
    Ok(tensors)
}

fn json(head: &[u8]) -> Result<Header, FormatError> {
    let first = head.first_chunk().ok_or_else(|| invalid("no room for the header length"))?;
    let end = header_end(*first)?;
    let json = usize::try_from(end).ok().and_then(|end| head.get(8..end));
    let json = json.ok_or_else(|| invalid("the header is cut off"))?;
    serde_json::from_slice(json).map_err(|error| invalid(format!("header: {error}")))
}

fn place(
    entry: Entry,
    header_end: u64,
    file_len: u64,
) -> Result<(Dtype, Vec<u64>, std::ops::Range<u64>), String> {
    let Entry { dtype, shape, offsets: [start, end] } = entry;
    let len = len_of_shape(dtype, &shape).ok_or("shape is too large, or does not fill whole bytes")?;
    if end.checked_sub(start) != Some(len) {
        return Err(format!("shape takes {len} bytes, offsets {start} to {end} do not"));
    }
    let absolute = |offset: u64| header_end.checked_add(offset).filter(|&at| at <= file_len);
    let (start, end) = absolute(start)
        .zip(absolute(end))
        .ok_or_else(|| format!("lies behind the end of the file ({file_len} bytes)"))?;
    Ok((dtype, shape, start..end))
}

fn invalid(reason: impl Into<String>) -> FormatError {
    FormatError::Foreign { format: FORMAT, reason: reason.into() }
}

/// What the JSON says. Entries are kept in a list: a map would take the last of two equal names in silence.
struct Header {
    entries: Vec<(String, Entry)>,
    metadata: BTreeMap<String, String>,
}

/// What the JSON says of a tensor.
struct Entry {
    dtype: Dtype,
    shape: Vec<u64>,
    offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                let mut metadata = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        // MLX writes null where it has none.
                        let texts: Option<Texts> = map
                            .next_value()
                            .map_err(|error| A::Error::custom(format!("`__metadata__`: {error}")))?;
                        if metadata.replace(texts.map(|texts| texts.0)).is_some() {
                            return Err(A::Error::custom("`__metadata__` is there twice"));
                        }
                    } else {
                        let entry: Entry = map.next_value().map_err(|error| {
                            A::Error::custom(format!("tensor `{}`: {error}", shown(&name)))
                        })?;
                        entries.push((name, entry));
                    }
                }
                Ok(Header { entries, metadata: metadata.flatten().unwrap_or_default() })
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with `dtype`, `shape` and `data_offsets`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
                let (mut dtype, mut shape, mut offsets) = (None, None, None);
                let twice = |key: &str| A::Error::custom(format!("`{key}` is there twice"));
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "dtype" => {
                            let name: String = map.next_value()?;
                            let known = dtype_of(&name).ok_or_else(|| {
                                A::Error::custom(format!("unknown dtype `{}`", shown(&name)))
                            })?;
                            if dtype.replace(known).is_some() {
                                return Err(twice("dtype"));
                            }
                        }
                        "shape" => {
                            if shape.replace(map.next_value::<Dimensions>()?.0).is_some() {
                                return Err(twice("shape"));
                            }
                        }
                        "data_offsets" => {
                            if offsets.replace(map.next_value::<[u64; 2]>()?).is_some() {
                                return Err(twice("data_offsets"));
                            }
                        }
                        // The official parser skips what it does not know.
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                let missing = |key: &str| A::Error::custom(format!("no `{key}`"));
                Ok(Entry {
                    dtype: dtype.ok_or_else(|| missing("dtype"))?,
                    shape: shape.ok_or_else(|| missing("shape"))?,
                    offsets: offsets.ok_or_else(|| missing("data_offsets"))?,
                })
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The dtype of exactly this name, if it is one of safetensors.
fn dtype_of(name: &str) -> Option<Dtype> {
    Dtype::ALL
        .iter()
        .copied()
        .find(|dtype| dtype.name() == name && *dtype != Dtype::Bytes && !dtype.is_quantized())
}

/// The dimensions of a tensor, no more than can be kept.
struct Dimensions(Vec<u64>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Dimensions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dimensions, A::Error> {
                let mut dimensions = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if dimensions.len() == MAX_RANK {
                        return Err(A::Error::custom(format!("more than {MAX_RANK} dimensions")));
                    }
                    dimensions.push(dimension);
                }
                dimensions.shrink_to_fit();
                Ok(Dimensions(dimensions))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// Texts by name, each name once.
struct Texts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts = BTreeMap::new();
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    let key_shown = shown(&key);
                    if texts.insert(key, text).is_some() {
                        return Err(A::Error::custom(format!("`{key_shown}` is there twice")));
                    }
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests;
