//! GGUF files, versions 2 and 3: metadata, and quantised tensors as blocks of their own dtypes.
//!
//! ```text
//! magic, version, number of tensors, number of metadata
//! metadata*   name, type, value
//! tensor*     name, dimensions (fastest first), type, offset from the start of the data
//! data        from the next multiple of `general.alignment` on
//! ```

use crate::checked_reader::{CheckedReader, Forward};
use crate::limits::{MAX_GGUF_DIMENSIONS, MAX_GGUF_NAME_LEN, MAX_GGUF_TEXT_LEN, MAX_GGUF_VALUES};
use crate::tensor_info::{TensorInfo, in_order, len_of_shape, shown};
use crate::{ReadAt, ReadError};
use mithril_codec::Dtype;
use serde_json::{Map, Value};

const FORMAT: &str = "GGUF";

/// First bytes of a file.
pub(crate) const MAGIC: &[u8] = b"GGUF";

/// The metadata that says where tensors may start.
const ALIGNMENT_KEY: &[u8] = b"general.alignment";

/// The alignment of files that name none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The tensors of a file, in the order of their bytes.
///
/// # Errors
/// When the file breaks the rules of GGUF, uses a type that is not known, or cannot be read.
pub fn read(source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    let mut parser = Parser::start(&reader)?;
    let mut alignment = DEFAULT_ALIGNMENT;
    for _ in 0..parser.n_metadata {
        let key = parser.text(MAX_GGUF_TEXT_LEN, "name of metadata")?;
        let kind = parser.input.u32()?;
        if key == ALIGNMENT_KEY {
            alignment = u64::from(parser.alignment(kind)?);
        } else {
            parser.skip(kind)?;
        }
    }
    let mut entries = Vec::new();
    for _ in 0..parser.n_tensors {
        entries.push(parser.tensor()?);
    }
    let data_start = parser.input.offset().next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(entries.len());
    for Entry { name, dtype, shape, offset } in entries {
        let invalid = |what: String| reader.invalid(format!("tensor `{}` {what}", shown(&name)));
        let len = len_of_shape(dtype, &shape)
            .ok_or_else(|| invalid(format!("has the impossible shape {shape:?} of {}", dtype.name())))?;
        if !offset.is_multiple_of(alignment) {
            return Err(invalid(format!("is not aligned to {alignment} bytes")));
        }
        let start = data_start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(len)).filter(|&end| end <= reader.len());
        let bytes = start.zip(end).map(|(start, end)| start..end);
        let bytes = bytes
            .ok_or_else(|| invalid(format!("lies behind the end of the file ({} bytes)", reader.len())))?;
        tensors.push(TensorInfo { name, dtype, shape, bytes });
    }
    Ok(in_order(tensors, FORMAT)?)
}

/// The metadata of a file. Numbers that JSON cannot hold are null.
///
/// # Errors
/// When the file breaks the rules of GGUF, holds more values than [`MAX_GGUF_VALUES`], or cannot be read.
pub fn metadata(source: &dyn ReadAt) -> Result<Map<String, Value>, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    let mut parser = Parser::start(&reader)?;
    let mut metadata = Map::new();
    let mut n_left = MAX_GGUF_VALUES;
    for _ in 0..parser.n_metadata {
        let key = parser.text(MAX_GGUF_TEXT_LEN, "name of metadata")?;
        let kind = parser.input.u32()?;
        let value = parser.value(kind, 0, &mut n_left)?;
        let key = String::from_utf8_lossy(&key).into_owned();
        if metadata.contains_key(&key) {
            return Err(reader.invalid(format!("metadata `{}` are there twice", shown(&key))));
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

/// What the table says of a tensor.
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    /// From the start of the data.
    offset: u64,
}

/// A file behind its first fields.
struct Parser<'a> {
    reader: &'a CheckedReader<'a>,
    input: Forward<'a>,
    n_tensors: u64,
    n_metadata: u64,
}

/// Arrays in arrays that are followed.
const MAX_DEPTH: usize = 8;

