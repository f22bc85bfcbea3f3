//! Packs a file: the caller's thread reads and decides, others code, one writes.

use super::assumed::Assumed;
use super::budget::DeltaBudget;
use super::feed::Feeder;
use super::layout::Layout;
use super::{PackOptions, PackSummary, PackedTensor, Progress};
use crate::Error;
use crate::container::{BaseHint, Compression, Entry, Header, Original};
use crate::frame_writer::FrameWriter;
use crate::options::thread_count;
use crate::pipeline::buffers::Buffer;
use crate::pipeline::ordered;
use crate::pipeline::tasks::{Budget, Share};
use mithril_format::container::ContainerWriter;
use mithril_format::frame::Trailer;
use mithril_format::{Digest, ReadAt};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::SyncSender;

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
    let (layout, assumed) = (&layout, Assumed::default());
    let (fed, written) = ordered::run(
        threads,
        |line| {
            Feeder { source, layout, options, buffers, memory: &memory, assumed: &assumed, line }.feed_all()
        },
        |messages| write_entries(container, messages, &options.delta_budget, progress),
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

/// What is done, in the order in which it is written.
pub(super) enum Message<'a> {
    /// Entries without frames, or with whole frames that lie at these ranges.
    Entries(Vec<(Entry, Option<Range<usize>>)>, Buffer<'a>),
    /// An entry without a frame.
    Link(Entry),
    /// An entry with its whole frame, and its share of memory.
    Frame(Entry, Buffer<'a>, Option<Share<'a>>),
    /// An entry with its whole delta, and how to store it in full if the delta is too large.
    Delta(Entry, Buffer<'a>, InFull<'a>),
    /// An entry whose frame comes in parts, up to an `End`: as blocks of this frame, or as its bytes.
    Start(Entry, Option<FrameWriter>),
    /// Bytes of that frame.
    Piece(Vec<u8>),
    /// Blocks of that frame, with what the trailer says of them.
    Blocks(Buffer<'a>, Trailer),
    /// The end of that frame, and the digest of what it holds, if the index keeps it.
    End(Option<Digest>),
    /// Whether an entry may be stored by a delta of so many bytes: answered when all before it are counted.
    Ask(Entry, u64, SyncSender<bool>),
}

/// Codes a tensor without its base.
pub(super) type InFull<'a> = Box<dyn FnOnce() -> Result<(Entry, Buffer<'a>), Error> + Send + 'a>;

type Messages<'a, 'b> = dyn Iterator<Item = Result<Message<'a>, Error>> + 'b;

fn write_entries<W: Write>(
    mut container: ContainerWriter<W>,
    messages: &mut Messages<'_, '_>,
    budget: &DeltaBudget,
    progress: Progress<'_>,
) -> Result<ContainerWriter<W>, Error> {
    let write = |container: &mut ContainerWriter<W>, entry: Entry, bytes: &[u8]| -> io::Result<()> {
        budget.count(&entry, bytes.len() as u64);
        let mut frame = container.start_frame(entry)?;
        frame.write_all(bytes)?;
        frame.finish();
        Ok(())
    };
    while let Some(message) = messages.next() {
        match message? {
            Message::Entries(entries, bytes) => {
                for (entry, range) in entries {
                    let raw_len = entry.raw_len();
                    match range {
                        None => {
                            budget.count(&entry, 0);
                            container.add_link(entry)
                        }
                        Some(range) => write(&mut container, entry, &bytes[range]),
                    }
                    .map_err(Error::writing)?;
                    progress(raw_len);
                }
            }
            Message::Link(entry) => {
                let raw_len = entry.raw_len();
                budget.count(&entry, 0);
                container.add_link(entry).map_err(Error::writing)?;
                progress(raw_len);
            }
            Message::Frame(entry, bytes, share) => {
                let raw_len = entry.raw_len();
                write(&mut container, entry, &bytes).map_err(Error::writing)?;
                drop(share);
                progress(raw_len);
            }
            Message::Delta(entry, bytes, in_full) => {
                let raw_len = entry.raw_len();
                if budget.fits(&entry, bytes.len() as u64) {
                    write(&mut container, entry, &bytes).map_err(Error::writing)?;
                } else {
                    let (entry, bytes) = in_full()?;
                    write(&mut container, entry, &bytes).map_err(Error::writing)?;
                }
                progress(raw_len);
            }
            Message::Ask(entry, len, answer) => {
                // Who asked may be gone, because of an error that is reported.
                let _ = answer.send(budget.fits(&entry, len));
            }
            Message::Start(entry, frame) => {
                write_parts(&mut container, (entry, frame), messages, budget, progress)?;
            }
            Message::Piece(_) | Message::Blocks(..) | Message::End(..) => {
                unreachable!("pieces follow a start, and end with an end")
            }
        }
    }
    Ok(container)
}

/// Writes an entry whose frame comes in parts.
fn write_parts<W: Write>(
    container: &mut ContainerWriter<W>,
    (entry, mut blocks): (Entry, Option<FrameWriter>),
    messages: &mut Messages<'_, '_>,
    budget: &DeltaBudget,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let mut raw_len = entry.raw_len();
    let counted = entry.clone();
    let mut frame = container.start_frame(entry).map_err(Error::writing)?;
    if let Some(blocks) = &blocks {
        frame.write_all(&blocks.head()).map_err(Error::writing)?;
    }
    for message in messages {
        match message? {
            Message::Piece(bytes) => frame.write_all(&bytes).map_err(Error::writing)?,
            Message::Blocks(bytes, coded) => {
                frame.write_all(&bytes).map_err(Error::writing)?;
                progress(coded.raw_len);
                raw_len -= coded.raw_len;
                if let Some(blocks) = &mut blocks {
                    blocks.append(coded, bytes.len());
                }
            }
            Message::End(digest) => {
                if let Some(blocks) = blocks {
                    frame.write_all(&blocks.tail()).map_err(Error::writing)?;
                }
                budget.count(&counted, frame.finish_with(digest));
                progress(raw_len);
                return Ok(());
            }
            Message::Entries(..)
            | Message::Link(_)
            | Message::Frame(..)
            | Message::Delta(..)
            | Message::Ask(..)
            | Message::Start(..) => {
                unreachable!("a frame in pieces ends before the next")
            }
        }
    }
    // What feeds ended because of an error of its own, which is reported.
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
