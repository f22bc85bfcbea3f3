//! ONNX models: the tensors of a protobuf message, found by walking its fields.
//!
//! ```text
//! model       7 graph, 25 function*
//! graph       1 node*, 5 initializer (tensor)*
//! function    7 node*
//! node        2 output*, 5 attribute*
//! attribute   1 name, 5 tensor, 6 graph, 10 tensor*, 11 graph*
//! tensor      1 dimension*, 2 type, 8 name, and its numbers: 9 as bytes, 4 as packed singles, 10 as packed doubles
//! ```
//! The format has no magic number, so a file is a model when all of it can be walked and a tensor is found. Everything
//! that is not on the list above is left out and stays between the tensors: scalars, numbers in other fields, data in
//! other files.

use crate::checked_reader::{CheckedReader, Forward};
use crate::limits::{MAX_NAME_LEN, MAX_RANK};
use crate::tensor_info::{TensorInfo, in_order, len_of_shape, unique};
use crate::{ReadAt, ReadError};
use mithril_codec::Dtype;
use std::collections::HashMap;
use std::ops::Range;

const FORMAT: &str = "ONNX";

/// The first field of every model that is known: the number of the version of the format.
const VERSION_KEY: u8 = 1 << 3;

/// Smaller tensors stay between the others: an entry of its own costs more than it saves.
const MIN_LEN: u64 = 64;

/// Graphs inside of nodes of graphs that are followed.
const MAX_DEPTH: usize = 16;

/// The tensors of a model, in the order of their bytes. Those with less than 64 bytes are left out.
///
/// # Errors
/// When the file is no ONNX model, or cannot be read.
pub fn read(source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    if reader.start(1)? != [VERSION_KEY] {
        return Err(reader.invalid("it does not start with the version of its format"));
    }
    let mut walk = Walk {
        input: reader.forward(0, reader.len()),
        reader: &reader,
        next: 0,
        taken: HashMap::new(),
        found: Vec::new(),
    };
    let mut n_graphs = 0;
    while let Some(field) = walk.field(reader.len())? {
        match field {
            (1, Content::Number(1..=64)) | (5, Content::Number(_)) => {}
            (2..=4 | 6 | 8 | 14 | 20 | 26, Content::Bytes(_)) => {}
            (7, Content::Bytes(graph)) => {
                n_graphs += 1;
                walk.graph(graph.end, 0)?;
            }
            (25, Content::Bytes(function)) => walk.nodes(function.end, 7, 0)?,
            (number, _) => return Err(reader.invalid(format!("field {number} is not one of a model"))),
        }
    }
    if n_graphs != 1 || walk.found.is_empty() {
        return Err(reader.invalid("it has no graph with tensors"));
    }
    Ok(in_order(walk.found, FORMAT)?)
}

/// What a field holds.
enum Content {
    Number(u64),
    /// Four or eight bytes of a number.
    Fixed,
    /// Text, bytes, a message or packed numbers, which the next call leaves behind unless the caller reads them.
    Bytes(Range<u64>),
}

struct Walk<'a> {
    input: Forward<'a>,
    reader: &'a CheckedReader<'a>,
    /// Where the next field starts.
    next: u64,
    taken: HashMap<String, u64>,
    found: Vec<TensorInfo>,
}

/// What a message says of a tensor.
#[derive(Default)]
struct Tensor {
    shape: Vec<u64>,
    kind: u64,
    name: Option<String>,
    /// Bytes of its numbers, and of each of them where the field says so.
    data: Option<(Range<u64>, Option<u64>)>,
}

