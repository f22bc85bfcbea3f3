//! What frames hold, told from their headers: no block is read.

use crate::Error;
use crate::container::{Bases, OpenTensor, Reader};
use crate::frame::{FrameInfo, name_kinds};
use mithril_format::ReadAt;
use mithril_format::frame::{BlockHeader, FrameLayout};
use std::ops::Range;

/// Describes the frame at a range of a source, as [`inspect`](crate::inspect) does for one in memory. Reads both ends of
/// the frame and one byte of every block.
///
/// # Errors
/// When the source cannot be read, or those bytes are not exactly one frame.
pub fn inspect_at(source: &(impl ReadAt + ?Sized), range: Range<u64>) -> Result<FrameInfo, Error> {
    let frame_len = range.end - range.start;
    let layout = FrameLayout::read(source, range)?;
    let header = layout.header();
    let header_len = BlockHeader::len(header.checksums) as u64;
    let mut kinds = Vec::new();
    let mut kind = [0];
    for block_idx in 0..layout.n_blocks() {
        source.read_exact_at(layout.offset_of(block_idx) + header_len, &mut kind).map_err(Error::reading)?;
        kinds.push(kind[0]);
    }
    Ok(FrameInfo {
        dtype: header.dtype,
        shape: header.shape.clone(),
        raw_len: layout.raw_len(),
        frame_len,
        block_len: header.block_len,
        checksums: header.checksums,
        base: header.base,
        block_kinds: name_kinds(kinds),
    })
}

/// How many bytes the frame at a range of a source says that it holds. Reads both ends of the frame.
///
/// # Errors
/// When the source cannot be read, or the ends are not those of one frame.
pub fn raw_len_at(source: &(impl ReadAt + ?Sized), range: Range<u64>) -> Result<u64, Error> {
    Ok(FrameLayout::read(source, range)?.raw_len())
}

impl<S: ReadAt> Reader<S> {
    /// Describes the frame of an entry, if it has one, without reading its blocks.
    ///
    /// # Errors
    /// When the source cannot be read, or the frame's ends are damaged.
    pub fn describe(&self, entry_idx: usize) -> Result<Option<FrameInfo>, Error> {
        let Some(frame) = self.directory().frame(entry_idx) else { return Ok(None) };
        let name = self.entries().get(entry_idx).map_or("", |entry| &entry.name);
        inspect_at(self.source(), frame.offset..frame.end()).map(Some).map_err(|error| error.in_tensor(name))
    }

    /// Coded bytes of every block of an entry's frame, in order; nothing when it has no frame.
    ///
    /// # Errors
    /// As [`Reader::describe`].
    pub fn block_lens(&self, entry_idx: usize) -> Result<Vec<u64>, Error> {
        let Some(frame) = self.directory().frame(entry_idx) else { return Ok(Vec::new()) };
        let layout = FrameLayout::read(self.source(), frame.offset..frame.end())?;
        let len = |block_idx: usize| {
            let range = layout.bytes_of(block_idx..block_idx + 1);
            range.end - range.start
        };
        Ok((0..layout.n_blocks()).map(len).collect())
    }

    /// Prepares to read the base tensor that an entry is stored against, if it is; it is found and checked by digest.
    ///
    /// # Errors
    /// When no base at hand has it.
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn open_base<'a>(&self, entry_idx: usize, bases: &'a Bases) -> Result<Option<OpenTensor<'a>>, Error> {
        let entry = &self.entries()[entry_idx];
        match entry.base() {
            Some((digest, name)) => bases.open(digest, name, entry.raw_len()).map(Some),
            None => Ok(None),
        }
    }
}
