//! Writes a container front to back, in one pass.

use super::entry::{self, Content, Entry};
use super::{Footer, Header, Prologue, Record, is_tensor_name};
use crate::limits::MAX_INLINE_LEN;
use crate::tensor_info::shown;
use crate::{Digest, FormatError};
use mithril_codec::{Checksummer, Dtype};
use std::io::{self, Write};

/// Writes entries in order. Memory grows with the number of entries, not with their bytes.
#[derive(Debug)]
pub struct ContainerWriter<W> {
    writer: W,
    head: Vec<u8>,
    alignment_log2: u8,
    offset: u64,
    entries: Vec<Entry>,
}

/// A container that was written to its end.
#[derive(Debug)]
pub struct Finished<W> {
    /// What it was written to, not flushed.
    pub writer: W,
    /// Its entries.
    pub entries: Vec<Entry>,
    /// Digest of prologue, header and index.
    pub digest: Digest,
    /// Its bytes.
    pub len: u64,
}

/// The frame of an entry, being written.
#[derive(Debug)]
pub struct FrameWriter<'a, W> {
    container: &'a mut ContainerWriter<W>,
    entry: Entry,
    len: u64,
    checksum: Checksummer,
}

impl<W: Write> ContainerWriter<W> {
    /// Starts a container whose frames lie on multiples of two to the power `alignment_log2`.
    ///
    /// # Errors
    /// When the header is too long or has an unsafe name in it, or writing fails.
    pub fn new(mut writer: W, header: &Header, alignment_log2: u8) -> io::Result<Self> {
        if alignment_log2 > crate::limits::MAX_ALIGNMENT_LOG2 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "alignment above 64 KiB"));
        }
        header.check_names().map_err(invalid)?;
        let head = Prologue::write(alignment_log2, &header.to_json()).map_err(invalid)?;
        writer.write_all(&head)?;
        let offset = head.len() as u64;
        Ok(Self { writer, head, alignment_log2, offset, entries: Vec::new() })
    }

    /// The entries written so far.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes written so far.
    pub fn len(&self) -> u64 {
        self.offset
    }

    /// Whether there are no entries yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Starts an entry that has a frame: write the frame's bytes, then call [`FrameWriter::finish`]. The length and
    /// checksum in `entry.content` are filled in then.
    ///
    /// # Errors
    /// When the entry breaks a rule of the format, or writing fails.
    pub fn start_frame(&mut self, entry: Entry) -> io::Result<FrameWriter<'_, W>> {
        self.check(&entry)?;
        debug_assert!(entry.frame().is_some(), "an entry with a frame");
        let mut bytes = self.record(&entry)?;
        let end = self.offset + bytes.len() as u64;
        let padding = end.next_multiple_of(1 << self.alignment_log2) - end;
        bytes.resize(bytes.len() + usize::try_from(padding).map_err(invalid)?, 0);
        self.writer.write_all(&bytes)?;
        self.offset += bytes.len() as u64;
        Ok(FrameWriter { container: self, entry, len: 0, checksum: Checksummer::default() })
    }

    /// Adds an entry that has no frame.
    ///
    /// # Errors
    /// When the entry breaks a rule of the format, or writing fails.
    pub fn add_link(&mut self, entry: Entry) -> io::Result<()> {
        self.check(&entry)?;
        debug_assert!(entry.frame().is_none(), "an entry without a frame");
        let record = self.record(&entry)?;
        self.writer.write_all(&record)?;
        self.offset += record.len() as u64;
        self.entries.push(entry);
        Ok(())
    }

    /// The record of the next entry.
    fn record(&self, entry: &Entry) -> io::Result<Vec<u8>> {
        let entry_idx = u32::try_from(self.entries.len()).map_err(invalid)?;
        let mut bytes = Vec::new();
        Record::of(entry_idx, entry).write(&mut bytes);
        Ok(bytes)
    }

    /// What a reader would refuse is not written.
    fn check(&self, entry: &Entry) -> io::Result<()> {
        if !is_tensor_name(&entry.name) {
            return Err(invalid(format!("`{}` is too long for the name of a tensor", shown(&entry.name))));
        }
        if entry.shape.len() > crate::limits::MAX_RANK || entry::raw_len(entry.dtype, &entry.shape).is_none()
        {
            return Err(invalid(format!("tensor `{}` has an impossible shape", entry.name)));
        }
        if let Content::Inline { bytes } = &entry.content
            && (bytes.len() as u64 != entry.raw_len() || !Entry::can_be_inline(entry.raw_len()))
        {
            return Err(invalid(format!("tensor `{}` has other bytes than its shape", entry.name)));
        }
        Ok(())
    }

    /// Writes index and footer.
    ///
    /// # Errors
    /// When the index is too long or breaks a rule of the format, or writing fails.
    pub fn finish(mut self) -> io::Result<Finished<W>> {
        self.point_to_content();
        let index = entry::write_index(&self.entries);
        // Reading it back costs little, and a container that no reader accepts is found before it exists.
        entry::check_index(&index, self.offset, &self.entries).map_err(invalid)?;
        let mut end = Vec::new();
        let footer = Footer::write(&index, self.offset, &self.head, &mut end).map_err(invalid)?;
        self.writer.write_all(&end)?;
        let len = self.offset + end.len() as u64;
        Ok(Finished { writer: self.writer, entries: self.entries, digest: footer.digest, len })
    }

    /// A tensor may be derived from one that came later and turned out to be a reference, and so may a moment: what that
    /// refers to is then meant.
    fn point_to_content(&mut self) {
        let targets: Vec<Option<usize>> = self.entries.iter().map(ref_target).collect();
        let resolve = |entry_idx: &mut usize| {
            if let Some(&Some(target)) = targets.get(*entry_idx) {
                *entry_idx = target;
            }
        };
        for entry in &mut self.entries {
            match &mut entry.content {
                Content::Derived { entry_idx, .. } => resolve(entry_idx),
                Content::Delta { step: Some(step), .. } => step.moments.iter_mut().for_each(resolve),
                _ => {}
            }
        }
    }
}

