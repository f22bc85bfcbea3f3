//! Reads the frames of a container, and feeds their decoding to threads.

use super::BATCH_LEN;
use super::window::Window;
use crate::Error;
use crate::container::{Bases, Content, Entry, EntryKind, OpenTensor, Reader, RunningSum, check_sum};
use crate::pipeline::buffers::{Buffer, Buffers};
use crate::pipeline::ordered::{Closed, Line};
use mithril_codec::checksum;
use mithril_format::container::StoredFrame;
use mithril_format::{Digest, ReadAt};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Glue up to this length is decoded once. It comes in as many pieces as there are tensors.
const GLUE_IN_MEMORY_LEN: u64 = 4 << 20;

/// Tensors that are decoded by one job at most, however small.
const MAX_GROUP: usize = 256;

/// A piece of the original file.
pub(super) enum Piece<'a> {
    /// Decoded bytes.
    Decoded(Buffer<'a>),
    /// Bytes of a base, which nothing in the container itself has a sum of.
    Copied(Buffer<'a>),
    /// Bytes that belong to no tensor.
    Glue(Vec<u8>),
    /// The end of what was copied from a base for the tensor of this name; it must have this digest.
    EndOfCopy(Digest, &'a str),
}

/// Feeds a container to the threads that decode it.
pub(super) struct Feeder<'line, 'env, S> {
    pub(super) reader: &'env Reader<S>,
    pub(super) bases: &'env Bases,
    pub(super) buffers: &'env Buffers,
    pub(super) line: &'line Line<'env, Result<Piece<'env>, Error>>,
}

/// Glue, and how much of it was fed.
enum Glue<'env> {
    None,
    Decoded(Vec<u8>, usize),
    /// Too long to be kept.
    Open(Arc<OpenTensor<'env>>, u64),
}

impl<'env, S: ReadAt> Feeder<'_, 'env, S> {
    /// Feeds glue and tensors, in the order of the original file.
    pub(super) fn feed_all(&self) -> Result<(), Error> {
        let entries = self.reader.entries();
        let mut glue = Glue::None;
        let mut entry_idx = 0;
        if let Some(entry) = entries.first().filter(|entry| entry.glue) {
            glue = self.open_glue().map_err(|error| error.in_tensor(entry.label()))?;
            entry_idx = 1;
        }
        let in_glue = |error: Error| error.in_tensor(entries[0].label());
        while entry_idx < entries.len() {
            let entry = &entries[entry_idx];
            self.feed_glue(&mut glue, entry.glue_before).map_err(in_glue)?;
            let n_small = self.n_small(entry_idx);
            if n_small > 0 {
                self.push_small(entry_idx..entry_idx + n_small)?;
                entry_idx += n_small;
                continue;
            }
            let fed = match self.reader.directory().frame(entry_idx) {
                Some(stored) => self.feed_frame(entry_idx, stored),
                None => self.feed_link(entry_idx, entry),
            };
            fed.map_err(|error| error.in_tensor(entry.label()))?;
            entry_idx += 1;
        }
        self.feed_glue(&mut glue, u64::MAX).map_err(in_glue)
    }

    fn push_done(&self, piece: Result<Piece<'env>, Error>) -> Result<(), Error> {
        self.line.push_done(piece).map_err(closed)
    }

    fn open_glue(&self) -> Result<Glue<'env>, Error> {
        let reader = self.reader;
        let stored = reader.directory().frame(0).expect("glue has a frame");
        let tensor = reader.open_tensor(0, self.bases)?;
        let glue = if tensor.raw_len() <= GLUE_IN_MEMORY_LEN {
            // Decoded before it is summed up: that says more precisely what is damaged, if it notices.
            Glue::Decoded(tensor.read_all(1)?, 0)
        } else {
            Glue::Open(Arc::new(tensor), 0)
        };
        reader.verify_stored(0, stored)?;
        Ok(glue)
    }

    /// Feeds the next bytes of the glue, at most so many.
    fn feed_glue(&self, glue: &mut Glue<'env>, len: u64) -> Result<(), Error> {
        match glue {
            Glue::None => Ok(()),
            Glue::Decoded(bytes, at) => {
                let rest = &bytes[*at..];
                let piece = &rest[..usize::try_from(len).unwrap_or(usize::MAX).min(rest.len())];
                *at += piece.len();
                if piece.is_empty() { Ok(()) } else { self.push_done(Ok(Piece::Glue(piece.to_vec()))) }
            }
            Glue::Open(tensor, at) => {
                let end = at.saturating_add(len).min(tensor.raw_len());
                let range = *at..end;
                *at = end;
                self.push_range(tensor, range, self.reader.entries()[0].label(), Piece::Decoded)
            }
        }
    }

    /// How many entries from this one on have their own bytes, few of them, and no glue between them.
    fn n_small(&self, first: usize) -> usize {
        let directory = self.reader.directory();
        let entries = &self.reader.entries()[first..];
        let start = directory.place(first).map_or(0, |place| place.start);
        let mut raw_len = 0;
        let fits = |(idx, entry): &(usize, &Entry)| {
            raw_len += entry.raw_len();
            raw_len <= BATCH_LEN
                && (*idx == 0 || entry.glue_before == 0)
                && (entry.frame().is_some() || entry.kind() == EntryKind::Inline)
                && directory.place(first + idx).is_some_and(|place| place.end - start <= BATCH_LEN)
        };
        entries.iter().enumerate().take(MAX_GROUP).take_while(fits).count()
    }

    /// Feeds small entries as one job.
    fn push_small(&self, entries: Range<usize>) -> Result<(), Error> {
        let (reader, bases, buffers) = (self.reader, self.bases, self.buffers);
        let place = |entry_idx| reader.directory().place(entry_idx).expect("an entry of this container");
        let range = place(entries.start).start..place(entries.end - 1).end;
        let window = Window::read(reader.source(), range, buffers)?;
        let job = move || {
            let raw_len: u64 = reader.entries()[entries.clone()].iter().map(Entry::raw_len).sum();
            let mut out = buffers.take(small(raw_len))?;
            let mut rest = &mut out[..];
            for entry_idx in entries {
                let entry = &reader.entries()[entry_idx];
                let (place, left) = rest.split_at_mut(small(entry.raw_len()));
                decode_small(reader, entry_idx, bases, &window, place)
                    .map_err(|error| error.in_tensor(entry.label()))?;
                rest = left;
            }
            Ok(Piece::Decoded(out))
        };
        self.line.push(job).map_err(closed)
    }

    /// Feeds an entry with a large frame, batch by batch.
    fn feed_frame(&self, entry_idx: usize, stored: StoredFrame) -> Result<(), Error> {
        let (reader, buffers) = (self.reader, self.buffers);
        let name = reader.entries()[entry_idx].label();
        let between = Window::read(reader.source(), stored.record_offset..stored.offset, buffers)?;
        reader.directory().check_record(entry_idx, between.bytes(stored.record_offset..stored.offset))?;
        let tensor = Arc::new(reader.open_in(entry_idx, reader.source(), self.bases)?);
        let mut sum = RunningSum::new(stored.offset);
        let mut first_block = 0;
        while let Some(batch) = tensor.batch(first_block, BATCH_LEN) {
            sum.read_up_to(reader.source(), batch.coded.start)?;
            let window = Window::read(reader.source(), batch.coded.clone(), buffers)?;
            sum.update(batch.coded.start, window.bytes(batch.coded.clone()));
            first_block = batch.blocks.end;
            let tensor = Arc::clone(&tensor);
            let job = move || {
                let mut out = buffers.take(small(batch.raw.end - batch.raw.start))?;
                let coded = window.bytes(batch.coded.clone());
                let decoded = tensor.decode_batch(&batch, coded, &mut out);
                decoded.map_err(|error| error.in_tensor(name))?;
                Ok(Piece::Decoded(out))
            };
            self.line.push(job).map_err(closed)?;
        }
        // In its place behind the blocks: decoding says more precisely what is damaged, if it notices.
        match sum.check(reader.source(), stored) {
            Ok(()) => Ok(()),
            Err(error) => self.push_done(Err(error.in_tensor(name))),
        }
    }

    /// Feeds an entry that has no frame.
    fn feed_link(&self, entry_idx: usize, entry: &'env Entry) -> Result<(), Error> {
        self.reader.verify_link(entry_idx)?;
        let tensor = Arc::new(self.reader.open_tensor(entry_idx, self.bases)?);
        let range = 0..tensor.raw_len();
        let Content::Copy { base, .. } = &entry.content else {
            return self.push_range(&tensor, range, entry.label(), Piece::Decoded);
        };
        self.push_range(&tensor, range, entry.label(), Piece::Copied)?;
        self.push_done(Ok(Piece::EndOfCopy(*base, entry.label())))
    }

    /// Feeds a range of a tensor that other bytes than its own frame hold, batch by batch.
    fn push_range(
        &self,
        tensor: &Arc<OpenTensor<'env>>,
        range: Range<u64>,
        name: &'env str,
        piece: fn(Buffer<'env>) -> Piece<'env>,
    ) -> Result<(), Error> {
        let buffers = self.buffers;
        let step = (BATCH_LEN / tensor.block_len()).max(1) * tensor.block_len();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / step + 1) * step);
            let tensor = Arc::clone(tensor);
            let job = move || {
                let mut out = buffers.take(small(end - at))?;
                tensor.read_range(at..end, &mut out, 1).map_err(|error| error.in_tensor(name))?;
                Ok(piece(out))
            };
            self.line.push(job).map_err(closed)?;
            at = end;
        }
        Ok(())
    }
}

