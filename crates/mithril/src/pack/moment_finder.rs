//! Finds the moments of an optimiser that belong to a tensor of weights: by its name, or by where the weights went.
//!
//! Most frameworks name moments after their weights. `torch.optim` numbers them (`optimizer.state.0.exp_avg`), in an order
//! that the names of the weights do not tell. There every pair of moments of the same shape is a candidate, those nearest in
//! order first, and the pair is taken by which a step explains the way of a sample. A wrong pair costs size, nothing else.

use super::assumed::Assumed;
use super::bases::{BaseFinder, BaseTensor};
use super::layout::Layout;
use super::moments::{Moments, slices};
use super::raw::Raw;
use crate::Error;
use crate::container::step;
use mithril_codec::Dtype;
use mithril_format::ReadAt;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What optimisers call their first and second moments: as a part of a name between dots or slashes.
const NAMES: [[&str; 2]; 4] = [["exp_avg", "exp_avg_sq"], ["mu", "nu"], ["m", "v"], ["moment1", "moment2"]];

/// Places of a tensor that pairs of moments are tried on, and bytes of each.
const TRIED_PLACES: u64 = 3;
const TRIED_LEN: u64 = 1 << 10;

/// A pair that explains this part of the way is the right one: those of other weights explain a hundredth.
const EXPLAINS: f64 = 0.5;

/// Pairs that are tried for a tensor in any case, and on average: names out of order need more tries once in a while.
const TRIES: usize = 8;
const TRIES_ON_AVERAGE: usize = 32;

/// Pairs that are candidates of one tensor at most.
const MAX_CANDIDATES: usize = 1024;

/// Pairs whose samples are kept at most.
const MAX_SAMPLES: usize = 4096;

/// The pairs of moments of a file, and whose they are.
pub(super) struct MomentFinder<'a> {
    source: &'a dyn ReadAt,
    layout: &'a Layout,
    /// Moments: they have none themselves.
    moments: HashSet<usize>,
    /// Pairs of moments by the number of the tensor that has their name.
    by_name: HashMap<usize, Pair>,
    /// Pairs that no tensor has the name of, by their shape.
    unnamed: HashMap<&'a [u64], Candidates>,
    n_samples: usize,
    /// Told what the moments were that are used, where digests are kept.
    assumed: Option<&'a Assumed>,
}

/// Numbers of a first and of a second moment.
type Pair = [usize; 2];

/// Pairs of moments of one shape, and the tensors that they may belong to.
#[derive(Default)]
struct Candidates {
    /// In the order of their names, numbers by their value.
    pairs: Vec<Pair>,
    /// What was read of each.
    samples: Vec<Option<[Vec<u8>; 4]>>,
    /// Whether a tensor was explained by each.
    is_taken: Vec<bool>,
    /// Places of tensors in the order of their names.
    ranks: HashMap<usize, usize>,
    tries_left: usize,
}

impl<'a> MomentFinder<'a> {
    /// Looks at the names of a file.
    pub(super) fn new(source: &'a dyn ReadAt, layout: &'a Layout, assumed: Option<&'a Assumed>) -> Self {
        let pairs = pairs(layout);
        let moments: HashSet<usize> = pairs.iter().flat_map(|(pair, _)| *pair).collect();
        let is_weight = |idx: usize| layout.tensors[idx].dtype == Dtype::F32 && !moments.contains(&idx);
        let weights: Vec<usize> = (0..layout.tensors.len()).filter(|&idx| is_weight(idx)).collect();
        let by_name = by_name(layout, &pairs, &weights);
        let unnamed = unnamed(layout, &pairs, &weights, &by_name);
        Self { source, layout, moments, by_name, unnamed, n_samples: 0, assumed }
    }

