//! The header of `.npy` files: one array with its dtype and shape.
//!
//! `\x93NUMPY`, version, header length, a Python dictionary in text, the array's bytes.

use crate::checked_reader::CheckedReader;
use crate::limits::{MAX_NPY_HEADER_LEN, MAX_RANK};
use crate::tensor_info::{TensorInfo, len_of_shape, shown};
use crate::{FormatError, ReadAt, ReadError};
use mithril_codec::Dtype;

const FORMAT: &str = "npy";

/// First bytes of a file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

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
/// An array in Fortran order has its dimensions turned round. An element that is several numbers (complex of two
/// doubles, texts) adds a dimension.
///
/// # Errors
/// When it is none, or holds something other than numbers in little-endian order.
pub fn parse(file: &[u8]) -> Result<ArrayInfo, FormatError> {
    let (header, data_offset) = text(file)?;
    let header = Header::parse(header).ok_or_else(|| invalid("the header is no dictionary of an array"))?;
    let (dtype, per_element) = dtype_of(&header.descr)
        .ok_or_else(|| invalid(format!("dtype `{}` is not supported", shown(&header.descr))))?;
    Ok(ArrayInfo { dtype, shape: header.shape_of(per_element)?, data_offset })
}

/// The array of the `.npy` file in some bytes of a source, as a tensor of this name.
///
/// An array of a type that is not known (big-endian, records, Python objects) is all bytes behind the header.
pub(crate) fn tensor(
    reader: &CheckedReader<'_>,
    file: std::ops::Range<u64>,
    name: String,
) -> Result<TensorInfo, ReadError> {
    let file_len = file.end - file.start;
    let start = reader.read(file.start, file_len.min(12), "header")?;
    let (header_at, header_len) = header_place(&start)?;
    let head = reader.read(file.start, file_len.min((header_at + header_len) as u64), "header")?;
    let (header, data_offset) = text(&head)?;
    let header = Header::parse(header).ok_or_else(|| invalid("the header is no dictionary of an array"))?;
    let data_len = file_len - data_offset as u64;
    let (dtype, shape) = match dtype_of(&header.descr) {
        Some((dtype, per_element)) => (dtype, header.shape_of(per_element)?),
        None => (Dtype::Bytes, vec![data_len]),
    };
    let len = len_of_shape(dtype, &shape).filter(|&len| len <= data_len).ok_or_else(|| {
        invalid(format!("shape {shape:?} of {} does not fit {data_len} bytes", dtype.name()))
    })?;
    let start = file.start + data_offset as u64;
    Ok(TensorInfo { name, dtype, shape, bytes: start..start + len })
}

/// The array of a `.npy` file, as a tensor without a name.
///
/// # Errors
/// When the header is damaged, the array is cut off, or the file cannot be read.
pub fn read(source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    Ok(vec![tensor(&reader, 0..reader.len(), String::new())?])
}

/// Where the dictionary starts, and its length.
fn header_place(file: &[u8]) -> Result<(usize, usize), FormatError> {
    let rest = file.strip_prefix(MAGIC).ok_or_else(|| invalid("it does not start with `\\x93NUMPY`"))?;
    let (at, len) = match rest {
        [1, _, a, b, ..] => (10, u32::from(u16::from_le_bytes([*a, *b]))),
        [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([*a, *b, *c, *d])),
        [1..=3, ..] => return Err(invalid("the header is cut off")),
        _ => return Err(invalid("unknown version")),
    };
    if len > MAX_NPY_HEADER_LEN {
        return Err(invalid(format!("header of {len} bytes is above the limit of {MAX_NPY_HEADER_LEN}")));
    }
    Ok((at, len as usize))
}

/// The dictionary, and where the data start.
fn text(file: &[u8]) -> Result<(&str, usize), FormatError> {
    let (at, len) = header_place(file)?;
    let header = file.get(at..at + len).ok_or_else(|| invalid("the header is cut off"))?;
    // Version 1 and 2 say latin-1; what is not ASCII can only be a field's name, which is not used.
    let header = std::str::from_utf8(header).map_err(|_| invalid("the header is no text"))?;
    Ok((header, at + len))
}

/// What the dictionary says.
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim().strip_prefix('{')?;
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        loop {
            rest = rest.trim_start();
            if let Some(end) = rest.strip_prefix('}') {
                let header = Self { descr: descr?, fortran_order: fortran_order?, shape: shape? };
                return end.is_empty().then_some(header);
            }
            let (key, after) = rest.split_at(item_len(rest)?);
            rest = after.trim_start().strip_prefix(':')?.trim_start();
            let (value, after) = rest.split_at(item_len(rest)?);
            let again = match key.trim_end() {
                "'descr'" => descr.replace(value.trim_end().to_owned()).is_some(),
                "'fortran_order'" => fortran_order.replace(truth(value.trim_end())?).is_some(),
                "'shape'" => shape.replace(dimensions(value.trim_end())?).is_some(),
                _ => return None,
            };
            if again {
                return None;
            }
            rest = after.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
    }

    /// The shape of elements that are `per_element` numbers each.
    fn shape_of(&self, per_element: Option<u64>) -> Result<Vec<u64>, FormatError> {
        let mut shape = self.shape.clone();
        if self.fortran_order {
            shape.reverse();
        }
        shape.extend(per_element);
        if shape.len() > MAX_RANK {
            return Err(invalid(format!("more than {MAX_RANK} dimensions")));
        }
        Ok(shape)
    }
}

