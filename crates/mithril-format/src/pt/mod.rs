//! PyTorch checkpoints (`.pt`, `.pth`, `.bin`): the tensors of a zip archive, found without running its pickle.
//!
//! ```text
//! name/data.pkl     objects, with storages by number
//! name/byteorder    `little` or `big`
//! name/data/0 ...   storages: the bytes of one or more tensors
//! ```
//! Before PyTorch 1.6 there was no archive: pickles of a magic number, a version, the machine and the objects, then one of
//! the numbers of all storages, then for each `[8] elements` and its bytes. TorchScript has an archive of the layout above.
//!
//! The pickle is read by a machine (`machine.rs`) that builds dictionaries, lists, tensors and layers, and nothing else: a
//! global that is not on the list of `globals.rs` is refused by name. Tensors may share a storage, so the bytes are those of storages;
//! one that a contiguous tensor fills takes that tensor's name and shape.

mod globals;
mod machine;
mod names;
mod objects;
#[cfg(test)]
mod tests;

use crate::checked_reader::CheckedReader;
use crate::limits::{MAX_PICKLE_LEN, MAX_RANK};
use crate::tensor_info::{TensorInfo, in_order, len_of_shape, shown, unique};
use crate::{ReadAt, ReadError, zip};
use globals::Elements;
use machine::Built;
use mithril_codec::Dtype;
use names::Named;
use objects::{Objects, StorageRecord, TensorRecord};
use std::collections::HashMap;
use std::ops::Range;

const FORMAT: &str = "PyTorch";

/// What a file of the layout before PyTorch 1.6 starts with: a pickle of a fixed number.
pub(crate) const LEGACY_MAGIC: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// What a checkpoint holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The storages, in the order of their bytes. No two overlap. One that a contiguous tensor fills has the name and
    /// shape of that tensor; any other is named `data/` and its number, and has one dimension.
    pub storages: Vec<TensorInfo>,
    /// The tensors, by the path of keys that leads to them, in the order of the pickle.
    pub tensors: Vec<TensorView>,
}

/// A tensor of a checkpoint: part of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorView {
    /// The keys that lead to it, joined by dots.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Its bytes in the file, when it is contiguous and its storage stands in the file as it is.
    pub bytes: Option<Range<u64>>,
}

/// Finds the storages and tensors of a checkpoint.
///
/// # Errors
/// When the archive is damaged, the pickle asks for anything but tensors and plain data, or the file cannot be read.
pub fn read(source: &dyn ReadAt) -> Result<Checkpoint, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    if reader.start(LEGACY_MAGIC.len() as u64)? == LEGACY_MAGIC {
        return read_legacy(&reader);
    }
    let entries = zip::entries(&reader)?;
    let pickle = entries.iter().find(|entry| is_pickle(&entry.name));
    let pickle = pickle.ok_or_else(|| reader.invalid("no `data.pkl` in the archive"))?;
    let pickle_len = pickle.bytes.end - pickle.bytes.start;
    if !pickle.is_stored || pickle_len > MAX_PICKLE_LEN {
        return Err(reader.invalid(format!(
            "`{}` is compressed, or longer than {MAX_PICKLE_LEN} bytes",
            shown(&pickle.name)
        )));
    }
    let prefix = pickle.name.strip_suffix("data.pkl").unwrap_or_default();
    let by_name: HashMap<&str, &zip::Entry> =
        entries.iter().filter_map(|entry| Some((entry.name.strip_prefix(prefix)?, entry))).collect();
    let is_big_endian = match by_name.get("byteorder") {
        None => false,
        Some(entry) => {
            let len = (entry.bytes.end - entry.bytes.start).min(8);
            match reader.read(entry.bytes.start, len, "byte order")?.trim_ascii() {
                b"little" => false,
                b"big" => true,
                _ => return Err(reader.invalid("byte order is neither `little` nor `big`")),
            }
        }
    };
    let Built { objects, root, .. } = machine::run(&reader, pickle.bytes.clone())?;
    let named = names::of_tensors(&objects, root).map_err(|reason| reader.invalid(reason))?;
    let place_of = |storage: &StorageRecord| place_of(&reader, storage, &by_name);
    assemble(&reader, &objects, &named, &place_of, is_big_endian)
}

