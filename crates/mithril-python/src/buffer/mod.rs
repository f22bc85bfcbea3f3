//! The bytes of Python objects, without a copy: whatever has the buffer protocol, and tensors through DLPack.
//!
//! A [`Buffer`] keeps its object's memory where it is until it is dropped, also while the interpreter runs other threads.
//! As with every function of Python that releases the interpreter (`zlib`, `hashlib`, sockets), whoever changes the
//! object meanwhile gets the bytes of some moment in between: that is the caller's contract, and the documentation of
//! the package says so.

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
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tensor::Managed;

/// The bytes of a Python object, C-contiguous.
pub(crate) struct Buffer(Memory);

enum Memory {
    Exported(Exported),
    Tensor(Arc<Managed>),
}

impl Buffer {
    /// The bytes of an object that is only read.
    pub(crate) fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        match object.cast::<BorrowedTensor>() {
            Ok(tensor) => Ok(Self(Memory::Tensor(tensor.get().managed()?))),
            Err(_) => Ok(Self(Memory::Exported(Exported::new(object, exported::Access::Read)?))),
        }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
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
