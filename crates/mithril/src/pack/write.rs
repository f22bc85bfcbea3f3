//! Packs a file: one thread reads ahead, the caller's thread codes, one writes.

use super::bases::BaseTensor;
use super::delta_stream;
use super::layout::Layout;
use super::raw::Raw;
use super::tensor::{Coded, TensorCoder, compress};
use super::{
    FAST_IN_MEMORY_LEN, IN_MEMORY_LEN, PackOptions, PackSummary, PackedTensor, Progress, QUEUE_LEN,
    READ_AHEAD_LEN,
};
use crate::container::{BaseHint, Compression, Entry, Header, Original};
use crate::{Dtype, Effort, Encoder, Error, FrameOptions};
use mithril_format::container::ContainerWriter;
use mithril_format::{Fetched, ReadAt};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

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

    let (message_sender, messages) = sync_channel(QUEUE_LEN);
    let (used_sender, used_buffers) = channel();
    let (read_sender, read_ahead) = sync_channel(QUEUE_LEN);
    let (spare_sender, spare_buffers) = channel();
    let (coded, written) = std::thread::scope(|scope| {
        let layout = &layout;
        let reading = scope.spawn(move || read_tensors(source, layout, &read_sender, &spare_buffers));
        let writer = scope.spawn(move || write_entries(container, &messages, &used_sender));
        let mut output = Output { messages: message_sender, used_buffers };
        let input = Input { read_ahead, spare_buffers: spare_sender };
        let coded = code_all(source, layout, options, progress, &input, &mut output);
        // What the other threads wait for is dropped now, so that they end too.
        drop((input, output));
        // A scope waits for what its threads do, not for their end: joined, nothing of them is left.
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (coded, writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    // When writing failed, coding stopped because of it.
    let container = written.map_err(Error::writing)?;
    coded?;
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

/// What the reading thread gives, and takes back.
struct Input {
    /// The bytes of every tensor that is small enough, in order.
    read_ahead: Receiver<io::Result<Vec<u8>>>,
    spare_buffers: Sender<Vec<u8>>,
}

/// Reads the small tensors in order, as long as somebody takes them.
fn read_tensors(
    source: &dyn ReadAt,
    layout: &Layout,
    read_ahead: &SyncSender<io::Result<Vec<u8>>>,
    spare_buffers: &Receiver<Vec<u8>>,
) {
    for tensor in layout.tensors.iter().filter(|tensor| is_read_ahead(&tensor.bytes)) {
        let buffer = spare_buffers.try_recv().unwrap_or_default();
        let bytes = read_into(source, tensor.bytes.clone(), buffer);
        let failed = bytes.is_err();
        if read_ahead.send(bytes).is_err() || failed {
            return;
        }
    }
}

fn is_read_ahead(bytes: &Range<u64>) -> bool {
    bytes.end - bytes.start <= READ_AHEAD_LEN
}

fn read_into(source: &dyn ReadAt, range: Range<u64>, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
    Ok(Fetched::into_buffer(source, range, buffer)?.into_inner())
}

/// What the coding thread asks of the writing thread.
enum Message {
    /// An entry without a frame.
    Link(Entry),
    /// An entry with its whole frame: so many bytes at the front of a buffer.
    Frame(Entry, Vec<u8>, usize),
    /// An entry whose frame comes in pieces, up to an `End`.
    Start(Entry),
    /// A piece of that frame.
    Piece(Vec<u8>),
    /// The end of that frame.
    End,
}

/// The way to the writing thread, and the buffers that come back.
struct Output {
    messages: SyncSender<Message>,
    used_buffers: Receiver<Vec<u8>>,
}

impl Output {
    /// Fails only when writing failed, whose own error is reported then.
    fn send(&self, message: Message) -> Result<(), Error> {
        self.messages.send(message).map_err(|_| Error::writing(io::ErrorKind::BrokenPipe.into()))
    }

    fn buffer(&self) -> Vec<u8> {
        self.used_buffers.try_recv().unwrap_or_default()
    }
}

/// A frame that is sent as it is made.
impl Write for &Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut piece = self.buffer();
        piece.clear();
        piece.extend_from_slice(bytes);
        self.messages.send(Message::Piece(piece)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_entries<W: Write>(
    mut container: ContainerWriter<W>,
    messages: &Receiver<Message>,
    used_buffers: &Sender<Vec<u8>>,
) -> io::Result<ContainerWriter<W>> {
    while let Ok(message) = messages.recv() {
        match message {
            Message::Link(entry) => container.add_link(entry)?,
            Message::Frame(entry, bytes, len) => {
                let mut frame = container.start_frame(entry)?;
                frame.write_all(&bytes[..len])?;
                frame.finish();
                // Nobody may need it any more.
                let _ = used_buffers.send(bytes);
            }
            Message::Start(entry) => {
                let mut frame = container.start_frame(entry)?;
                while let Ok(Message::Piece(bytes)) = messages.recv() {
                    frame.write_all(&bytes)?;
                    let _ = used_buffers.send(bytes);
                }
                frame.finish();
            }
            Message::Piece(_) | Message::End => unreachable!("pieces follow a start, and end with an end"),
        }
    }
    Ok(container)
}

fn code_all(
    source: &dyn ReadAt,
    layout: &Layout,
    options: &PackOptions,
    progress: Progress<'_>,
    input: &Input,
    output: &mut Output,
) -> Result<(), Error> {
    if layout.glue_len > 0 {
        code_glue(source, layout, options, output)?;
        progress(layout.glue_len);
    }
    let mut coder = TensorCoder::new(source, layout, options)?;
    let in_memory_len = match options.effort {
        Effort::Fast if options.bases.is_empty() => FAST_IN_MEMORY_LEN,
        _ => IN_MEMORY_LEN,
    };
    // For tensors that are not read ahead: one buffer, whose pages are fresh only once.
    let mut large = Vec::new();
    for (tensor_idx, tensor) in layout.tensors.iter().enumerate() {
        let len = tensor.bytes.end - tensor.bytes.start;
        let memory = if is_read_ahead(&tensor.bytes) {
            let bytes = input.read_ahead.recv().unwrap_or(Err(io::ErrorKind::BrokenPipe.into()));
            Some(bytes.map_err(Error::reading)?)
        } else if len <= in_memory_len {
            let bytes = read_into(source, tensor.bytes.clone(), std::mem::take(&mut large));
            Some(bytes.map_err(Error::reading)?)
        } else {
            None
        };
        let raw = Raw::new(source, tensor.bytes.clone(), memory.as_deref());
        let mut frame = output.buffer();
        match coder.code(tensor_idx, &raw, &mut frame).map_err(|error| error.in_tensor(&tensor.name))? {
            Coded::Link(entry) => output.send(Message::Link(entry))?,
            Coded::Frame(entry, len) => output.send(Message::Frame(entry, frame, len))?,
            Coded::Stream(entry, base) => {
                let frame_options = options.frame_options(tensor.dtype, &tensor.shape);
                stream(entry, &raw, base.as_ref(), &frame_options, output)
                    .map_err(|error| error.in_tensor(&tensor.name))?;
            }
        }
        progress(len);
        match memory {
            // Nobody may need it any more.
            Some(buffer) if is_read_ahead(&tensor.bytes) => drop(input.spare_buffers.send(buffer)),
            Some(buffer) => large = buffer,
            None => {}
        }
    }
    Ok(())
}

/// Sends the glue: all pieces as one entry.
fn code_glue(
    source: &dyn ReadAt,
    layout: &Layout,
    options: &PackOptions,
    output: &Output,
) -> Result<(), Error> {
    let entry = Entry::glue(layout.glue_len);
    let frame_options = options.frame_options(Dtype::Bytes, &entry.shape);
    if layout.glue_len <= READ_AHEAD_LEN {
        let mut glue = Vec::new();
        for range in &layout.glue {
            glue.extend(Raw::new(source, range.clone(), None).read(0..range.end - range.start)?);
        }
        let mut frame = Vec::new();
        let len = compress(&glue, &frame_options, &mut frame)?;
        return output.send(Message::Frame(entry, frame, len));
    }
    output.send(Message::Start(entry))?;
    let mut encoder = Encoder::new(output, &frame_options)?;
    for range in &layout.glue {
        write_pieces(&Raw::new(source, range.clone(), None), &mut encoder)?;
    }
    encoder.finish()?;
    output.send(Message::End)
}

/// Codes and sends a tensor that does not fit memory.
fn stream(
    entry: Entry,
    raw: &Raw<'_>,
    base: Option<&BaseTensor<'_>>,
    options: &FrameOptions,
    mut output: &Output,
) -> Result<(), Error> {
    output.send(Message::Start(entry))?;
    match base {
        Some(base) => delta_stream::encode(raw, &base.open()?, base.digest()?, options, &mut output)?,
        None => {
            let mut encoder = Encoder::new(output, options)?;
            write_pieces(raw, &mut encoder)?;
            encoder.finish()?;
        }
    }
    output.send(Message::End)
}

fn write_pieces(raw: &Raw<'_>, encoder: &mut impl Write) -> Result<(), Error> {
    raw.all_pieces(|_, piece| {
        encoder.write_all(piece).map_err(Error::writing)?;
        Ok(true)
    })?;
    Ok(())
}
