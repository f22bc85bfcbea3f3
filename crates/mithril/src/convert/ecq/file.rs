//! An entropy-coded file, opened: matrices, and rows of them without the rest.

use crate::convert::repository::{cannot, in_file};
use crate::{DecodeOptions, Dtype, Error, decompress_range, inspect};
use mithril_codec::ecq::{Coded, HEADER_LEN, Parts, Shape};
use mithril_format::ecq::{
    COMPRESSED, FREQ, LOW_BITS, MatrixHeader, STREAM_OFFSETS, Source, damaged, invalid, read_source,
};
use mithril_format::{NameTable, ReadAt, TensorInfo, safetensors};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file of entropy-coded matrices. Only its header is in memory.
#[derive(Debug)]
pub struct EcqFile {
    path: PathBuf,
    file: File,
    tensors: Vec<TensorInfo>,
    names: NameTable,
    source: Option<Source>,
    metadata: BTreeMap<String, String>,
}

/// The bytes of a matrix, or of some of its blocks.
#[derive(Debug, Clone, Default)]
pub struct MatrixParts {
    /// The header and the blocks.
    pub compressed: Vec<u8>,
    /// Where every block starts and the last one ends.
    pub stream_offsets: Vec<u8>,
    /// Tables of sixteen frequencies.
    pub freq: Vec<u8>,
    /// The plane of low bits.
    pub low_bits: Vec<u8>,
}

impl MatrixParts {
    /// The parts as a decoder takes them.
    pub fn parts(&self) -> Parts<'_> {
        Parts {
            compressed: &self.compressed,
            stream_offsets: &self.stream_offsets,
            freq: &self.freq,
            low_bits: &self.low_bits,
        }
    }

    /// Reads the header and checks that the parts fit.
    ///
    /// # Errors
    /// When they do not.
    pub fn read(&self, name: &str) -> Result<(MatrixHeader, Coded<'_>), Error> {
        Ok(MatrixHeader::read(name, self.parts())?)
    }
}

