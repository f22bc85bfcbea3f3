//! Opens a container from any place: the end first, then only what is asked for.

use super::entry::{Content, Entry, parse_index};
use super::{Footer, Header, Prologue, Record, footer};
use crate::forever::container_flags;
use crate::{Digest, FormatError, NameTable, ReadAt, ReadError};
use std::ops::Range;

/// Bytes read from the end at first: footer and index of all but the largest containers.
const TAIL_LEN: u64 = 64 << 10;

/// What a container holds and where, once footer and index are checked.
#[derive(Debug)]
pub struct Directory {
    entries: Vec<Entry>,
    /// Where the record of every entry starts, and where its frame starts, or would start if it had one.
    starts: Vec<Start>,
    names: NameTable,
    footer: Footer,
    index_coded: Vec<u8>,
    file_len: u64,
}

#[derive(Debug, Clone, Copy)]
struct Start {
    record: u64,
    frame: u64,
}

/// Where a frame lies, and what its bytes must sum up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredFrame {
    /// Where the record before it starts.
    pub record_offset: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Checksum of its bytes.
    pub checksum: u64,
}

impl StoredFrame {
    /// Where the frame ends.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

impl Directory {
    /// Reads footer and index: one request, or two when the index is large.
    ///
    /// # Errors
    /// When the source cannot be read, is no container, or its end is damaged.
    pub fn open(source: &(impl ReadAt + ?Sized)) -> Result<Self, ReadError> {
        let file_len = source.size()?;
        if file_len < (Prologue::LEN + Footer::LEN) as u64 {
            Prologue::parse(&source.read_range(0..file_len)?)?;
            return Err(FormatError::NoFooter { offset: file_len }.into());
        }
        let tail_len = file_len.min(TAIL_LEN);
        let tail = source.read_range(file_len - tail_len..file_len)?;
        let last = tail.last_chunk::<{ Footer::LEN }>().expect("at least a footer was read");
        let footer = match Footer::parse(last, file_len) {
            Ok(footer) => footer,
            Err(error) => {
                // Something else altogether is better told from its first bytes.
                Prologue::parse(&source.read_range(0..Prologue::LEN as u64)?)?;
                return Err(error.into());
            }
        };
        let before_footer = &tail[..tail.len() - Footer::LEN];
        let index_coded = match before_footer.len().checked_sub(footer.index_len as usize) {
            Some(start) => before_footer[start..].to_vec(),
            None => source.read_range(footer.index_offset..file_len - Footer::LEN as u64)?,
        };
        let (entries, names) = parse_index(&footer.decode_index(&index_coded)?, footer.index_offset)?;
        let starts = find_frames(&entries, &footer)?;
        Ok(Self { entries, starts, names, footer, index_coded, file_len })
    }

    /// All entries in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The number of the tensor of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.find(name, |entry_idx| &self.entries[entry_idx].name)
    }

    /// Where the frame of an entry lies, if it has one.
    pub fn frame(&self, entry_idx: usize) -> Option<StoredFrame> {
        let entry = self.entries.get(entry_idx)?;
        let (len, checksum) = entry.frame()?;
        let start = self.starts[entry_idx];
        Some(StoredFrame { record_offset: start.record, offset: start.frame, len, checksum })
    }

    /// Where everything of an entry lies: its record if it has one, and its frame if it has one.
    pub fn place(&self, entry_idx: usize) -> Option<Range<u64>> {
        let start = self.starts.get(entry_idx)?;
        let frame_len = self.entries[entry_idx].frame().map_or(0, |(len, _)| len);
        Some(start.record..start.frame + frame_len)
    }

    /// Where the record of an entry without a frame lies, if it has one: what [`Directory::check_record`] takes.
    pub fn link_record(&self, entry_idx: usize) -> Option<Range<u64>> {
        let start = self.starts.get(entry_idx)?;
        let is_link = self.entries[entry_idx].frame().is_none();
        (is_link && start.record < start.frame).then_some(start.record..start.frame)
    }

    /// Where the header ends and the first record starts.
    pub fn data_offset(&self) -> u64 {
        self.footer.data_offset
    }

