//! An open container: its tensors, each read alone.

use super::frame_source::{Batch, Fetch, FrameSource};
use super::needs::{Needed, each_base};
use super::{Bases, Content, Entry, Header, Step, round_to, step};
use crate::pipeline::ahead::{Ahead, FramePlace};
use crate::{Error, ErrorKind, pipeline};
use mithril_codec::Dtype;
use mithril_format::container::{Directory, StoredFrame};
use mithril_format::frame::Verify;
use mithril_format::{Digest, Digester, ReadAt};
use std::ops::Range;
use std::sync::OnceLock;

/// An open container.
#[derive(Debug)]
pub struct Reader<S> {
    source: S,
    directory: Directory,
    /// See [`Reader::holders`].
    holders: OnceLock<Vec<usize>>,
}

/// A tensor that is ready to be read.
pub struct OpenTensor<'a> {
    raw_len: u64,
    content: OpenContent<'a>,
}

enum OpenContent<'a> {
    /// Bytes as they are in a source.
    Plain { source: &'a dyn ReadAt, start: u64 },
    /// Bytes that the index holds.
    Inline(&'a [u8]),
    /// A frame.
    Frame(FrameSource<'a>),
    /// A frame that needs a base.
    Delta { frame: FrameSource<'a>, base: Box<OpenTensor<'a>> },
    /// An F32 tensor, rounded.
    Rounded { wide: Box<OpenTensor<'a>>, dtype: Dtype },
    /// F32 weights behind a step, by the moments before and behind it.
    Stepped { weights: Box<OpenTensor<'a>>, moments: Box<[OpenTensor<'a>; 4]>, factors: [u32; 3] },
}

/// Raw bytes that are digested or rounded at a time.
const PIECE_LEN: u64 = 4 << 20;

impl<S: ReadAt> Reader<S> {
    /// Opens a container: reads its footer and its index.
    ///
    /// # Errors
    /// When the source cannot be read, is no container, or its end is damaged.
    pub fn open(source: S) -> Result<Self, Error> {
        let directory = Directory::open(&source)?;
        Ok(Self { source, directory, holders: OnceLock::new() })
    }

    /// What the container says about itself.
    ///
    /// # Errors
    /// When the header cannot be read or is damaged.
    pub fn header(&self) -> Result<Header, Error> {
        Ok(self.directory.read_header(&self.source)?)
    }

    /// All entries: the tensors in order, behind the glue if there is one.
    pub fn entries(&self) -> &[Entry] {
        self.directory.entries()
    }

    /// Numbers of the tensors whose bytes this container holds itself: all but copies and references. Of a checkpoint in
    /// which little has changed they are few.
    pub(super) fn holders(&self) -> &[usize] {
        self.holders.get_or_init(|| {
            let holds_bytes = |entry: &Entry| {
                !entry.glue && !matches!(entry.content, Content::Copy { .. } | Content::Ref { .. })
            };
            let numbered = self.entries().iter().enumerate();
            numbered.filter(|(_, entry)| holds_bytes(entry)).map(|(entry_idx, _)| entry_idx).collect()
        })
    }

    /// Where everything lies.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The number of the tensor of this name.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn find(&self, name: &str) -> Result<usize, Error> {
        let what = || format!("there is no tensor `{}` in the container", name.escape_debug());
        self.directory.find(name).ok_or_else(|| Error::NotFound { what: what() })
    }

    /// The raw bytes of a tensor.
    ///
    /// # Errors
    /// When it is damaged, or a base that it needs is not at hand.
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn read(&self, entry_idx: usize, bases: &Bases) -> Result<Vec<u8>, Error> {
        self.open_tensor(entry_idx, bases)?
            .read_all(0)
            .map_err(|error| error.in_tensor(self.entries()[entry_idx].label()))
    }

    /// Prepares to read a tensor. A base that it needs is found and checked by digest here, before any output.
    ///
    /// # Errors
    /// When it is damaged, or a base that it needs is not at hand.
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn open_tensor<'a>(&'a self, entry_idx: usize, bases: &'a Bases) -> Result<OpenTensor<'a>, Error> {
        self.open_fetched(entry_idx, bases, Fetch::WholeIfSmall)
    }

    /// As [`Reader::open_tensor`], with what was fetched ahead.
    pub(crate) fn open_ahead<'a>(
        &'a self,
        entry_idx: usize,
        bases: &'a Bases,
        ahead: &'a Ahead<'a>,
    ) -> Result<OpenTensor<'a>, Error> {
        self.open_fetched(entry_idx, bases, Fetch::Ahead(ahead))
    }

    pub(super) fn open_fetched<'a>(
        &'a self,
        entry_idx: usize,
        bases: &'a Bases,
        fetch: Fetch<'a>,
    ) -> Result<OpenTensor<'a>, Error> {
        self.open_with(entry_idx, bases, &self.source, fetch)
            .map_err(|error| error.in_tensor(self.entries()[entry_idx].label()))
    }

    /// The frames that reading a tensor needs, in the order in which opening it asks for them.
    pub(crate) fn list_frames<'a>(
        &'a self,
        entry_idx: usize,
        bases: &'a Bases,
        frames: &mut Vec<FramePlace<'a>>,
    ) -> Result<(), Error> {
        let entry = &self.entries()[entry_idx];
        let mut list_base =
            |digest: Digest, name: &str| bases.find(digest, name, entry.raw_len())?.list_frames(frames);
        if let Some((digest, name)) = entry.base() {
            list_base(digest, name)?;
        }
        if let Some(step) = entry.step() {
            for (&moment_idx, digest) in step.moments.iter().zip(&step.base_moments) {
                list_base(*digest, &self.entries()[moment_idx].name)?;
            }
            for &moment_idx in &step.moments {
                self.list_frames(moment_idx, bases, frames)?;
            }
        }
        if let Content::Ref { entry_idx } | Content::Derived { entry_idx, .. } = entry.content {
            return self.list_frames(entry_idx, bases, frames);
        }
        if let Some(stored) = self.directory.frame(entry_idx) {
            frames.push(FramePlace { source: &self.source, range: stored.offset..stored.end() });
        }
        Ok(())
    }

    /// Makes sure that all base tensors are at hand that reading a tensor needs, without reading any of them.
    ///
    /// # Errors
    /// `MissingBase` for one that is not.
    ///
    /// # Panics
    /// When there is no such entry.
    pub(crate) fn resolve(&self, entry_idx: usize, bases: &Bases) -> Result<(), Error> {
        let entry = &self.entries()[entry_idx];
        let mut resolved = Ok(());
        each_base(self.entries(), entry, &mut |Needed { name, bytes: (digest, raw_len) }| {
            if resolved.is_ok() {
                resolved = bases.find(digest, name, raw_len).map(|_| ());
            }
        });
        resolved.map_err(|error| error.in_tensor(entry.label()))
    }

    /// As [`Reader::open_tensor`], with the bytes of the entry's own frame from a source that holds them at the same
    /// places, of which only the ends of the frame are read now.
    pub(crate) fn open_in<'a>(
        &'a self,
        entry_idx: usize,
        source: &'a dyn ReadAt,
        bases: &'a Bases,
    ) -> Result<OpenTensor<'a>, Error> {
        self.open_with(entry_idx, bases, source, Fetch::Ends)
            .map_err(|error| error.in_tensor(self.entries()[entry_idx].label()))
    }

    /// Finds the base tensor that an entry needs, and checks its digest.
    pub(crate) fn check_base(&self, entry_idx: usize, bases: &Bases) -> Result<(), Error> {
        let entry = &self.entries()[entry_idx];
        let Some((digest, name)) = entry.base() else { return Ok(()) };
        let mut found = bases.open(digest, name, entry.raw_len()).map(|_| ());
        if let Some(step) = entry.step() {
            found = found
                .and_then(|()| self.open_base_moments(step, entry, bases, Fetch::WholeIfSmall).map(|_| ()));
        }
        found.map_err(|error| error.in_tensor(&entry.name))
    }

    fn open_with<'a>(
        &'a self,
        entry_idx: usize,
        bases: &'a Bases,
        source: &'a dyn ReadAt,
        fetch: Fetch<'a>,
    ) -> Result<OpenTensor<'a>, Error> {
        let entry = &self.entries()[entry_idx];
        let others = fetch.of_others();
        let open_frame = |stored: StoredFrame| FrameSource::open(source, stored, fetch);
        let frame = self.directory.frame(entry_idx);
        let content = match (&entry.content, frame) {
            (Content::Ref { entry_idx }, _) => {
                return self.open_with(*entry_idx, bases, &self.source, others);
            }
            (Content::Derived { entry_idx, .. }, _) => {
                let wide = Box::new(self.open_with(*entry_idx, bases, &self.source, others)?);
                OpenContent::Rounded { wide, dtype: entry.dtype }
            }
            (Content::Copy { base, .. }, _) => {
                let (_, name) = entry.base().expect("a copy has a base");
                return bases.open_with(*base, name, entry.raw_len(), others);
            }
            (Content::Delta { base, step, .. }, Some(stored)) => {
                let (_, name) = entry.base().expect("a delta has a base");
                let base = bases.open_with(*base, name, entry.raw_len(), others)?;
                let base = Box::new(match step {
                    Some(step) => self.open_stepped(base, step, entry, bases, others)?,
                    None => base,
                });
                OpenContent::Delta { frame: open_frame(stored)?, base }
            }
            (Content::Inline { bytes }, _) => OpenContent::Inline(bytes),
            (_, Some(stored)) => OpenContent::Frame(open_frame(stored)?),
            (_, None) => unreachable!("full entries have frames"),
        };
        if let OpenContent::Frame(frame) | OpenContent::Delta { frame, .. } = &content {
            check_frame(entry, frame)?;
        }
        Ok(OpenTensor { raw_len: entry.raw_len(), content })
    }

    /// The moments before the step of an entry's base.
    fn open_base_moments<'a>(
        &'a self,
        step: &Step,
        entry: &Entry,
        bases: &'a Bases,
        fetch: Fetch<'a>,
    ) -> Result<[OpenTensor<'a>; 2], Error> {
        let name = |place: usize| self.entries()[step.moments[place]].name.as_str();
        let open =
            |place: usize| bases.open_with(step.base_moments[place], name(place), entry.raw_len(), fetch);
        Ok([open(0)?, open(1)?])
    }

    /// The base of an entry behind its step.
    fn open_stepped<'a>(
        &'a self,
        base: OpenTensor<'a>,
        step: &Step,
        entry: &Entry,
        bases: &'a Bases,
        fetch: Fetch<'a>,
    ) -> Result<OpenTensor<'a>, Error> {
        let [first, second] = self.open_base_moments(step, entry, bases, fetch)?;
        let open = |entry_idx| self.open_with(entry_idx, bases, &self.source, fetch);
        let moments = Box::new([first, second, open(step.moments[0])?, open(step.moments[1])?]);
        let content = OpenContent::Stepped { weights: Box::new(base), moments, factors: step.factors };
        Ok(OpenTensor { raw_len: entry.raw_len(), content })
    }
}