/// Bytes up to the `,`, `:` or `}` that ends an item of a dictionary, brackets and quotes left out.
fn item_len(text: &str) -> Option<usize> {
    let mut depth = 0u32;
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b',' | b':' | b'}') if depth == 0 => return Some(at),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

fn dimensions(value: &str) -> Option<Vec<u64>> {
    let list = value.strip_prefix('(')?.strip_suffix(')')?;
    let numbers = list.split(',').map(str::trim).filter(|number| !number.is_empty());
    // Python 2 wrote long integers with an `L`.
    numbers.map(|number| number.trim_end_matches('L').parse().ok()).collect()
}

/// The dtype of a numpy type, and the numbers per element where that is not one.
fn dtype_of(descr: &str) -> Option<(Dtype, Option<u64>)> {
    let descr = descr.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])?;
    let one = |dtype: Dtype| Some((dtype, None));
    let dtype = match descr {
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
        "<c16" => return Some((Dtype::F64, Some(2))),
        // Types that numpy does not know, such as bfloat16, are saved as so many bytes each.
        "|V1" | "<V1" | "|S1" => Dtype::Bytes,
        "|V2" | "<V2" => Dtype::U16,
        "|V4" | "<V4" => Dtype::U32,
        "|V8" | "<V8" => Dtype::U64,
        _ if descr.starts_with("<M8") || descr.starts_with("<m8") => Dtype::I64,
        // Texts of a fixed length, of 32-bit characters or of bytes.
        _ => {
            let number = |prefix: &str| descr.strip_prefix(prefix)?.parse::<u64>().ok();
            return match (number("<U"), number("|S")) {
                (Some(n), _) => Some((Dtype::U32, Some(n))),
                (_, Some(n)) => Some((Dtype::Bytes, Some(n))),
                _ => None,
            };
        }
    };
    one(dtype)
}

fn invalid(reason: impl Into<String>) -> FormatError {
    FormatError::Foreign { format: FORMAT, reason: reason.into() }
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
        let info = parse(&file("{'shape': (5L,), 'fortran_order':True,'descr': '<c16'}")).unwrap();
        assert_eq!((info.dtype, info.shape.as_slice()), (Dtype::F64, &[5, 2][..]));
        let info = parse(&file("{'descr': '<U3', 'fortran_order': False, 'shape': (2,), }")).unwrap();
        assert_eq!((info.dtype, info.shape.as_slice()), (Dtype::U32, &[2, 3][..]));
    }

    #[test]
    fn an_array_of_an_unknown_type_is_bytes() {
        for descr in ["'>f4'", "'|O'", "[('shape', '<f4'), ('b', '<i2', (2, 3))]"] {
            let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}");
            let mut file = file(&header);
            let start = file.len() as u64;
            file.extend([1; 11]);
            let tensors = read(&file).unwrap();
            let tensor = &tensors[0];
            assert_eq!((tensor.dtype, tensor.shape.as_slice()), (Dtype::Bytes, &[11][..]));
            assert_eq!(tensor.bytes, start..start + 11);
        }
    }

    #[test]
    fn what_stands_behind_the_array_is_no_part_of_it() {
        let mut file = file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n");
        let start = file.len() as u64;
        file.extend([1; 11]);
        assert_eq!(read(&file).unwrap()[0].bytes, start..start + 8);
        file.truncate(file.len() - 4);
        assert!(read(&file).unwrap_err().to_string().contains("does not fit 7 bytes"));
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let reason = |file: &[u8]| {
            assert!(read(&file.to_vec()).is_err() || file.contains(&b'>'));
            parse(file).unwrap_err().to_string()
        };
        assert!(reason(b"PK").contains("does not start with"));
        assert!(
            reason(&file("{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }"))
                .contains("not supported")
        );
        for damaged in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (x,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, }",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': 1, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x",
            "{'descr': '<f4'",
            "",
        ] {
            assert!(reason(&file(damaged)).contains("no dictionary of an array"), "{damaged}");
        }
        assert!(reason(b"\x93NUMPY\x01\x00\xff\xff{").contains("cut off"));
        assert!(reason(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{").contains("above the limit"));
        assert!(reason(b"\x93NUMPY\x02\x00\xff").contains("cut off"));
        assert!(reason(b"\x93NUMPY\x09\x00\xff\xff{").contains("unknown version"));
        let rank = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({})}}", "1,".repeat(65));
        assert!(reason(&file(&rank)).contains("more than 64 dimensions"));
    }
}
