//! The tensors of the file that a coded one was made of, decoded one by one.

use super::file::EcqFile;
use super::restore::{Role, restore, roles};
use crate::{Error, decompress};
use mithril_format::ecq::{BIASES, FRAME, SOURCE_TENSOR, Source, SourceFormat, ZERO_CODES, invalid};
use mithril_format::source::{self, Kind};
use mithril_format::{ReadAt, TensorInfo};
use std::collections::HashMap;
use std::io;

/// What a coded file was made of.
#[derive(Debug)]
pub struct Originals<'a> {
    file: &'a EcqFile,
    pub(super) source: &'a Source,
    /// Every byte that belongs to no tensor.
    pub(super) glue: Vec<u8>,
    pub(super) tensors: Vec<TensorInfo>,
    roles: HashMap<String, Role>,
}

impl<'a> Originals<'a> {
    /// The originals of a file.
    ///
    /// # Errors
    /// When it was made of no file, or is damaged.
    pub fn of(file: &'a EcqFile) -> Result<Self, Error> {
        let source = file.source().ok_or_else(|| Error::invalid("it was made of no quantised file"))?;
        let glue = decompress(&file.read(SOURCE_TENSOR)?)?;
        let tensors = original_tensors(source, &glue)?;
        Ok(Self { file, source, glue, tensors, roles: roles_of(file)? })
    }

    /// The tensors, in the order of their bytes.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The bytes of a tensor, by its place among them.
    ///
    /// # Errors
    /// When it is damaged or cannot be read.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn read(&self, idx: usize) -> Result<Vec<u8>, Error> {
        let tensor = &self.tensors[idx];
        let bytes = self.bytes_of(tensor).map_err(|error| error.in_tensor(&tensor.name))?;
        let len = tensor.bytes.end - tensor.bytes.start;
        if bytes.len() as u64 != len {
            let what = invalid(format!("it decodes to {} bytes, {len} are wanted", bytes.len()));
            return Err(Error::from(what).in_tensor(&tensor.name));
        }
        Ok(bytes)
    }

    fn bytes_of(&self, tensor: &TensorInfo) -> Result<Vec<u8>, Error> {
        if let Some(role) = self.roles.get(&tensor.name) {
            return restore(self.file, role);
        }
        match self.file.find(&tensor.name) {
            Some(stored) if stored.dtype == tensor.dtype && stored.shape == tensor.shape => {
                self.file.read(&tensor.name)
            }
            _ => Ok(decompress(&self.file.read(&format!("{}{FRAME}", tensor.name))?)?),
        }
    }
}

/// The tensors of the original file, from its header alone.
fn original_tensors(source: &Source, glue: &[u8]) -> Result<Vec<TensorInfo>, Error> {
    let kind = match source.format {
        SourceFormat::Safetensors => Kind::Safetensors,
        SourceFormat::Gguf => Kind::Gguf,
    };
    let tensors = source::tensors(kind, &HeadOnly { glue, len: source.len })?;
    let held: u64 = tensors.iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).sum();
    if held.checked_add(glue.len() as u64) != Some(source.len) {
        return Err(
            invalid("its source has another length than its tensors and the bytes between them").into()
        );
    }
    Ok(tensors)
}

/// A file of which only the front is known.
struct HeadOnly<'a> {
    glue: &'a [u8],
    len: u64,
}

impl ReadAt for HeadOnly<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.fill(0);
        let known = usize::try_from(offset).ok().and_then(|at| self.glue.get(at..)).unwrap_or_default();
        let n = known.len().min(out.len());
        out[..n].copy_from_slice(&known[..n]);
        Ok(())
    }
}

/// The original tensors that matrices give.
fn roles_of(file: &EcqFile) -> Result<HashMap<String, Role>, Error> {
    let mut names = HashMap::new();
    for matrix in file.matrices() {
        let header = file.header(matrix)?;
        let has_biases =
            [BIASES, ZERO_CODES].iter().any(|part| file.find(&format!("{matrix}{part}")).is_some());
        names.extend(roles(matrix, header.layout, has_biases));
    }
    Ok(names)
}