/// Decodes an entry whose frame, if it has one, and record lie in a window.
fn decode_small<S: ReadAt>(
    reader: &Reader<S>,
    entry_idx: usize,
    bases: &Bases,
    window: &Window<'_>,
    out: &mut [u8],
) -> Result<(), Error> {
    let Some(stored) = reader.directory().frame(entry_idx) else {
        if let Some(record) = reader.directory().link_record(entry_idx) {
            reader.directory().check_record(entry_idx, window.bytes(record))?;
        }
        return reader.open_tensor(entry_idx, bases)?.read_range(0..out.len() as u64, out, 1);
    };
    let between = window.bytes(stored.record_offset..stored.offset);
    reader.directory().check_record(entry_idx, between)?;
    let tensor = reader.open_in(entry_idx, window, bases)?;
    tensor.read_range(0..out.len() as u64, out, 1)?;
    // After decoding, which says more precisely what is damaged, if it notices.
    Ok(check_sum(stored, checksum(window.bytes(stored.offset..stored.end())))?)
}

/// Fails only when writing failed, whose own error is reported then.
fn closed(_: Closed) -> Error {
    Error::writing(io::ErrorKind::BrokenPipe.into())
}

/// A length that is known to lie in memory.
fn small(len: u64) -> usize {
    usize::try_from(len).expect("a length within a buffer")
}
