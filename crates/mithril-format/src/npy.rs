//! The header of `.npy` files: one array with its dtype and shape.

use crate::FormatError;
use mithril_codec::Dtype;

/// The array of a `.npy` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayInfo {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Where its bytes start.
    pub data_offset: usize,
}

/// Reads the header of a `.npy` file.
///
/// # Errors
/// When it is none, or holds something other than numbers in little-endian order.
pub fn parse(file: &[u8]) -> Result<ArrayInfo, FormatError> {
    let invalid = |reason: &str| FormatError::Foreign { format: "npy", reason: reason.to_owned() };
    let rest =
        file.strip_prefix(b"\x93NUMPY").ok_or_else(|| invalid("it does not start with `\\x93NUMPY`"))?;
    let (len, at) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        _ => return Err(invalid("unknown version")),
    };
    let header = file.get(at..at + len).ok_or_else(|| invalid("the header is cut off"))?;
    let header = std::str::from_utf8(header).map_err(|_| invalid("the header is no text"))?;
    let value = |key: &str| {
        let (_, after) = header.split_once(&format!("'{key}':"))?;
        Some(after.trim_start())
    };
    let descr = value("descr").and_then(|v| v.strip_prefix('\'')).and_then(|v| v.split('\'').next());
    let dtype =
        descr.and_then(dtype_of).ok_or_else(|| invalid(&format!("dtype {descr:?} is not supported")))?;
    let shape = value("shape").and_then(|v| v.strip_prefix('(')).and_then(|v| v.split(')').next());
    let shape = shape.ok_or_else(|| invalid("no shape"))?;
    let shape = shape
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .map(str::parse)
        .collect::<Result<Vec<u64>, _>>();
    let mut shape = shape.map_err(|_| invalid("the shape holds something else than numbers"))?;
    if value("fortran_order").is_some_and(|v| v.starts_with("True")) {
        shape.reverse();
    }
    Ok(ArrayInfo { dtype, shape, data_offset: at + len })
}

fn dtype_of(descr: &str) -> Option<Dtype> {
    Some(match descr {
        "|b1" => Dtype::Bool,
        "|u1" => Dtype::U8,
        "|i1" => Dtype::I8,
        "<u2" => Dtype::U16,
        "<i2" => Dtype::I16,
        "<u4" => Dtype::U32,
        "<i4" => Dtype::I32,
        "<u8" => Dtype::U64,
        "<i8" => Dtype::I64,
        "<f2" => Dtype::F16,
        "<f4" => Dtype::F32,
        "<f8" => Dtype::F64,
        "<c8" => Dtype::C64,
        "|S1" | "|V1" => Dtype::Bytes,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        file.extend(header.as_bytes());
        file
    }

    #[test]
    fn dtype_and_shape_are_read() {
        let info = parse(&file("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n")).unwrap();
        assert_eq!((info.dtype, info.shape.as_slice()), (Dtype::F32, &[3, 4][..]));
        let info = parse(&file("{'descr': '|i1', 'fortran_order': True, 'shape': (3, 4), }\n")).unwrap();
        assert_eq!(info.shape, [4, 3]);
        let info = parse(&file("{'descr': '<i8', 'fortran_order': False, 'shape': (), }\n")).unwrap();
        assert!(info.shape.is_empty());
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let reason = |file: &[u8]| parse(file).unwrap_err().to_string();
        assert!(reason(b"PK").contains("does not start with"));
        assert!(
            reason(&file("{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }"))
                .contains("not supported")
        );
        assert!(reason(&file("{'descr': '<f4', 'shape': (x,), }")).contains("something else than numbers"));
        assert!(reason(&file("{'descr': '<f4'")).contains("no shape"));
        assert!(reason(b"\x93NUMPY\x01\x00\xff\xff{").contains("cut off"));
    }
}
