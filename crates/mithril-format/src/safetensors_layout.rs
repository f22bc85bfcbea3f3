//! Laying out a new safetensors file exactly as the official library does.
//!
//! Larger dtypes come first, then names in order, and blanks fill the header up to a multiple of eight bytes: the same
//! tensors give the same bytes as `safetensors.torch.save_file`.

use crate::container::is_tensor_name;
use crate::safetensors::TensorInfo;
use mithril_codec::Dtype;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Name, dtype and shape of a tensor that is to be laid out.
pub type NewTensor = (String, Dtype, Vec<u64>);

/// A file's header, and where its tensors go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The first bytes of the file, up to the first tensor.
    pub header: Vec<u8>,
    /// The tensors in the order of their bytes.
    pub tensors: Vec<TensorInfo>,
}

/// Checks the name of a tensor that is new: a safetensors file must be able to list it, and a container, too. Any
/// other text is a name.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check_new_name(name: &str) -> Result<(), &'static str> {
    if !is_tensor_name(name) {
        return Err("the name of a tensor has 65535 bytes at most");
    }
    if name == "__metadata__" {
        return Err("safetensors keeps this name for metadata");
    }
    Ok(())
}

impl Layout {
    /// Lays out tensors of these names, dtypes and shapes; nothing if a shape is too large or does not fill bytes.
    #[must_use]
    pub fn new(mut tensors: Vec<NewTensor>, metadata: &BTreeMap<String, String>) -> Option<Self> {
        tensors.sort_by(|(a_name, a, _), (b_name, b, _)| rank(*b).cmp(&rank(*a)).then(a_name.cmp(b_name)));
        let mut json = String::from("{");
        if !metadata.is_empty() {
            let _ = write!(json, "\"__metadata__\":{},", serde_json::json!(metadata));
        }
        let mut offset = 0u64;
        let mut placed = Vec::with_capacity(tensors.len());
        for (name, dtype, shape) in tensors {
            let n_elements = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension))?;
            let end = offset.checked_add(dtype.len_of(n_elements)?)?;
            let quoted = serde_json::Value::from(name.as_str());
            let dimensions = serde_json::Value::from(shape.as_slice());
            let dtype_name = dtype.name();
            let _ = write!(
                json,
                r#"{quoted}:{{"dtype":"{dtype_name}","shape":{dimensions},"data_offsets":[{offset},{end}]}},"#
            );
            placed.push(TensorInfo { name, dtype, shape, bytes: offset..end });
            offset = end;
        }
        if json.ends_with(',') {
            json.pop();
        }
        json.push('}');
        let len = json.len().next_multiple_of(8);
        let mut header = (len as u64).to_le_bytes().to_vec();
        header.extend(json.as_bytes());
        header.resize(8 + len, b' ');
        for tensor in &mut placed {
            let start = header.len() as u64;
            tensor.bytes = tensor.bytes.start + start..tensor.bytes.end + start;
        }
        Some(Self { header, tensors: placed })
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.tensors.last().map_or(self.header.len() as u64, |tensor| tensor.bytes.end)
    }
}

/// The place of a dtype in the library's order, which goes from small to large.
fn rank(dtype: Dtype) -> usize {
    const ORDER: [Dtype; 23] = [
        Dtype::Bytes,
        Dtype::Bool,
        Dtype::F4,
        Dtype::F6E2m3,
        Dtype::F6E3m2,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8E5m2,
        Dtype::F8E4m3,
        Dtype::F8E8m0,
        Dtype::F8E4m3Fnuz,
        Dtype::F8E5m2Fnuz,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::C64,
        Dtype::F64,
        Dtype::I64,
        Dtype::U64,
    ];
    ORDER.iter().position(|&known| known == dtype).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::tensors;

    #[test]
    fn header_is_that_of_the_official_library() {
        let names =
            [("b", Dtype::U8, vec![3]), ("a", Dtype::U8, vec![0]), ("z\u{e9}\"", Dtype::F32, vec![1, 2])];
        let list = names.map(|(name, dtype, shape)| (name.to_owned(), dtype, shape)).to_vec();
        let layout = Layout::new(list, &BTreeMap::new()).unwrap();
        let json = "{\"z\u{e9}\\\"\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},\
                    \"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},\
                    \"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
        let text = String::from_utf8(layout.header[8..].to_vec()).unwrap();
        assert_eq!(text.trim_end(), json);
        assert!(layout.header.len().is_multiple_of(8));
        let mut file = layout.header.clone();
        file.resize(usize::try_from(layout.file_len()).unwrap(), 0);
        let mut read = tensors(&file, layout.file_len()).unwrap();
        read.sort_by_key(|tensor| tensor.bytes.end);
        assert_eq!(read.len(), 3);
        assert_eq!(read[2], layout.tensors[2]);
    }

    #[test]
    fn a_file_of_nothing_has_a_header() {
        let layout = Layout::new(Vec::new(), &BTreeMap::new()).unwrap();
        assert_eq!(layout.header, b"\x08\0\0\0\0\0\0\0{}      ");
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let layout = Layout::new(Vec::new(), &metadata).unwrap();
        assert_eq!(layout.header[8..].trim_ascii_end(), br#"{"__metadata__":{"format":"pt"}}"#);
    }

    #[test]
    fn shapes_that_overflow_are_refused() {
        let huge = vec![("a".to_owned(), Dtype::F64, vec![1 << 40, 1 << 40])];
        assert!(Layout::new(huge, &BTreeMap::new()).is_none());
        let half = vec![("a".to_owned(), Dtype::F4, vec![3])];
        assert!(Layout::new(half, &BTreeMap::new()).is_none());
    }
}
