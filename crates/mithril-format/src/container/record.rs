//! The record of every entry: what salvage needs when the index is lost.

use super::entry::{Content, Entry, EntryKind, Rounding, raw_len};
use super::number;
use crate::forever::{RECORD_MAGIC, entry_flags, entry_kind, rounding};
use crate::limits::{MAX_INLINE_LEN, MAX_NAME_LEN, MAX_RANK};
use crate::{Digest, FormatError};
use mithril_codec::{Dtype, checksum};

/// Number, kind and name of an entry, before its frame or in the place of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Number of the entry in the index.
    pub entry_idx: u32,
    /// Whether the frame holds the glue.
    pub glue: bool,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Whether the base of the tensor makes a step, of which only the index tells.
    pub steps: bool,
    /// Name of the tensor.
    pub name: String,
    /// All that is known of a tensor without a frame: its entry, without digest and base name.
    pub link: Option<Entry>,
}

/// Magic, entry number, kind, a zero, length of the name.
const FIXED_LEN: usize = 12;

/// Bytes of the longest record.
pub(super) const MAX_RECORD_LEN: usize =
    FIXED_LEN + MAX_NAME_LEN + 1 + MAX_NUMBER_LEN * (2 + MAX_RANK) + MAX_INLINE_LEN + 8;

/// Bytes of the longest number.
const MAX_NUMBER_LEN: usize = 10;

impl Record {
    /// The record of an entry.
    pub(super) fn of(entry_idx: u32, entry: &Entry) -> Self {
        let (glue, kind, name) = (entry.glue, entry.kind(), entry.name.clone());
        let link = entry.frame().is_none().then(|| {
            let content = match &entry.content {
                Content::Copy { base, .. } => Content::Copy { base: *base, base_name: None },
                content => content.clone(),
            };
            Entry { digest: content.inline_digest(), content, ..entry.clone() }
        });
        Self { entry_idx, glue, kind, steps: entry.step().is_some(), name, link }
    }

    /// Bytes of the record of an entry. That of a link does not depend on the number of its target.
    pub(super) fn len(entry: &Entry) -> usize {
        let content_len = match &entry.content {
            Content::Full { .. } | Content::Delta { .. } => return FIXED_LEN + entry.name.len() + 8,
            Content::Ref { .. } => 4,
            Content::Copy { .. } => Digest::LEN,
            Content::Derived { .. } => 4 + 1,
            Content::Inline { bytes } => bytes.len(),
        };
        let numbers = [entry.shape.len() as u64, entry.glue_before];
        let numbers_len: usize = numbers.iter().chain(&entry.shape).map(|&n| number::len(n)).sum();
        FIXED_LEN + entry.name.len() + 1 + numbers_len + content_len + 8
    }

    /// Appends the record.
    ///
    /// # Panics
    /// When a name, rank or number is above its limit.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        assert!(self.name.len() <= MAX_NAME_LEN, "a name within its limit");
        let start = out.len();
        out.extend(RECORD_MAGIC);
        out.extend(self.entry_idx.to_le_bytes());
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(self.kind.id() | flag(self.glue, entry_flags::GLUE) | flag(self.steps, entry_flags::STEP));
        out.push(0);
        out.extend(u16::try_from(self.name.len()).expect("limited above").to_le_bytes());
        out.extend(self.name.as_bytes());
        if let Some(link) = &self.link {
            write_link(link, out);
        }
        let sum = checksum(&out[start..]);
        out.extend(sum.to_le_bytes());
    }

    /// Reads the record at the front of `bytes`; returns it and its length. `offset` is where it stands.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub(super) fn parse(bytes: &[u8], offset: u64) -> Result<(Self, usize), FormatError> {
        let truncated = || FormatError::Truncated { what: "record", offset };
        let corrupt = |what| FormatError::Corrupt { what, offset };
        let mut reader = RecordReader { bytes, at: 0 };
        let fixed: [u8; FIXED_LEN] = reader.array().ok_or_else(truncated)?;
        if fixed[..4] != RECORD_MAGIC {
            return Err(corrupt("no record where one belongs"));
        }
        let name = reader.take(usize::from(u16::from_le_bytes([fixed[10], fixed[11]])));
        let name = name.ok_or_else(truncated)?;
        let kind = EntryKind::from_id(fixed[8] & entry_kind::MASK);
        let link = match kind.filter(|kind| !matches!(kind, EntryKind::Full | EntryKind::Delta)) {
            Some(kind) => Some(reader.link(kind).ok_or(corrupt("record of a link that is damaged"))?),
            None => None,
        };
        let body = &bytes[..reader.at];
        let expected = u64::from_le_bytes(reader.array().ok_or_else(truncated)?);
        let actual = checksum(body);
        if expected != actual {
            return Err(FormatError::Checksum { what: "record", offset, expected, actual });
        }
        let glue = fixed[8] & entry_flags::GLUE != 0;
        let steps = fixed[8] & entry_flags::STEP != 0;
        let known = entry_kind::MASK | entry_flags::GLUE | entry_flags::STEP;
        let kind = kind
            .filter(|_| fixed[8] & !known == 0 && fixed[9] == 0)
            .filter(|_| !(glue && link.is_some()))
            .filter(|&kind| !steps || kind == EntryKind::Delta)
            .ok_or(corrupt("record of a kind that is not known"))?;
        let name =
            std::str::from_utf8(name).map_err(|_| corrupt("record with an impossible name"))?.to_owned();
        let link = match link {
            Some(link) => Some(link.entry(&name).ok_or(corrupt("record of an impossible tensor"))?),
            None => None,
        };
        let entry_idx = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        Ok((Self { entry_idx, glue, kind, steps, name, link }, reader.at))
    }
}