    /// The moments of a tensor behind and before the step from its base. Must be asked in the order of the tensors, so that
    /// the same file always gives the same answers.
    pub(super) fn find(
        &mut self,
        tensor_idx: usize,
        raw: &Raw<'_>,
        base: &BaseTensor<'_>,
        bases: &BaseFinder<'a>,
    ) -> Result<Option<Moments<'a>>, Error> {
        let tensor = &self.layout.tensors[tensor_idx];
        if tensor.dtype != Dtype::F32 || self.moments.contains(&tensor_idx) {
            return Ok(None);
        }
        let pair = match self.by_name.get(&tensor_idx) {
            Some(&pair) => Some(pair),
            None => self.explaining(tensor_idx, raw, base, bases)?,
        };
        Ok(pair.and_then(|pair| Moments::of(pair, self.source, self.layout, bases, self.assumed)))
    }

    /// The pair of moments by which a step explains most of the way from the base to a tensor.
    fn explaining(
        &mut self,
        tensor_idx: usize,
        raw: &Raw<'_>,
        base: &BaseTensor<'_>,
        bases: &BaseFinder<'a>,
    ) -> Result<Option<Pair>, Error> {
        let shape = self.layout.tensors[tensor_idx].shape.as_slice();
        let Some(candidates) = self.unnamed.get_mut(shape) else { return Ok(None) };
        if let [pair] = candidates.pairs[..] {
            return Ok(Some(pair));
        }
        let places = tried_places(raw.len());
        let (mut after, mut before) = (Vec::new(), Vec::new());
        let open = base.open()?;
        for place in &places {
            after.extend(raw.read(place.clone())?);
            let start = before.len();
            before.resize(after.len(), 0);
            open.read_range(place.clone(), &mut before[start..], 1)?;
        }
        let mut best = None;
        for (n_tried, at) in candidates.in_turn(tensor_idx).into_iter().enumerate() {
            if n_tried >= TRIES {
                if candidates.tries_left == 0 {
                    break;
                }
                candidates.tries_left -= 1;
            }
            if candidates.samples[at].is_none() {
                let pair = candidates.pairs[at];
                let moments = Moments::of(pair, self.source, self.layout, bases, self.assumed);
                let Some(moments) = moments.filter(|_| self.n_samples < MAX_SAMPLES) else { continue };
                candidates.samples[at] = Some(read_places(&moments, &places)?);
                self.n_samples += 1;
            }
            let Some(sample) = &candidates.samples[at] else { continue };
            let explained = explained(&after, &before, slices(sample));
            if explained > best.map_or(0.0, |(most, _)| most) {
                best = Some((explained, at));
            }
            if explained >= EXPLAINS {
                break;
            }
        }
        let Some((explained, at)) = best else { return Ok(None) };
        if explained >= EXPLAINS {
            candidates.is_taken[at] = true;
            // Hardly anybody will ask again.
            candidates.samples[at] = None;
            self.n_samples -= 1;
        }
        Ok(Some(candidates.pairs[at]))
    }
}

impl Candidates {
    /// The pairs in the order in which they are tried for a tensor: those that nothing was explained by, then the others, the
    /// nearest first.
    fn in_turn(&self, tensor_idx: usize) -> Vec<usize> {
        let rank = self.ranks.get(&tensor_idx).copied().unwrap_or(0);
        let start = rank.saturating_sub(MAX_CANDIDATES / 2);
        let start = start.min(self.pairs.len().saturating_sub(MAX_CANDIDATES));
        let mut places: Vec<usize> = (start..self.pairs.len()).take(MAX_CANDIDATES).collect();
        places.sort_by_key(|&at| (self.is_taken[at], at.abs_diff(rank), at));
        places
    }
}

/// All pairs of moments, and their names without what makes them moments, with dots alone.
fn pairs(layout: &Layout) -> Vec<(Pair, String)> {
    let by_name: HashMap<&str, usize> =
        layout.tensors.iter().enumerate().map(|(idx, tensor)| (tensor.name.as_str(), idx)).collect();
    let mut pairs = Vec::new();
    for (first_idx, first) in layout.tensors.iter().enumerate().filter(|(_, x)| x.dtype == Dtype::F32) {
        for [first_part, second_part] in NAMES {
            for (place, _) in parts(&first.name).enumerate().filter(|(_, part)| *part == first_part) {
                let second = with_part(&first.name, place, second_part);
                let Some(&second_idx) = by_name.get(second.as_str()) else { continue };
                let second = &layout.tensors[second_idx];
                if second.dtype == Dtype::F32 && second.shape == first.shape {
                    let rest = parts(&first.name).enumerate().filter(|(at, _)| *at != place);
                    let rest: Vec<&str> = rest.map(|(_, part)| part).collect();
                    pairs.push(([first_idx, second_idx], rest.join(".")));
                }
            }
        }
    }
    pairs
}