/// What a frame says of its content must be what the index says.
fn check_frame(entry: &Entry, frame: &FrameSource<'_>) -> Result<(), Error> {
    let header = frame.layout().header();
    let same_shape = header.shape.as_ref().is_none_or(|shape| *shape == entry.shape);
    // Behind a step the base has another digest, which is not known: the checksums of the blocks tell whether it is right.
    let same_base = match entry.step() {
        Some(_) => header.base.is_some(),
        None => header.base == entry.base().map(|(digest, _)| digest),
    };
    let same_len = frame.layout().raw_len() == entry.raw_len();
    if header.dtype != entry.dtype || !same_shape || !same_len || !same_base {
        let what = "frame and index do not agree about a tensor";
        return Err(mithril_format::FormatError::Corrupt { what, offset: frame.layout().offset_of(0) }.into());
    }
    Ok(())
}

impl<'a> OpenTensor<'a> {
    /// Bytes of a source as they are.
    pub(crate) fn plain(source: &'a dyn ReadAt, range: Range<u64>) -> Self {
        let content = OpenContent::Plain { source, start: range.start };
        Self { raw_len: range.end - range.start, content }
    }

    /// A frame at a range of a source, which holds so many raw bytes.
    pub(super) fn frame(source: &'a dyn ReadAt, range: Range<u64>, raw_len: u64) -> Result<Self, Error> {
        let len = range.end - range.start;
        let stored = StoredFrame { record_offset: range.start, offset: range.start, len, checksum: 0 };
        let frame = FrameSource::open(source, stored, Fetch::WholeIfSmall)?;
        if frame.layout().raw_len() != raw_len {
            let what = "frame of another length than its tensor";
            return Err(mithril_format::FormatError::Corrupt { what, offset: range.start }.into());
        }
        Ok(Self { raw_len, content: OpenContent::Frame(frame) })
    }