impl Walk<'_> {
    /// The next field of a message that ends at `end`, with its number.
    fn field(&mut self, end: u64) -> Result<Option<(u64, Content)>, ReadError> {
        let skipped = self.next.saturating_sub(self.input.offset());
        self.input.skip(skipped, "field")?;
        if self.input.offset() >= end {
            return if self.input.offset() == end { Ok(None) } else { Err(self.cut_off()) };
        }
        let key = self.number()?;
        let content = match key & 7 {
            0 => Content::Number(self.number()?),
            1 => {
                self.input.skip(8, "field")?;
                Content::Fixed
            }
            5 => {
                self.input.skip(4, "field")?;
                Content::Fixed
            }
            2 => {
                let len = self.number()?;
                let start = self.input.offset();
                let field_end = start.checked_add(len).filter(|&field_end| field_end <= end);
                Content::Bytes(start..field_end.ok_or_else(|| self.cut_off())?)
            }
            _ => return Err(self.reader.invalid("a field is of no known kind")),
        };
        self.next = match &content {
            Content::Bytes(bytes) => bytes.end,
            _ => self.input.offset(),
        };
        Ok(Some((key >> 3, content)))
    }

    /// Reads the message that the last field holds, instead of leaving it behind.
    fn enter(&mut self) {
        self.next = self.input.offset();
    }

    fn cut_off(&self) -> ReadError {
        self.reader
            .invalid(format!("a message ends inside of the field before offset {}", self.input.offset()))
    }

    /// A number in groups of seven bits, the lowest first.
    fn number(&mut self) -> Result<u64, ReadError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.input.u8()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(number);
            }
        }
        Err(self.reader.invalid(format!("a number before offset {} has no end", self.input.offset())))
    }

    /// The text of a field, unless it is no name.
    fn text(&mut self, bytes: &Range<u64>) -> Result<Option<String>, ReadError> {
        let len = bytes.end - bytes.start;
        if len == 0 || len > MAX_NAME_LEN as u64 {
            return Ok(None);
        }
        Ok(String::from_utf8(self.input.bytes(len, len, "name")?).ok())
    }

    fn graph(&mut self, end: u64, depth: usize) -> Result<(), ReadError> {
        self.enter();
        while let Some(field) = self.field(end)? {
            match field {
                (1, Content::Bytes(node)) => self.node(node.end, depth)?,
                (5, Content::Bytes(tensor)) => self.tensor(tensor.end, "initializer")?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The nodes that a message holds in the field of this number.
    fn nodes(&mut self, end: u64, of: u64, depth: usize) -> Result<(), ReadError> {
        self.enter();
        while let Some((number, content)) = self.field(end)? {
            if let Content::Bytes(node) = content
                && number == of
            {
                self.node(node.end, depth)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, end: u64, depth: usize) -> Result<(), ReadError> {
        self.enter();
        let mut output = None;
        while let Some(field) = self.field(end)? {
            match field {
                (2, Content::Bytes(name)) if output.is_none() => output = self.text(&name)?,
                (5, Content::Bytes(attribute)) => {
                    self.attribute(attribute.end, output.as_deref().unwrap_or("node"), depth)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn attribute(&mut self, end: u64, of: &str, depth: usize) -> Result<(), ReadError> {
        self.enter();
        let mut name = None;
        while let Some(field) = self.field(end)? {
            match field {
                (1, Content::Bytes(text)) => name = self.text(&text)?,
                (5 | 10, Content::Bytes(tensor)) => {
                    let otherwise = format!("{of}.{}", name.as_deref().unwrap_or("value"));
                    self.tensor(tensor.end, &otherwise)?;
                }
                (6 | 11, Content::Bytes(graph)) if depth < MAX_DEPTH => self.graph(graph.end, depth + 1)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A tensor, which takes another name where it has none.
    fn tensor(&mut self, end: u64, otherwise: &str) -> Result<(), ReadError> {
        self.enter();
        let mut tensor = Tensor::default();
        while let Some(field) = self.field(end)? {
            match field {
                (1, Content::Number(dimension)) => tensor.shape.push(dimension),
                (1, Content::Bytes(dimensions)) => {
                    while self.input.offset() < dimensions.end && tensor.shape.len() <= MAX_RANK {
                        let dimension = self.number()?;
                        tensor.shape.push(dimension);
                    }
                }
                (2, Content::Number(kind)) => tensor.kind = kind,
                (8, Content::Bytes(name)) => tensor.name = self.text(&name)?,
                (4, Content::Bytes(data)) => tensor.data = Some((data, Some(4))),
                (10, Content::Bytes(data)) => tensor.data = Some((data, Some(8))),
                (9, Content::Bytes(data)) => tensor.data = Some((data, None)),
                _ => {}
            }
            if tensor.shape.len() > MAX_RANK {
                return Err(self.reader.invalid(format!("a tensor has more than {MAX_RANK} dimensions")));
            }
        }
        let Tensor { shape, kind, name, data: Some((bytes, element_len)) } = tensor else { return Ok(()) };
        let len = bytes.end - bytes.start;
        let Some((dtype, parts)) = dtype_of(kind) else { return Ok(()) };
        let fits = element_len.is_none_or(|len| parts.is_none() && dtype.len_of(1) == Some(len));
        let shape: Vec<u64> = shape.into_iter().chain(parts).collect();
        if len < MIN_LEN || !fits {
            return Ok(());
        }
        // Packed types may end in the middle of a byte, or be laid out as they are only in memory.
        let (dtype, shape) =
            if len_of_shape(dtype, &shape) == Some(len) { (dtype, shape) } else { (Dtype::U8, vec![len]) };
        let name = unique(name.unwrap_or_else(|| otherwise.to_owned()), &mut self.taken);
        self.found.push(TensorInfo { name, dtype, shape, bytes });
        Ok(())
    }
}

/// A type by its number, and the numbers that an element is made of where that is not one.
const fn dtype_of(kind: u64) -> Option<(Dtype, Option<u64>)> {
    let dtype = match kind {
        1 => Dtype::F32,
        2 => Dtype::U8,
        3 => Dtype::I8,
        4 => Dtype::U16,
        5 => Dtype::I16,
        6 => Dtype::I32,
        7 => Dtype::I64,
        9 => Dtype::Bool,
        10 => Dtype::F16,
        11 => Dtype::F64,
        12 => Dtype::U32,
        13 => Dtype::U64,
        14 => return Some((Dtype::F32, Some(2))),
        15 => return Some((Dtype::F64, Some(2))),
        16 => Dtype::Bf16,
        17 => Dtype::F8E4m3,
        18 => Dtype::F8E4m3Fnuz,
        19 => Dtype::F8E5m2,
        20 => Dtype::F8E5m2Fnuz,
        // Two numbers to a byte.
        21..=23 => Dtype::U8,
        _ => return None,
    };
    Some((dtype, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let len = content.len();
        assert!(len < 1 << 14);
        let len = [u8::try_from(len % 128).unwrap() | 128, u8::try_from(len / 128).unwrap()];
        [&[number << 3 | 2], &len[..], content].concat()
    }

    fn number(number: u8, value: u8) -> Vec<u8> {
        vec![number << 3, value]
    }

    fn tensor(name: &str, kind: u8, shape: &[u8], data: (u8, &[u8])) -> Vec<u8> {
        let dimensions: Vec<u8> = shape.iter().flat_map(|&dimension| number(1, dimension)).collect();
        [dimensions, number(2, kind), field(8, name.as_bytes()), field(data.0, data.1)].concat()
    }

    fn model(graph: &[u8]) -> Vec<u8> {
        [number(1, 8), field(2, b"test"), field(7, graph), field(8, &number(2, 17))].concat()
    }

    #[test]
    fn tensors_of_graphs_nodes_and_branches_are_found() {
        let packed_shape = [field(1, &[3, 8]), number(2, 10), field(9, &[5; 48])].concat();
        let constant = [field(2, b"sum"), field(5, &[field(1, b"value"), field(5, &packed_shape)].concat())];
        let long = [field(1, &[4, 8]), number(2, 10), field(9, &[5; 64])].concat();
        let nameless = [field(2, b"sum"), field(5, &[field(1, b"value"), field(5, &long)].concat())];
        let branch = field(6, &field(5, &tensor("w", 16, &[40], (9, &[7; 80]))));
        let graph = [
            field(1, &constant.concat()),
            field(1, &nameless.concat()),
            field(1, &field(5, &branch)),
            field(5, &tensor("w", 1, &[4, 5], (9, &[1; 80]))),
            field(5, &tensor("singles", 1, &[16], (4, &[2; 64]))),
            field(5, &tensor("halves in words", 10, &[32], (5, &[2; 64]))),
            field(5, &tensor("scalar", 1, &[], (9, &[3; 4]))),
            field(5, &tensor("texts", 8, &[1], (9, &[3; 64]))),
            field(5, &tensor("fours", 22, &[127], (9, &[9; 64]))),
            field(5, &tensor("pairs", 14, &[10], (9, &[9; 80]))),
        ];
        let file = model(&graph.concat());
        let found = read(&file).unwrap();
        let shown: Vec<_> = found.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())).collect();
        let expected = [
            ("sum.value", Dtype::F16, &[4, 8][..]),
            ("w", Dtype::Bf16, &[40]),
            ("w#2", Dtype::F32, &[4, 5]),
            ("singles", Dtype::F32, &[16]),
            ("fours", Dtype::U8, &[64]),
            ("pairs", Dtype::F32, &[10, 2]),
        ];
        assert_eq!(shown, expected);
        assert_eq!(file.slice(found[2].bytes.clone()), Some(&[1; 80][..]));
    }

    #[test]
    fn what_is_no_model_from_front_to_end_is_refused() {
        let whole = model(&field(5, &tensor("w", 1, &[4, 5], (9, &[1; 80]))));
        assert_eq!(read(&whole).unwrap().len(), 1);
        let head = number(1, 8).len() + field(2, b"test").len();
        for len in 0..whole.len() {
            // Behind the graph a cut between fields leaves a whole model.
            let tail = whole.len() - field(8, &number(2, 17)).len();
            assert_eq!(read(&whole[..len].to_vec()).is_ok(), len == tail, "{len} of {head} and more");
        }
        let others = [
            [&whole[..], b"x"].concat(),
            [number(1, 8), field(2, b"meta")].concat(),
            [number(1, 8), field(7, b"")].concat(),
            [whole.clone(), field(99 >> 3, b"")].concat(),
            [number(1, 0), whole[2..].to_vec()].concat(),
            [whole.clone(), whole].concat(),
        ];
        for other in others {
            assert!(read(&other).is_err());
        }
    }

    #[test]
    fn graphs_are_followed_only_so_deep() {
        let mut graph = field(5, &tensor("w", 1, &[4, 5], (9, &[1; 80])));
        for depth in 0..40 {
            let found = read(&model(&graph)).map_or(0, |found| found.len());
            assert_eq!(found, usize::from(depth <= MAX_DEPTH), "{depth}");
            graph = field(1, &field(5, &field(6, &graph)));
        }
    }
}
