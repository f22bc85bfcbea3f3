//! The bytes of Python objects, without a copy: whatever has the buffer protocol, and tensors through DLPack.
//!
//! A [`Buffer`] keeps its object's memory where it is until it is dropped, also while the interpreter runs other threads.
//! Other threads of Python may change the object meanwhile, as with every function that releases the interpreter (`zlib`,
//! `hashlib`, sockets). What is compressed is then a copy of each part, at some moment in between: see
//! [`Buffer::is_changing`].

#![expect(unsafe_code, reason = "memory that Python objects own is reached through pointers")]

mod exported;
mod fresh;
mod records;
mod tensor;

pub(crate) use fresh::FreshBytes;
pub(crate) use records::RecordList;
pub(crate) use tensor::BorrowedTensor;

use exported::Exported;
use mithril::ReadAt;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tensor::Managed;

/// The bytes of a Python object, C-contiguous.
pub(crate) struct Buffer {
    memory: Memory,
    /// Whether it is not `bytes`, which nobody can change.
    is_changing: bool,
}

enum Memory {
    Exported(Exported),
    Tensor(Arc<Managed>),
}

impl Buffer {
    /// The bytes of an object that is only read.
    pub(crate) fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        match object.cast::<BorrowedTensor>() {
            Ok(tensor) => Ok(Self { memory: Memory::Tensor(tensor.get().managed()?), is_changing: true }),
            Err(_) => {
                let exported = Exported::new(object, exported::Access::Read)?;
                let is_changing = !object.is_exact_instance_of::<PyBytes>();
                Ok(Self { memory: Memory::Exported(exported), is_changing })
            }
        }
    }

    /// Whether other threads of Python may change the bytes while they are read: those of all objects but `bytes`. Who needs
    /// the same bytes twice copies them.
    pub(crate) fn is_changing(&self) -> bool {
        self.is_changing
    }

    /// Bytes that stay what they are: a copy, unless these do.
    pub(crate) fn stable(&self) -> PyResult<Cow<'_, [u8]>> {
        if !self.is_changing {
            return Ok(Cow::Borrowed(self.bytes()));
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(self.bytes().len())
            .map_err(|_| PyMemoryError::new_err("more bytes than memory can hold"))?;
        copy.extend_from_slice(self.bytes());
        Ok(Cow::Owned(copy))
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Exported(exported) => exported.bytes(),
            Memory::Tensor(tensor) => tensor.bytes(),
        }
    }
}

impl ReadAt for Buffer {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.bytes().read_exact_at(offset, out)
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        self.bytes().slice(range)
    }
}

/// The bytes of a Python object that are written.
pub(crate) struct Output(Exported);

impl Output {
    /// The bytes of an object that is written. `sources` are read at the same time, and must be other memory.
    pub(crate) fn new(object: &Bound<'_, PyAny>, sources: &[&Buffer]) -> PyResult<Self> {
        let output = Exported::new(object, exported::Access::Write)?;
        let out = output.bytes().as_ptr_range();
        let overlaps = |source: &&Buffer| {
            let source = source.bytes().as_ptr_range();
            source.start < out.end && out.start < source.end
        };
        if sources.iter().any(overlaps) {
            return Err(PyValueError::new_err("`out` shares memory with what is read"));
        }
        Ok(Self(output))
    }

    /// The bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}
