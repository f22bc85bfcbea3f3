//! From samples to the content of a dictionary, on several threads.

use super::DictionaryError;
use super::sample_set::random;
use super::workers::{map_in_order, thread_count};
use mithril_codec::dictionary::{
    CoverScratch, Frequencies, MAX_D, MatchModel, NO_SAMPLE, Pool, PoolIndex, Samples, Segment, Usage,
    best_segment, epochs, measure_with_zstd, most_used_last, shrink, take_segment,
};
use std::ops::Range;

/// Everything that decides the content of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Longest segment that is taken from a sample.
    pub k: usize,
    /// Length of the runs that are counted.
    pub d: usize,
    /// Shortest match that counts when the pool shrinks, 4 to 8.
    pub min_match: usize,
    /// How much larger than the dictionary the pool is that its content is picked from. With 1, segments stay whole and
    /// only their order is chosen by use: better for few samples, whose use of single bytes says little about others.
    pub pool_ratio: usize,
    /// How much of the wanted size is filled, in parts of 100. zstd finds content by tables whose size does not grow with
    /// it, so that at fast levels, or with few samples, a smaller dictionary may serve better.
    pub filled_percent: usize,
}

impl Parameters {
    /// What serves most data at a level.
    pub fn of_level(level: i32) -> Self {
        let min_match = MatchModel::of_level(level).min_match;
        Self { k: 500, d: 8, min_match, pool_ratio: 6, filled_percent: 100 }
    }

    /// How much of a length is filled.
    pub(super) fn filled_len(&self, len: usize) -> usize {
        len.saturating_mul(self.filled_percent) / 100
    }
}

/// How much larger, in tenths, the pool is that zstd itself measures.
const LAST_POOL_TENTHS: usize = 16;
/// Segments that each epoch gives: the more, the longer epochs are, and the more there is to choose from.
const PASSES: usize = 4;
/// Bytes of samples that each pass searches for segments at most, spread over all: the best of many segments is easily
/// found.
const SCANNED_LEN: usize = 4 << 20;
/// Bytes of samples whose runs are counted at most, spread over all: what is common shows in a part of them.
const COUNTED_LEN: usize = 24 << 20;
/// Epochs that are looked at at the same time, against the same counts, once what is most common is covered.
const EPOCHS_AT_ONCE: usize = 32;
/// A segment that is worth less than one part in so many of what it was when it was found is looked for again.
const STALE: u64 = 2;
/// How much larger the pool is than what a group takes of it.
const BESIDE_RATIO: usize = 3;
/// Times that the model measures and shrinks the pool.
const MODEL_ROUNDS: usize = 4;
/// Times that zstd does.
const ZSTD_ROUNDS: usize = 3;
/// Bytes of samples in a piece of work at least: with less, starting zstd on the pool costs more than its work.
const CHUNK_LEN: usize = 256 << 10;
/// Pieces of work for each thread: each has a count for every byte of the pool, which takes time to clear and to add up.
const CHUNKS_PER_THREAD: usize = 3;

/// The pieces of a dictionary's content, the best last.
pub(super) fn select_content(
    samples: &Samples<'_>,
    len: usize,
    level: i32,
    parameters: Parameters,
    threads: usize,
) -> Result<(Pool, Usage), DictionaryError> {
    let pool = first_pool(samples, len, parameters, threads);
    refine(samples, pool, len, level, parameters, threads)
}

/// A pool of segments that cover what samples have in common.
pub(super) fn first_pool(samples: &Samples<'_>, len: usize, parameters: Parameters, threads: usize) -> Pool {
    let mut segments = cover(samples, &[], len.saturating_mul(parameters.pool_ratio), parameters, threads);
    // Samples that are much alike have few different runs. When those are covered and there is room, longer runs tell
    // what else is common. A pool of several times the size made of them was worse: what each of many like pieces saves
    // is too little for any of them to stay.
    let mut d = 2 * parameters.d;
    loop {
        let room = len.saturating_sub(segments.iter().map(|segment| segment.len).sum());
        if room < d || d > MAX_D {
            break;
        }
        segments.extend(cover(samples, &segments, room, Parameters { d, ..parameters }, threads));
        d *= 2;
    }
    Pool::from_segments(samples, &segments)
}

