//! Bytes that can be read from any place: a buffer, a file, an object behind a network.

use std::io;
use std::ops::Range;

/// A source of bytes with random access. Reads may come from several threads at once.
pub trait ReadAt: Send + Sync {
    /// Bytes in all.
    ///
    /// # Errors
    /// When the system cannot tell.
    fn size(&self) -> io::Result<u64>;

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` when the source ends before `out` is full; else the system's reason.
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// The bytes of a range. Takes memory for all of them: a range from untrusted bytes is checked first.
    ///
    /// # Errors
    /// As [`ReadAt::read_exact_at`]; `OutOfMemory` when the range is larger than memory can be.
    fn read_range(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let len = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = vec![0; len];
        self.read_exact_at(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes of a range, when they are in memory anyway.
    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        let _ = range;
        None
    }

    /// Refuses a source that is known to have changed since it was opened: what was read of it may be a mixture.
    ///
    /// # Errors
    /// When it has changed. Sources that cannot change, or do not know, never fail.
    fn check_unchanged(&self) -> io::Result<()> {
        Ok(())
    }
}

impl ReadAt for [u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(self.slice(offset..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        self.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> io::Result<u64> {
        self.as_slice().size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, out)
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        self.as_slice().slice(range)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Box<T> {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, out)
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        (**self).slice(range)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        (**self).check_unchanged()
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, out)
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        (**self).slice(range)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        (**self).check_unchanged()
    }
}

/// Some bytes of a larger source that were fetched before they are needed, at the places they have there.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    start: u64,
    bytes: Vec<u8>,
}

impl Fetched {
    /// Fetches a range of a source. Takes memory for all of it, as [`ReadAt::read_range`] does.
    ///
    /// # Errors
    /// As [`ReadAt::read_range`].
    pub fn new(source: &(impl ReadAt + ?Sized), range: Range<u64>) -> io::Result<Self> {
        Self::into_buffer(source, range, Vec::new())
    }

    /// As [`Fetched::new`], into a buffer that is used again.
    ///
    /// # Errors
    /// As [`ReadAt::read_range`].
    pub fn into_buffer(
        source: &(impl ReadAt + ?Sized),
        range: Range<u64>,
        mut buffer: Vec<u8>,
    ) -> io::Result<Self> {
        let len = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::OutOfMemory)?;
        buffer.resize(len, 0);
        source.read_exact_at(range.start, &mut buffer)?;
        Ok(Self { start: range.start, bytes: buffer })
    }

    /// The buffer, to be used again.
    pub fn into_inner(self) -> Vec<u8> {
        self.bytes
    }
}

impl ReadAt for Fetched {
    fn size(&self) -> io::Result<u64> {
        Ok(self.start + self.bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = offset.checked_sub(self.start).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.bytes.read_exact_at(offset, out)
    }

    fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        self.bytes.slice(range.start.checked_sub(self.start)?..range.end.checked_sub(self.start)?)
    }
}

/// A file is read with `pread`: one that is cut off while it is read gives an error, never a signal.
#[cfg(unix)]
impl ReadAt for std::fs::File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, out, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_outside_a_buffer_are_refused() {
        let bytes = [1u8, 2, 3].as_slice();
        let mut out = [0; 2];
        bytes.read_exact_at(1, &mut out).unwrap();
        assert_eq!(out, [2, 3]);
        for offset in [2, 3, 4, u64::MAX] {
            let error = bytes.read_exact_at(offset, &mut out).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset}");
        }
        bytes.read_exact_at(3, &mut []).unwrap();
    }

    #[test]
    fn fetched_bytes_keep_their_places() {
        let source: Vec<u8> = (0..100).collect();
        let fetched = Fetched::new(&source, 40..50).unwrap();
        assert_eq!(fetched.read_range(42..45).unwrap(), [42, 43, 44]);
        assert_eq!(fetched.slice(49..50), Some(&[49][..]));
        assert_eq!(fetched.slice(39..41), None);
        assert_eq!(fetched.slice(49..51), None);
    }
}