fn ref_target(entry: &Entry) -> Option<usize> {
    match entry.content {
        Content::Ref { entry_idx } => Some(entry_idx),
        _ => None,
    }
}

impl<W: Write> FrameWriter<'_, W> {
    /// Ends the frame; returns its length.
    pub fn finish(self) -> u64 {
        self.finish_with(None)
    }

    /// As [`FrameWriter::finish`], with the digest of what the frame holds, where it is known only now.
    pub fn finish_with(mut self, digest: Option<Digest>) -> u64 {
        self.entry.digest = digest.or(self.entry.digest);
        let (frame_len, frame_checksum) = (self.len, self.checksum.finish());
        if let Content::Full { len, checksum } | Content::Delta { len, checksum, .. } =
            &mut self.entry.content
        {
            (*len, *checksum) = (frame_len, frame_checksum);
        }
        self.container.offset += self.len;
        self.container.entries.push(self.entry);
        frame_len
    }
}

impl<W: Write> Write for FrameWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.container.writer.write(bytes)?;
        self.checksum.update(&bytes[..len]);
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.container.writer.flush()
    }
}

impl Entry {
    /// An entry that is stored in full, before its frame is written.
    pub fn full(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.into(),
            glue: false,
            glue_before: 0,
            digest: None,
            content: Content::Full { len: 0, checksum: 0 },
        }
    }

    /// An entry whose bytes the index holds.
    ///
    /// # Panics
    /// When the bytes are not those of such a tensor, or too many: see [`Entry::can_be_inline`].
    pub fn inline(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>, bytes: &[u8]) -> Self {
        let content = Content::Inline { bytes: bytes.into() };
        let entry = Self { digest: content.inline_digest(), content, ..Self::full(name, dtype, shape) };
        assert!(
            entry.raw_len() == bytes.len() as u64 && Self::can_be_inline(entry.raw_len()),
            "bytes of the tensor, and few"
        );
        entry
    }

    /// Whether the index may hold a tensor of this many raw bytes.
    pub fn can_be_inline(raw_len: u64) -> bool {
        raw_len <= MAX_INLINE_LEN as u64
    }

    /// The glue of an original file: so many bytes that belong to no tensor.
    pub fn glue(len: u64) -> Self {
        Self { glue: true, ..Self::full("", Dtype::Bytes, [len]) }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

impl From<FormatError> for io::Error {
    fn from(error: FormatError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