fn write_link(link: &Entry, out: &mut Vec<u8>) {
    out.push(link.dtype.id());
    number::push(link.shape.len() as u64, out);
    link.shape.iter().for_each(|&dimension| number::push(dimension, out));
    number::push(link.glue_before, out);
    // Of fixed length: the index may have another one, see `Directory::check_record`.
    let target = |entry_idx: usize| u32::try_from(entry_idx).expect("a number of an entry").to_le_bytes();
    match &link.content {
        Content::Ref { entry_idx } => out.extend(target(*entry_idx)),
        Content::Copy { base, .. } => out.extend(base.0),
        Content::Derived { entry_idx, rounding: Rounding::NearestEven } => {
            out.extend(target(*entry_idx));
            out.push(rounding::NEAREST_EVEN);
        }
        Content::Inline { bytes } => out.extend(bytes),
        Content::Full { .. } | Content::Delta { .. } => unreachable!("an entry with a frame is no link"),
    }
}

/// The fields of a link, before its record's checksum was compared.
struct LinkFields {
    dtype_id: u8,
    shape: Vec<u64>,
    glue_before: u64,
    /// Nothing when the rounding is not known.
    content: Option<Content>,
}

impl LinkFields {
    /// The entry, unless its dtype, shape or rounding is impossible.
    fn entry(self, name: &str) -> Option<Entry> {
        let dtype = Dtype::from_id(self.dtype_id)?;
        raw_len(dtype, &self.shape)?;
        let Self { shape, glue_before, content, .. } = self;
        let content = content?;
        Some(Entry {
            glue_before,
            digest: content.inline_digest(),
            content,
            ..Entry::full(name, dtype, shape)
        })
    }
}

/// Takes fields from the front of a record.
struct RecordReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> RecordReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn link(&mut self, kind: EntryKind) -> Option<LinkFields> {
        let [dtype_id] = self.array()?;
        let rank = self.number().filter(|&rank| rank <= MAX_RANK as u64)?;
        let shape: Vec<u64> = (0..rank).map(|_| self.number()).collect::<Option<_>>()?;
        let glue_before = self.number()?;
        let content = match kind {
            EntryKind::Copy => Some(Content::Copy { base: Digest(self.array()?), base_name: None }),
            EntryKind::Ref => Some(Content::Ref { entry_idx: self.target()? }),
            EntryKind::Inline => {
                let len =
                    raw_len(Dtype::from_id(dtype_id)?, &shape).filter(|&len| Entry::can_be_inline(len))?;
                Some(Content::Inline { bytes: self.take(usize::try_from(len).ok()?)?.into() })
            }
            _ => {
                let entry_idx = self.target()?;
                let known = self.array()? == [rounding::NEAREST_EVEN];
                known.then_some(Content::Derived { entry_idx, rounding: Rounding::NearestEven })
            }
        };
        Some(LinkFields { dtype_id, shape, glue_before, content })
    }

    fn number(&mut self) -> Option<u64> {
        let (number, len) = number::read(&self.bytes[self.at..]).ok()?;
        self.at += len;
        Some(number)
    }

    fn target(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array()?)).ok()
    }
}
