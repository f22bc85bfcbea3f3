//! Finds the entries of a container whose index is lost, by their records.

use super::record::MAX_RECORD_LEN;
use super::{Header, Prologue, Record};
use crate::forever::RECORD_MAGIC;
use crate::frame::{BlockHeader, FrameHeader, FrameLayout, Trailer};
use crate::limits::MAX_ALIGNMENT_LOG2;
use crate::{FormatError, ReadAt, ReadError};
use std::ops::Range;

/// A record that was found, and its frame if it has one and that is whole.
#[derive(Debug)]
pub struct Found {
    /// The record.
    pub record: Record,
    /// Where it starts.
    pub offset: u64,
    /// Where its frame lies; none when its header, the header of a block, or its trailer is damaged, and for a link.
    pub frame: Option<Range<u64>>,
}

/// Bytes that are searched at a time.
const WINDOW_LEN: u64 = 1 << 20;

/// Reads prologue and header alone, without the footer that confirms them.
///
/// # Errors
/// When the source cannot be read, is no container, or its header is damaged.
pub fn read_front(source: &(impl ReadAt + ?Sized)) -> Result<(Prologue, Header), ReadError> {
    let len = source.size()?;
    let prologue = Prologue::parse(&source.read_range(0..len.min(Prologue::LEN as u64))?)?;
    if prologue.header_end() > len {
        return Err(FormatError::Truncated { what: "container header", offset: Prologue::LEN as u64 }.into());
    }
    let json = prologue.decode_header(&source.read_range(0..prologue.header_end())?)?;
    Ok((prologue, Header::from_json(&json)?))
}

/// All records in a source, in order, with their frames. `alignment_log2` is what the prologue says; without one, every
/// alignment is tried.
///
/// Frames that are whole are not searched: what they hold may be a container itself.
///
/// # Errors
/// When the source cannot be read.
pub fn scan(
    source: &(impl ReadAt + ?Sized),
    alignment_log2: Option<u8>,
    mut progress: impl FnMut(u64),
) -> Result<Vec<Found>, ReadError> {
    let len = source.size()?;
    let mut found = Vec::new();
    let mut at = 0;
    while at < len {
        let window = source.read_range(at..len.min(at + WINDOW_LEN))?;
        let next = match position(&window, &RECORD_MAGIC) {
            // The last bytes are searched again, with what follows them.
            None => at + (window.len() as u64).saturating_sub(RECORD_MAGIC.len() as u64 - 1).max(1),
            Some(place) => {
                let offset = at + place as u64;
                let bytes = source.read_range(offset..len.min(offset + MAX_RECORD_LEN as u64))?;
                match Record::parse(&bytes, offset) {
                    Err(_) => offset + 1,
                    Ok((record, record_len)) => {
                        let record_end = offset + record_len as u64;
                        let frame = match record.link {
                            Some(_) => None,
                            None => find_frame(source, record_end, len, alignment_log2)?,
                        };
                        let next = frame.as_ref().map_or(record_end, |frame| frame.end);
                        found.push(Found { record, offset, frame });
                        next
                    }
                }
            }
        };
        progress(next.min(len) - at);
        at = next;
    }
    Ok(found)
}

fn position(bytes: &[u8], pattern: &[u8; 4]) -> Option<usize> {
    let mut from = 0;
    loop {
        from += bytes[from..].iter().position(|byte| *byte == pattern[0])?;
        if bytes.get(from..from + pattern.len())? == pattern {
            return Some(from);
        }
        from += 1;
    }
}

