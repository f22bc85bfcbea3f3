//! Unpacks a container: one thread reads frames ahead, the caller's thread decodes, one writes.

use super::{Progress, QUEUE_LEN, READ_AHEAD_LEN};
use crate::Error;
use crate::container::{Bases, OpenTensor, Original, Reader, check_sum};
use mithril_codec::checksum;
use mithril_format::container::StoredFrame;
use mithril_format::{Fetched, FormatError, ReadAt};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Raw bytes that are decoded and written at a time.
const PIECE_LEN: u64 = 4 << 20;

/// What unpacking came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnpackSummary {
    /// Name of the original file.
    pub name: String,
    /// Its format.
    pub format: String,
    /// Its length.
    pub raw_len: u64,
    /// Bytes of the container.
    pub packed_len: u64,
}

/// Unpacks a container to the bytes of the original file. Returns the writer, not flushed. `threads` as in
/// [`DecodeOptions`](crate::DecodeOptions).
///
/// Every checksum is verified on the way. When it fails, the writer may have got part of the file.
///
/// # Errors
/// When the container is damaged or is no packed file, a base is not at hand, or reading or writing fails.
pub fn unpack<S: ReadAt, W: Write + Send>(
    reader: &Reader<S>,
    writer: W,
    bases: &Bases,
    threads: usize,
    progress: Progress<'_>,
) -> Result<(W, UnpackSummary), Error> {
    let original = check(reader, bases)?;
    let (read_sender, read_ahead) = sync_channel(QUEUE_LEN);
    let (spare_sender, spare_buffers) = channel();
    let (piece_sender, pieces) = sync_channel(QUEUE_LEN);
    let (used_sender, used_buffers) = channel();
    let (decoded, written) = std::thread::scope(|scope| {
        let reading = scope.spawn(move || read_frames(reader, &read_sender, &spare_buffers));
        let writer = scope.spawn(move || write_pieces(writer, &pieces, &used_sender));
        let output = Output { pieces: piece_sender, used_buffers };
        let frames = Frames { read_ahead, spare_buffers: spare_sender };
        let decoded = decode_all(reader, bases, threads, progress, &frames, &output);
        drop((frames, output));
        // A scope waits for what its threads do, not for their end: joined, nothing of them is left.
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (decoded, writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    // When writing failed, decoding stopped because of it.
    let writer = written.map_err(Error::writing)?;
    decoded?;
    let summary = UnpackSummary {
        name: original.name,
        format: original.format,
        raw_len: original.len,
        packed_len: reader.directory().file_len(),
    };
    Ok((writer, summary))
}

/// What the original file was; checks all that can be checked before the first byte of output: that the container is
/// a packed file, that its parts add up, and that every base is at hand.
///
/// # Errors
/// When one of these is not so.
pub fn check<S: ReadAt>(reader: &Reader<S>, bases: &Bases) -> Result<Original, Error> {
    let original = reader.header()?.original.ok_or_else(|| {
        Error::invalid("the container holds tensors, but is no packed file: `extract` reads them")
    })?;
    let total: u64 = reader.entries().iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.raw_len()));
    if total != original.len {
        let what = "the entries are not as long together as the original file";
        return Err(FormatError::Corrupt { what, offset: reader.directory().index_offset() }.into());
    }
    (0..reader.entries().len()).try_for_each(|entry_idx| reader.check_base(entry_idx, bases))?;
    Ok(original)
}

/// The frames that were read ahead, with the records before them.
struct Frames {
    read_ahead: Receiver<io::Result<ReadAhead>>,
    spare_buffers: Sender<Vec<u8>>,
}

/// The record of an entry, and its frame if that is small.
struct ReadAhead {
    bytes: Fetched,
    /// Checksum of the whole frame, if it is there.
    checksum: Option<u64>,
}

fn read_frames<S: ReadAt>(
    reader: &Reader<S>,
    read_ahead: &SyncSender<io::Result<ReadAhead>>,
    spare_buffers: &Receiver<Vec<u8>>,
) {
    for entry_idx in 0..reader.entries().len() {
        let Some(frame) = reader.directory().frame(entry_idx) else { continue };
        // Of a large frame only the record.
        let end = if frame.len <= READ_AHEAD_LEN { frame.end() } else { frame.offset };
        let buffer = spare_buffers.try_recv().unwrap_or_default();
        let bytes = Fetched::into_buffer(reader.source(), frame.record_offset..end, buffer);
        // Summed up here, where the bytes are fresh in the cache and the decoding threads do not wait for it.
        let read = bytes
            .map(|bytes| ReadAhead { checksum: bytes.slice(frame.offset..frame.end()).map(checksum), bytes });
        let failed = read.is_err();
        if read_ahead.send(read).is_err() || failed {
            return;
        }
    }
}

/// The way to the writing thread, and the buffers that come back.
struct Output {
    pieces: SyncSender<Vec<u8>>,
    used_buffers: Receiver<Vec<u8>>,
}

impl Output {
    /// Decodes a range of a tensor and sends it, piece by piece.
    fn send(
        &self,
        tensor: &OpenTensor<'_>,
        range: Range<u64>,
        threads: usize,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        let piece_len = PIECE_LEN.next_multiple_of(tensor.block_len());
        let mut at = range.start;
        while at < range.end {
            let end = (at + piece_len).min(range.end);
            let mut piece = self.used_buffers.try_recv().unwrap_or_default();
            piece.resize(usize::try_from(end - at).expect("a piece lies in memory"), 0);
            tensor.read_range(at..end, &mut piece, threads)?;
            // Fails only when writing failed, whose own error is reported then.
            self.pieces.send(piece).map_err(|_| Error::writing(io::ErrorKind::BrokenPipe.into()))?;
            progress(end - at);
            at = end;
        }
        Ok(())
    }
}

fn write_pieces<W: Write>(
    mut writer: W,
    pieces: &Receiver<Vec<u8>>,
    used_buffers: &Sender<Vec<u8>>,
) -> io::Result<W> {
    while let Ok(piece) = pieces.recv() {
        writer.write_all(&piece)?;
        // Nobody may need it any more.
        let _ = used_buffers.send(piece);
    }
    Ok(writer)
}

fn decode_all<S: ReadAt>(
    reader: &Reader<S>,
    bases: &Bases,
    threads: usize,
    progress: Progress<'_>,
    frames: &Frames,
    output: &Output,
) -> Result<(), Error> {
    let mut glue: Option<Glue<'_>> = None;
    let mut glue_at = 0;
    let in_glue = |error: Error| error.in_tensor(reader.entries()[0].label());
    for (entry_idx, entry) in reader.entries().iter().enumerate() {
        let in_tensor = |error: Error| error.in_tensor(entry.label());
        let opened = Opened::open(reader, entry_idx, bases, frames).map_err(in_tensor)?;
        if entry.glue {
            glue = Some(Glue::new(opened, threads).map_err(in_glue)?);
            continue;
        }
        if let Some(glue) = &glue {
            let range = glue_at..glue_at + entry.glue_before;
            glue.send(range, output, threads, progress).map_err(in_glue)?;
            glue_at += entry.glue_before;
        }
        output.send(&opened.tensor, 0..entry.raw_len(), threads, progress).map_err(in_tensor)?;
        opened.check_sum().map_err(in_tensor)?;
        if let Some(buffer) = opened.tensor.into_fetched() {
            let _ = frames.spare_buffers.send(buffer);
        }
    }
    let Some(glue) = &glue else { return Ok(()) };
    glue.send(glue_at..glue.opened.tensor.raw_len(), output, threads, progress).map_err(in_glue)?;
    glue.opened.check_sum().map_err(in_glue)
}

/// The bytes between tensors. They come in as many pieces as there are tensors, so they are decoded once if they fit.
struct Glue<'a> {
    opened: Opened<'a>,
    bytes: Option<Vec<u8>>,
}

