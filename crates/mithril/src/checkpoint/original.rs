//! The file that a container was packed from, readable at any place without unpacking it.

use crate::Error;
use crate::container::{Bases, OpenTensor, Reader};
use mithril_format::ReadAt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A packed file, seen as the original.
pub(super) struct OriginalFile<'a> {
    reader: &'a Reader<Box<dyn ReadAt>>,
    bases: &'a Bases,
    pieces: Vec<Piece>,
    len: u64,
    /// The tensor that was read last: neighbouring ranges are likely to come next.
    opened: Mutex<Option<(usize, Arc<OpenTensor<'a>>)>>,
}

/// A stretch of the original file.
struct Piece {
    start: u64,
    len: u64,
    entry_idx: usize,
    /// Where the stretch starts in the entry.
    offset: u64,
}

impl<'a> OriginalFile<'a> {
    pub(super) fn new(reader: &'a Reader<Box<dyn ReadAt>>, bases: &'a Bases) -> Self {
        let mut pieces = Vec::new();
        let (mut start, mut glue_offset) = (0, 0);
        let mut push = |entry_idx: usize, offset: u64, len: u64| {
            if len > 0 {
                pieces.push(Piece { start, len, entry_idx, offset });
                start += len;
            }
        };
        let entries = reader.entries();
        // Glue, if there is any, is the first entry.
        let glue_len = entries.first().filter(|entry| entry.glue).map_or(0, |glue| glue.raw_len());
        for (entry_idx, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.glue) {
            push(0, glue_offset, entry.glue_before);
            glue_offset += entry.glue_before;
            push(entry_idx, 0, entry.raw_len());
        }
        push(0, glue_offset, glue_len - glue_offset);
        Self { reader, bases, pieces, len: start, opened: Mutex::new(None) }
    }

    fn open(&self, entry_idx: usize) -> Result<Arc<OpenTensor<'a>>, Error> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tensor)) = opened.as_ref().filter(|(opened_idx, _)| *opened_idx == entry_idx) {
            return Ok(tensor.clone());
        }
        let tensor = Arc::new(self.reader.open_tensor(entry_idx, self.bases)?);
        *opened = Some((entry_idx, tensor.clone()));
        Ok(tensor)
    }
}

impl ReadAt for OriginalFile<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= self.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let piece = &self.pieces[self.pieces.partition_point(|piece| piece.start <= at) - 1];
            let skip = at - piece.start;
            let len = usize::try_from(piece.len - skip).unwrap_or(usize::MAX).min(rest.len());
            let (head, tail) = rest.split_at_mut(len);
            let from = piece.offset + skip;
            let read = self.open(piece.entry_idx);
            let read = read.and_then(|tensor| tensor.read_range(from..from + len as u64, head, 0));
            read.map_err(|error| match error {
                Error::Io { source, .. } => source,
                error => io::Error::new(io::ErrorKind::InvalidData, error),
            })?;
            (at, rest) = (at + len as u64, tail);
        }
        Ok(())
    }
}
