//! Which parameters make the dictionary that serves records best that it was not trained on.

use super::DictionaryError;
use super::content::{Parameters, one_of_each, select_content, spread, zstd_budget};
use super::progress::Watched;
use super::sample_set::SampleSet;
use super::workers::map_in_order;
use mithril_codec::dictionary::{Prepared, Samples, Usage, finish, with_repeat_offsets};
use std::collections::HashSet;

/// One of this many samples is held out.
const HELD_OUT: usize = 5;

/// Bytes of samples that a search trains on, in budgets of the level: several dictionaries are made of them.
const SEARCH_BUDGETS: usize = 2;

/// Of samples that are less than half of these budgets, so many different parts are held out in turn: with few records
/// to judge by, chance decides between parameters that are as good as each other.
const FOLDS: usize = 2;

/// Of samples that fill these budgets, all parameters are tried on one part in so many first.
const FIRST_PART: usize = 4;

/// Bytes of that part at least, in sizes of the dictionary: few samples favour other parameters than many.
const FIRST_SIZES: usize = 16;

/// Parameters that are tried again on all of the budgets.
const FINALISTS: usize = 3;

/// What a header takes of a dictionary; tables are seldom longer.
pub(super) const HEADER_LEN: usize = 160;

/// Segment lengths that are tried.
const SEGMENT_LENS: [usize; 3] = [500, 200, 1500];

/// How much of the wanted size the last dictionaries that are tried fill, in parts of 100.
const SMALLER_PERCENTS: [usize; 2] = [70, 50];

/// Dictionaries that a search makes at most.
pub(super) const SEARCH_STEPS: usize = 15;

/// A dictionary that was tried, and what held-out records take with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// How it was made.
    pub parameters: Parameters,
    /// Bytes of the frames of all held-out records.
    pub held_out_len: u64,
}

/// How frames start: which offsets are free for the first matches of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// 1, 4 and 8, as libzstd has it.
    Usual,
    /// The most common first offset, then the usual ones.
    OneCommon,
    /// The three most common first offsets.
    Common,
}

/// All of them.
const STARTS: [Start; 3] = [Start::Usual, Start::OneCommon, Start::Common];

/// What a search found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) parameters: Parameters,
    pub(super) start: Start,
    pub(super) candidates: Vec<Candidate>,
    /// Bytes of the held-out records.
    pub(super) raw_len: u64,
    /// What they take without a dictionary.
    pub(super) plain_len: u64,
    /// What they take with the best one.
    pub(super) coded_len: u64,
}

/// Samples in two parts: to learn from, and to judge by. Both are small enough to be used many times.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) learn: SampleSet,
    pub(super) judge: SampleSet,
}

impl Split {
    /// Takes about `budget` bytes of the samples, spread over all.
    pub(super) fn new(samples: &Samples<'_>, budget: usize) -> Self {
        Self::fold(samples, budget, 0)
    }

    /// As [`Self::new`], with another part held out for each number of a fold below [`HELD_OUT`].
    fn fold(samples: &Samples<'_>, budget: usize, fold: usize) -> Self {
        let chosen = spread(samples, budget);
        let judges: HashSet<usize> = one_of_each(chosen.len(), HELD_OUT)
            .into_iter()
            .map(|place| place - place % HELD_OUT + (place + fold) % HELD_OUT)
            .collect();
        let mut split = Self { learn: SampleSet::new(), judge: SampleSet::new() };
        for (place, sample_idx) in chosen.into_iter().enumerate() {
            let part = if judges.contains(&place) { &mut split.judge } else { &mut split.learn };
            part.push(samples.get(sample_idx));
        }
        split
    }
}

/// Bytes of samples that a search uses at a level.
pub(super) fn search_budget(level: i32) -> usize {
    zstd_budget(level) * SEARCH_BUDGETS
}