impl EcqFile {
    /// Opens a file; nothing if it is a safetensors file without entropy-coded matrices.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or was written by a later version.
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        let file = File::open(path).map_err(|error| cannot("read", path, error))?;
        let failed = |error: std::io::Error| cannot("read", path, error);
        let len = file.size().map_err(failed)?;
        let mut first = [0; 8];
        if len < 8 {
            return Err(invalid(format!("`{}` is cut off", path.display())).into());
        }
        file.read_exact_at(0, &mut first).map_err(failed)?;
        let end = safetensors::header_end(first).map_err(|error| in_file(error.into(), path))?;
        if end > len {
            return Err(invalid(format!("the header of `{}` is cut off", path.display())).into());
        }
        let head = file.read_range(0..end).map_err(failed)?;
        let read = |error: mithril_format::FormatError| in_file(error.into(), path);
        let metadata = safetensors::metadata(&head).map_err(read)?;
        let Some(source) = read_source(&metadata).map_err(read)? else { return Ok(None) };
        let tensors = safetensors::tensors(&head, len).map_err(read)?;
        let names = NameTable::of(tensors.len(), |idx| &tensors[idx].name);
        Ok(Some(Self { path: path.to_owned(), file, tensors, names, source, metadata }))
    }

    /// The file that it was made of, if it was.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// The texts of its header.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// All its tensors.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.names.find(name, |idx| &self.tensors[idx].name).map(|idx| &self.tensors[idx])
    }

    /// The names of its matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().filter_map(|tensor| tensor.name.strip_suffix(COMPRESSED))
    }

    /// All bytes of a tensor.
    ///
    /// # Errors
    /// When there is none of this name, or it cannot be read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let tensor = self.find(name).ok_or_else(|| missing(name))?;
        self.file.read_range(tensor.bytes.clone()).map_err(|error| cannot("read", &self.path, error))
    }

    fn read_part(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let tensor = self.find(name).ok_or_else(|| missing(name))?;
        let (start, end) = (tensor.bytes.start + range.start, tensor.bytes.start + range.end);
        if end > tensor.bytes.end {
            return Err(damaged(name, "it is shorter than its matrix").into());
        }
        self.file.read_range(start..end).map_err(|error| cannot("read", &self.path, error))
    }

    /// All parts of a matrix.
    ///
    /// # Errors
    /// When one is missing, or cannot be read.
    pub fn matrix(&self, name: &str) -> Result<MatrixParts, Error> {
        let low_bits = format!("{name}{LOW_BITS}");
        Ok(MatrixParts {
            compressed: self.read(&format!("{name}{COMPRESSED}"))?,
            stream_offsets: self.read(&format!("{name}{STREAM_OFFSETS}"))?,
            freq: self.read(&format!("{name}{FREQ}"))?,
            low_bits: if self.find(&low_bits).is_some() { self.read(&low_bits)? } else { Vec::new() },
        })
    }

    /// The header of a matrix, without its blocks.
    ///
    /// # Errors
    /// When it is damaged, or cannot be read.
    pub fn header(&self, name: &str) -> Result<MatrixHeader, Error> {
        Ok(self.header_and_offsets(name)?.0)
    }

    fn header_and_offsets(&self, name: &str) -> Result<(MatrixHeader, Vec<u8>, Vec<u8>), Error> {
        let compressed = format!("{name}{COMPRESSED}");
        let header = self.read_part(&compressed, 0..HEADER_LEN as u64)?;
        let header = header.first_chunk().ok_or_else(|| damaged(name, "its header is cut off"))?;
        let stream_offsets = self.read(&format!("{name}{STREAM_OFFSETS}"))?;
        let freq = self.read(&format!("{name}{FREQ}"))?;
        let len = self.find(&compressed).map_or(0, |tensor| tensor.bytes.end - tensor.bytes.start);
        let header = MatrixHeader::parse(name, header, len, &stream_offsets, &freq)?;
        Ok((header, stream_offsets, freq))
    }

    /// The codes of some rows, one byte each. Only the blocks that hold them are read.
    ///
    /// # Errors
    /// When there are no such rows, a block that holds one is damaged, or cannot be read.
    pub fn read_codes(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>, Error> {
        let (header, stream_offsets, freq) = self.header_and_offsets(name)?;
        let shape = header.shape;
        if rows.start > rows.end || rows.end > shape.rows() || header.bits > 8 {
            return Err(Error::invalid(format!(
                "`{name}` has no codes of rows {rows:?}: it has {} rows",
                shape.rows()
            )));
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let offsets = stream_offsets.as_chunks::<4>().0;
        if offsets.len() != shape.n_blocks() + 1 {
            return Err(damaged(name, "number of block offsets").into());
        }
        let blocks = shape.blocks_of(rows.clone());
        let held = shape.rows_of(blocks.start).start..shape.rows_of(blocks.end - 1).end;
        let at = |idx: usize| 4 * u64::from(u32::from_le_bytes(offsets[idx]));
        let (start, end) = (at(blocks.start), at(blocks.end));
        if start > end {
            return Err(damaged(name, "block offsets that do not rise").into());
        }
        // The blocks as a matrix of their own, with offsets that start where its first block does.
        let mut window = MatrixParts { compressed: vec![0; HEADER_LEN], freq, ..MatrixParts::default() };
        window.compressed.extend(self.read_part(&format!("{name}{COMPRESSED}"), start..end)?);
        for idx in blocks.start..=blocks.end {
            let offset = at(idx).wrapping_sub(start).wrapping_add(HEADER_LEN as u64) / 4;
            window.stream_offsets.extend(u32::try_from(offset).unwrap_or(u32::MAX).to_le_bytes());
        }
        if shape.low_bits() > 0 {
            let len = shape.low_row_len() as u64;
            let range = held.start as u64 * len..held.end as u64 * len;
            window.low_bits = self.read_part(&format!("{name}{LOW_BITS}"), range)?;
        }
        let refused = |error: mithril_codec::CodecError| Error::from(damaged(name, error));
        let own = Shape::of_blocks(held.len(), shape.columns(), shape.rows_per_block(), shape.low_bits());
        let coded = Coded::new(own.map_err(refused)?, window.parts()).map_err(refused)?;
        let mut codes = vec![0; rows.len() * shape.columns()];
        let within = rows.start - held.start..rows.end - held.start;
        coded.decode_rows(within, &mut codes).map_err(refused)?;
        Ok(codes)
    }

    /// The type and the values of a tensor that is a frame, of these rows or of all.
    ///
    /// # Errors
    /// When it is missing, damaged, or has no such rows.
    pub fn read_side(&self, name: &str, rows: Option<Range<u64>>) -> Result<(Dtype, Vec<u8>), Error> {
        let frame = self.read(name)?;
        let info = inspect(&frame).map_err(|error| error.in_tensor(name))?;
        let raw_len = info.raw_len;
        let row_len =
            info.shape.as_ref().and_then(|shape| raw_len.checked_div(*shape.first()?)).unwrap_or(raw_len);
        let range = match rows {
            Some(rows) => rows.start.saturating_mul(row_len)..rows.end.saturating_mul(row_len),
            None => 0..raw_len,
        };
        if range.start > range.end || range.end > raw_len {
            return Err(Error::invalid(format!("`{name}` has no such rows")));
        }
        // What a frame claims costs memory only within what its length can hold.
        if raw_len > crate::options::honest_output_len(frame.len() as u64) {
            return Err(Error::TooLarge {
                raw_len,
                limit: crate::options::honest_output_len(frame.len() as u64),
            });
        }
        let options = DecodeOptions::default().with_threads(1);
        let values = decompress_range(&frame, range, &options).map_err(|error| error.in_tensor(name))?;
        Ok((info.dtype, values))
    }
}

fn missing(name: &str) -> Error {
    invalid(format!("tensor `{name}` is missing")).into()
}
