//! Reads the tensors of a file, decides how each is stored, and feeds the coding to threads.

use super::assumed::Assumed;
use super::delta_stream::{self, DeltaStream, Held};
use super::layout::Layout;
use super::raw::Raw;
use super::tensor::{Choice, FoundBase, TensorChooser, against, compress, compress_against};
use super::window::Window;
use super::write::{InFull, Message};
use super::{BATCH_LEN, PackOptions};
use crate::container::{Entry, EntryKind};
use crate::frame_writer::FrameWriter;
use crate::pipeline::buffers::Buffers;
use crate::pipeline::ordered::{Closed, Line};
use crate::pipeline::tasks::{Budget, Share};
use crate::plan::{self, Evidence, TensorPlan};
use crate::{Dtype, Encoder, Error, FrameOptions, frame, pipeline};
use mithril_codec::entropy::lz::SHORT_METADATA;
use mithril_format::{Digest, Digester, ReadAt, TensorInfo};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Glue up to this length is coded in memory.
const GLUE_IN_MEMORY_LEN: u64 = 4 << 20;

/// Tensors that are coded by one job at most, however small.
const MAX_GROUP: usize = 256;

/// A large tensor is planned from so many pieces of this length, spread over it.
const SAMPLE_PIECES: u64 = 8;
const SAMPLE_PIECE_LEN: u64 = 16 << 10;

/// Feeds a file to the threads that code it.
pub(super) struct Feeder<'line, 'env> {
    pub(super) source: &'env dyn ReadAt,
    pub(super) layout: &'env Layout,
    pub(super) options: &'env PackOptions,
    pub(super) buffers: &'env Buffers,
    /// Tensors that are coded as a whole hold their share until they are written.
    pub(super) memory: &'env Budget,
    /// What tensors are taken to hold that others are made from.
    pub(super) assumed: &'env Assumed,
    pub(super) line: &'line Line<'env, Result<Message<'env>, Error>>,
}