    /// Raw bytes of the tensor.
    pub fn raw_len(&self) -> u64 {
        self.raw_len
    }

    /// Reads a range of raw bytes into exactly `out`, decoding only what holds it. `threads` as in
    /// [`DecodeOptions`](crate::DecodeOptions).
    ///
    /// # Errors
    /// `InvalidArgument` when the range lies outside or `out` has another length; else when bytes are damaged or
    /// cannot be read.
    pub fn read_range(&self, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<(), Error> {
        if range.start > range.end || range.end > self.raw_len || range.end - range.start != out.len() as u64
        {
            let (len, raw_len) = (out.len(), self.raw_len);
            let what = format!("range {range:?} of a tensor of {raw_len} bytes does not fill {len} bytes");
            return Err(Error::invalid(what));
        }
        match &self.content {
            OpenContent::Plain { source, start } => {
                source.read_exact_at(start + range.start, out).map_err(Error::reading)
            }
            OpenContent::Inline(bytes) => {
                // The range was checked above, and lies in memory.
                let at = usize::try_from(range.start).expect("within a few bytes");
                out.copy_from_slice(&bytes[at..][..out.len()]);
                Ok(())
            }
            OpenContent::Frame(frame) => frame.read_range(range, None, out, threads),
            OpenContent::Delta { frame, base } => match self.levels_of(&range) {
                Some(levels) if threads == 1 => levels.read(range, out),
                _ => frame.read_range(range, Some(base), out, threads),
            },
            OpenContent::Rounded { wide, dtype } => read_rounded(wide, *dtype, range, out, threads),
            OpenContent::Stepped { weights, moments, factors } => {
                read_stepped(weights, moments, *factors, range, out, threads)
            }
        }
    }

    /// The levels of a chain, if a range starts and ends between blocks of all of them.
    fn levels_of(&self, range: &Range<u64>) -> Option<Levels<'_, 'a>> {
        let mut frames = Vec::new();
        let mut tensor = self;
        while let OpenContent::Delta { frame, base } = &tensor.content {
            frames.push(frame);
            tensor = base;
        }
        frames.reverse();
        let step = self.block_len();
        let fits = |end: u64| end.is_multiple_of(step) || end == self.raw_len;
        let fits_all =
            |frame: &&FrameSource<'a>| step.is_multiple_of(u64::from(frame.layout().header().block_len));
        let is_even = fits(range.start) && fits(range.end) && frames.iter().all(fits_all);
        is_even.then_some(Levels { bottom: tensor, frames, step })
    }

    /// Raw bytes of the pieces that are decoded together, with those of what it is stored against: ranges that start and end
    /// between them cost least.
    pub fn block_len(&self) -> u64 {
        match &self.content {
            OpenContent::Plain { .. } | OpenContent::Inline(_) => 1,
            OpenContent::Frame(frame) => u64::from(frame.layout().header().block_len),
            OpenContent::Delta { frame, base } => {
                u64::from(frame.layout().header().block_len).max(base.block_len())
            }
            OpenContent::Rounded { wide, .. } => (wide.block_len() / 2).max(2),
            OpenContent::Stepped { weights, .. } => weights.block_len().max(4),
        }
    }

    /// Some blocks of the tensor's own frame from `first_block` on, of about so many raw bytes; none behind the last.
    pub(crate) fn batch(&self, first_block: usize, raw_len: u64) -> Option<Batch> {
        match &self.content {
            OpenContent::Frame(frame) | OpenContent::Delta { frame, .. } => frame.batch(first_block, raw_len),
            _ => None,
        }
    }

    /// Decodes a batch of the tensor's own frame, whose coded bytes are at hand, into exactly its raw bytes.
    pub(crate) fn decode_batch(&self, batch: &Batch, coded: &[u8], out: &mut [u8]) -> Result<(), Error> {
        match &self.content {
            OpenContent::Frame(frame) => frame.decode_batch(batch, coded, None, out, 1),
            OpenContent::Delta { frame, base } => frame.decode_batch(batch, coded, Some(base), out, 1),
            _ => unreachable!("only a frame has batches"),
        }
    }

    /// Raw bytes that may be allocated at once: as many as the bytes at hand can honestly hold.
    fn read_limit(&self) -> u64 {
        let frame_limit = |frame: &FrameSource<'_>| {
            let layout = frame.layout();
            let coded = layout.bytes_of(0..layout.n_blocks());
            crate::options::honest_output_len(coded.end - coded.start)
        };
        match &self.content {
            OpenContent::Plain { .. } | OpenContent::Inline(_) => u64::MAX,
            OpenContent::Frame(frame) => frame_limit(frame),
            // Where hardly anything changed, its bytes are those of its base.
            OpenContent::Delta { frame, base } => frame_limit(frame).max(base.read_limit()),
            OpenContent::Rounded { wide, .. } => wide.read_limit(),
            OpenContent::Stepped { weights, .. } => weights.read_limit(),
        }
    }