/// Tries parameters on a part of the samples. `k` and `d` that are given stay as they are.
pub(super) fn search(
    samples: &Samples<'_>,
    size: usize,
    level: i32,
    given: (Option<usize>, Option<usize>),
    threads: usize,
    watched: &Watched<'_>,
) -> Result<Found, DictionaryError> {
    let budget = search_budget(level);
    let n_folds = if samples.total_len() <= budget / 2 { FOLDS } else { 1 };
    let splits: Vec<Split> = (0..n_folds).map(|fold| Split::fold(samples, budget, fold)).collect();
    let trial = Trial { splits: &splits, size, level, threads, watched };
    let mut to_try = first_choices(level, given);
    let first_budget = (budget / FIRST_PART).max(size.saturating_mul(FIRST_SIZES));
    if samples.total_len() >= budget && first_budget <= budget / 2 {
        let part = [Split::new(samples, first_budget)];
        let mut tried = Trial { splits: &part, ..trial }.all(&to_try)?;
        tried.sort_by_key(|tried| tried.candidate.held_out_len);
        to_try = tried.iter().take(FINALISTS).map(|tried| tried.candidate.parameters).collect();
    }
    let mut tried = trial.all(&to_try)?;
    let best = best_of(&tried).candidate.parameters;
    // The other ways to measure a match, with the best of the lengths.
    let min_match = Parameters::of_level(level).min_match;
    let to_try: Vec<Parameters> = [min_match - 1, min_match + 1]
        .into_iter()
        .map(|min_match| Parameters { min_match, ..best })
        .filter(|parameters| parameters.pool_ratio > 1)
        .collect();
    tried.extend(trial.all(&to_try)?);
    let best = best_of(&tried).candidate.parameters;
    let to_try = SMALLER_PERCENTS.map(|filled_percent| Parameters { filled_percent, ..best });
    tried.extend(trial.all(&to_try)?);
    let best = best_of(&tried);
    let (mut raw_len, mut plain_len) = (0, 0);
    for split in &splits {
        let judge = split.judge.samples();
        raw_len += judge.total_len() as u64;
        plain_len += measure(&[], &judge, level, threads)?;
    }
    Ok(Found {
        parameters: best.candidate.parameters,
        start: best.start,
        candidates: tried.iter().map(|tried| tried.candidate).collect(),
        raw_len,
        plain_len,
        coded_len: best.candidate.held_out_len,
    })
}

/// The parameters that every search tries.
fn first_choices(level: i32, given: (Option<usize>, Option<usize>)) -> Vec<Parameters> {
    let usual = Parameters::of_level(level);
    let (k, d) = (given.0.unwrap_or(usual.k), given.1.unwrap_or(usual.d));
    let lens = given.0.map_or(SEGMENT_LENS.to_vec(), |k| vec![k]);
    let mut choices: Vec<Parameters> = lens.into_iter().map(|k| Parameters { k, d, ..usual }).collect();
    // A smaller pool is better for few samples, a larger one for many.
    choices.extend([3, 12].map(|pool_ratio| Parameters { k, d, pool_ratio, ..usual }));
    if given.0.is_none() {
        choices.extend([200, 2000].map(|k| Parameters { k, d, pool_ratio: 3, ..usual }));
    }
    if given.1.is_none() {
        choices.push(Parameters { k, d: 6, ..usual });
    }
    choices
}

/// The dictionary of some parameters; with it, how its content was used.
pub(super) fn make(
    samples: &Samples<'_>,
    size: usize,
    level: i32,
    parameters: Parameters,
    threads: usize,
) -> Result<(Vec<u8>, Usage), DictionaryError> {
    let wanted_len = parameters.filled_len(content_len(size));
    let (pool, usage) = select_content(samples, wanted_len, level, parameters, threads)?;
    let dictionary = finish_on_part(pool.bytes(), samples, level, None, size)?;
    Ok((dictionary, usage))
}

/// Content of a dictionary of this size.
pub(super) fn content_len(size: usize) -> usize {
    size.saturating_sub(HEADER_LEN).max(size / 2)
}

