//! Some bytes of a file: read at once into a buffer that is used again, or lent by a source that has them in memory.

use crate::Error;
use crate::pipeline::buffers::{Buffer, Buffers};
use mithril_format::ReadAt;
use std::io;
use std::ops::{Deref, Range};

/// A range of a larger source, whose bytes keep the places they have there.
pub(super) struct Window<'a> {
    start: u64,
    bytes: Held<'a>,
}

enum Held<'a> {
    Lent(&'a [u8]),
    Read(Buffer<'a>),
}

impl Deref for Held<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Read(buffer) => buffer,
        }
    }
}

impl<'a> Window<'a> {
    /// Reads a range that fits memory.
    pub(super) fn read(
        source: &'a (impl ReadAt + ?Sized),
        range: Range<u64>,
        buffers: &'a Buffers,
    ) -> Result<Self, Error> {
        if let Some(bytes) = source.slice(range.clone()) {
            return Ok(Self { start: range.start, bytes: Held::Lent(bytes) });
        }
        let len = usize::try_from(range.end - range.start)
            .map_err(|_| Error::reading(io::ErrorKind::OutOfMemory.into()))?;
        let mut bytes = buffers.take(len)?;
        source.read_exact_at(range.start, &mut bytes).map_err(Error::reading)?;
        Ok(Self { start: range.start, bytes: Held::Read(bytes) })
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// When it does not lie in the window.
    pub(super) fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.slice(range).expect("a range within the window")
    }
}

impl ReadAt for Window<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.start + self.bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = offset.checked_sub(self.start).ok_or(io::ErrorKind::UnexpectedEof)?;
        (*self.bytes).read_exact_at(offset, out)
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        (*self.bytes).slice(range.start.checked_sub(self.start)?..range.end.checked_sub(self.start)?)
    }
}