    /// Refuses to let so many raw bytes be allocated if the tensor's coded bytes cannot honestly hold them.
    ///
    /// # Errors
    /// `TooLarge`, as [`OpenTensor::read_all`].
    pub fn check_limit(&self, len: u64) -> Result<(), Error> {
        let limit = self.read_limit();
        if len <= limit { Ok(()) } else { Err(Error::TooLarge { raw_len: len, limit }) }
    }

    /// All raw bytes.
    ///
    /// # Errors
    /// As [`OpenTensor::read_range`]; `TooLarge` when the tensor claims to hold more than its coded bytes honestly
    /// can, as in [`DecodeOptions`](crate::DecodeOptions).
    pub fn read_all(&self, threads: usize) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; self.checked_len()?];
        self.read_range(0..self.raw_len, &mut out, threads)?;
        Ok(out)
    }

    /// The length of a buffer for all raw bytes, if that may be allocated.
    pub(crate) fn checked_len(&self) -> Result<usize, Error> {
        self.check_limit(self.raw_len)?;
        let limit = usize::MAX as u64;
        usize::try_from(self.raw_len).map_err(|_| Error::TooLarge { raw_len: self.raw_len, limit })
    }

    /// Hands all raw bytes to a function, some MiB at a time.
    ///
    /// # Errors
    /// As [`OpenTensor::read_range`], and what the function returns.
    pub fn for_each_piece(
        &self,
        threads: usize,
        mut take: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let piece_len = PIECE_LEN.next_multiple_of(self.block_len());
        let mut piece = Vec::new();
        let mut at = 0;
        while at < self.raw_len {
            let end = (at + piece_len).min(self.raw_len);
            piece.resize(usize::try_from(end - at).expect("a piece lies in memory"), 0);
            self.read_range(at..end, &mut piece, threads)?;
            take(&piece)?;
            at = end;
        }
        Ok(())
    }

    /// The digest of all raw bytes.
    ///
    /// # Errors
    /// As [`OpenTensor::read_range`].
    pub fn digest(&self, threads: usize) -> Result<Digest, Error> {
        let mut digester = Digester::default();
        self.for_each_piece(threads, |piece| {
            digester.update(piece);
            Ok(())
        })?;
        Ok(digester.finish())
    }
}

