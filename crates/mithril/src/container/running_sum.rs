//! The checksum of a frame's bytes, taken while they are read for decoding.

use crate::Error;
use mithril_codec::Checksummer;
use mithril_format::container::StoredFrame;
use mithril_format::{FormatError, ReadAt};

/// Bytes read at a time where decoding left some out.
const PIECE_LEN: u64 = 1 << 20;

/// The checksum of a frame up to some place. Blocks carry checksums of what they decode to; this one also covers the
/// bits that decoding does not look at.
#[derive(Debug)]
pub(crate) struct RunningSum {
    end: u64,
    sum: Checksummer,
}

impl RunningSum {
    /// Nothing summed up yet of a frame that starts here.
    pub(crate) fn new(start: u64) -> Self {
        Self { end: start, sum: Checksummer::default() }
    }

    /// Takes bytes that stand at `start`, if they follow those taken before. Blocks at the ends of two ranges are read
    /// twice and count once.
    pub(crate) fn update(&mut self, start: u64, bytes: &[u8]) {
        let known = self.end.checked_sub(start).and_then(|known| usize::try_from(known).ok());
        if let Some(new) = known.and_then(|known| bytes.get(known..)) {
            self.sum.update(new);
            self.end += new.len() as u64;
        }
    }

    /// Takes the bytes up to an offset from the source.
    pub(crate) fn read_up_to(&mut self, source: &dyn ReadAt, end: u64) -> Result<(), Error> {
        while self.end < end {
            let start = self.end;
            let bytes = source.read_range(start..end.min(start + PIECE_LEN)).map_err(Error::reading)?;
            self.update(start, &bytes);
        }
        Ok(())
    }

    /// Takes what is left of the frame, and compares.
    pub(crate) fn check(&mut self, source: &dyn ReadAt, frame: StoredFrame) -> Result<(), Error> {
        self.read_up_to(source, frame.end())?;
        Ok(check_sum(frame, self.sum.finish())?)
    }
}

/// Refuses a frame whose bytes sum up to something else than the index says.
pub(crate) fn check_sum(frame: StoredFrame, actual: u64) -> Result<(), FormatError> {
    let (expected, offset) = (frame.checksum, frame.offset);
    if expected == actual {
        return Ok(());
    }
    Err(FormatError::Checksum { what: "frame", offset, expected, actual })
}