/// Finishes content with tables made from a part of the samples, which is enough.
pub(super) fn finish_on_part(
    content: &[u8],
    samples: &Samples<'_>,
    level: i32,
    id: Option<u32>,
    size: usize,
) -> Result<Vec<u8>, DictionaryError> {
    let mut part = SampleSet::new();
    for sample_idx in spread(samples, zstd_budget(level)) {
        part.push(samples.get(sample_idx));
    }
    Ok(finish(content, &part.samples(), level, id, size)?)
}

/// The dictionary with another start, if that is possible.
pub(super) fn with_start(dictionary: &[u8], usage: &Usage, start: Start, id: Option<u32>) -> Option<Vec<u8>> {
    let mut common = usage.first_offsets.clone();
    common.sort_unstable_by_key(|&(offset, count)| (std::cmp::Reverse(count), offset));
    let mut offsets = match start {
        Start::Usual => return Some(dictionary.to_vec()),
        Start::OneCommon => common.iter().take(1).map(|&(offset, _)| offset).collect::<Vec<_>>(),
        Start::Common => common.iter().take(3).map(|&(offset, _)| offset).collect(),
    };
    for usual in [1, 4, 8] {
        if offsets.len() < 3 && !offsets.contains(&usual) {
            offsets.push(usual);
        }
    }
    with_repeat_offsets(dictionary, offsets.try_into().ok()?, id)
}

/// Bytes that records take as frames with a dictionary, or without one if it is empty.
pub(super) fn measure(
    dictionary: &[u8],
    records: &Samples<'_>,
    level: i32,
    threads: usize,
) -> Result<u64, DictionaryError> {
    let prepared = Prepared::new(dictionary, level)?;
    let all: Vec<usize> = (0..records.n_samples()).collect();
    let parts: Vec<&[usize]> = all.chunks(256).collect();
    let lens = map_in_order(&parts, threads, |part| -> Result<u64, DictionaryError> {
        let mut compressor = prepared.compressor()?;
        let mut frame = Vec::new();
        let mut len = 0;
        for &record_idx in *part {
            frame.clear();
            len += compressor.append(records.get(record_idx), &mut frame)? as u64;
        }
        Ok(len)
    });
    lens.into_iter().sum()
}

/// What dictionaries are tried with.
#[derive(Clone, Copy)]
struct Trial<'a> {
    splits: &'a [Split],
    size: usize,
    level: i32,
    threads: usize,
    watched: &'a Watched<'a>,
}

/// A dictionary that was tried, with the start that suits it best.
#[derive(Debug, Clone, Copy)]
struct Tried {
    candidate: Candidate,
    start: Start,
}

impl Trial<'_> {
    /// Makes and measures several dictionaries, each on one thread.
    fn all(&self, to_try: &[Parameters]) -> Result<Vec<Tried>, DictionaryError> {
        let tried = map_in_order(to_try, self.threads, |&parameters| {
            let tried = self.one(parameters);
            self.watched.step();
            tried
        });
        tried.into_iter().collect()
    }

    /// The start that makes held-out records smallest with the dictionaries of some parameters, and what they take.
    fn one(&self, parameters: Parameters) -> Result<Tried, DictionaryError> {
        let mut lens = STARTS.map(|start| (0, start));
        for split in self.splits {
            let (learn, judge) = (split.learn.samples(), split.judge.samples());
            let (dictionary, usage) = make(&learn, self.size, self.level, parameters, 1)?;
            for (len, start) in &mut lens {
                let started = with_start(&dictionary, &usage, *start, None);
                *len += measure(started.as_ref().unwrap_or(&dictionary), &judge, self.level, 1)?;
            }
        }
        let (held_out_len, start) =
            lens.into_iter().min_by_key(|(len, _)| *len).expect("there are some starts");
        Ok(Tried { candidate: Candidate { parameters, held_out_len }, start })
    }
}

fn best_of(tried: &[Tried]) -> &Tried {
    tried.iter().min_by_key(|tried| tried.candidate.held_out_len).expect("at least one was tried")
}
