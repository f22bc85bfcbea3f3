//! Checks everything that a container says about itself, and keeps nothing.

use super::needs::digest_of;
use super::{Bases, EntryKind, Reader};
use crate::Error;
use crate::pack::Progress;
use mithril_codec::Checksummer;
use mithril_format::container::StoredFrame;
use mithril_format::{Digester, FormatError, ReadAt};
use std::collections::HashSet;

/// How far checking goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// What the container holds itself: tensors that need a base are checked by the sum of their frames only.
    #[default]
    Alone,
    /// Bases are found by their digests, and everything is decoded.
    WithBases,
}

/// What checking a container found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Verification {
    /// Tensors that were decoded and found intact.
    pub n_decoded: usize,
    /// Tensors of which only the stored bytes were checked, because they need a base.
    pub n_without_base: usize,
    /// Raw bytes that were decoded.
    pub decoded_len: u64,
    /// The base that was not found, if one is missing: what needs it is neither intact nor damaged as far as is known.
    pub missing_base: Option<Error>,
    /// What is damaged, in order. Empty when the container is intact.
    pub problems: Vec<Error>,
}

impl Verification {
    /// Whether everything was looked at, and nothing found damaged.
    pub fn is_intact(&self) -> bool {
        self.problems.is_empty() && self.missing_base.is_none()
    }
}

/// Bytes of a frame that are summed up at a time.
const PIECE_LEN: u64 = 4 << 20;

impl<S: ReadAt> Reader<S> {
    /// Checks header and digest, every record, padding and frame sum, decodes every tensor, and compares recorded
    /// digests. Goes on behind damage, so that all of it is found. `threads` as in
    /// [`DecodeOptions`](crate::DecodeOptions).
    ///
    /// # Errors
    /// When the source cannot be read. Damage is no error but a finding.
    pub fn verify(
        &self,
        bases: &Bases,
        depth: Depth,
        threads: usize,
        progress: Progress<'_>,
    ) -> Result<Verification, Error> {
        let mut found = Verification {
            n_decoded: 0,
            n_without_base: 0,
            decoded_len: 0,
            missing_base: None,
            problems: Vec::new(),
        };
        let mut missing = Vec::new();
        if let Err(error) = self.header() {
            found.take(error)?;
        }
        let mut damaged = HashSet::new();
        for entry_idx in 0..self.entries().len() {
            let entry = &self.entries()[entry_idx];
            let checked = match self.directory().frame(entry_idx) {
                Some(frame) => self.verify_stored(entry_idx, frame),
                None => self.verify_link(entry_idx),
            };
            let needs_base = depth == Depth::Alone && self.needs_base(entry_idx);
            let is_known = self.same_as(entry_idx).is_some_and(|target_idx| !damaged.contains(&target_idx));
            let checked = checked.and_then(|()| match needs_base || is_known {
                true => Ok(()),
                false => self.verify_content(entry_idx, bases, threads),
            });
            match checked {
                Err(error) if error.is_missing_base() => {
                    damaged.insert(entry_idx);
                    missing.push(error.in_tensor(&entry.name));
                    found.n_without_base += 1;
                }
                Err(error) => {
                    damaged.insert(entry_idx);
                    found.take(error.in_tensor(&entry.name))?;
                }
                Ok(()) if needs_base => found.n_without_base += 1,
                Ok(()) => {
                    found.n_decoded += usize::from(!entry.glue);
                    found.decoded_len += entry.raw_len();
                }
            }
            progress(entry.raw_len());
        }
        found.missing_base = self.missing_base(missing);
        Ok(found)
    }

    /// The earlier entry that has the bytes of this one, and the same digest if there is one: what is known of that one is
    /// known of this one, however many there are.
    fn same_as(&self, entry_idx: usize) -> Option<usize> {
        let entry = &self.entries()[entry_idx];
        let target_idx = entry.target().filter(|_| entry.kind() == EntryKind::Ref)?;
        let target = &self.entries()[target_idx];
        entry.digest.is_none_or(|digest| target.digest == Some(digest)).then_some(target_idx)
    }

