//! Buffers that are used again and again: fresh pages cost as much as coding.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Longer buffers are not kept: what is made once for a large tensor must not stay for all the small ones.
const MAX_KEPT_LEN: usize = 8 << 20;

/// Buffers are made at least this long, so that nearly all of them fit the next use too. Pages that are not used cost
/// nothing.
const MIN_LEN: usize = 640 << 10;

/// Buffers that nobody uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// A buffer of this length. What it holds is what its last user left.
    pub(crate) fn take(&self, len: usize) -> Buffer<'_> {
        // The last one given back: its bytes are most likely still in the cache.
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = match spare {
            Some(bytes) if bytes.len() >= len => bytes,
            // Zero pages of the system, which are not touched before they are written.
            _ => vec![0; len.max(MIN_LEN)],
        };
        Buffer { home: self, bytes, len }
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
        if !bytes.is_empty() && bytes.len() <= MAX_KEPT_LEN {
            self.home.spare.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_and_large_ones_do_not() {
        let buffers = Buffers::default();
        let mut first = buffers.take(100);
        first.fill(7);
        first.truncate(40);
        assert_eq!(first.len(), 40);
        drop(first);
        assert_eq!(*buffers.take(100), [7; 100], "the same buffer, as it was left");
        drop(buffers.take(MAX_KEPT_LEN + 1));
        assert_eq!(buffers.take(MAX_KEPT_LEN + 1)[0], 0);
        assert!(buffers.spare.lock().unwrap().is_empty());
    }
}