/// Segments of about so many bytes in all, that cover runs of `d` bytes which the segments taken before do not.
fn cover(
    samples: &Samples<'_>,
    taken: &[Segment],
    len: usize,
    parameters: Parameters,
    threads: usize,
) -> Vec<Segment> {
    let Parameters { k, d, .. } = parameters;
    let mut frequencies = match count(samples, d, threads) {
        Some(frequencies) => frequencies,
        None => return Vec::new(),
    };
    frequencies.cover_segments(samples, taken);
    take_best(samples, &mut frequencies, len, k.max(d), threads)
}

/// How many samples hold each run of `d` bytes; nothing when there is no sample.
fn count(samples: &Samples<'_>, d: usize, threads: usize) -> Option<Frequencies> {
    let counted = spread(samples, COUNTED_LEN);
    let counted_len = samples.total_len().min(COUNTED_LEN);
    let table_log = (counted_len.max(1).ilog2() + 1).clamp(16, 21);
    let parts: Vec<&[usize]> = counted.chunks(counted.len().div_ceil(thread_count(threads)).max(1)).collect();
    let mut counts =
        map_in_order(&parts, threads, |part| Frequencies::count(samples, part, d, table_log)).into_iter();
    let mut frequencies = counts.next()?;
    for more in counts {
        frequencies.add(&more);
    }
    Some(frequencies)
}

/// The best segments of at most `k` bytes, about so many bytes in all, the best by byte first.
fn take_best(
    samples: &Samples<'_>,
    frequencies: &mut Frequencies,
    len: usize,
    k: usize,
    threads: usize,
) -> Vec<Segment> {
    let epochs = epochs_for(samples, len, k);
    let mut found = take_from_epochs(samples, frequencies, &epochs, len, k, threads);
    found.sort_by_key(|(rate, _)| std::cmp::Reverse(*rate));
    found.into_iter().map(|(_, segment)| segment).collect()
}

/// Epochs to take so many bytes from, each longer than a segment of `k` bytes if the samples are, also where few samples
/// are to fill a large dictionary.
fn epochs_for(samples: &Samples<'_>, len: usize, k: usize) -> Vec<Range<usize>> {
    let mut epochs = epochs(samples, (len / k / PASSES).min(samples.total_len() / (2 * k)));
    let longest = SCANNED_LEN.div_ceil(epochs.len()).max(k);
    for epoch in &mut epochs {
        epoch.end = epoch.end.min(epoch.start + longest);
    }
    epochs
}

/// Content for some samples that stands behind the content of a base and holds what that lacks, the best last.
pub(super) fn select_beside(
    base: &[u8],
    samples: &Samples<'_>,
    len: usize,
    level: i32,
) -> Result<Vec<u8>, DictionaryError> {
    let Parameters { k, d, .. } = Parameters::of_level(level);
    let Some(mut frequencies) = count(samples, d, 1) else { return Ok(Vec::new()) };
    frequencies.cover_bytes(base);
    let segments = take_best(samples, &mut frequencies, len.saturating_mul(BESIDE_RATIO), k, 1);
    let mut pool = Pool::from_segments(samples, &segments);
    let part = spread(samples, zstd_budget(level));
    // Measured behind the base, so that a piece is worth only what the base does not give.
    let measure = |pool: &Pool| -> Result<Usage, DictionaryError> {
        let mut both = Pool::default();
        both.push(NO_SAMPLE, base);
        for piece in pool.pieces() {
            both.push(piece.sample_idx, &pool.bytes()[piece.range()]);
        }
        Ok(measure_with_zstd(&both, samples, &part, level)?.behind(base.len()))
    };
    for wanted_len in steps(pool.len(), len, ZSTD_ROUNDS) {
        let (ordered, usage) = most_used_last(&pool, &measure(&pool)?);
        (pool, _) = shrink(&ordered, &usage, wanted_len);
    }
    let (pool, _) = most_used_last(&pool, &measure(&pool)?);
    Ok(pool.bytes().to_vec())
}

