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

/// What a header takes of a dictionary; tables are seldom longer.
pub(super) const HEADER_LEN: usize = 160;

/// Segment lengths that are tried.
const SEGMENT_LENS: [usize; 3] = [500, 200, 1500];

/// Dictionaries that a search makes at most.
pub(super) const SEARCH_STEPS: usize = 11;

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
    pub(super) fn new(samples: &Samples<'_>, level: i32) -> Self {
        let chosen = spread(samples, zstd_budget(level) * SEARCH_BUDGETS);
        let judges: HashSet<usize> = one_of_each(chosen.len(), HELD_OUT).into_iter().collect();
        let mut split = Self { learn: SampleSet::new(), judge: SampleSet::new() };
        for (place, sample_idx) in chosen.into_iter().enumerate() {
            let part = if judges.contains(&place) { &mut split.judge } else { &mut split.learn };
            part.push(samples.get(sample_idx));
        }
        split
    }
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
    let split = Split::new(samples, level);
    let (learn, judge) = (split.learn.samples(), split.judge.samples());
    let usual = Parameters::of_level(level);
    let (k, d) = (given.0.unwrap_or(usual.k), given.1.unwrap_or(usual.d));
    let mut to_try = Vec::new();
    let lens = given.0.map_or(SEGMENT_LENS.to_vec(), |k| vec![k]);
    to_try.extend(lens.into_iter().map(|k| Parameters { k, d, ..usual }));
    // A smaller pool is better for few samples, a larger one for many.
    to_try.extend([3, 12].map(|pool_ratio| Parameters { k, d, pool_ratio, ..usual }));
    if given.0.is_none() {
        to_try.extend([200, 2000].map(|k| Parameters { k, d, pool_ratio: 3, ..usual }));
    }
    if given.1.is_none() {
        to_try.push(Parameters { k, d: 6, ..usual });
    }
    let mut candidates = try_all(&learn, &judge, size, level, &to_try, threads, watched)?;
    let best = *best_of(&candidates);
    // The other ways to measure a match, with the best of the lengths.
    let to_try: Vec<Parameters> = [usual.min_match - 1, usual.min_match + 1]
        .into_iter()
        .map(|min_match| Parameters { min_match, ..best.parameters })
        .filter(|parameters| parameters.pool_ratio > 1)
        .collect();
    candidates.extend(try_all(&learn, &judge, size, level, &to_try, threads, watched)?);
    let best = *best_of(&candidates);
    let (start, coded_len) = best_start(&learn, &judge, size, level, best.parameters, threads)?;
    watched.step();
    Ok(Found {
        parameters: best.parameters,
        start,
        candidates,
        raw_len: judge.total_len() as u64,
        plain_len: measure(&[], &judge, level, threads)?,
        coded_len: coded_len.min(best.held_out_len),
    })
}

/// The dictionary of some parameters; with it, how its content was used.
pub(super) fn make(
    samples: &Samples<'_>,
    size: usize,
    level: i32,
    parameters: Parameters,
    threads: usize,
) -> Result<(Vec<u8>, Usage), DictionaryError> {
    let (pool, usage) = select_content(samples, content_len(size), level, parameters, threads)?;
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

/// Makes and measures several dictionaries, each on one thread.
fn try_all(
    learn: &Samples<'_>,
    judge: &Samples<'_>,
    size: usize,
    level: i32,
    to_try: &[Parameters],
    threads: usize,
    watched: &Watched<'_>,
) -> Result<Vec<Candidate>, DictionaryError> {
    let tried = map_in_order(to_try, threads, |&parameters| {
        let (dictionary, _) = make(learn, size, level, parameters, 1)?;
        let held_out_len = measure(&dictionary, judge, level, 1)?;
        watched.step();
        Ok(Candidate { parameters, held_out_len })
    });
    tried.into_iter().collect()
}

fn best_of(candidates: &[Candidate]) -> &Candidate {
    candidates.iter().min_by_key(|candidate| candidate.held_out_len).expect("at least one was tried")
}

/// The start that makes held-out records smallest, and what they take.
fn best_start(
    learn: &Samples<'_>,
    judge: &Samples<'_>,
    size: usize,
    level: i32,
    parameters: Parameters,
    threads: usize,
) -> Result<(Start, u64), DictionaryError> {
    let (dictionary, usage) = make(learn, size, level, parameters, threads)?;
    let mut best = (Start::Usual, measure(&dictionary, judge, level, threads)?);
    for start in [Start::OneCommon, Start::Common] {
        if let Some(other) = with_start(&dictionary, &usage, start, None) {
            let len = measure(&other, judge, level, threads)?;
            if len < best.1 {
                best = (start, len);
            }
        }
    }
    Ok(best)
}
