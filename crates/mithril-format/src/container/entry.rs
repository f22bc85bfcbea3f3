//! Entries: what a container knows of each tensor, and the index that lists them.

use super::number::{self, NoNumber};
use crate::forever::{entry_flags, entry_kind, rounding};
use crate::limits::{FEW_ENTRIES, MAX_NAME_LEN, MAX_RANK, MIN_BYTES_PER_ENTRY};
use crate::tensor_info::shown;
use crate::{Digest, FormatError, NameTable};
use mithril_codec::Dtype;

/// A tensor of a container, or the bytes of the original file that belong to no tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the tensor; empty for glue.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Whether it is the glue: the bytes of the original file that belong to no tensor, in order.
    pub glue: bool,
    /// Bytes of the glue that stand before this tensor in the original file, behind the tensor before it.
    pub glue_before: u64,
    /// Digest of the raw bytes, if the writer took it. Not stored for bytes that are in the index, which it is taken of.
    pub digest: Option<Digest>,
    /// Where its bytes come from.
    pub content: Content,
}

/// Where the bytes of a tensor come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A frame of its own.
    Full {
        /// Bytes of the frame.
        len: u64,
        /// Checksum of the frame's bytes.
        checksum: u64,
    },
    /// The same bytes as an earlier entry.
    Ref {
        /// Number of that entry, which is no `Ref` itself.
        entry_idx: usize,
    },
    /// The same bytes as a tensor of the base.
    Copy {
        /// Digest of the base tensor's raw bytes.
        base: Digest,
        /// What the base calls it; nothing when it has the same name.
        base_name: Option<String>,
    },
    /// A frame that is decoded with a tensor of the base.
    Delta {
        /// Digest of the base tensor's raw bytes.
        base: Digest,
        /// What the base calls it; nothing when it has the same name.
        base_name: Option<String>,
        /// How the base tensor moves before the frame is decoded with it, if it does.
        step: Option<Box<Step>>,
        /// Bytes of the frame.
        len: u64,
        /// Checksum of the frame's bytes.
        checksum: u64,
    },
    /// Another tensor of this container, rounded to this tensor's dtype.
    Derived {
        /// Number of that entry: an F32 tensor that is not derived itself.
        entry_idx: usize,
        /// How it is rounded.
        rounding: Rounding,
    },
    /// The index itself holds the bytes.
    Inline {
        /// All raw bytes: at most [`MAX_INLINE_LEN`](crate::limits::MAX_INLINE_LEN).
        bytes: Box<[u8]>,
    },
}

impl Content {
    /// The digest of bytes that the index holds, which it does not store.
    pub(super) fn inline_digest(&self) -> Option<Digest> {
        match self {
            Self::Inline { bytes } => Some(Digest::of(bytes)),
            _ => None,
        }
    }
}

/// A step of an optimiser with two moments: where it brings a base tensor of F32 weights is known before the weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Numbers of the entries that hold the first and the second moment behind the step.
    pub moments: [usize; 2],
    /// Digests of the base tensors that hold the moments before it.
    pub base_moments: [Digest; 2],
    /// The bits of three F32 factors: of the update by the moments before, by those behind, and of the weight itself.
    pub factors: [u32; 3],
}

/// How a wider float becomes a narrower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearest, ties to even; the low mantissa bits of a NaN are dropped and its quiet bit is set.
    NearestEven,
}

/// The kinds of content, without what they carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EntryKind {
    /// A frame of its own.
    Full,
    /// The same as an earlier entry.
    Ref,
    /// The same as a base tensor.
    Copy,
    /// Coded against a base tensor.
    Delta,
    /// Rounded from another entry.
    Derived,
    /// Held by the index.
    Inline,
}

impl EntryKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Full, Self::Ref, Self::Copy, Self::Delta, Self::Derived, Self::Inline];

    /// Its number in files.
    pub(super) fn id(self) -> u8 {
        match self {
            Self::Full => entry_kind::FULL,
            Self::Ref => entry_kind::REF,
            Self::Copy => entry_kind::COPY,
            Self::Delta => entry_kind::DELTA,
            Self::Derived => entry_kind::DERIVED,
            Self::Inline => entry_kind::INLINE,
        }
    }

    pub(super) fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id() == id)
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Ref => "ref",
            Self::Copy => "copy",
            Self::Delta => "delta",
            Self::Derived => "derived",
            Self::Inline => "inline",
        }
    }
}