/// A chain of deltas, which is decoded through all levels while a piece is in the cache.
struct Levels<'a, 'b> {
    /// What the first delta is against.
    bottom: &'a OpenTensor<'b>,
    /// The deltas, the last one last.
    frames: Vec<&'a FrameSource<'b>>,
    /// Raw bytes of a piece: whole blocks of every level.
    step: u64,
}

impl Levels<'_, '_> {
    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<(), Error> {
        let mut at = range.start;
        let mut rest = out;
        while at < range.end {
            let end = (at + self.step).min(range.end);
            let (piece, left) = rest.split_at_mut(usize::try_from(end - at).expect("a piece of a buffer"));
            pipeline::with_spare(piece.len(), |spare| {
                // What the blocks of the last level are verified to be was made of right ones. Where they are not, it is looked
                // for who is at fault.
                match self.read_piece(at..end, piece, spare, false) {
                    Err(error) if error.kind() != ErrorKind::Io => {
                        self.read_piece(at..end, piece, spare, true)
                    }
                    read => read,
                }
            })?;
            (at, rest) = (end, left);
        }
        Ok(())
    }

    /// Decodes a piece from one buffer to the other and back, so that the last level ends in `out`.
    fn read_piece(
        &self,
        range: Range<u64>,
        out: &mut [u8],
        spare: &mut [u8],
        is_all_verified: bool,
    ) -> Result<(), Error> {
        let (mut from, mut to) =
            if self.frames.len().is_multiple_of(2) { (out, spare) } else { (spare, out) };
        self.bottom.read_range(range.clone(), from, 1)?;
        let has_sums = self.frames.last().is_some_and(|frame| frame.layout().header().checksums);
        for (level, frame) in self.frames.iter().enumerate() {
            let is_verified = is_all_verified || !has_sums || level + 1 == self.frames.len();
            let verify = if is_verified { Verify::Yes } else { Verify::No };
            frame.decode_over(range.clone(), from, to, verify)?;
            (from, to) = (to, from);
        }
        Ok(())
    }
}