/// Finds the storages and tensors of a file of the layout before PyTorch 1.6.
fn read_legacy(reader: &CheckedReader<'_>) -> Result<Checkpoint, ReadError> {
    let mut at = LEGACY_MAGIC.len() as u64;
    // The version, and the byte order and widths of the machine: those that others have were never seen.
    for _ in 0..2 {
        at = machine::run(reader, at..reader.len())?.end;
    }
    let limit = |at: u64| reader.len().min(at.saturating_add(MAX_PICKLE_LEN));
    let Built { objects, root, end } = machine::run(reader, at..limit(at))?;
    let named = names::of_tensors(&objects, root).map_err(|reason| reader.invalid(reason))?;
    let keys = machine::run(reader, end..limit(end))?;
    let mut input = reader.forward(keys.end, reader.len());
    let by_key: HashMap<&str, &StorageRecord> =
        objects.storages.iter().map(|storage| (storage.key.as_str(), storage)).collect();
    let mut places = HashMap::new();
    for key in keys.texts() {
        let Some(storage) = by_key.get(key) else {
            return Err(reader.invalid(format!("storage `{}` is not in its pickle", shown(key))));
        };
        let n_elements = input.u64()?;
        let start = input.offset();
        input.skip(storage.raw_len(), "storage")?;
        if n_elements.checked_mul(storage.elements.len) != Some(storage.raw_len()) {
            let what = format!("storage `{}` has {n_elements} elements, its pickle says others", shown(key));
            return Err(reader.invalid(what));
        }
        places.insert(key, start..input.offset());
    }
    let place_of = |storage: &StorageRecord| {
        let place = places.get(storage.key.as_str()).cloned();
        let missing = || reader.invalid(format!("storage `{}` is not in the file", shown(&storage.key)));
        place.map(Some).ok_or_else(missing)
    };
    assemble(reader, &objects, &named, &place_of, false)
}

/// Whether an entry is the pickle of a checkpoint: at the top of the archive or in its one folder.
pub(crate) fn is_pickle(name: &str) -> bool {
    name == "data.pkl" || name.split_once('/').is_some_and(|(_, file)| file == "data.pkl")
}

/// Where the bytes of a storage lie, if the file has them.
type PlaceOf<'a> = dyn Fn(&StorageRecord) -> Result<Option<Range<u64>>, ReadError> + 'a;

fn assemble(
    reader: &CheckedReader<'_>,
    objects: &Objects,
    named: &[Named],
    place_of: &PlaceOf<'_>,
    is_big_endian: bool,
) -> Result<Checkpoint, ReadError> {
    let mut places = Vec::with_capacity(objects.storages.len());
    for storage in &objects.storages {
        places.push(place_of(storage)?);
    }
    let mut tensors = Vec::with_capacity(named.len());
    // The tensor that stands for its storage, and the element type of tensors of storages that have none themselves.
    let mut filled_by: Vec<Option<usize>> = vec![None; places.len()];
    let mut elements_seen: Vec<Option<Elements>> = vec![None; places.len()];
    for Named { name, tensor } in named {
        let record = &objects.tensors[*tensor];
        let storage = &objects.storages[record.storage];
        let elements = record.elements.unwrap_or(storage.elements).in_order(is_big_endian);
        let (shape, bytes) = view(objects, record, storage.raw_len(), elements)
            .map_err(|what| reader.invalid(format!("tensor `{}` {what}", shown(name))))?;
        elements_seen[record.storage].get_or_insert(elements);
        if filled_by[record.storage].is_none() && bytes == Some(0..storage.raw_len()) {
            filled_by[record.storage] = Some(tensors.len());
        }
        let start = places[record.storage].as_ref().map(|place| place.start);
        let bytes = bytes.zip(start).map(|(bytes, start)| start + bytes.start..start + bytes.end);
        tensors.push(TensorView { name: name.clone(), dtype: elements.dtype, shape, bytes });
    }
    let mut taken = HashMap::new();
    let mut storages = Vec::new();
    for (storage_idx, place) in places.into_iter().enumerate() {
        let Some(bytes) = place else { continue };
        let storage = &objects.storages[storage_idx];
        let (name, dtype, shape) = match filled_by[storage_idx] {
            Some(tensor) => {
                let TensorView { name, dtype, shape, .. } = &tensors[tensor];
                (name.clone(), *dtype, shape.clone())
            }
            None => {
                let own = storage.elements.in_order(is_big_endian);
                let len = bytes.end - bytes.start;
                // Storages without a type hold what their first tensor does, if that is a whole number of elements.
                let seen = elements_seen[storage_idx].filter(|seen| len.is_multiple_of(seen.len));
                let elements = if own.dtype == Dtype::Bytes { seen.unwrap_or(own) } else { own };
                let (dtype, n) = elements.flat(len);
                (format!("data/{}", storage.key), dtype, vec![n])
            }
        };
        let name = unique(name, &mut taken);
        storages.push(TensorInfo { name, dtype, shape, bytes });
    }
    Ok(Checkpoint { storages: in_order(storages, FORMAT)?, tensors })
}

