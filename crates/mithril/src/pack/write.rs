//! Packs a file: the caller's thread reads and decides, others code, one writes.

use super::budget::DeltaBudget;
use super::feed::Feeder;
use super::layout::Layout;
use super::{PackOptions, PackSummary, PackedTensor, Progress};
use crate::Error;
use crate::container::{BaseHint, Compression, Entry, Header, Original};
use crate::options::thread_count;
use crate::pipeline::buffers::Buffer;
use crate::pipeline::ordered;
use crate::pipeline::tasks::{Budget, Share};
use mithril_format::ReadAt;
use mithril_format::container::ContainerWriter;
use mithril_format::frame::Trailer;
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
    let layout = Layout::of(source)?;
    let container = ContainerWriter::new(writer, &header(&layout, options), options.alignment_log2)
        .map_err(Error::writing)?;
    let threads =
        thread_count(options.threads, usize::MAX, usize::try_from(layout.file_len).unwrap_or(usize::MAX));
    let (buffers, memory) = (&*options.buffers, Budget::new(options.in_memory_len));
    let layout = &layout;
    let (fed, written) = ordered::run(
        threads,
        |line| Feeder { source, layout, options, buffers, memory: &memory, line }.feed_all(),
        |messages| write_entries(container, messages, &options.delta_budget, progress),
    );
    // When writing failed, feeding stopped because of it; what coding found broken comes before what is read later.
    let container = written?;
    fed?;
    let finished = container.finish().map_err(Error::writing)?;
    let tensors = finished.entries.into_iter().filter(|entry| !entry.glue).map(|entry| PackedTensor {
        kind: entry.kind(),
        raw_len: entry.raw_len(),
        stored_len: entry.frame().map_or(0, |(len, _)| len),
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

fn header(layout: &Layout, options: &PackOptions) -> Header {
    let mut header = Header::default();
    header.writer = super::writer_name();
    header.original = Some(Original::new(&options.name, layout.kind.name(), layout.file_len));
    header.compression = Some(Compression::new(options.effort.name(), options.level));
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
    /// An entry whose frame comes in pieces, up to an `End`.
    Start(Entry),
    /// A piece of that frame.
    Piece(Vec<u8>),
    /// Some blocks of that frame, with what the trailer must say of them.
    Blocks(Buffer<'a>, Trailer),
    /// The end of that frame, behind the trailer if all of it came as blocks.
    End(FrameEnd),
    /// Whether an entry may be stored by a delta of so many bytes: answered when all before it are counted.
    Ask(Entry, u64, SyncSender<bool>),
}

/// Codes a tensor without its base.
pub(super) type InFull<'a> = Box<dyn FnOnce() -> Result<(Entry, Buffer<'a>), Error> + Send + 'a>;

/// How a frame ends that came in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameEnd {
    /// Its last piece was all.
    Complete,
    /// Its trailer is still to be written.
    NeedsTrailer,
}

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
            Message::Start(entry) => write_pieces(&mut container, entry, messages, budget, progress)?,
            Message::Piece(_) | Message::Blocks(..) | Message::End(_) => {
                unreachable!("pieces follow a start, and end with an end")
            }
        }
    }
    Ok(container)
}

/// Writes an entry whose frame comes in pieces.
fn write_pieces<W: Write>(
    container: &mut ContainerWriter<W>,
    entry: Entry,
    messages: &mut Messages<'_, '_>,
    budget: &DeltaBudget,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let raw_len = entry.raw_len();
    let counted = entry.clone();
    let mut frame = container.start_frame(entry).map_err(Error::writing)?;
    let mut trailer = Trailer::default();
    for message in messages {
        match message? {
            Message::Piece(bytes) => frame.write_all(&bytes).map_err(Error::writing)?,
            Message::Blocks(bytes, blocks) => {
                frame.write_all(&bytes).map_err(Error::writing)?;
                trailer.coded_lens.extend(blocks.coded_lens);
                trailer.raw_len += blocks.raw_len;
                progress(blocks.raw_len);
            }
            Message::End(end) => {
                if end == FrameEnd::NeedsTrailer {
                    let mut bytes = Vec::new();
                    trailer.write(&mut bytes);
                    frame.write_all(&bytes).map_err(Error::writing)?;
                }
                budget.count(&counted, frame.finish());
                progress(raw_len - trailer.raw_len);
                return Ok(());
            }
            Message::Entries(..)
            | Message::Link(_)
            | Message::Frame(..)
            | Message::Delta(..)
            | Message::Ask(..)
            | Message::Start(_) => {
                unreachable!("a frame in pieces ends before the next")
            }
        }
    }
    // What feeds ended because of an error of its own, which is reported.
    Ok(())
}
