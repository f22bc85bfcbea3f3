//! Reads the tensors of a file, decides how each is stored, and feeds the coding to threads.

use super::assumed::Assumed;
use super::budget::{Account, Ticket};
use super::decide::{self, StreamedDelta};
use super::delta_stream::Held;
use super::layout::Layout;
use super::raw::Raw;
use super::tensor::{Choice, FoundBase, TensorChooser, compress};
use super::window::Window;
use super::write::{InParts, Message, Parts};
use super::{BATCH_LEN, PackOptions};
use crate::container::Entry;
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
use std::sync::mpsc::{SyncSender, sync_channel};

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
    /// What is left of the budget of deltas.
    pub(super) account: &'env Account<'env>,
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

    /// Feeds a job that codes.
    fn push<T: Send + 'env>(
        &self,
        line: &Line<'env, T>,
        job: impl FnOnce() -> T + Send + 'env,
    ) -> Result<(), Error> {
        let account = self.account;
        line.push(move || account.code(job)).map_err(closed)
    }

    /// Feeds an entry without a frame.
    fn push_link(&self, entry: Entry) -> Result<(), Error> {
        self.account.ticket().count(&entry, 0);
        self.line.push_done(Ok(Message::Done(vec![(entry, None)], None, None))).map_err(closed)
    }

    /// Feeds an entry whose frame comes in parts; what is returned gets the digest at the end.
    fn push_parts(
        &self,
        entry: Entry,
        ticket: Ticket<'env>,
        parts: Parts<'env>,
    ) -> Result<SyncSender<Option<Digest>>, Error> {
        let (sender, end) = sync_channel(1);
        let message = Message::InParts(Box::new(InParts { entry, ticket, parts, end }));
        self.line.push_done(Ok(message)).map_err(closed)?;
        Ok(sender)
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
        let mut ticket = self.account.ticket();
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
                ticket.count(&entry, range.as_ref().map_or(0, Range::len) as u64);
                entries.push((entry, range));
            }
            Ok(Message::Done(entries, Some(out), None))
        };
        self.push(self.line, job)
    }

    fn feed_large(&self, chooser: &mut TensorChooser<'env>, tensor_idx: usize) -> Result<(), Error> {
        let tensor = &self.layout.tensors[tensor_idx];
        let len = tensor.bytes.end - tensor.bytes.start;
        let by_blocks = self.options.coding.effort.means().in_batches && self.options.bases.is_empty();
        if by_blocks || len > self.options.in_memory_len {
            let raw = Raw::new(self.source, tensor.bytes.clone(), None);
            let digest = match chooser.choose(tensor_idx, &raw)? {
                Choice::Link(entry) => return self.push_link(entry),
                Choice::Frame(entry, None) => {
                    let (ticket, frame) = (self.account.ticket(), self.plan_blocks(&raw, tensor)?);
                    self.push_blocks(entry, ticket, &raw, tensor, frame)?
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
            Choice::Link(entry) => self.push_link(entry),
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
        let mut ticket = self.account.ticket();
        let job = move || {
            let raw = window.bytes(tensor.bytes.clone());
            let coded = match base {
                Some(base) => decide::in_memory(raw, &base, &mut entry, &ticket, &options, buffers),
                None => compress(raw, &options, buffers),
            };
            let frame = coded.map_err(|error| error.in_tensor(&tensor.name))?;
            ticket.count(&entry, frame.len() as u64);
            Ok(Message::whole(entry, frame, share))
        };
        self.push(self.line, job)
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
    fn finish(&self, digester: Option<Digester>, end: &SyncSender<Option<Digest>>) -> Option<Digest> {
        let digest = digester.map(|digester| digester.finish());
        // There is room for one. Its receiver is gone when writing failed, whose error is reported.
        let _ = end.send(digest.filter(|_| self.options.digests));
        digest
    }

    /// Feeds a tensor batch by batch; returns the digest of what was read.
    fn push_blocks(
        &self,
        entry: Entry,
        ticket: Ticket<'env>,
        raw: &Raw<'_>,
        tensor: &TensorInfo,
        frame: FrameWriter,
    ) -> Result<Option<Digest>, Error> {
        let (coder, block_len, batch_len) = (frame.coder(), frame.block_len(), frame.batch_len(BATCH_LEN));
        let (parts, results) = self.line.branch();
        let end = self.push_parts(entry, ticket, Parts::Blocks(frame, results))?;
        let (buffers, mut digester) = (self.buffers, self.digester());
        let mut at = 0;
        while at < raw.len() {
            let batch_end = raw.len().min(at + batch_len);
            let range = tensor.bytes.start + at..tensor.bytes.start + batch_end;
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
                Ok((out, trailer))
            };
            self.push(&parts, job)?;
            at = batch_end;
        }
        Ok(self.finish(digester, &end))
    }

    /// Feeds a tensor when neither it nor its base fits memory, against the base or without it; returns the digest of what was
    /// read.
    fn push_delta_stream(
        &self,
        entry: Entry,
        base: &FoundBase<'env>,
        raw: &Raw<'_>,
        tensor: &TensorInfo,
    ) -> Result<Option<Digest>, Error> {
        let options = self.options.frame_options(tensor.dtype, &tensor.shape);
        let ticket = self.account.ticket();
        let _share = self.memory.take(self.options.in_memory_len);
        let (held, mut digester) = (Held::new(self.options.in_memory_len), self.digester());
        let alone = || self.plan_blocks(raw, tensor);
        let how = (held, digester.as_mut());
        let coded = self.account.code(|| decide::streamed(raw, base, &entry, &ticket, &options, how, alone));
        match coded? {
            Err(frame) => self.push_blocks(entry, ticket, raw, tensor, frame),
            Ok(StreamedDelta { entry, held, stream }) => {
                let (parts, results) = self.line.branch();
                let end = self.push_parts(entry, ticket, Parts::Bytes(results))?;
                let mut out = Pieces(parts);
                match held.bytes() {
                    Some(bytes) => {
                        let mut pieces = bytes.chunks(usize::try_from(BATCH_LEN).expect("half a megabyte"));
                        pieces.try_for_each(|piece| out.write_all(piece)).map_err(Error::writing)?;
                    }
                    None => {
                        digester = self.digester();
                        stream.encode(digester.as_mut(), &mut out)?;
                    }
                }
                Ok(self.finish(digester, &end))
            }
        }
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
            let job = move || Ok(Message::whole(entry, compress(&glue, &options, buffers)?, None));
            return self.push(self.line, job);
        }
        let (parts, results) = self.line.branch();
        let end = self.push_parts(entry, self.account.ticket(), Parts::Bytes(results))?;
        let mut encoder = Encoder::new(Pieces(parts), &options)?;
        for piece in pieces {
            piece.all_pieces(|_, bytes| encoder.write_all(bytes).map(|()| true).map_err(Error::writing))?;
        }
        encoder.finish()?;
        self.finish(None, &end);
        Ok(())
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
struct Pieces<'env>(Line<'env, Vec<u8>>);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push_done(bytes.to_vec()).map_err(|Closed| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