    /// One error for all tensors whose base was not found, with the names that the header knows.
    pub(crate) fn missing_base(&self, missing: Vec<Error>) -> Option<Error> {
        let n_missing = missing.len();
        let first = Box::new(missing.into_iter().next()?);
        let models = self.header().map_or_else(|_| Vec::new(), |header| header.bases);
        let n_tensors = self.entries().iter().filter(|entry| entry.base().is_some()).count();
        let models = models.into_iter().map(|base| base.name).collect();
        Some(Error::MissingModel { models, n_tensors: n_tensors.max(n_missing), n_missing, first })
    }

    /// Whether an entry cannot be decoded without a base.
    pub(crate) fn needs_base(&self, entry_idx: usize) -> bool {
        use super::Content;
        match &self.entries()[entry_idx].content {
            Content::Ref { entry_idx } | Content::Derived { entry_idx, .. } => self.needs_base(*entry_idx),
            _ => matches!(self.entries()[entry_idx].kind(), EntryKind::Copy | EntryKind::Delta),
        }
    }

    /// Checks the record, the padding and the sum of the stored bytes of a frame.
    pub(crate) fn verify_stored(&self, entry_idx: usize, frame: StoredFrame) -> Result<(), Error> {
        let between = self.source().read_range(frame.record_offset..frame.offset).map_err(Error::reading)?;
        self.directory().check_record(entry_idx, &between)?;
        self.verify_sum(frame)
    }

    /// Checks the record of an entry that has no frame, if it has one.
    pub(crate) fn verify_link(&self, entry_idx: usize) -> Result<(), Error> {
        if let Some(record) = self.directory().link_record(entry_idx) {
            let bytes = self.source().read_range(record).map_err(Error::reading)?;
            self.directory().check_record(entry_idx, &bytes)?;
        }
        Ok(())
    }

    /// Checks the sum of the stored bytes of a frame.
    pub(super) fn verify_sum(&self, frame: StoredFrame) -> Result<(), Error> {
        let mut sum = Checksummer::default();
        let mut at = frame.offset;
        while at < frame.end() {
            let end = (at + PIECE_LEN).min(frame.end());
            sum.update(&self.source().read_range(at..end).map_err(Error::reading)?);
            at = end;
        }
        let (expected, actual) = (frame.checksum, sum.finish());
        if expected != actual {
            let offset = frame.offset;
            return Err(FormatError::Checksum { what: "frame", offset, expected, actual }.into());
        }
        Ok(())
    }

    /// Decodes a tensor, and compares its digest if one is recorded.
    pub(super) fn verify_content(
        &self,
        entry_idx: usize,
        bases: &Bases,
        threads: usize,
    ) -> Result<(), Error> {
        let tensor = self.open_tensor(entry_idx, bases)?;
        let expected = digest_of(self.entries(), entry_idx);
        let mut digester = Digester::default();
        tensor.for_each_piece(threads, |piece| {
            if expected.is_some() {
                digester.update(piece);
            }
            Ok(())
        })?;
        match expected {
            Some(expected) if digester.finish() != expected => {
                let what = "the tensor has another digest than the index says";
                Err(FormatError::Corrupt { what, offset: self.directory().index_offset() }.into())
            }
            _ => Ok(()),
        }
    }
}

impl Verification {
    /// Damage is kept; that a source cannot be read at all is an error.
    fn take(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Io { .. } => Err(error),
            _ => {
                self.problems.push(error);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{PackOptions, pack};

    fn container() -> Vec<u8> {
        let header = br#"{"a":{"dtype":"F32","shape":[50],"data_offsets":[0,200]},"b":{"dtype":"F32","shape":[50],"data_offsets":[200,400]}}"#;
        let numbers: Vec<u8> = (0..50u16).flat_map(|i| (f32::from(i) * 0.37).sin().to_le_bytes()).collect();
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &numbers, &numbers].concat();
        pack(&file, Vec::new(), &PackOptions::default().with_digests(true), &|_| ()).unwrap().0
    }

    fn verify(container: Vec<u8>) -> Result<Verification, Error> {
        Reader::open(container)?.verify(&Bases::none(), Depth::Alone, 1, &|_| ())
    }

    #[test]
    fn intact_container_has_no_problems() {
        let found = verify(container()).unwrap();
        assert!(found.is_intact());
        assert_eq!((found.n_decoded, found.n_without_base), (2, 0));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let whole = container();
        for bit in 0..8 * whole.len() {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let is_found = verify(damaged).map_or(true, |found| !found.is_intact());
            assert!(is_found, "bit {} of byte {} of {}", bit % 8, bit / 8, whole.len());
        }
    }
}
