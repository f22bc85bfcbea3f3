//! Codes a tensor against its base when neither fits memory.

use super::moments::{Mover, sample_of};
use super::raw::Raw;
use super::tensor::FoundBase;
use crate::container::{OpenTensor, Step};
use crate::frame_writer::FrameWriter;
use crate::plan::{self, Evidence};
use crate::{Error, FrameOptions};
use mithril_format::{Digest, Digester};
use std::io::{self, Write};
use std::ops::Range;

/// Raw bytes that are planned from, and that are coded at a time.
const BATCH_LEN: u64 = 8 << 20;

/// A base of which ranges are read, each moved by the step that the moments tell.
struct StreamedBase<'m, 'a> {
    tensor: OpenTensor<'a>,
    mover: Option<Mover<'m, 'a>>,
    threads: usize,
}

impl StreamedBase<'_, '_> {
    fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("a batch lies in memory")];
        self.tensor.read_range(range.clone(), &mut bytes, self.threads)?;
        if let Some(mover) = &self.mover {
            mover.apply(range.start, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// The digest of a base that was moved, which nobody knows.
    fn digest(&self, len: u64) -> Result<Digest, Error> {
        let mut digester = Digester::default();
        for batch in batches(len, BATCH_LEN) {
            digester.update(&self.read(batch)?);
        }
        Ok(digester.finish())
    }
}

/// The frame of a large tensor against its base, of the same length.
pub(super) struct DeltaStream<'m, 'a> {
    raw: Raw<'m>,
    base: StreamedBase<'m, 'a>,
    frame: FrameWriter,
}

impl<'m, 'a> DeltaStream<'m, 'a> {
    /// Plans the frame.
    pub(super) fn new(
        raw: &Raw<'m>,
        found: &'m FoundBase<'a>,
        options: &FrameOptions,
    ) -> Result<Self, Error> {
        let tensor = found.tensor.open()?;
        let mut base = StreamedBase { tensor, mover: None, threads: options.coding.threads };
        if let Some(moments) = &found.moments {
            let sample = sample_of(raw.len());
            let (tried, tried_base) = (raw.read(sample.clone())?, base.read(sample.clone())?);
            let len = usize::try_from(raw.len()).unwrap_or(usize::MAX);
            base.mover = moments.open()?.fit(&tried, &tried_base, sample, len)?;
        }
        let digest = match &base.mover {
            Some(_) => base.digest(raw.len())?,
            None => found.tensor.digest()?,
        };
        let unit = options.dtype.unit_len() as u64;
        let front = 0..raw.len().min(BATCH_LEN) / unit * unit;
        let (current, before) = (raw.read(front.clone())?, base.read(front)?);
        let plan = plan::tensor(&current, Evidence::Front, Some(&before), options)?;
        let frame = FrameWriter::new(plan, options, Some(raw.len()), Some(digest));
        Ok(Self { raw: raw.clone(), base, frame })
    }

    /// The step that its base makes before.
    pub(super) fn step(&self) -> Result<Option<Step>, Error> {
        self.base.mover.as_ref().map(Mover::step).transpose()
    }

    /// Writes the frame, batch by batch. The bytes that it holds go to the digester, if there is one.
    pub(super) fn encode(&self, digester: Option<&mut Digester>, out: &mut impl Write) -> Result<(), Error> {
        encode(&self.raw, Some(&self.base), self.frame.clone(), digester, out)
    }
}

/// Whether a frame without a base takes at most `len` bytes. It is coded only where that is possible.
pub(super) fn is_at_most(len: u64, raw: &Raw<'_>, frame: &FrameWriter) -> Result<bool, Error> {
    let mut least = 0;
    for block in batches(raw.len(), frame.block_len() as u64) {
        least += frame.least_len(&raw.read(block)?) as u64;
        if least > len {
            return Ok(false);
        }
    }
    let mut counted = Held::new(0);
    encode(raw, None, frame.clone(), None, &mut counted)?;
    Ok(counted.len() <= len)
}

fn encode(
    raw: &Raw<'_>,
    base: Option<&StreamedBase<'_, '_>>,
    mut frame: FrameWriter,
    mut digester: Option<&mut Digester>,
    out: &mut impl Write,
) -> Result<(), Error> {
    out.write_all(&frame.head()).map_err(Error::writing)?;
    let mut coded = Vec::new();
    for batch in batches(raw.len(), frame.batch_len(BATCH_LEN)) {
        let current = raw.read(batch.clone())?;
        if let Some(digester) = &mut digester {
            digester.update(&current);
        }
        let before = base.map(|base| base.read(batch)).transpose()?;
        coded.resize(frame.blocks_bound(current.len()), 0);
        let len = frame.encode(&current, before.as_deref(), &mut coded);
        out.write_all(&coded[..len]).map_err(Error::writing)?;
    }
    out.write_all(&frame.tail()).map_err(Error::writing)
}

/// The ranges that so many bytes are worked on in.
fn batches(len: u64, batch_len: u64) -> impl Iterator<Item = Range<u64>> {
    let n_batches = len.div_ceil(batch_len);
    (0..n_batches).map(move |batch| batch * batch_len..((batch + 1) * batch_len).min(len))
}

/// Counts what is written, and holds it as long as it is not too much.
pub(super) struct Held {
    bytes: Vec<u8>,
    len: u64,
    limit: u64,
}

impl Held {
    pub(super) fn new(limit: u64) -> Self {
        Self { bytes: Vec::new(), len: 0, limit }
    }

    /// Bytes that were written.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// All of them, unless they were too many.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        (self.len <= self.limit).then_some(&self.bytes)
    }
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.len += bytes.len() as u64;
        if self.len <= self.limit {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.bytes = Vec::new();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