/// Types of metadata that are numbers of a fixed size, with that size.
const fn scalar_len(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

impl<'a> Parser<'a> {
    fn start(reader: &'a CheckedReader<'a>) -> Result<Self, ReadError> {
        let mut input = reader.forward(0, reader.len());
        let magic: [u8; 4] = input.array()?;
        if magic != MAGIC {
            return Err(reader.invalid("it does not start with `GGUF`"));
        }
        match input.u32()? {
            2 | 3 => {}
            1 => return Err(reader.invalid("version 1 is not supported")),
            version if version.swap_bytes() <= 3 => {
                return Err(reader.invalid("its numbers are big-endian, which is not supported"));
            }
            version => return Err(reader.invalid(format!("unknown version {version}"))),
        }
        let (n_tensors, n_metadata) = (input.u64()?, input.u64()?);
        Ok(Self { reader, input, n_tensors, n_metadata })
    }

    fn text(&mut self, limit: u64, what: &str) -> Result<Vec<u8>, ReadError> {
        let len = self.input.u64()?;
        self.input.bytes(len, limit, what)
    }

    fn alignment(&mut self, kind: u32) -> Result<u32, ReadError> {
        let alignment = if kind == 4 { self.input.u32()? } else { 0 };
        if alignment.is_power_of_two() {
            return Ok(alignment);
        }
        Err(self.reader.invalid("`general.alignment` is no power of two of type UINT32"))
    }

    /// Leaves a value out, in time of its texts and arrays, not of its numbers.
    fn skip(&mut self, kind: u32) -> Result<(), ReadError> {
        self.skip_nested(kind, 0)
    }

    fn skip_nested(&mut self, kind: u32, depth: usize) -> Result<(), ReadError> {
        if let Some(len) = scalar_len(kind) {
            return self.input.skip(len, "metadata");
        }
        match kind {
            TEXT => {
                let len = self.input.u64()?;
                self.input.skip(len, "text")
            }
            ARRAY if depth < MAX_DEPTH => {
                let (kind, n) = (self.input.u32()?, self.input.u64()?);
                if let Some(len) = scalar_len(kind) {
                    // A product that does not fit is cut off, too.
                    return self.input.skip(len.saturating_mul(n), "array");
                }
                (0..n).try_for_each(|_| self.skip_nested(kind, depth + 1))
            }
            ARRAY => Err(self.too_deep()),
            kind => Err(self.unknown("metadata", kind)),
        }
    }

    fn value(&mut self, kind: u32, depth: usize, n_left: &mut usize) -> Result<Value, ReadError> {
        *n_left = n_left
            .checked_sub(1)
            .ok_or_else(|| self.reader.invalid(format!("metadata of more than {MAX_GGUF_VALUES} values")))?;
        Ok(match kind {
            0 => self.input.u8()?.into(),
            1 => i8::from_le_bytes(self.input.array()?).into(),
            2 => u16::from_le_bytes(self.input.array()?).into(),
            3 => i16::from_le_bytes(self.input.array()?).into(),
            4 => self.input.u32()?.into(),
            5 => i32::from_le_bytes(self.input.array()?).into(),
            6 => f32::from_le_bytes(self.input.array()?).into(),
            7 => (self.input.u8()? != 0).into(),
            10 => self.input.u64()?.into(),
            11 => i64::from_le_bytes(self.input.array()?).into(),
            12 => f64::from_le_bytes(self.input.array()?).into(),
            TEXT => {
                let text = self.text(MAX_GGUF_TEXT_LEN, "text")?;
                String::from_utf8_lossy(&text).into_owned().into()
            }
            ARRAY if depth < MAX_DEPTH => {
                let (kind, n) = (self.input.u32()?, self.input.u64()?);
                // Grown as values are read: the number is only a claim.
                let mut values = Vec::new();
                for _ in 0..n {
                    values.push(self.value(kind, depth + 1, n_left)?);
                }
                values.into()
            }
            ARRAY => return Err(self.too_deep()),
            kind => return Err(self.unknown("metadata", kind)),
        })
    }

    fn tensor(&mut self) -> Result<Entry, ReadError> {
        let at = self.input.offset();
        let name = String::from_utf8(self.text(MAX_GGUF_NAME_LEN, "name of a tensor")?);
        let name =
            name.map_err(|_| self.reader.invalid(format!("name of a tensor at offset {at} is no text")))?;
        let n_dimensions = self.input.u32()?;
        if n_dimensions > MAX_GGUF_DIMENSIONS {
            return Err(self.reader.invalid(format!(
                "tensor `{}` has {n_dimensions} dimensions, more than {MAX_GGUF_DIMENSIONS}",
                shown(&name)
            )));
        }
        let mut shape = (0..n_dimensions).map(|_| self.input.u64()).collect::<Result<Vec<u64>, _>>()?;
        shape.reverse();
        let kind = self.input.u32()?;
        let dtype = dtype_of(kind).ok_or_else(|| self.unknown("tensor", kind))?;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(u64::from(dtype.elements_per_unit())) {
            return Err(self.reader.invalid(format!(
                "tensor `{}` has rows of {row} elements, which are no whole blocks of {}",
                shown(&name),
                dtype.name()
            )));
        }
        Ok(Entry { name, dtype, shape, offset: self.input.u64()? })
    }

    fn unknown(&self, what: &str, kind: u32) -> ReadError {
        let at = self.input.offset();
        self.reader.invalid(format!("{what} type {kind} before offset {at} is not known"))
    }

    fn too_deep(&self) -> ReadError {
        self.reader.invalid(format!("arrays nested more than {MAX_DEPTH} deep"))
    }
}

/// The dtype of a ggml type. Numbers that ggml has given up are not known.
const fn dtype_of(kind: u32) -> Option<Dtype> {
    Some(match kind {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        9 => Dtype::Q8_1,
        10 => Dtype::Q2K,
        11 => Dtype::Q3K,
        12 => Dtype::Q4K,
        13 => Dtype::Q5K,
        14 => Dtype::Q6K,
        15 => Dtype::Q8K,
        16 => Dtype::Iq2Xxs,
        17 => Dtype::Iq2Xs,
        18 => Dtype::Iq3Xxs,
        19 => Dtype::Iq1S,
        20 => Dtype::Iq4Nl,
        21 => Dtype::Iq3S,
        22 => Dtype::Iq2S,
        23 => Dtype::Iq4Xs,
        24 => Dtype::I8,
        25 => Dtype::I16,
        26 => Dtype::I32,
        27 => Dtype::I64,
        28 => Dtype::F64,
        29 => Dtype::Iq1M,
        30 => Dtype::Bf16,
        34 => Dtype::Tq1_0,
        35 => Dtype::Tq2_0,
        39 => Dtype::Mxfp4,
        40 => Dtype::Nvfp4,
        41 => Dtype::Q1_0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