    /// Where the frames end and the index starts.
    pub fn index_offset(&self) -> u64 {
        self.footer.index_offset
    }

    /// Bytes of the index, coded and decoded.
    pub fn index_lens(&self) -> (u64, u64) {
        (self.footer.index_len.into(), self.footer.index_raw_len.into())
    }

    /// Bytes of the container.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Digest of prologue, header and index, which holds a checksum of every frame.
    pub fn digest(&self) -> Digest {
        self.footer.digest
    }

    /// Reads the header, and checks that it belongs to this index.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or is not what the digest was taken of.
    pub fn read_header(&self, source: &(impl ReadAt + ?Sized)) -> Result<Header, ReadError> {
        let head = source.read_range(0..self.footer.data_offset)?;
        let prologue = Prologue::parse(&head)?;
        if prologue.header_end() != self.footer.data_offset
            || prologue.alignment_log2 != self.footer.alignment_log2
            || prologue.flags != self.footer.flags
        {
            return Err(FormatError::Corrupt { what: "prologue and footer do not agree", offset: 0 }.into());
        }
        let json = prologue.decode_header(&head)?;
        if footer::digest(&head, &self.index_coded) != self.footer.digest {
            return Err(
                FormatError::Corrupt { what: "header and index have another digest", offset: 0 }.into()
            );
        }
        Ok(Header::from_json(&json)?)
    }

    /// Checks what stands between the entry before this one and its frame, or the next entry: its record, and zeros.
    /// `between` is those bytes.
    ///
    /// # Errors
    /// When they are damaged or belong to another entry.
    pub fn check_record(&self, entry_idx: usize, between: &[u8]) -> Result<(), FormatError> {
        let entry = &self.entries[entry_idx];
        let offset = self.starts[entry_idx].record;
        let (mut record, len) = Record::parse(between, offset)?;
        if let Some(link) = &mut record.link {
            self.resolve(link);
        }
        if u32::try_from(entry_idx).ok().map(|entry_idx| Record::of(entry_idx, entry)) != Some(record) {
            return Err(FormatError::Corrupt { what: "record and index do not agree", offset });
        }
        match between[len..].iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(at) => Err(FormatError::Corrupt {
                what: "padding that is not zero",
                offset: offset + (len + at) as u64,
            }),
        }
    }

    /// Points a record's link to where the index does: it was written before it was known that what its tensor is derived
    /// from is a reference itself.
    fn resolve(&self, link: &mut Entry) {
        if let Content::Derived { entry_idx, .. } = &mut link.content
            && let Some(Content::Ref { entry_idx: target }) =
                self.entries.get(*entry_idx).map(|wide| &wide.content)
        {
            *entry_idx = *target;
        }
    }
}

/// Where everything is: a record right behind the entry before it, its frame on the next multiple of the alignment.
fn find_frames(entries: &[Entry], footer: &Footer) -> Result<Vec<Start>, FormatError> {
    let offset = footer.index_offset;
    let too_long = FormatError::Corrupt { what: "frames that reach into the index", offset };
    let alignment = 1u64 << footer.alignment_log2;
    let mut end = footer.data_offset;
    let mut starts = Vec::with_capacity(entries.len());
    let links_have_records = footer.flags & container_flags::LINK_RECORDS != 0;
    for entry in entries {
        let (frame_len, alignment, has_record) = match entry.frame() {
            Some((len, _)) => (len, alignment, true),
            None => (0, 1, links_have_records),
        };
        let record_len = if has_record { Record::len(entry) as u64 } else { 0 };
        let record_end = end.checked_add(record_len);
        let frame = record_end.and_then(|end| end.checked_next_multiple_of(alignment));
        let frame = frame.ok_or(too_long.clone())?;
        starts.push(Start { record: end, frame });
        let frame_end = frame.checked_add(frame_len).filter(|&end| end <= footer.index_offset);
        end = frame_end.ok_or(too_long.clone())?;
    }
    if end != footer.index_offset {
        let offset = end;
        return Err(FormatError::Corrupt { what: "bytes between the last frame and the index", offset });
    }
    Ok(starts)
}