/// Goes round the epochs and takes the best segment of each, with its worth by byte, until there is enough or nothing
/// is worth anything. The result does not depend on the number of threads.
fn take_from_epochs(
    samples: &Samples<'_>,
    frequencies: &mut Frequencies,
    epochs: &[Range<usize>],
    len: usize,
    k: usize,
    threads: usize,
) -> Vec<(u64, Segment)> {
    let mut taken = Vec::new();
    let mut taken_len = 0;
    // At first all epochs would give the same common parts, so few are looked at at once.
    let mut at_once = 1;
    let mut again = CoverScratch::new();
    loop {
        let before = taken_len;
        let mut rest = epochs;
        while !rest.is_empty() {
            let (group, later) = rest.split_at(at_once.min(rest.len()));
            let parts: Vec<&[Range<usize>]> = group.chunks(group.len().div_ceil(8)).collect();
            let found = map_in_order(&parts, threads, |part| {
                let mut scratch = CoverScratch::new();
                let best =
                    |epoch: &Range<usize>| best_segment(samples, frequencies, epoch.clone(), k, &mut scratch);
                part.iter().map(best).collect::<Vec<_>>()
            });
            for (epoch, found) in group.iter().zip(found.into_iter().flatten()) {
                let Some((worth, segment)) = found else { continue };
                let segment = take_segment(samples, frequencies, segment, worth / STALE).or_else(|| {
                    let (_, segment) = best_segment(samples, frequencies, epoch.clone(), k, &mut again)?;
                    take_segment(samples, frequencies, segment, 0)
                });
                let Some(segment) = segment else { continue };
                taken_len += segment.1.len;
                taken.push(segment);
                if taken_len >= len {
                    return taken;
                }
            }
            rest = later;
            at_once = (2 * at_once).min(EPOCHS_AT_ONCE);
        }
        if taken_len == before {
            return taken;
        }
    }
}

/// Shrinks a pool to a length by what it saves, and puts the best last.
pub(super) fn refine(
    samples: &Samples<'_>,
    mut pool: Pool,
    len: usize,
    level: i32,
    parameters: Parameters,
    threads: usize,
) -> Result<(Pool, Usage), DictionaryError> {
    let model = MatchModel { min_match: parameters.min_match, ..MatchModel::of_level(level) };
    let unmeasured = pool.front(len);
    if parameters.pool_ratio <= 1 {
        pool = pool.front(len);
    }
    let last_len = len.saturating_mul(LAST_POOL_TENTHS) / 10;
    let chunks = chunks(samples, &spread(samples, model_budget()), threads);
    let mut usage: Option<Usage> = None;
    for wanted_len in steps(pool.len(), last_len, MODEL_ROUNDS) {
        if pool.len() <= wanted_len {
            continue;
        }
        let index = PoolIndex::new(&pool, model, usage.as_ref());
        let measured = sum(map_in_order(&chunks, threads, |part| index.measure(samples, part)), pool.len());
        let (smaller, its_usage) = shrink(&pool, &measured, wanted_len);
        (pool, usage) = (smaller, Some(its_usage));
    }
    let chunks = self::chunks(samples, &spread(samples, zstd_budget(level)), threads);
    let measure = |pool: &Pool| -> Result<Usage, DictionaryError> {
        let parts = map_in_order(&chunks, threads, |part| measure_with_zstd(pool, samples, part, level));
        Ok(sum(parts.into_iter().collect::<Result<Vec<_>, _>>()?, pool.len()))
    };
    if let Some(usage) = &usage {
        (pool, _) = most_used_last(&pool, usage);
    }
    for wanted_len in steps(pool.len(), len, ZSTD_ROUNDS) {
        let (ordered, usage) = most_used_last(&pool, &measure(&pool)?);
        (pool, _) = shrink(&ordered, &usage, wanted_len);
    }
    (pool, _) = most_used_last(&pool, &measure(&pool)?);
    if pool.is_empty() {
        // Of few and short samples zstd may use nothing; what they have in common is still the best guess.
        pool = unmeasured;
    }
    let usage = measure(&pool)?;
    Ok((pool, usage))
}

/// Bytes of samples that zstd parses at a level to measure a pool, to make entropy tables, or to compare dictionaries:
/// high levels are slow, and a part of the samples tells the same.
pub(super) fn zstd_budget(level: i32) -> usize {
    match level {
        ..6 => 4 << 20,
        6..13 => 2 << 20,
        _ => 1 << 20,
    }
}

