//! The raw bytes of a tensor of the source: in memory, or read piece by piece when they are too many.

use crate::Error;
use mithril_format::{Digest, Digester, ReadAt};
use std::cell::OnceCell;
use std::ops::Range;

/// Bytes read at a time.
pub(super) const PIECE_LEN: u64 = 4 << 20;

/// Raw bytes of a tensor.
#[derive(Clone)]
pub(super) struct Raw<'a> {
    source: &'a dyn ReadAt,
    range: Range<u64>,
    memory: Option<&'a [u8]>,
    digest: OnceCell<Digest>,
}

impl<'a> Raw<'a> {
    /// Bytes at a range of a source; `memory` is those bytes when they were read already.
    pub(super) fn new(source: &'a dyn ReadAt, range: Range<u64>, memory: Option<&'a [u8]>) -> Self {
        Self { source, range, memory, digest: OnceCell::new() }
    }

    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Some bytes, counted from the tensor's first.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        if let Some(memory) = self.memory {
            let place = |at: u64| usize::try_from(at).expect("within memory");
            return Ok(memory[place(range.start)..place(range.end)].to_vec());
        }
        let start = self.range.start;
        let bytes = self.source.read_range(start + range.start..start + range.end);
        bytes.map_err(Error::reading)
    }

    /// Hands all bytes to a function with their place, until it returns false; returns whether it never did.
    pub(super) fn all_pieces(
        &self,
        mut take: impl FnMut(u64, &[u8]) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        if let Some(bytes) = self.memory {
            let pieces = bytes.chunks(usize::try_from(PIECE_LEN).expect("a few MiB"));
            for (at, piece) in (0..).step_by(usize::try_from(PIECE_LEN).expect("a few MiB")).zip(pieces) {
                if !take(at, piece)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let mut at = 0;
        while at < self.len() {
            let end = (at + PIECE_LEN).min(self.len());
            if !take(at, &self.read(at..end)?)? {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    /// Whether all reads give the same bytes, whatever becomes of the source.
    pub(super) fn is_in_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// The digest of the bytes, as they are when it is first asked for.
    pub(super) fn digest(&self) -> Result<Digest, Error> {
        if let Some(&digest) = self.digest.get() {
            return Ok(digest);
        }
        let mut digester = Digester::default();
        self.all_pieces(|_, piece| {
            digester.update(piece);
            Ok(true)
        })?;
        Ok(*self.digest.get_or_init(|| digester.finish()))
    }
}
