//! Frames over `Write` and `Read`, for data that does not fit in memory.
//!
//! The encoder plans from the first bytes, then codes one batch of blocks after the other; the decoder reads and
//! decodes batches. A batch is a few MiB whatever the size of the data, so memory is bounded. All that grows is the
//! list of block lengths that the trailer holds: four bytes per block, less than 0.01 % of the raw bytes.

use crate::frame_writer::FrameWriter;
use crate::options::{DecodeOptions, FrameOptions};
use crate::pipeline::buffers::zeros;
use crate::plan::Evidence;
use crate::{Error, ErrorKind, frame, pipeline, plan};
use mithril_format::FormatError;
use mithril_format::frame::{BlockHeader, FrameBlock, FrameHeader, Trailer, Verify};
use std::io::{self, Read, Write};

/// Raw bytes that are planned from, and that are coded or decoded at a time. Buffers of this size exist twice (raw and
/// coded), and the threads' scratch adds at most about four times as much.
const BATCH_LEN: usize = 8 << 20;

/// Blocks of a batch, which may be as small as a byte in frames of other writers.
const MAX_BATCH_BLOCKS: usize = 1024;

/// Coded bytes that are asked for at a time: memory is taken for bytes that came, not for bytes that are claimed.
const READ_LEN: usize = 1 << 20;

/// Compresses what is written to it, to a frame in another writer.
///
/// Data of up to 8 MiB gives the same frame as [`compress`](crate::compress). Larger data is planned from its first
/// 8 MiB, and its blocks share no tables. Memory stays below 128 MiB, whatever the size of the data.
///
/// ```
/// use mithril::{Decoder, Dtype, Encoder, FrameOptions};
/// use std::io::{Read, Write};
/// let mut encoder = Encoder::new(Vec::new(), &FrameOptions::default().with_dtype(Dtype::F32))?;
/// for i in 0..5000u32 {
///     encoder.write_all(&(i as f32).to_le_bytes())?;
/// }
/// let frame = encoder.finish()?; // without it the frame has no end
///
/// let mut decoder = Decoder::new(&frame[..])?;
/// assert_eq!(decoder.header().dtype, Dtype::F32);
/// let mut bytes = Vec::new();
/// decoder.read_to_end(&mut bytes)?;
/// assert_eq!(bytes.len(), 20_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Encoder<W: Write> {
    writer: W,
    options: FrameOptions,
    /// What the shape says that all bytes are, if there is one.
    expected_len: Option<u64>,
    /// Raw bytes that were written to it.
    taken: u64,
    /// Raw bytes that are not coded yet.
    pending: Vec<u8>,
    /// Set once the header is written.
    started: Option<Started>,
    failed: bool,
}

#[derive(Debug)]
struct Started {
    frame: FrameWriter,
    coded: Vec<u8>,
}

impl<W: Write> Encoder<W> {
    /// Starts a frame. With a shape, exactly its bytes must be written.
    ///
    /// # Errors
    /// `InvalidArgument` when the shape has too many dimensions or does not fill whole bytes.
    pub fn new(writer: W, options: &FrameOptions) -> Result<Self, Error> {
        let expected_len = match &options.shape {
            None => None,
            Some(shape) => {
                frame::check_rank(options)?;
                let n = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
                let len = n.and_then(|n| options.dtype.len_of(n));
                let what =
                    || format!("shape {shape:?} of {} does not fill whole bytes", options.dtype.name());
                Some(len.ok_or_else(|| Error::invalid(what()))?)
            }
        };
        Ok(Self {
            writer,
            options: options.clone(),
            expected_len,
            taken: 0,
            pending: Vec::new(),
            started: None,
            failed: false,
        })
    }

    /// Writes what is left and the end of the frame; gives the writer back, not flushed.
    ///
    /// # Errors
    /// When writing fails, or fewer bytes were written than the shape says.
    pub fn finish(mut self) -> Result<W, Error> {
        self.check_usable()?;
        if self.expected_len.is_some_and(|expected| expected != self.taken) {
            return Err(self.other_length(self.taken));
        }
        if self.started.is_some() {
            self.encode_pending(Part::All)?;
        }
        let end = match &self.started {
            Some(Started { frame, .. }) if frame.raw_len() != self.taken => {
                let (taken, coded) = (self.taken, frame.raw_len());
                return Err(Error::invalid(format!("{taken} bytes were written, and {coded} coded")));
            }
            Some(Started { frame, .. }) => frame.tail(),
            None => frame::compress(&self.pending, &self.options)?,
        };
        self.writer.write_all(&end).map_err(Error::writing)?;
        Ok(self.writer)
    }

