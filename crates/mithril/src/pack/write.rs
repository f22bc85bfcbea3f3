//! Packs a file: the caller's thread reads and decides, others code, one writes.

use super::assumed::Assumed;
use super::budget::{Account, Ticket};
use super::feed::Feeder;
use super::layout::Layout;
use super::{PackOptions, PackSummary, PackedTensor, Progress};
use crate::Error;
use crate::container::{BaseHint, Compression, Entry, Header, Original};
use crate::frame_writer::FrameWriter;
use crate::options::thread_count;
use crate::pipeline::buffers::Buffer;
use crate::pipeline::ordered::{self, Results};
use crate::pipeline::tasks::{Budget, Share};
use mithril_format::container::ContainerWriter;
use mithril_format::frame::Trailer;
use mithril_format::{Digest, ReadAt};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::Receiver;

/// Packs a model file to a container. Returns the writer, not flushed.
///
/// ```
/// use mithril::pack::{PackOptions, pack, unpack};
/// use mithril::container::{Bases, Reader};
/// let header = r#"{"w":{"dtype":"F32","shape":[256],"data_offsets":[0,1024]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend(header.as_bytes());
/// file.extend((0..256u32).flat_map(|i| (i as f32).to_le_bytes()));
///
/// let (packed, summary) = pack(&file, Vec::new(), &PackOptions::default(), &|_| ())?;
/// assert_eq!(summary.tensors[0].name, "w");
/// let (restored, _) = unpack(&Reader::open(packed)?, Vec::new(), &Bases::none(), 0, &|_| ())?;
/// assert_eq!(restored, file);
/// # Ok::<(), mithril::Error>(())
/// ```
///
/// # Errors
/// When the file is of no known kind, breaks its rules or cannot be read, or writing fails.
pub fn pack<W: Write + Send>(
    source: &dyn ReadAt,
    writer: W,
    options: &PackOptions,
    progress: Progress<'_>,
) -> Result<(W, PackSummary), Error> {
    let copied = Copied(source);
    let source: &dyn ReadAt = if options.changing { &copied } else { source };
    let layout = Layout::of(source)?;
    let container = ContainerWriter::new(writer, &header(&layout, options), options.alignment_log2)
        .map_err(Error::writing)?;
    let threads = thread_count(
        options.coding.threads,
        usize::MAX,
        usize::try_from(layout.file_len).unwrap_or(usize::MAX),
    );
    let (buffers, memory) = (&*options.buffers, Budget::new(options.in_memory_len));
    let (layout, assumed, account) =
        (&layout, Assumed::default(), Account::new(&options.delta_budget, threads));
    let (memory, assumed, account) = (&memory, &assumed, &account);
    let (fed, written) = ordered::run(
        threads + account.n_waiting(),
        |line| Feeder { source, layout, options, buffers, memory, assumed, account, line }.feed_all(),
        |messages| write_entries(container, messages, progress),
    )
    .map_err(Error::starting)?;
    // When writing failed, feeding stopped because of it; what coding found broken comes before what is read later.
    let container = written?;
    fed?.check_assumed()?;
    let finished = container.finish().map_err(Error::writing)?;
    check_whole(source, layout, &finished.entries)?;
    let tensors = finished.entries.into_iter().filter(|entry| !entry.glue).map(|entry| PackedTensor {
        kind: entry.kind(),
        raw_len: entry.raw_len(),
        stored_len: entry.stored_len(),
        name: entry.name,
        dtype: entry.dtype,
        shape: entry.shape,
    });
    let summary = PackSummary {
        format: layout.kind.name(),
        raw_len: layout.file_len,
        packed_len: finished.len,
        digest: Some(finished.digest),
        tensors: tensors.collect(),
    };
    Ok((finished.writer, summary))
}

/// What was coded is the whole source, and the source is still as long as it was.
fn check_whole(source: &dyn ReadAt, layout: &Layout, entries: &[Entry]) -> Result<(), Error> {
    let coded = entries.iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.raw_len()));
    let now = source.size().map_err(Error::reading)?;
    if coded != layout.file_len || now != layout.file_len {
        let what = format!("it had {} bytes and has {now}, of which {coded} were coded", layout.file_len);
        return Err(Error::reading(io::Error::other(what)));
    }
    Ok(())
}

/// A source whose memory is not lent, because it may change: what is read of it is a copy.
struct Copied<'a>(&'a dyn ReadAt);

impl ReadAt for Copied<'_> {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, out)
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.0.check_unchanged()
    }
}

fn header(layout: &Layout, options: &PackOptions) -> Header {
    let mut header = Header::default();
    header.writer = super::writer_name();
    header.original = Some(Original::new(&options.name, layout.kind.name(), layout.file_len));
    header.compression = Some(Compression::new(options.coding.effort.name(), options.coding.level));
    header.bases = options.bases.models().iter().map(|model| BaseHint::new(model.name())).collect();
    header.step = options.step;
    header.metadata = options.metadata.clone();
    header
}

