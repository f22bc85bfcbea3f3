//! Finds the moments of an optimiser that belong to a tensor of weights.

use super::bases::{BaseFinder, BaseTensor};
use super::layout::Layout;
use super::raw::Raw;
use crate::Error;
use crate::container::{OpenTensor, Step, step};
use mithril_codec::Dtype;
use mithril_codec::delta::sampled_bits;
use mithril_format::{ReadAt, TensorInfo};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What optimisers call their first and second moments: as a part of a name between dots or slashes.
const NAMES: [[&str; 2]; 4] = [["exp_avg", "exp_avg_sq"], ["mu", "nu"], ["m", "v"], ["moment1", "moment2"]];

/// Bytes that a step is fitted on, and tried on.
const SAMPLE_LEN: u64 = 64 << 10;

/// Bytes that are moved at a time.
const PIECE_LEN: u64 = 1 << 20;

/// The pairs of moments of a file.
pub(super) struct MomentFinder {
    /// Pairs of tensors by the last part of the name that both have without what makes them moments.
    pairs: HashMap<String, Vec<Pair>>,
    /// Names of all moments: they have none themselves.
    names: HashSet<String>,
}

struct Pair {
    /// Parts of the name, from the last one.
    name: Vec<String>,
    tensors: [usize; 2],
}

/// The moments of a tensor behind a step, and those before it.
pub(super) struct Moments<'a> {
    source: &'a dyn ReadAt,
    places: [Range<u64>; 2],
    entries: [usize; 2],
    before: [BaseTensor<'a>; 2],
}

fn parts(name: &str) -> impl DoubleEndedIterator<Item = &str> {
    name.split(['.', '/'])
}

impl MomentFinder {
    /// Looks at the names of a file.
    pub(super) fn new(layout: &Layout) -> Self {
        let by_name: HashMap<&str, usize> =
            layout.tensors.iter().enumerate().map(|(idx, tensor)| (tensor.name.as_str(), idx)).collect();
        let mut pairs: HashMap<String, Vec<Pair>> = HashMap::new();
        for (first_idx, first) in layout.tensors.iter().enumerate().filter(|(_, x)| x.dtype == Dtype::F32) {
            for [first_part, second_part] in NAMES {
                for (place, _) in parts(&first.name).enumerate().filter(|(_, part)| *part == first_part) {
                    let second = with_part(&first.name, place, second_part);
                    let Some(&second_idx) = by_name.get(second.as_str()) else { continue };
                    let second = &layout.tensors[second_idx];
                    if second.dtype != Dtype::F32 || second.shape != first.shape {
                        continue;
                    }
                    let name = parts(&first.name).enumerate().filter(|(at, _)| *at != place);
                    let mut name: Vec<String> = name.map(|(_, part)| part.to_owned()).collect();
                    name.reverse();
                    if let Some(last) = name.first() {
                        let pair = Pair { name: name.clone(), tensors: [first_idx, second_idx] };
                        pairs.entry(last.clone()).or_default().push(pair);
                    }
                }
            }
        }
        let moments = pairs.values().flatten().flat_map(|pair| pair.tensors);
        let names = moments.map(|idx| layout.tensors[idx].name.clone()).collect();
        Self { pairs, names }
    }

    /// The moments of a tensor: those whose names end most alike, behind and before the step.
    pub(super) fn find<'a>(
        &self,
        tensor: &TensorInfo,
        source: &'a dyn ReadAt,
        layout: &Layout,
        bases: &BaseFinder<'a>,
    ) -> Option<Moments<'a>> {
        if tensor.dtype != Dtype::F32 || self.names.contains(&tensor.name) {
            return None;
        }
        let name: Vec<&str> = parts(&tensor.name).rev().collect();
        let alike = |pair: &Pair| pair.name.iter().zip(&name).take_while(|(a, b)| a == b).count();
        let fits = |pair: &&Pair| layout.tensors[pair.tensors[0]].shape == tensor.shape;
        let candidates = self.pairs.get(*name.first()?)?.iter().filter(fits);
        let pair = candidates.max_by_key(|pair| (alike(pair), std::cmp::Reverse(pair.tensors)))?;
        let infos = pair.tensors.map(|idx| &layout.tensors[idx]);
        Some(Moments {
            source,
            places: infos.map(|info| info.bytes.clone()),
            entries: pair.tensors.map(|idx| layout.entry_idx(idx)),
            before: [bases.find_named(infos[0])?, bases.find_named(infos[1])?],
        })
    }
}

fn with_part(name: &str, place: usize, part: &str) -> String {
    let mut at = 0;
    for (idx, old) in parts(name).enumerate() {
        if idx == place {
            return format!("{}{part}{}", &name[..at], &name[at + old.len()..]);
        }
        at += old.len() + 1;
    }
    name.to_owned()
}

impl Moments<'_> {
    /// Moves the base of a tensor by the step that brings it nearest to the tensor; nothing, and the base unchanged, when
    /// that hardly helps.
    pub(super) fn apply_to(&self, raw: &[u8], base: &mut [u8]) -> Result<Option<Step>, Error> {
        let open = [self.before[0].open()?, self.before[1].open()?];
        let len = raw.len() as u64;
        let start = (len.saturating_sub(SAMPLE_LEN) / 2) / 4 * 4;
        let sample = start..(start + SAMPLE_LEN).min(len);
        let moments = self.read(&open, sample.clone())?;
        let place = |range: &Range<u64>| small(range.start)..small(range.end);
        let (tried, tried_base) = (&raw[place(&sample)], &base[place(&sample)]);
        let Some(factors) = step::fit(tried, tried_base, slices(&moments)) else { return Ok(None) };
        let mut moved = tried_base.to_vec();
        step::apply(&mut moved, slices(&moments), factors);
        let Some(layout) = Dtype::F32.layout() else { return Ok(None) };
        let bits = |base: &[u8]| sampled_bits(layout, tried, base, raw.len() / 4).into_iter().min();
        if bits(&moved) >= bits(tried_base).map(|bits| bits - bits / 32) {
            return Ok(None);
        }
        let mut at = 0;
        while at < len {
            let range = at..(at + PIECE_LEN).min(len);
            let moments = self.read(&open, range.clone())?;
            step::apply(&mut base[place(&range)], slices(&moments), factors);
            at = range.end;
        }
        let base_moments = [self.before[0].digest()?, self.before[1].digest()?];
        Ok(Some(Step { moments: self.entries, base_moments, factors }))
    }

    /// A range of all moments.
    fn read(&self, before: &[OpenTensor<'_>; 2], range: Range<u64>) -> Result<[Vec<u8>; 4], Error> {
        let mut all = [(); 4].map(|()| vec![0; small(range.end - range.start)]);
        let (old, new) = all.split_at_mut(2);
        for (open, bytes) in before.iter().zip(old) {
            open.read_range(range.clone(), bytes, 1)?;
        }
        for (place, bytes) in self.places.iter().zip(new) {
            *bytes = Raw::new(self.source, place.clone(), None).read(range.clone())?;
        }
        Ok(all)
    }
}

fn slices(moments: &[Vec<u8>; 4]) -> step::MomentBytes<'_> {
    [&moments[0], &moments[1], &moments[2], &moments[3]]
}

fn small(len: u64) -> usize {
    usize::try_from(len).expect("a length within memory")
}