impl Entry {
    /// The kind of its content.
    pub fn kind(&self) -> EntryKind {
        match self.content {
            Content::Full { .. } => EntryKind::Full,
            Content::Ref { .. } => EntryKind::Ref,
            Content::Copy { .. } => EntryKind::Copy,
            Content::Delta { .. } => EntryKind::Delta,
            Content::Derived { .. } => EntryKind::Derived,
            Content::Inline { .. } => EntryKind::Inline,
        }
    }

    /// Length and checksum of its frame, if it has one.
    pub fn frame(&self) -> Option<(u64, u64)> {
        match self.content {
            Content::Full { len, checksum } | Content::Delta { len, checksum, .. } => Some((len, checksum)),
            _ => None,
        }
    }

    /// Bytes of its own that the container holds: those of its frame, or those in the index.
    pub fn stored_len(&self) -> u64 {
        match &self.content {
            Content::Full { len, .. } | Content::Delta { len, .. } => *len,
            Content::Inline { bytes } => bytes.len() as u64,
            Content::Ref { .. } | Content::Copy { .. } | Content::Derived { .. } => 0,
        }
    }

    /// Digest and name of the base tensor, if it needs one.
    pub fn base(&self) -> Option<(Digest, &str)> {
        match &self.content {
            Content::Copy { base, base_name } | Content::Delta { base, base_name, .. } => {
                Some((*base, base_name.as_deref().unwrap_or(&self.name)))
            }
            _ => None,
        }
    }

    /// The step that its base makes first, if it does.
    pub fn step(&self) -> Option<&Step> {
        match &self.content {
            Content::Delta { step, .. } => step.as_deref(),
            _ => None,
        }
    }

    /// Whether this tensor can be a moment of the step that the base of a tensor makes.
    pub fn can_be_moment_of(&self, stepped: &Self) -> bool {
        self.dtype == Dtype::F32
            && stepped.dtype == Dtype::F32
            && matches!(self.kind(), EntryKind::Full | EntryKind::Copy | EntryKind::Delta)
            && self.step().is_none()
            && !self.glue
            && self.raw_len() == stepped.raw_len()
    }

    /// Number of the entry that it gets its bytes from, if it is a reference or derived.
    pub fn target(&self) -> Option<usize> {
        match self.content {
            Content::Ref { entry_idx } | Content::Derived { entry_idx, .. } => Some(entry_idx),
            _ => None,
        }
    }

    /// Whether the bytes of a reference or a derived tensor can come from this one.
    pub fn can_come_from(&self, target: &Self) -> bool {
        let fits = match self.kind() {
            EntryKind::Ref => target.kind() != EntryKind::Ref && target.raw_len() == self.raw_len(),
            EntryKind::Derived => {
                matches!(self.dtype, Dtype::Bf16 | Dtype::F16)
                    && target.dtype == Dtype::F32
                    && matches!(target.kind(), EntryKind::Full | EntryKind::Copy | EntryKind::Delta)
                    && target.raw_len() == 2 * self.raw_len()
            }
            _ => false,
        };
        fits && !target.glue
    }

    /// What messages call it.
    pub fn label(&self) -> &str {
        if self.glue { "bytes outside all tensors" } else { &self.name }
    }

    /// Raw bytes of the tensor.
    pub fn raw_len(&self) -> u64 {
        raw_len(self.dtype, &self.shape).expect("checked when the entry was read or written")
    }
}

/// Raw bytes of a shape, if they are whole and fit 64 bits.
pub(super) fn raw_len(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension)).and_then(|n| dtype.len_of(n))
}

/// Whether a container can have a tensor of this name: any text of 65535 bytes at most. A name is not a path. Code that
/// makes a path of a name has to check what it makes.
pub fn is_tensor_name(name: &str) -> bool {
    name.len() <= MAX_NAME_LEN
}