/// The frame behind a record, on the next multiple of the alignment.
fn find_frame(
    source: &(impl ReadAt + ?Sized),
    record_end: u64,
    len: u64,
    alignment_log2: Option<u8>,
) -> Result<Option<Range<u64>>, ReadError> {
    let alignments = match alignment_log2 {
        Some(log2) => log2..=log2,
        None => 0..=MAX_ALIGNMENT_LOG2,
    };
    let mut tried = None;
    for log2 in alignments {
        let Some(start) = record_end.checked_next_multiple_of(1 << log2) else { continue };
        if tried.replace(start) == Some(start) {
            continue;
        }
        match frame_end(source, start, len) {
            Ok(end) => return Ok(Some(start..end)),
            Err(ReadError::Format(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Where the frame ends that starts here: found block by block, and confirmed by its trailer.
fn frame_end(source: &(impl ReadAt + ?Sized), start: u64, len: u64) -> Result<u64, ReadError> {
    let truncated = |what, offset| FormatError::Truncated { what, offset };
    // Two reads: how long the header is, then all of it.
    let read = |at: u64, n: u64, what| match at.checked_add(n).filter(|&end| end <= len) {
        Some(end) => Ok(source.read_range(at..end)?),
        None => Err(ReadError::from(truncated(what, at))),
    };
    let first = read(start, 32.min(len.saturating_sub(start)), "frame header")?;
    let header_len = FrameHeader::len(&first)?.ok_or(truncated("frame header", start))? as u64;
    let (header, _) = FrameHeader::parse(&read(start, header_len, "frame header")?)?;
    let block_header_len = BlockHeader::len(header.checksums) as u64;
    let mut at = start + header_len;
    let mut n_blocks = 0;
    loop {
        let bytes = read(at, block_header_len.min(len.saturating_sub(at)), "block header")?;
        let Some(block) = BlockHeader::parse(&bytes, &header, at)? else { break };
        at += block_header_len + u64::from(block.coded_len);
        n_blocks += 1;
    }
    let end = at + Trailer::len(n_blocks) as u64;
    if end > len {
        return Err(truncated("frame trailer", at).into());
    }
    FrameLayout::read(source, start..end)?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{ContainerWriter, Entry};
    use mithril_codec::Dtype;
    use std::io::Write;

    /// A frame without blocks.
    fn empty_frame() -> Vec<u8> {
        let header = FrameHeader {
            dtype: Dtype::U8,
            shape: Some(vec![0]),
            block_len: 1 << 16,
            raw_len: Some(0),
            checksums: true,
            base: None,
            shared: Default::default(),
        };
        let mut frame = Vec::new();
        header.write(&mut frame);
        Trailer::default().write(&mut frame);
        frame
    }

    fn container(alignment_log2: u8) -> Vec<u8> {
        let mut writer = ContainerWriter::new(Vec::new(), &Header::default(), alignment_log2).unwrap();
        for name in ["a", "b", "c"] {
            let mut frame = writer.start_frame(Entry::full(name, Dtype::U8, [0])).unwrap();
            frame.write_all(&empty_frame()).unwrap();
            frame.finish();
        }
        writer.finish().unwrap().writer
    }

    fn names(source: &Vec<u8>, alignment_log2: Option<u8>) -> Vec<(String, bool)> {
        let found = scan(source, alignment_log2, |_| ()).unwrap();
        found.into_iter().map(|found| (found.record.name, found.frame.is_some())).collect()
    }

    #[test]
    fn frames_are_found_without_an_index_and_without_a_prologue() {
        for alignment_log2 in [0, 6, 12] {
            let mut bytes = container(alignment_log2);
            let whole = ["a", "b", "c"].map(|name| (name.to_owned(), true));
            assert_eq!(names(&bytes, Some(alignment_log2)), whole);
            assert_eq!(read_front(&bytes).unwrap().0.alignment_log2, alignment_log2);
            bytes[..Prologue::LEN].fill(0);
            assert_eq!(names(&bytes, None), whole);
            assert!(read_front(&bytes).is_err());
        }
    }

    #[test]
    fn damaged_frames_are_named_and_those_behind_them_found() {
        let bytes = container(6);
        let frames: Vec<_> = scan(&bytes, Some(6), |_| ()).unwrap();
        let second = frames[1].frame.clone().unwrap();
        let mut damaged = bytes.clone();
        damaged[usize::try_from(second.start).unwrap() + 10] ^= 1;
        let expected = [("a", true), ("b", false), ("c", true)].map(|(name, whole)| (name.to_owned(), whole));
        assert_eq!(names(&damaged, Some(6)), expected);
        let cut = bytes[..usize::try_from(second.end).unwrap() - 1].to_vec();
        assert_eq!(names(&cut, Some(6)), expected[..2]);
    }

    #[test]
    fn scanning_survives_every_cut() {
        let bytes = container(6);
        for len in 0..bytes.len() {
            let found = scan(&bytes[..len].to_vec(), None, |_| ()).unwrap();
            assert!(found.len() <= 3);
        }
    }
}