/// The pairs whose names end most like those of weights of the same shape, and not by numbers alone; the first of equals.
fn by_name(layout: &Layout, pairs: &[(Pair, String)], weights: &[usize]) -> HashMap<usize, Pair> {
    let mut ends: HashMap<(&[u64], &str), Pair> = HashMap::new();
    for (pair, name) in pairs {
        let shape = layout.tensors[pair[0]].shape.as_slice();
        for end in ends_of(name) {
            ends.entry((shape, end)).or_insert(*pair);
        }
    }
    let mut found = HashMap::new();
    for &idx in weights {
        let tensor = &layout.tensors[idx];
        let name = tensor.name.replace('/', ".");
        if let Some(pair) = ends_of(&name).find_map(|end| ends.get(&(tensor.shape.as_slice(), end))) {
            found.insert(idx, *pair);
        }
    }
    found
}

/// A name, and what is left of it without its first parts, as long as that is more than numbers.
fn ends_of(name: &str) -> impl Iterator<Item = &str> {
    let starts = std::iter::once(0).chain(name.match_indices('.').map(|(at, _)| at + 1));
    starts.map(|start| &name[start..]).take_while(|end| !end.split('.').all(is_number))
}

fn is_number(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_digit())
}

/// The pairs that no weights have the name of, and the weights without moments of their name, by shape.
fn unnamed<'a>(
    layout: &'a Layout,
    pairs: &[(Pair, String)],
    weights: &[usize],
    by_name: &HashMap<usize, Pair>,
) -> HashMap<&'a [u64], Candidates> {
    let named: HashSet<Pair> = by_name.values().copied().collect();
    let mut left: Vec<&(Pair, String)> = pairs.iter().filter(|(pair, _)| !named.contains(pair)).collect();
    left.sort_by_cached_key(|(pair, name)| (in_order(name), *pair));
    let mut unnamed: HashMap<&[u64], Candidates> = HashMap::new();
    for (pair, _) in left {
        let candidates = unnamed.entry(layout.tensors[pair[0]].shape.as_slice()).or_default();
        candidates.pairs.push(*pair);
        candidates.samples.push(None);
        candidates.is_taken.push(false);
    }
    let mut weights: Vec<usize> = weights.iter().copied().filter(|idx| !by_name.contains_key(idx)).collect();
    weights.sort_by_cached_key(|&idx| (in_order(&layout.tensors[idx].name), idx));
    for idx in weights {
        if let Some(candidates) = unnamed.get_mut(layout.tensors[idx].shape.as_slice()) {
            candidates.ranks.insert(idx, candidates.ranks.len());
            candidates.tries_left += TRIES_ON_AVERAGE;
        }
    }
    unnamed
}

/// What names are sorted by: layer 2 comes before layer 10.
fn in_order(name: &str) -> Vec<(u64, String)> {
    let number = |part: &str| part.parse().unwrap_or(u64::MAX);
    parts(name).map(|part| (number(part), part.to_owned())).collect()
}

fn parts(name: &str) -> impl DoubleEndedIterator<Item = &str> {
    name.split(['.', '/'])
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

/// The places of a tensor of F32 that pairs are tried on: those of all tensors of a length are the same.
fn tried_places(len: u64) -> Vec<Range<u64>> {
    if len <= TRIED_PLACES * TRIED_LEN {
        return std::iter::once(0..len).collect();
    }
    let place = |number: u64| {
        let start = (len - TRIED_LEN) * number / (TRIED_PLACES - 1) / 4 * 4;
        start..start + TRIED_LEN
    };
    (0..TRIED_PLACES).map(place).collect()
}

fn read_places(moments: &Moments<'_>, places: &[Range<u64>]) -> Result<[Vec<u8>; 4], Error> {
    let open = moments.open()?;
    let mut all = [(); 4].map(|()| Vec::new());
    for place in places {
        for (sample, bytes) in all.iter_mut().zip(open.read(place.clone())?) {
            sample.extend(bytes);
        }
    }
    Ok(all)
}

/// The part of the way from the base that a step by these moments explains, of its squares.
fn explained(after: &[u8], before: &[u8], moments: step::MomentBytes<'_>) -> f64 {
    let Some(factors) = step::fit(after, before, moments) else { return 0.0 };
    let mut moved = before.to_vec();
    step::apply(&mut moved, moments, factors);
    let (way, rest) = (squares(after, before), squares(after, &moved));
    if way > 0.0 { 1.0 - rest / way } else { 0.0 }
}

/// The sum of the squares of differences that are numbers.
fn squares(a: &[u8], b: &[u8]) -> f64 {
    let value = |x: &[u8; 4]| f64::from(f32::from_le_bytes(*x));
    let pairs = a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0);
    let ways = pairs.map(|(a, b)| value(a) - value(b));
    ways.map(|way| way * way).filter(|square| square.is_finite()).sum()
}