fn model_budget() -> usize {
    4 << 20
}

/// Numbers of samples that are spread over all of them and hold about so many bytes.
pub(super) fn spread(samples: &Samples<'_>, budget: usize) -> Vec<usize> {
    one_of_each(samples.n_samples(), samples.total_len().div_ceil(budget.max(1)).max(1))
}

/// One number of every `step`, and not always the one in the same place: samples may take turns in kind.
pub(super) fn one_of_each(n_samples: usize, step: usize) -> Vec<usize> {
    let one = |(group_idx, start): (u64, usize)| {
        let place = random(group_idx) % step.min(n_samples - start) as u64;
        start + usize::try_from(place).unwrap_or(0)
    };
    (0..).zip((0..n_samples).step_by(step)).map(one).collect()
}

/// Lengths on the way from one length to another, each a fixed share of the one before.
fn steps(from: usize, to: usize, n_steps: usize) -> Vec<usize> {
    let ratio = (from.max(1) as f64 / to.max(1) as f64).max(1.0);
    // Rounded to whole numbers, so that the last digit of a power does not matter; the last step is exact.
    let step = |idx: usize| (to as f64 * ratio.powf(1.0 - idx as f64 / n_steps as f64)).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two lengths")]
    (1..=n_steps).map(|idx| if idx == n_steps { to } else { step(idx) as usize }).collect()
}

/// Cuts numbers of samples into pieces of work. What they measure are sums, which are the same however it is cut.
fn chunks(samples: &Samples<'_>, part: &[usize], threads: usize) -> Vec<Vec<usize>> {
    let total_len: usize = part.iter().map(|&sample_idx| samples.range(sample_idx).len()).sum();
    let n_chunks = match thread_count(threads) {
        1 => 1,
        n_threads => n_threads.saturating_mul(CHUNKS_PER_THREAD),
    };
    let chunk_len = total_len.div_ceil(n_chunks).max(CHUNK_LEN);
    let mut chunks = Vec::new();
    let mut chunk = Vec::new();
    let mut len = 0;
    for &sample_idx in part {
        len += samples.range(sample_idx).len();
        chunk.push(sample_idx);
        if len >= chunk_len {
            chunks.push(std::mem::take(&mut chunk));
            len = 0;
        }
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks
}

fn sum(parts: Vec<Usage>, pool_len: usize) -> Usage {
    let mut total = Usage::none(pool_len);
    for part in &parts {
        total.add(part);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_take_turns_are_all_chosen() {
        for step in [1, 2, 3, 4, 5, 6, 12, 24, 25] {
            let chosen = one_of_each(60_000, step);
            assert_eq!(chosen.len(), 60_000_usize.div_ceil(step));
            assert!(chosen.is_sorted_by(|a, b| a < b) && chosen.last() < Some(&60_000));
            for n_kinds in [2, 3, 4, 5, 8, 12] {
                for kind in 0..n_kinds {
                    let n_chosen = chosen.iter().filter(|&&sample_idx| sample_idx % n_kinds == kind).count();
                    let even = chosen.len() / n_kinds;
                    assert!(
                        n_chosen.abs_diff(even) < even / 3,
                        "{n_chosen} of {even}, {n_kinds} kinds, step {step}"
                    );
                }
            }
        }
        assert_eq!(one_of_each(7, 3).len(), 3);
        assert!(one_of_each(0, 3).is_empty());
    }

    #[test]
    fn every_epoch_has_room_for_a_segment() {
        let bytes = vec![0; 5 << 20];
        for total_len in [0, 1, 7, 8, 9, 4500, 5 << 20] {
            let ends = [total_len];
            let samples = Samples::new(&bytes, &ends).unwrap();
            for (len, k) in [(0, 8), (100_000, 4), (600_000, 8), (600_000, 500), (64 << 20, 8)] {
                let epochs = epochs_for(&samples, len, k);
                let shortest = epochs.iter().map(Range::len).min();
                assert!(shortest >= Some(k.min(total_len)), "{total_len} bytes, {len} wanted, k {k}");
            }
        }
    }
}
