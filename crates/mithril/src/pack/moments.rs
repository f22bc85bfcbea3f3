//! The moments of a tensor of weights, and the step that they tell: where its base went.

use super::assumed::Assumed;
use super::bases::{BaseFinder, BaseTensor};
use super::layout::Layout;
use super::raw::Raw;
use crate::Error;
use crate::container::{OpenTensor, Step, step};
use mithril_codec::Dtype;
use mithril_codec::delta::sampled_bits;
use mithril_format::{Digester, ReadAt};
use std::cell::RefCell;
use std::ops::Range;

/// Bytes that a step is fitted on, and tried on.
const SAMPLE_LEN: u64 = 64 << 10;

/// Bytes that are moved at a time.
const PIECE_LEN: u64 = 1 << 20;

/// The moments of a tensor behind a step, and those before it.
pub(super) struct Moments<'a> {
    source: &'a dyn ReadAt,
    tensors: [usize; 2],
    places: [Range<u64>; 2],
    entries: [usize; 2],
    before: [BaseTensor<'a>; 2],
    /// Told what the moments were that a base was moved by, where digests are kept.
    assumed: Option<&'a Assumed>,
}

impl<'a> Moments<'a> {
    /// The moments with these numbers in a file; nothing if a base does not have them too.
    pub(super) fn of(
        tensors: [usize; 2],
        source: &'a dyn ReadAt,
        layout: &Layout,
        bases: &BaseFinder<'a>,
        assumed: Option<&'a Assumed>,
    ) -> Option<Self> {
        let infos = tensors.map(|idx| &layout.tensors[idx]);
        Some(Self {
            source,
            tensors,
            places: infos.map(|info| info.bytes.clone()),
            entries: tensors.map(|idx| layout.entry_idx(idx)),
            before: [bases.find_named(infos[0])?, bases.find_named(infos[1])?],
            assumed,
        })
    }

    /// Opens the moments before the step.
    pub(super) fn open(&self) -> Result<OpenMoments<'_, 'a>, Error> {
        Ok(OpenMoments { moments: self, before: [self.before[0].open()?, self.before[1].open()?] })
    }

    /// Moves the base of a tensor by the step that brings it nearest to the tensor; nothing, and the base unchanged, when
    /// that hardly helps.
    pub(super) fn apply_to(&self, raw: &[u8], base: &mut [u8]) -> Result<Option<Step>, Error> {
        let sample = sample_of(raw.len() as u64);
        let place = small(sample.start)..small(sample.end);
        let Some(mover) = self.open()?.fit(&raw[place.clone()], &base[place], sample, raw.len())? else {
            return Ok(None);
        };
        mover.apply(0, base)?;
        mover.step().map(Some)
    }
}

/// The bytes of a tensor of this length that a step is fitted on.
pub(super) fn sample_of(len: u64) -> Range<u64> {
    let start = (len.saturating_sub(SAMPLE_LEN) / 2) / 4 * 4;
    start..(start + SAMPLE_LEN).min(len)
}

/// Moments of which ranges can be read.
pub(super) struct OpenMoments<'m, 'a> {
    moments: &'m Moments<'a>,
    before: [OpenTensor<'a>; 2],
}

impl<'m, 'a> OpenMoments<'m, 'a> {
    /// The step that brings a base nearest to a tensor of `len` bytes, by a sample of both; nothing when that hardly helps.
    pub(super) fn fit(
        self,
        tried: &[u8],
        tried_base: &[u8],
        sample: Range<u64>,
        len: usize,
    ) -> Result<Option<Mover<'m, 'a>>, Error> {
        let moments = self.read(sample)?;
        let Some(factors) = step::fit(tried, tried_base, slices(&moments)) else { return Ok(None) };
        let mut moved = tried_base.to_vec();
        step::apply(&mut moved, slices(&moments), factors);
        let Some(layout) = Dtype::F32.layout() else { return Ok(None) };
        let bits = |base: &[u8]| sampled_bits(layout, tried, base, len / 4).into_iter().min();
        let helps = bits(&moved) < bits(tried_base).map(|bits| bits - bits / 32);
        Ok(helps.then(|| Mover { open: self, factors, seen: RefCell::default() }))
    }

    /// A range of all moments: before the step, then behind it.
    pub(super) fn read(&self, range: Range<u64>) -> Result<[Vec<u8>; 4], Error> {
        let mut all = [(); 4].map(|()| vec![0; small(range.end - range.start)]);
        let (old, new) = all.split_at_mut(2);
        for (open, bytes) in self.before.iter().zip(old) {
            open.read_range(range.clone(), bytes, 1)?;
        }
        for (place, bytes) in self.moments.places.iter().zip(new) {
            *bytes = Raw::new(self.moments.source, place.clone(), None).read(range.clone())?;
        }
        Ok(all)
    }
}

/// Moves a base by a step.
pub(super) struct Mover<'m, 'a> {
    open: OpenMoments<'m, 'a>,
    factors: [u32; 3],
    seen: RefCell<Seen>,
}

/// The moments behind a step, as far as they were read in order.
#[derive(Default)]
struct Seen {
    end: u64,
    digesters: [Digester; 2],
}

impl Mover<'_, '_> {
    /// Moves those bytes of the base that start at a place.
    pub(super) fn apply(&self, start: u64, base: &mut [u8]) -> Result<(), Error> {
        let mut at = start;
        for piece in base.chunks_mut(small(PIECE_LEN)) {
            let end = at + piece.len() as u64;
            let moments = self.open.read(at..end)?;
            self.note(at, &moments);
            step::apply(piece, slices(&moments), self.factors);
            at = end;
        }
        Ok(())
    }

    /// Notes what the moments were; when all of them were read in order, what is written of them must be that.
    fn note(&self, start: u64, moments: &[Vec<u8>; 4]) {
        let Moments { assumed: Some(assumed), tensors, places, .. } = self.open.moments else { return };
        let mut seen = self.seen.borrow_mut();
        if start == 0 {
            *seen = Seen::default();
        }
        if start != seen.end {
            return;
        }
        seen.end += moments[2].len() as u64;
        for (digester, bytes) in seen.digesters.iter_mut().zip(&moments[2..]) {
            digester.update(bytes);
        }
        if seen.end == places[0].end - places[0].start {
            let digesters = std::mem::take(&mut seen.digesters);
            tensors.iter().zip(digesters).for_each(|(&idx, digester)| assumed.add(idx, digester.finish()));
        }
    }

    /// What the entry of the tensor says of the step.
    pub(super) fn step(&self) -> Result<Step, Error> {
        let Moments { entries, before, .. } = self.open.moments;
        let base_moments = [before[0].digest()?, before[1].digest()?];
        Ok(Step { moments: *entries, base_moments, factors: self.factors })
    }
}

/// Moments as a step takes them.
pub(super) fn slices(moments: &[Vec<u8>; 4]) -> step::MomentBytes<'_> {
    [&moments[0], &moments[1], &moments[2], &moments[3]]
}

fn small(len: u64) -> usize {
    usize::try_from(len).expect("a length within memory")
}