/// The raw bytes of an index.
pub(super) fn write_index(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    number::push(entries.len() as u64, &mut out);
    for entry in entries {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let base_name = match &entry.content {
            Content::Copy { base_name, .. } | Content::Delta { base_name, .. } => base_name.as_deref(),
            _ => None,
        };
        out.push(
            entry.kind().id()
                | flag(entry.glue, entry_flags::GLUE)
                | flag(has_stored_digest(entry), entry_flags::DIGEST)
                | flag(base_name.is_some(), entry_flags::BASE_NAME)
                | flag(entry.step().is_some(), entry_flags::STEP),
        );
        push_text(&entry.name, &mut out);
        out.push(entry.dtype.id());
        number::push(entry.shape.len() as u64, &mut out);
        entry.shape.iter().for_each(|&dimension| number::push(dimension, &mut out));
        number::push(entry.glue_before, &mut out);
        if let Some(digest) = entry.digest.filter(|_| has_stored_digest(entry)) {
            out.extend(digest.0);
        }
        match &entry.content {
            Content::Full { .. } => {}
            Content::Inline { bytes } => out.extend(bytes),
            Content::Copy { base, .. } | Content::Delta { base, .. } => {
                out.extend(base.0);
                if let Some(name) = base_name {
                    push_text(name, &mut out);
                }
            }
            Content::Ref { entry_idx } => number::push(*entry_idx as u64, &mut out),
            Content::Derived { entry_idx, rounding: Rounding::NearestEven } => {
                number::push(*entry_idx as u64, &mut out);
                out.push(rounding::NEAREST_EVEN);
            }
        }
        if let Some(step) = entry.step() {
            step.moments.iter().for_each(|&entry_idx| number::push(entry_idx as u64, &mut out));
            step.base_moments.iter().for_each(|digest| out.extend(digest.0));
            step.factors.iter().for_each(|factor| out.extend(factor.to_le_bytes()));
        }
        if let Some((len, checksum)) = entry.frame() {
            number::push(len, &mut out);
            out.extend(checksum.to_le_bytes());
        }
    }
    out
}

/// Whether the index has the digest of an entry. That of bytes which it holds itself follows from them.
fn has_stored_digest(entry: &Entry) -> bool {
    entry.digest.is_some() && entry.kind() != EntryKind::Inline
}

/// Reads an index, and makes the table of its names. `offset` is where it starts in the file: as many bytes are there for
/// what it lists.
pub(super) fn parse_index(raw: &[u8], offset: u64) -> Result<(Vec<Entry>, NameTable), FormatError> {
    let mut reader = IndexReader::new(raw, offset)?;
    // Grown as entries are read: a count is only a claim.
    let (mut entries, mut names) = (Vec::new(), NameTable::default());
    while let Some(entry) = reader.next()? {
        entries.push(entry);
        // Here, because an index of nothing but the same name must not fill memory first.
        add_name(&mut names, &entries, entries.len() - 1, offset)?;
    }
    check_links(&entries, offset)?;
    Ok((entries, names))
}

/// Checks that an index keeps all rules and reads as these entries, without a second copy of them.
pub(super) fn check_index(raw: &[u8], offset: u64, entries: &[Entry]) -> Result<(), FormatError> {
    let mut reader = IndexReader::new(raw, offset)?;
    let mut names = NameTable::default();
    for (entry_idx, entry) in entries.iter().enumerate() {
        if reader.next()?.as_ref() != Some(entry) {
            return Err(reader.corrupt("entry that does not read as what was written"));
        }
        add_name(&mut names, entries, entry_idx, offset)?;
    }
    if reader.next()?.is_some() {
        return Err(reader.corrupt("entry that was not written"));
    }
    check_links(entries, offset)
}

/// Adds the name of a tensor to those before it.
fn add_name(
    names: &mut NameTable,
    entries: &[Entry],
    entry_idx: usize,
    offset: u64,
) -> Result<(), FormatError> {
    if entries[entry_idx].glue || names.insert(entry_idx, |idx| &entries[idx].name).is_none() {
        return Ok(());
    }
    let name = shown(&entries[entry_idx].name);
    Err(FormatError::Entry {
        entry_idx: entry_idx as u64,
        name,
        what: "two tensors of the same name",
        offset,
    })
}