    /// As [`Encoder::finish`], when the source of the data says how long it is: fewer or more bytes than that are an
    /// error, and the frame is not finished.
    ///
    /// # Errors
    /// As [`Encoder::finish`]; when another number of bytes was written.
    pub fn finish_whole(self, source_len: u64) -> Result<W, Error> {
        if self.taken != source_len {
            let what = format!("{} of its {source_len} bytes were read", self.taken);
            return Err(Error::reading(io::Error::other(what)));
        }
        self.finish()
    }

    /// Takes as many bytes as there is room for.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.check_usable()?;
        let total = self.taken.saturating_add(bytes.len() as u64);
        if self.expected_len.is_some_and(|expected| total > expected) {
            return Err(self.other_length(total));
        }
        if !bytes.is_empty() && self.pending.len() == BATCH_LEN {
            // Failing half-way leaves a broken frame behind, which nothing written later can mend.
            self.failed = true;
            self.start()?;
            self.encode_pending(Part::WholeBlocks)?;
            self.failed = false;
        }
        let n = bytes.len().min(BATCH_LEN - self.pending.len());
        if self.pending.capacity() < self.pending.len() + n {
            // Doubling within the bound; a plain `extend` could end up with twice the batch.
            let wanted = (2 * self.pending.capacity()).clamp(self.pending.len() + n, BATCH_LEN);
            self.pending.reserve_exact(wanted - self.pending.len());
        }
        self.pending.extend_from_slice(&bytes[..n]);
        self.taken += n as u64;
        Ok(n)
    }

    /// Plans and writes the header, when that has not been done.
    fn start(&mut self) -> Result<(), Error> {
        if self.started.is_some() {
            return Ok(());
        }
        // What was written is here and does not change.
        let options = self.options.clone().with_changing(false);
        let plan = plan::tensor(&self.pending, Evidence::Front, None, &options)?;
        let frame = FrameWriter::new(plan, &options, self.expected_len, None);
        self.writer.write_all(&frame.head()).map_err(Error::writing)?;
        let coded = zeros(frame.blocks_bound(BATCH_LEN))?;
        self.started = Some(Started { frame, coded });
        Ok(())
    }

    /// Codes and writes pending bytes. Only the last block of a frame may be short, so some bytes stay until the end.
    fn encode_pending(&mut self, part: Part) -> Result<(), Error> {
        let Some(Started { frame, coded }) = &mut self.started else {
            return Ok(());
        };
        let block_len = frame.block_len();
        let len = match part {
            Part::WholeBlocks => self.pending.len() / block_len * block_len,
            Part::All => self.pending.len(),
        };
        let coded_len = frame.encode_honest(&self.pending[..len], coded);
        self.writer.write_all(&coded[..coded_len]).map_err(Error::writing)?;
        self.pending.drain(..len);
        Ok(())
    }

    fn check_usable(&self) -> Result<(), Error> {
        if self.failed { Err(Error::invalid("an encoder that failed cannot go on")) } else { Ok(()) }
    }

    fn other_length(&self, len: u64) -> Error {
        let (dtype, expected) = (self.options.dtype.name(), self.expected_len.unwrap_or(0));
        Error::invalid(format!(
            "shape {:?} of {dtype} takes {expected} bytes, {len} were written",
            self.options.shape
        ))
    }
}

/// Which of the pending bytes to code.
#[derive(Clone, Copy)]
enum Part {
    WholeBlocks,
    All,
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.take(bytes)?)
    }

    /// Flushes the writer behind. Bytes that do not fill a batch stay here until [`Encoder::finish`].
    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Decompresses a frame from a reader as it is read.
///
/// Every block is verified before a byte of it is handed out, and the end of the frame before the end is reported: a
/// `read` that returns 0 means that the whole frame was intact and nothing follows it. Failures are [`Error`]s inside
/// of `io::Error`.
#[derive(Debug)]
pub struct Decoder<R: Read> {
    reader: Counted<R>,
    options: DecodeOptions,
    header: FrameHeader,
    /// What was seen so far, as the trailer must state it.
    seen: Trailer,
    /// The last batch, and how much of it was handed out.
    raw: Vec<u8>,
    handed_out: usize,
    coded: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Blocks,
    Finished,
    Failed,
}