/// Reads a range of F32 weights and moves it by a step, in pieces.
fn read_stepped(
    weights: &OpenTensor<'_>,
    moments: &[OpenTensor<'_>; 4],
    factors: [u32; 3],
    range: Range<u64>,
    out: &mut [u8],
    threads: usize,
) -> Result<(), Error> {
    let mut pieces = [(); 5].map(|()| Vec::new());
    let mut at = range.start;
    let mut rest = out;
    while at < range.end {
        let end = (at + PIECE_LEN).min(range.end);
        // Whole elements, out of which the range is cut.
        let whole = at / 4 * 4..end.next_multiple_of(4);
        let len = usize::try_from(whole.end - whole.start).expect("a piece lies in memory");
        for (tensor, piece) in std::iter::once(weights).chain(moments).zip(&mut pieces) {
            piece.resize(len, 0);
            tensor.read_range(whole.clone(), piece, threads)?;
        }
        let [weights, m0, v0, m1, v1] = &mut pieces;
        step::apply(weights, [m0, v0, m1, v1], factors);
        let (piece, left) = rest.split_at_mut(usize::try_from(end - at).expect("a piece lies in memory"));
        let skipped = usize::try_from(at - whole.start).expect("a part of an element");
        piece.copy_from_slice(&weights[skipped..][..piece.len()]);
        (at, rest) = (end, left);
    }
    Ok(())
}

/// Rounds a range of an F32 tensor, in pieces.
fn read_rounded(
    wide: &OpenTensor<'_>,
    dtype: Dtype,
    range: Range<u64>,
    out: &mut [u8],
    threads: usize,
) -> Result<(), Error> {
    let mut wide_bytes = Vec::new();
    // A range may start or end inside an element: whole ones are rounded, and the range cut out of them.
    let mut element = [0; 2];
    let mut at = range.start;
    let mut rest = out;
    while at < range.end {
        let whole_end = (at + PIECE_LEN).min(range.end) / 2 * 2;
        if at % 2 == 1 || whole_end <= at {
            let start = at / 2 * 2;
            wide_bytes.resize(4, 0);
            wide.read_range(2 * start..2 * start + 4, &mut wide_bytes, threads)?;
            round_to(dtype, &wide_bytes, &mut element);
            let (byte, left) = rest.split_at_mut(1);
            byte[0] = element[usize::from(at % 2 == 1)];
            (at, rest) = (at + 1, left);
            continue;
        }
        let (piece, left) =
            rest.split_at_mut(usize::try_from(whole_end - at).expect("a piece lies in memory"));
        wide_bytes.resize(2 * piece.len(), 0);
        wide.read_range(2 * at..2 * whole_end, &mut wide_bytes, threads)?;
        round_to(dtype, &wide_bytes, piece);
        (at, rest) = (whole_end, left);
    }
    Ok(())
}