impl<'env> Feeder<'_, 'env> {
    /// Feeds glue and tensors, in order. Returns what has decided about them.
    pub(super) fn feed_all(&self) -> Result<TensorChooser<'env>, Error> {
        if self.layout.glue_len > 0 {
            self.feed_glue()?;
        }
        let mut chooser = TensorChooser::new(self.source, self.layout, self.options, self.assumed)?;
        let mut tensor_idx = 0;
        while tensor_idx < self.layout.tensors.len() {
            let n_small = self.n_small(tensor_idx);
            if n_small > 0 {
                self.feed_small(&mut chooser, tensor_idx..tensor_idx + n_small)?;
                tensor_idx += n_small;
            } else {
                let name = &self.layout.tensors[tensor_idx].name;
                self.feed_large(&mut chooser, tensor_idx).map_err(|error| error.in_tensor(name))?;
                tensor_idx += 1;
            }
        }
        Ok(chooser)
    }

    fn push_done(&self, message: Message<'env>) -> Result<(), Error> {
        self.line.push_done(Ok(message)).map_err(closed)
    }

    /// How many tensors from this one on are small, and lie so close together that they are read at once.
    fn n_small(&self, first: usize) -> usize {
        let tensors = &self.layout.tensors[first..];
        let fits = |tensor: &&TensorInfo| tensor.bytes.end - tensors[0].bytes.start <= BATCH_LEN;
        tensors.iter().take(MAX_GROUP).take_while(fits).count()
    }

    /// Feeds small tensors: those that need no base as few jobs.
    fn feed_small(&self, chooser: &mut TensorChooser<'env>, tensors: Range<usize>) -> Result<(), Error> {
        let infos = &self.layout.tensors[tensors.clone()];
        let range = infos[0].bytes.start..infos[infos.len() - 1].bytes.end;
        let window = Arc::new(Window::read(self.source, range, self.buffers)?);
        let mut group = Vec::with_capacity(infos.len());
        for (tensor_idx, tensor) in tensors.zip(infos) {
            let in_tensor = |error: Error| error.in_tensor(&tensor.name);
            let raw = Raw::new(self.source, tensor.bytes.clone(), Some(window.bytes(tensor.bytes.clone())));
            match chooser.choose(tensor_idx, &raw).map_err(in_tensor)? {
                Choice::Link(entry) => group.push((entry, None)),
                Choice::Frame(entry, None) => group.push((entry, Some(tensor))),
                Choice::Frame(entry, Some(base)) => {
                    self.push_group(std::mem::take(&mut group), &window)?;
                    self.push_whole(entry, Some(base), tensor, Arc::clone(&window), None)?;
                }
            }
        }
        self.push_group(group, &window)
    }

    /// Feeds small tensors as one job; those without their place in the file get no frame.
    fn push_group(
        &self,
        group: Vec<(Entry, Option<&'env TensorInfo>)>,
        window: &Arc<Window<'env>>,
    ) -> Result<(), Error> {
        if group.is_empty() {
            return Ok(());
        }
        let (window, options, buffers) = (Arc::clone(window), self.options, self.buffers);
        let job = move || {
            let tensors: Vec<_> = group
                .into_iter()
                .map(|(entry, tensor)| {
                    let tensor = tensor.map(|tensor| {
                        let frame_options =
                            options.frame_options(tensor.dtype, &tensor.shape).with_threads(1);
                        (window.bytes(tensor.bytes.clone()), frame_options)
                    });
                    (entry, tensor)
                })
                .collect();
            let bounds = tensors.iter().filter_map(|(_, tensor)| tensor.as_ref());
            let bound = bounds.map(|(raw, options)| frame::compress_bound(raw.len(), options)).sum();
            let mut out = buffers.take(bound)?;
            let mut entries = Vec::with_capacity(tensors.len());
            let mut at = 0;
            for (entry, tensor) in tensors {
                let range = match tensor {
                    None => None,
                    Some((raw, options)) => {
                        let coded = frame::compress_into(raw, &options, &mut out[at..]);
                        let len = coded.map_err(|error| error.in_tensor(&entry.name))?;
                        at += len;
                        Some(at - len..at)
                    }
                };
                entries.push((entry, range));
            }
            Ok(Message::Entries(entries, out))
        };
        self.line.push(job).map_err(closed)
    }

    fn feed_large(&self, chooser: &mut TensorChooser<'env>, tensor_idx: usize) -> Result<(), Error> {
        let tensor = &self.layout.tensors[tensor_idx];
        let len = tensor.bytes.end - tensor.bytes.start;
        let by_blocks = self.options.coding.effort.means().in_batches && self.options.bases.is_empty();
        if by_blocks || len > self.options.in_memory_len {
            let raw = Raw::new(self.source, tensor.bytes.clone(), None);
            let digest = match chooser.choose(tensor_idx, &raw)? {
                Choice::Link(entry) => return self.push_done(Message::Link(entry)),
                Choice::Frame(entry, None) => {
                    self.push_blocks(entry, &raw, tensor, self.plan_blocks(&raw, tensor)?)?
                }
                Choice::Frame(entry, Some(base)) => self.push_delta_stream(entry, &base, &raw, tensor)?,
            };
            chooser.wrote(tensor_idx, digest);
            return Ok(());
        }
        let share = self.memory.take(len);
        let window = Arc::new(Window::read(self.source, tensor.bytes.clone(), self.buffers)?);
        let raw = Raw::new(self.source, tensor.bytes.clone(), Some(window.bytes(tensor.bytes.clone())));
        match chooser.choose(tensor_idx, &raw)? {
            Choice::Link(entry) => self.push_done(Message::Link(entry)),
            Choice::Frame(entry, base) => self.push_whole(entry, base, tensor, window, Some(share)),
        }
    }

    /// Feeds a tensor that lies in memory as one job.
    fn push_whole(
        &self,
        mut entry: Entry,
        base: Option<FoundBase<'env>>,
        tensor: &'env TensorInfo,
        window: Arc<Window<'env>>,
        share: Option<Share<'env>>,
    ) -> Result<(), Error> {
        let options = self.options.frame_options(tensor.dtype, &tensor.shape);
        let buffers = self.buffers;
        let job = move || {
            let raw = window.bytes(tensor.bytes.clone());
            let in_tensor = |error: Error| error.in_tensor(&tensor.name);
            let Some(base) = base else {
                let frame = compress(raw, &options, buffers).map_err(in_tensor)?;
                return Ok(Message::Frame(entry, frame, share));
            };
            let full = entry.clone();
            let frame = compress_against(raw, &base, &mut entry, &options, buffers).map_err(in_tensor)?;
            if entry.kind() == EntryKind::Full {
                return Ok(Message::Frame(entry, frame, share));
            }
            let in_full: InFull<'env> = Box::new(move || {
                let _share = share;
                let frame = compress(window.bytes(tensor.bytes.clone()), &options, buffers);
                Ok((full, frame.map_err(|error| error.in_tensor(&tensor.name))?))
            });
            Ok(Message::Delta(entry, frame, in_full))
        };
        self.line.push(job).map_err(closed)
    }

    /// The frame of a tensor that is coded batch by batch, planned from a sample.
    fn plan_blocks(&self, raw: &Raw<'_>, tensor: &TensorInfo) -> Result<FrameWriter, Error> {
        let options = self.options.frame_options(tensor.dtype, &tensor.shape);
        let plan = plan_by_sample(raw, &options)?;
        Ok(FrameWriter::new(plan, &options, Some(raw.len()), None))
    }

    /// Digests what is coded of a tensor, if that is wanted.
    fn digester(&self) -> Option<Digester> {
        self.options.keeps_digests().then(Digester::default)
    }

    /// Ends a frame that came in parts; returns the digest of what it holds.
    fn push_end(&self, digester: Option<Digester>) -> Result<Option<Digest>, Error> {
        let digest = digester.map(|digester| digester.finish());
        self.push_done(Message::End(digest.filter(|_| self.options.digests)))?;
        Ok(digest)
    }

    /// Feeds a tensor batch by batch; returns the digest of what was read.
    fn push_blocks(
        &self,
        entry: Entry,
        raw: &Raw<'_>,
        tensor: &TensorInfo,
        frame: FrameWriter,
    ) -> Result<Option<Digest>, Error> {
        let (coder, block_len, batch_len) = (frame.coder(), frame.block_len(), frame.batch_len(BATCH_LEN));
        self.push_done(Message::Start(entry, Some(frame)))?;
        let (buffers, mut digester) = (self.buffers, self.digester());
        let mut at = 0;
        while at < raw.len() {
            let end = raw.len().min(at + batch_len);
            let range = tensor.bytes.start + at..tensor.bytes.start + end;
            let window = Window::read(self.source, range.clone(), buffers)?;
            if let Some(digester) = &mut digester {
                digester.update(window.bytes(range.clone()));
            }
            let first_block =
                usize::try_from(at / block_len as u64).expect("blocks whose lengths lie in memory");
            let coder = Arc::clone(&coder);
            let job = move || {
                let raw = window.bytes(range);
                let mut out = buffers.take(pipeline::blocks_bound(raw.len(), block_len))?;
                let (trailer, len) = coder.encode(first_block, raw, None, 1, &mut out);
                out.truncate(len);
                Ok(Message::Blocks(out, trailer))
            };
            self.line.push(job).map_err(closed)?;
            at = end;
        }
        self.push_end(digester)
    }

    /// Feeds a tensor against its base when neither fits memory, or without it where that is smaller, or must be; returns
    /// the digest of what was read.
    fn push_delta_stream(
        &self,
        mut entry: Entry,
        base: &FoundBase<'env>,
        raw: &Raw<'_>,
        tensor: &TensorInfo,
    ) -> Result<Option<Digest>, Error> {
        let options = self.options.frame_options(tensor.dtype, &tensor.shape);
        let full = entry.clone();
        let delta = DeltaStream::new(raw, base, &options)?;
        against(&mut entry, &base.tensor, delta.step()?)?;
        // Nothing that is written can be taken back, so that all of it is coded before. What does not fit memory is coded
        // twice.
        let _share = self.memory.take(self.options.in_memory_len);
        let (mut held, mut digester) = (Held::new(self.options.in_memory_len), self.digester());
        delta.encode(digester.as_mut(), &mut held)?;
        let alone = self.plan_blocks(raw, tensor)?;
        let is_larger = delta_stream::is_at_most(held.len(), raw, &alone)?;
        if is_larger || !self.fits_budget(&entry, held.len())? {
            return self.push_blocks(full, raw, tensor, alone);
        }
        self.push_done(Message::Start(entry, None))?;
        match held.bytes() {
            Some(bytes) => {
                let pieces = bytes.chunks(usize::try_from(BATCH_LEN).expect("half a megabyte"));
                pieces.into_iter().try_for_each(|piece| self.push_done(Message::Piece(piece.to_vec())))?;
            }
            None => {
                digester = self.digester();
                delta.encode(digester.as_mut(), &mut Pieces(self))?;
            }
        }
        self.push_end(digester)
    }

    /// Whether an entry may be stored by a delta of so many bytes: known when all before it are written.
    fn fits_budget(&self, entry: &Entry, len: u64) -> Result<bool, Error> {
        let (answer, answered) = sync_channel(1);
        self.push_done(Message::Ask(entry.clone(), len, answer))?;
        answered.recv().map_err(|_| closed(Closed))
    }

    /// Feeds the glue: all pieces as one entry.
    fn feed_glue(&self) -> Result<(), Error> {
        let entry = Entry::glue(self.layout.glue_len);
        let mut options = self.options.frame_options(Dtype::Bytes, &entry.shape);
        options.is_metadata = self.layout.glue_len <= SHORT_METADATA as u64;
        let pieces = self.layout.glue.iter().map(|range| Raw::new(self.source, range.clone(), None));
        if self.layout.glue_len <= GLUE_IN_MEMORY_LEN {
            let mut glue = Vec::new();
            for piece in pieces {
                glue.extend(piece.read(0..piece.len())?);
            }
            let buffers = self.buffers;
            let job = move || Ok(Message::Frame(entry, compress(&glue, &options, buffers)?, None));
            return self.line.push(job).map_err(closed);
        }
        self.push_done(Message::Start(entry, None))?;
        let mut encoder = Encoder::new(Pieces(self), &options)?;
        for piece in pieces {
            piece.all_pieces(|_, bytes| encoder.write_all(bytes).map(|()| true).map_err(Error::writing))?;
        }
        encoder.finish()?;
        self.push_done(Message::End(None))
    }
}

/// Fails only when writing failed, whose own error is reported then.
fn closed(_: Closed) -> Error {
    Error::writing(io::ErrorKind::BrokenPipe.into())
}

/// Plans a tensor from pieces that are spread over it.
fn plan_by_sample(raw: &Raw<'_>, options: &FrameOptions) -> Result<TensorPlan, Error> {
    let unit = options.dtype.unit_len() as u64;
    let piece_len = SAMPLE_PIECE_LEN / unit * unit;
    let mut sample = Vec::new();
    for piece in 0..SAMPLE_PIECES {
        let at = (raw.len() - piece_len) / unit * piece / (SAMPLE_PIECES - 1) * unit;
        sample.extend(raw.read(at..at + piece_len)?);
    }
    let len = usize::try_from(raw.len()).unwrap_or(usize::MAX);
    let piece_len = usize::try_from(piece_len).expect("a few KiB");
    plan::tensor(&sample, Evidence::Sample { len, piece_len }, None, options)
}

/// A frame that is sent as it is made.
struct Pieces<'a, 'line, 'env>(&'a Feeder<'line, 'env>);

impl Write for Pieces<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.line.push_done(Ok(Message::Piece(bytes.to_vec())));
        sent.map_err(|Closed| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
