//! Buffers that are used again and again: fresh pages cost as much as coding.

use crate::Error;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of all buffers that are kept while nobody uses them: what is made once for a large tensor must not stay for all the
/// small ones.
const MAX_KEPT_LEN: usize = 64 << 20;

/// Buffers are made at least this long, so that nearly all of them fit the next use too. Pages that are not used cost
/// nothing.
const MIN_LEN: usize = 640 << 10;

/// So many zeros: pages of the system, which are not touched before they are written.
///
/// # Errors
/// When the system refuses so much memory. What it has promised to others it may still refuse them later.
pub(crate) fn zeros(len: usize) -> Result<Vec<u8>, Error> {
    zero_pages(len).map_err(|error| Error::allocating(len, error))
}

fn zero_pages(len: usize) -> io::Result<Vec<u8>> {
    // Memory that comes as zeros is only had in a way that ends the program when there is none: so this asks first.
    let mut asked = Vec::<u8>::new();
    asked.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // Else the compiler leaves the question out.
    drop(std::hint::black_box(asked));
    Ok(vec![0; len])
}

/// Buffers that nobody uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// A buffer of this length. What it holds is what its last user left.
    pub(crate) fn take(&self, len: usize) -> Result<Buffer<'_>, Error> {
        let bytes = self.take_bytes(len).map_err(|error| Error::allocating(len, error))?;
        Ok(Buffer { home: self, bytes, len })
    }

    /// At least so many bytes, for those who give them back by themselves.
    pub(super) fn take_bytes(&self, len: usize) -> io::Result<Vec<u8>> {
        let mut spare = self.spare();
        // The last one given back that is long enough: its bytes are most likely still in the cache.
        let fitting = spare.iter().rposition(|bytes| bytes.len() >= len);
        let taken = fitting.map(|at| spare.remove(at));
        drop(spare);
        taken.map_or_else(|| zero_pages(len.max(MIN_LEN)), Ok)
    }

    /// Keeps so many bytes at most for the next call, those that were used last.
    pub(crate) fn keep(&self, max_len: usize) {
        let mut spare = self.spare();
        let mut len = 0;
        let n_kept = spare.iter().rev().take_while(|bytes| {
            len += bytes.len();
            len <= max_len
        });
        let n_dropped = spare.len() - n_kept.count();
        spare.drain(..n_dropped);
    }

    pub(super) fn give_back(&self, bytes: Vec<u8>) {
        let mut spare = self.spare();
        spare.push(bytes);
        // What was used least lately makes room.
        let mut len: usize = spare.iter().map(Vec::len).sum();
        while len > MAX_KEPT_LEN {
            len -= spare.remove(0).len();
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer in use, which goes back to where it came from.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    home: &'a Buffers,
    /// At least `len` bytes: it never gets shorter, so that no byte is set to zero twice.
    bytes: Vec<u8>,
    len: usize,
}

impl Buffer<'_> {
    /// Keeps the first bytes only.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if !bytes.is_empty() {
            self.home.give_back(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_refused_is_an_error() {
        let refused = zeros(usize::MAX / 4).unwrap_err();
        assert!(refused.to_string().starts_with("cannot take"), "{refused}");
        assert_eq!(refused.kind(), crate::ErrorKind::Io);
        assert!(Buffers::default().take(usize::MAX / 4).is_err());
    }

    #[test]
    fn a_buffer_comes_back_and_large_ones_do_not() {
        let buffers = Buffers::default();
        let mut first = buffers.take(100).unwrap();
        first.fill(7);
        first.truncate(40);
        assert_eq!(first.len(), 40);
        drop(first);
        assert_eq!(*buffers.take(100).unwrap(), [7; 100], "the same buffer, as it was left");
        drop(buffers.take(MAX_KEPT_LEN + 1).unwrap());
        assert_eq!(buffers.take(MAX_KEPT_LEN + 1).unwrap()[0], 0);
        assert!(buffers.spare().is_empty());
    }

    #[test]
    fn a_buffer_that_fits_is_found_behind_shorter_ones_and_old_ones_go_first() {
        let buffers = Buffers::default();
        let lens = |buffers: &Buffers| buffers.spare().iter().map(Vec::len).collect::<Vec<_>>();
        let (long, short) = (buffers.take(8 << 20).unwrap(), buffers.take(1 << 20).unwrap());
        drop(long);
        drop(short);
        assert_eq!(lens(&buffers), [8 << 20, 1 << 20]);
        drop(buffers.take(5 << 20).unwrap());
        assert_eq!(lens(&buffers), [1 << 20, 8 << 20], "the long one was used last");
        buffers.keep(8 << 20);
        assert_eq!(lens(&buffers), [8 << 20]);
        buffers.keep(0);
        assert!(buffers.spare().is_empty());
    }
}