/// A block whose coded bytes are in memory.
struct CodedBlock {
    header: BlockHeader,
    /// Where its coded bytes start in the batch.
    at: usize,
    /// Where it starts in the frame.
    offset: u64,
}

impl<R: Read> Decoder<R> {
    /// Reads the header of a frame.
    ///
    /// # Errors
    /// When the bytes are no frame, cut off or damaged, or cannot be read.
    pub fn new(reader: R) -> Result<Self, Error> {
        Self::with_options(reader, &DecodeOptions::default())
    }

    /// As [`Decoder::new`], with a choice of threads. A limit on the output is kept when it is set; by default there
    /// is none, as memory does not depend on it.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn with_options(reader: R, options: &DecodeOptions) -> Result<Self, Error> {
        let mut reader = Counted { reader, offset: 0 };
        let mut head = Vec::new();
        reader.append(SMALLEST_HEADER_LEN, &mut head)?;
        // Of a header that is cut off, `parse` below says so, or that the bytes are no frame at all.
        if let Some(len) = FrameHeader::len(&head)? {
            reader.append(len.saturating_sub(head.len()), &mut head)?;
        }
        let (header, _) = FrameHeader::parse(&head)?;
        if let Some(expected) = header.base {
            return Err(Error::BaseMismatch { expected, actual: None });
        }
        Ok(Self {
            reader,
            options: options.clone(),
            header,
            seen: Trailer::default(),
            raw: Vec::new(),
            handed_out: 0,
            coded: Vec::new(),
            state: State::Blocks,
        })
    }

    /// What the frame says about its content: dtype, shape, and the raw length if it was known.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// Gives the reader back.
    pub fn into_inner(self) -> R {
        self.reader.reader
    }

    /// Decodes the next batch; at the end of the blocks, checks the end of the frame.
    fn next_batch(&mut self) -> Result<(), Error> {
        let block_len = self.header.block_len as usize;
        let first_block = self.seen.coded_lens.len();
        let mut blocks: Vec<CodedBlock> = Vec::new();
        let mut raw_len = 0;
        let mut at_end = false;
        self.coded.clear();
        while !at_end
            && (blocks.is_empty() || raw_len + block_len <= BATCH_LEN && blocks.len() < MAX_BATCH_BLOCKS)
        {
            match self.read_block()? {
                None => at_end = true,
                Some(block) => {
                    raw_len += block.header.raw_len as usize;
                    blocks.push(block);
                }
            }
        }
        self.raw.resize(raw_len, 0);
        let (header, coded) = (&self.header, &self.coded);
        pipeline::decode_each(
            first_block,
            block_len,
            &mut self.raw,
            self.options.threads,
            |block_idx, out, scratch| {
                let CodedBlock { header: ref block, at, offset } = blocks[block_idx - first_block];
                let block = FrameBlock { header: *block, block_idx, offset, data: &coded[at..] };
                block.decode(header, Verify::Yes, None, out, scratch)
            },
        )?;
        self.handed_out = 0;
        if at_end {
            self.read_end()?;
            self.state = State::Finished;
        }
        Ok(())
    }

    /// Reads a block into the batch, unless the blocks have ended.
    fn read_block(&mut self) -> Result<Option<CodedBlock>, Error> {
        let offset = self.reader.offset;
        let truncated = |what| Error::from(FormatError::Truncated { what, offset });
        let mut head = Vec::with_capacity(BlockHeader::len(true));
        let head_len = BlockHeader::len(self.header.checksums);
        // The end of the blocks is shorter than the header of a block.
        if self.reader.append(END_LEN, &mut head)? < END_LEN {
            return Err(truncated("block header"));
        }
        if head != [0; END_LEN] && self.reader.append(head_len - END_LEN, &mut head)? < head_len - END_LEN {
            return Err(truncated("block header"));
        }
        let Some(header) = BlockHeader::parse(&head, &self.header, offset)? else { return Ok(None) };
        if !self.seen.raw_len.is_multiple_of(u64::from(self.header.block_len)) {
            return Err(FormatError::Corrupt { what: "a short block before the last", offset }.into());
        }
        self.seen.raw_len += u64::from(header.raw_len);
        self.seen.coded_lens.push(header.coded_len);
        if self.header.raw_len.is_some_and(|raw_len| self.seen.raw_len > raw_len) {
            return Err(FormatError::Corrupt { what: "raw lengths do not agree", offset }.into());
        }
        if let Some(limit) = self.options.max_output_len
            && self.seen.raw_len > limit
        {
            return Err(Error::TooLarge { raw_len: self.seen.raw_len, limit });
        }
        let at = self.coded.len();
        let coded_len = header.coded_len as usize;
        if self.reader.append(coded_len, &mut self.coded)? < coded_len {
            return Err(truncated("block"));
        }
        Ok(Some(CodedBlock { header, at, offset }))
    }

    /// The trailer must say what was seen, and be the last.
    fn read_end(&mut self) -> Result<(), Error> {
        let offset = self.reader.offset;
        let seen = self.seen.raw_len;
        if self.header.raw_len.is_some_and(|raw_len| raw_len != seen) {
            return Err(FormatError::Corrupt { what: "raw lengths do not agree", offset }.into());
        }
        self.header.check_shape(seen)?;
        let mut expected = Vec::new();
        self.seen.write(&mut expected);
        let expected = &expected[END_LEN..];
        let mut trailer = Vec::new();
        if self.reader.append(expected.len(), &mut trailer)? < expected.len() {
            return Err(FormatError::Truncated { what: "frame trailer", offset }.into());
        }
        if let Some(at) = expected.iter().zip(&trailer).position(|(expected, found)| expected != found) {
            return Err(FormatError::Corrupt {
                what: "trailer and blocks do not agree",
                offset: offset + at as u64,
            }
            .into());
        }
        let offset = self.reader.offset;
        let len = self.reader.append(1, &mut trailer)? as u64;
        if len > 0 { Err(FormatError::TrailingData { offset, len }.into()) } else { Ok(()) }
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        if out.is_empty() {
            return Ok(0);
        }
        if self.handed_out == self.raw.len() {
            match self.state {
                State::Failed => return Err(Error::invalid("a decoder that failed cannot go on")),
                State::Finished => return Ok(0),
                State::Blocks => {}
            }
            let result = self.next_batch();
            if let Err(error) = result {
                self.state = State::Failed;
                self.raw.clear();
                self.handed_out = 0;
                return Err(error);
            }
        }
        let ready = &self.raw[self.handed_out..];
        let n = ready.len().min(out.len());
        out[..n].copy_from_slice(&ready[..n]);
        self.handed_out += n;
        Ok(n)
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.fill(out)?)
    }
}