/// Entries in the order in which they are written.
pub(super) enum Message<'a> {
    /// Entries without frames, or with frames that lie at these ranges of the bytes, and their share of memory.
    Done(Vec<(Entry, Option<Range<usize>>)>, Option<Buffer<'a>>, Option<Share<'a>>),
    /// An entry whose frame comes in parts.
    InParts(Box<InParts<'a>>),
}

impl<'a> Message<'a> {
    /// An entry with its whole frame.
    pub(super) fn whole(entry: Entry, frame: Buffer<'a>, share: Option<Share<'a>>) -> Self {
        Self::Done(vec![(entry, Some(0..frame.len()))], Some(frame), share)
    }
}

/// An entry whose frame comes in parts.
pub(super) struct InParts<'a> {
    pub(super) entry: Entry,
    pub(super) ticket: Ticket<'a>,
    pub(super) parts: Parts<'a>,
    /// Gets the digest of what the frame holds, if the index keeps it, after the last part. It does not come when feeding has
    /// failed.
    pub(super) end: Receiver<Option<Digest>>,
}

/// The parts of a frame.
pub(super) enum Parts<'a> {
    /// Its bytes.
    Bytes(Results<Vec<u8>>),
    /// Its blocks, with what the trailer says of them.
    Blocks(FrameWriter, Results<Result<(Buffer<'a>, Trailer), Error>>),
}

fn write_entries<W: Write>(
    mut container: ContainerWriter<W>,
    messages: &mut dyn Iterator<Item = Result<Message<'_>, Error>>,
    progress: Progress<'_>,
) -> Result<ContainerWriter<W>, Error> {
    for message in messages {
        match message? {
            Message::Done(entries, bytes, share) => {
                let bytes = bytes.as_deref().unwrap_or(&[]);
                let n_bytes = entries.iter().map(|(entry, _)| entry.raw_len()).sum();
                for (entry, range) in entries {
                    let written = match range {
                        None => container.add_link(entry),
                        Some(range) => write_frame(&mut container, entry, &bytes[range]),
                    };
                    written.map_err(Error::writing)?;
                }
                drop(share);
                progress(n_bytes);
            }
            Message::InParts(frame) => write_parts(&mut container, *frame, progress)?,
        }
    }
    Ok(container)
}

fn write_frame<W: Write>(container: &mut ContainerWriter<W>, entry: Entry, bytes: &[u8]) -> io::Result<()> {
    let mut frame = container.start_frame(entry)?;
    frame.write_all(bytes)?;
    frame.finish();
    Ok(())
}

/// Writes an entry whose frame comes in parts.
fn write_parts<W: Write>(
    container: &mut ContainerWriter<W>,
    InParts { entry, mut ticket, parts, end }: InParts<'_>,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let mut raw_len = entry.raw_len();
    let counted = entry.clone();
    let mut out = container.start_frame(entry).map_err(Error::writing)?;
    let mut write = |bytes: &[u8]| out.write_all(bytes).map_err(Error::writing);
    match parts {
        Parts::Bytes(mut parts) => parts.try_for_each(|bytes| write(&bytes))?,
        Parts::Blocks(mut frame, parts) => {
            write(&frame.head())?;
            for part in parts {
                let (bytes, blocks) = part?;
                write(&bytes)?;
                progress(blocks.raw_len);
                raw_len -= blocks.raw_len;
                frame.append(blocks, bytes.len());
            }
            write(&frame.tail())?;
        }
    }
    // Without an end the container is not finished either: why, is reported by what feeds.
    if let Ok(digest) = end.recv() {
        ticket.count(&counted, out.finish_with(digest));
        progress(raw_len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A file that has another length each time somebody asks after the first.
    struct Growing(Vec<u8>, AtomicU64);

    impl ReadAt for Growing {
        fn size(&self) -> io::Result<u64> {
            Ok(self.0.len() as u64 + self.1.fetch_add(1, Ordering::Relaxed).saturating_sub(20))
        }

        fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.read_exact_at(offset, out)
        }
    }

    #[test]
    fn a_source_that_has_become_longer_is_not_packed() {
        let header = br#"{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &[5; 8]].concat();
        let growing = Growing(file.clone(), AtomicU64::new(0));
        // Asked often before it grows: the answers of the layout agree.
        let packed = pack(&growing, Vec::new(), &PackOptions::default(), &|_| ());
        assert!(packed.is_ok());
        growing.1.store(0, Ordering::Relaxed);
        let n_asked = {
            pack(&growing, Vec::new(), &PackOptions::default(), &|_| ()).unwrap();
            growing.1.load(Ordering::Relaxed)
        };
        growing.1.store(21 - n_asked + 1, Ordering::Relaxed);
        let error = pack(&growing, Vec::new(), &PackOptions::default(), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("bytes and has"), "{error}");
    }
}
