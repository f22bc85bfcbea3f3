//! Many small objects at once: the records of a list, without a copy.

use super::Buffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// The bytes of every object of a list, which stay where they are until this is dropped.
pub(crate) struct RecordList(Vec<Record>);

enum Record {
    /// The usual case, without the cost of the buffer protocol: the memory of `bytes` does not move or change while
    /// there is a reference to it.
    Bytes {
        start: *const u8,
        len: usize,
        _object: Py<PyBytes>,
    },
    Other(Buffer),
}

// SAFETY: the memory stays where it is as long as the references are held, and is only read.
unsafe impl Send for Record {}

impl RecordList {
    /// Borrows the bytes of every object. The list itself may change afterwards.
    pub(crate) fn read(objects: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut records = Vec::with_capacity(objects.len());
        for object in objects.iter() {
            records.push(match object.cast_into::<PyBytes>() {
                Ok(object) => {
                    let bytes = object.as_bytes();
                    Record::Bytes { start: bytes.as_ptr(), len: bytes.len(), _object: object.unbind() }
                }
                Err(error) => Record::Other(Buffer::read(&error.into_inner())?),
            });
        }
        Ok(Self(records))
    }

    /// The bytes, in order.
    pub(crate) fn slices(&self) -> Vec<&[u8]> {
        self.0.iter().map(Record::bytes).collect()
    }
}

impl Record {
    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: `read` took place and length from the object, which `self` holds a reference to.
            Self::Bytes { start, len, .. } => unsafe { std::slice::from_raw_parts(*start, *len) },
            Self::Other(buffer) => buffer.bytes(),
        }
    }
}