/// Entries that point to others point to ones that have content of their own; glue is first, and there is enough.
fn check_links(entries: &[Entry], offset: u64) -> Result<(), FormatError> {
    let mut glue_len = 0;
    let mut glue_used = 0u64;
    for (entry_idx, entry) in entries.iter().enumerate() {
        let corrupt = |what| {
            let name = shown(&entry.name);
            Err(FormatError::Entry { entry_idx: entry_idx as u64, name, what, offset })
        };
        if entry.glue {
            // First, so that salvage meets it before everything it describes.
            if entry_idx != 0
                || entry.kind() != EntryKind::Full
                || !entry.name.is_empty()
                || entry.glue_before != 0
            {
                return corrupt(
                    "glue that is not the first entry, has a name or glue, or is not stored in full",
                );
            }
            glue_len = entry.raw_len();
        }
        glue_used = match glue_used.checked_add(entry.glue_before) {
            Some(used) if used <= glue_len => used,
            _ => return corrupt("tensors that stand behind more glue than there is"),
        };
        match &entry.content {
            &Content::Ref { entry_idx: target_idx } => {
                let Some(target) = entries[..entry_idx].get(target_idx) else {
                    return corrupt("a reference that does not point to an earlier tensor");
                };
                if !entry.can_come_from(target) {
                    return corrupt("a reference to something that has other bytes");
                }
            }
            &Content::Derived { entry_idx: target_idx, .. }
                if !entries.get(target_idx).is_some_and(|target| entry.can_come_from(target)) =>
            {
                return corrupt("a tensor derived from something that it is no rounding of");
            }
            Content::Delta { step: Some(step), .. }
                if !step.moments.iter().all(|&moment_idx| {
                    entries.get(moment_idx).is_some_and(|moment| moment.can_be_moment_of(entry))
                }) =>
            {
                return corrupt("a step by something that is no moment of this tensor");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads the entries of an index, each field checked.
struct IndexReader<'a> {
    rest: &'a [u8],
    offset: u64,
    n_entries: u64,
    /// Number of the entry that is read next.
    entry_idx: u64,
}

impl<'a> IndexReader<'a> {
    fn new(raw: &'a [u8], offset: u64) -> Result<Self, FormatError> {
        let mut reader = Self { rest: raw, offset, n_entries: 0, entry_idx: 0 };
        reader.n_entries = reader.number()?;
        let limit = FEW_ENTRIES.max(offset / MIN_BYTES_PER_ENTRY);
        if reader.n_entries > limit {
            return Err(FormatError::Limit { what: "entries", found: reader.n_entries, limit, offset });
        }
        Ok(reader)
    }

    /// The next entry; nothing when all are read, which is at the end of the index.
    fn next(&mut self) -> Result<Option<Entry>, FormatError> {
        if self.entry_idx == self.n_entries {
            return match self.rest {
                [] => Ok(None),
                _ => Err(FormatError::Corrupt {
                    what: "bytes after the last entry of the index",
                    offset: self.offset,
                }),
            };
        }
        let entry = self.entry()?;
        self.entry_idx += 1;
        Ok(Some(entry))
    }

    fn corrupt(&self, what: &'static str) -> FormatError {
        let (entry_idx, offset) = (self.entry_idx, self.offset);
        FormatError::Entry { entry_idx, name: String::new(), what, offset }
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], FormatError> {
        let len = usize::try_from(len).ok();
        let (head, rest) = len
            .and_then(|len| self.rest.split_at_checked(len))
            .ok_or_else(|| self.corrupt("index that ends inside an entry"))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    fn number(&mut self) -> Result<u64, FormatError> {
        let (number, len) = number::read(self.rest).map_err(|error| match error {
            NoNumber::CutOff => self.corrupt("index that ends inside an entry"),
            NoNumber::Impossible => self.corrupt("a number of more than 64 bits, or with needless zeros"),
        })?;
        self.rest = &self.rest[len..];
        Ok(number)
    }

    fn index(&mut self) -> Result<usize, FormatError> {
        let number = self.number()?;
        usize::try_from(number).map_err(|_| self.corrupt("entry number above all others"))
    }

    fn text(&mut self) -> Result<&'a str, FormatError> {
        let len = self.number()?;
        let text = std::str::from_utf8(self.take(len)?);
        let text = text.map_err(|_| self.corrupt("name that is not UTF-8"))?;
        if !is_tensor_name(text) {
            return Err(self.corrupt("name that is too long"));
        }
        Ok(text)
    }

    fn entry(&mut self) -> Result<Entry, FormatError> {
        let tag = self.byte()?;
        let has = |flag: u8| tag & flag != 0;
        let kind = EntryKind::from_id(tag & entry_kind::MASK)
            .filter(|&kind| kind == EntryKind::Delta || !has(entry_flags::STEP));
        let kind =
            kind.ok_or(FormatError::Unknown { what: "entry kind", id: u32::from(tag), offset: self.offset })?;
        let name = self.text()?;
        let glue = has(entry_flags::GLUE);
        let dtype_id = self.byte()?;
        let dtype = Dtype::from_id(dtype_id).ok_or(FormatError::Unknown {
            what: "dtype",
            id: u32::from(dtype_id),
            offset: self.offset,
        })?;
        let rank = self.number()?;
        if rank > MAX_RANK as u64 {
            let limit = MAX_RANK as u64;
            return Err(FormatError::Limit { what: "rank", found: rank, limit, offset: self.offset });
        }
        let shape = (0..rank).map(|_| self.number()).collect::<Result<Vec<u64>, _>>()?;
        let raw_len = raw_len(dtype, &shape)
            .ok_or_else(|| self.corrupt("shape that is too large or does not fill whole bytes"))?;
        let glue_before = self.number()?;
        let based = matches!(kind, EntryKind::Copy | EntryKind::Delta);
        if has(entry_flags::BASE_NAME) && !based {
            return Err(self.corrupt("base name of a tensor without a base"));
        }
        if kind == EntryKind::Inline {
            if has(entry_flags::DIGEST) {
                return Err(self.corrupt("digest of bytes that are in the index themselves"));
            }
            if !Entry::can_be_inline(raw_len) {
                return Err(self.corrupt("too many bytes for the index"));
            }
            let bytes = self.take(raw_len)?;
            return Ok(Entry { glue, glue_before, ..Entry::inline(name, dtype, shape, bytes) });
        }
        let digest =
            if has(entry_flags::DIGEST) { Some(Digest(self.array::<{ Digest::LEN }>()?)) } else { None };
        let base = match based {
            true => Some(Digest(self.array::<{ Digest::LEN }>()?)),
            false => None,
        };
        let base_name = if has(entry_flags::BASE_NAME) { Some(self.text()?.to_owned()) } else { None };
        let content = match (kind, base) {
            (EntryKind::Copy, Some(base)) => Content::Copy { base, base_name },
            (EntryKind::Delta, Some(base)) => {
                let step = if has(entry_flags::STEP) { Some(Box::new(self.step()?)) } else { None };
                let (len, checksum) = self.frame()?;
                Content::Delta { base, base_name, step, len, checksum }
            }
            (EntryKind::Ref, _) => Content::Ref { entry_idx: self.index()? },
            (EntryKind::Derived, _) => {
                let entry_idx = self.index()?;
                match self.byte()? {
                    rounding::NEAREST_EVEN => Content::Derived { entry_idx, rounding: Rounding::NearestEven },
                    id => {
                        let offset = self.offset;
                        return Err(FormatError::Unknown { what: "rounding", id: u32::from(id), offset });
                    }
                }
            }
            _ => {
                let (len, checksum) = self.frame()?;
                Content::Full { len, checksum }
            }
        };
        Ok(Entry { name: name.to_owned(), dtype, shape, glue, glue_before, digest, content })
    }

    fn step(&mut self) -> Result<Step, FormatError> {
        let moments = [self.index()?, self.index()?];
        let base_moments = [Digest(self.array()?), Digest(self.array()?)];
        let mut factors = [0; 3];
        for factor in &mut factors {
            *factor = u32::from_le_bytes(self.array()?);
        }
        Ok(Step { moments, base_moments, factors })
    }

    fn frame(&mut self) -> Result<(u64, u64), FormatError> {
        Ok((self.number()?, u64::from_le_bytes(self.array()?)))
    }
}

fn push_text(text: &str, out: &mut Vec<u8>) {
    number::push(text.len() as u64, out);
    out.extend(text.as_bytes());
}
