//! The header of safetensors files: which tensor lies where.

use crate::FormatError;
use crate::limits::MAX_SAFETENSORS_HEADER_LEN;
use mithril_codec::Dtype;
use std::ops::Range;

/// A tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes, counted from the start of the file.
    pub bytes: Range<u64>,
}

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
/// When the header is no valid JSON, or a tensor does not lie in the file or does not fit its shape.
pub fn tensors(head: &[u8], file_len: u64) -> Result<Vec<TensorInfo>, FormatError> {
    let first = head.first_chunk().ok_or_else(|| invalid("no room for the header length".to_owned()))?;
    let end = header_end(*first)?;
    let json = usize::try_from(end).ok().and_then(|end| head.get(8..end));
    let json = json.ok_or_else(|| invalid("the header is cut off".to_owned()))?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)
        .map_err(|error| invalid(format!("header is no JSON object: {error}")))?;
    let mut tensors = Vec::with_capacity(header.len());
    for (name, entry) in header {
        if name != "__metadata__" {
            let tensor = tensor(&name, &entry, end, file_len);
            tensors.push(tensor.map_err(|reason| invalid(format!("tensor `{name}`: {reason}")))?);
        }
    }
    tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    Ok(tensors)
}

fn tensor(
    name: &str,
    entry: &serde_json::Value,
    header_end: u64,
    file_len: u64,
) -> Result<TensorInfo, String> {
    let dtype_name = entry["dtype"].as_str().ok_or("no dtype")?;
    let dtype = Dtype::from_name(dtype_name).ok_or_else(|| format!("unknown dtype `{dtype_name}`"))?;
    let numbers = |key: &str| -> Result<Vec<u64>, String> {
        let list = entry[key].as_array().ok_or_else(|| format!("no `{key}`"))?;
        list.iter()
            .map(|n| n.as_u64().ok_or_else(|| format!("`{key}` holds something else than numbers")))
            .collect()
    };
    let shape = numbers("shape")?;
    let offsets = numbers("data_offsets")?;
    let &[start, end] = offsets.as_slice() else { return Err("`data_offsets` are not two".to_owned()) };
    let n_elements = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    let len = n_elements.and_then(|n| dtype.len_of(n)).ok_or("shape is too large")?;
    if end.checked_sub(start) != Some(len) {
        return Err(format!("shape takes {len} bytes, offsets {start} to {end} do not"));
    }
    let absolute = |offset: u64| header_end.checked_add(offset).filter(|&at| at <= file_len);
    let bytes = absolute(start)
        .zip(absolute(end))
        .ok_or_else(|| format!("lies behind the end of the file ({file_len} bytes)"))?;
    Ok(TensorInfo { name: name.to_owned(), dtype, shape, bytes: bytes.0..bytes.1 })
}

fn invalid(reason: String) -> FormatError {
    FormatError::Foreign { format: "safetensors", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data_len: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data_len, 7);
        file
    }

    fn check_refused(header: &str, data_len: usize, reason: &str) {
        let file = file(header, data_len);
        let error = tensors(&file, file.len() as u64).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn tensors_are_found_in_the_order_of_their_bytes() {
        let file = file(
            r#"{"__metadata__":{"a":"b"},"late":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"early":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}"#,
            12,
        );
        let tensors = tensors(&file, file.len() as u64).unwrap();
        assert_eq!(tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["early", "late"]);
        assert_eq!(tensors[1].shape, [2]);
        assert_eq!(tensors[1].bytes.end, file.len() as u64);
    }

    #[test]
    fn headers_that_lie_are_refused_with_the_reason() {
        check_refused("[]", 0, "no JSON object");
        check_refused(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 8, "shape takes 8 bytes");
        check_refused(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 4, "behind the end");
        check_refused(r#"{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}}"#, 8, "unknown dtype");
        check_refused(
            r#"{"a":{"dtype":"F64","shape":[4611686018427387904,8],"data_offsets":[0,8]}}"#,
            8,
            "too large",
        );
        check_refused(
            r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#,
            8,
            "something else than numbers",
        );
        let huge = u64::MAX.to_le_bytes();
        assert!(tensors(&huge, 8).unwrap_err().to_string().contains("above the limit"));
        assert!(tensors(&[100, 0, 0, 0, 0, 0, 0, 0], 8).unwrap_err().to_string().contains("cut off"));
    }
}