impl<'a> Glue<'a> {
    fn new(opened: Opened<'a>, threads: usize) -> Result<Self, Error> {
        let fits = opened.tensor.raw_len() <= READ_AHEAD_LEN;
        let bytes = fits.then(|| opened.tensor.read_all(threads)).transpose()?;
        Ok(Self { opened, bytes })
    }

    fn send(
        &self,
        range: Range<u64>,
        output: &Output,
        threads: usize,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        match &self.bytes {
            Some(bytes) => {
                output.send(&OpenTensor::plain(bytes, 0..bytes.len() as u64), range, threads, progress)
            }
            None => output.send(&self.opened.tensor, range, threads, progress),
        }
    }
}

/// An entry that is being decoded.
struct Opened<'a> {
    tensor: OpenTensor<'a>,
    /// Its own frame, and what that sums up to if it was read ahead.
    frame: Option<(StoredFrame, Option<u64>)>,
}

impl<'a> Opened<'a> {
    fn open<S: ReadAt>(
        reader: &'a Reader<S>,
        entry_idx: usize,
        bases: &'a Bases,
        frames: &Frames,
    ) -> Result<Self, Error> {
        let Some(stored) = reader.directory().frame(entry_idx) else {
            return Ok(Self { tensor: reader.open_tensor(entry_idx, bases)?, frame: None });
        };
        let read = frames.read_ahead.recv().unwrap_or(Err(io::ErrorKind::BrokenPipe.into()));
        let ReadAhead { bytes, checksum } = read.map_err(Error::reading)?;
        let between = bytes.slice(stored.record_offset..stored.offset).unwrap_or_default();
        reader.directory().check_record(entry_idx, between)?;
        let tensor = if checksum.is_some() {
            reader.open_fetched(entry_idx, bytes, bases)?
        } else {
            let mut tensor = reader.open_tensor(entry_idx, bases)?;
            tensor.start_sum(stored)?;
            tensor
        };
        Ok(Self { tensor, frame: Some((stored, checksum)) })
    }

    /// After decoding, which says more precisely what is damaged, if it notices.
    fn check_sum(&self) -> Result<(), Error> {
        match self.frame {
            None => Ok(()),
            Some((stored, Some(actual))) => Ok(check_sum(stored, actual)?),
            Some((stored, None)) => self.tensor.check_sum(stored),
        }
    }
}