/// Bytes of a header without shape and shared tables: every frame has them, and they tell how long its header is.
const SMALLEST_HEADER_LEN: usize = 32;

/// Bytes of the marker that ends the blocks: a coded length of zero.
const END_LEN: usize = 4;

/// A reader that knows where it is.
#[derive(Debug)]
struct Counted<R> {
    reader: R,
    offset: u64,
}

impl<R: Read> Counted<R> {
    /// Appends up to `len` bytes; fewer only at the end of the data. Returns how many came.
    fn append(&mut self, len: usize, to: &mut Vec<u8>) -> Result<usize, Error> {
        let mut n = 0;
        while n < len {
            let step = (len - n).min(READ_LEN);
            let start = to.len();
            to.resize(start + step, 0);
            let came = read_up_to(&mut self.reader, &mut to[start..]);
            to.truncate(start + *came.as_ref().unwrap_or(&0));
            let came = came.map_err(Error::reading)?;
            self.offset += came as u64;
            n += came;
            if came < step {
                break;
            }
        }
        Ok(n)
    }
}

/// Reads until `out` is full or the data ends.
fn read_up_to(reader: &mut impl Read, out: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < out.len() {
        match reader.read(&mut out[n..]) {
            Ok(0) => break,
            Ok(came) => n += came,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n)
}

impl From<Error> for io::Error {
    /// Wraps an error, which `io::Error::get_ref` gives back.
    fn from(error: Error) -> Self {
        let kind = match (&error, error.kind()) {
            (Error::Io { source, .. }, _) => source.kind(),
            (_, ErrorKind::Truncated) => io::ErrorKind::UnexpectedEof,
            (_, ErrorKind::InvalidArgument) => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}