/// Where a storage lies, unless its bytes are compressed.
fn place_of(
    reader: &CheckedReader<'_>,
    storage: &StorageRecord,
    entries: &HashMap<&str, &zip::Entry>,
) -> Result<Option<Range<u64>>, ReadError> {
    let name = format!("data/{}", storage.key);
    let invalid = |what: String| reader.invalid(format!("storage `{}` {what}", shown(&name)));
    let entry = entries.get(name.as_str()).ok_or_else(|| invalid("is not in the archive".to_owned()))?;
    if !entry.is_stored {
        return Ok(None);
    }
    let len = entry.bytes.end - entry.bytes.start;
    if len != storage.raw_len() {
        return Err(invalid(format!("has {len} bytes, its pickle says {}", storage.raw_len())));
    }
    Ok(Some(entry.bytes.clone()))
}

/// The shape of a tensor, and its bytes in its storage when it is contiguous.
fn view(
    objects: &Objects,
    record: &TensorRecord,
    storage_len: u64,
    elements: Elements,
) -> Result<(Vec<u64>, Option<Range<u64>>), String> {
    let dimensions = |tuple| -> Result<Vec<u64>, String> {
        let values = objects.items(tuple);
        if values.len() > MAX_RANK {
            return Err(format!("has more than {MAX_RANK} dimensions"));
        }
        values
            .iter()
            .map(|value| value.as_u64().ok_or("has a shape of something else than numbers".to_owned()))
            .collect()
    };
    let (mut shape, strides) = (dimensions(record.size)?, dimensions(record.stride)?);
    if shape.len() != strides.len() {
        return Err("has strides that do not fit its shape".to_owned());
    }
    let is_empty = shape.contains(&0);
    let outside = || "does not lie in its storage".to_owned();
    // The last element is the furthest one, as strides are not negative.
    let mut last = record.offset;
    let mut dense = 1u64;
    let mut is_contiguous = true;
    for (&dimension, &stride) in shape.iter().zip(&strides).rev() {
        is_contiguous &= dimension == 1 || stride == dense;
        dense = dense.checked_mul(dimension).ok_or_else(outside)?;
        let step = stride.checked_mul(dimension.saturating_sub(1)).ok_or_else(outside)?;
        last = last.checked_add(step).ok_or_else(outside)?;
    }
    let end = if is_empty { record.offset } else { last.checked_add(1).ok_or_else(outside)? };
    if end.checked_mul(elements.len).is_none_or(|end| end > storage_len) {
        return Err(outside());
    }
    let bytes = (is_contiguous || is_empty)
        .then(|| record.offset * elements.len..(record.offset + dense) * elements.len);
    shape.extend(elements.parts());
    debug_assert!(
        bytes.as_ref().is_none_or(|b| len_of_shape(elements.dtype, &shape) == Some(b.end - b.start))
    );
    Ok((shape, bytes))
}
