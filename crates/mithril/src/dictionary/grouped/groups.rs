//! Which samples belong together, where nobody says so.
//!
//! Samples are compared by which short runs they hold: each is a list of numbers, one for every slot that the hash of a
//! run can fall into, and groups are those of k-means. All arithmetic is in whole numbers and in one order, so that the
//! groups are the same everywhere.

use crate::dictionary::train::check_samples;
use crate::dictionary::workers::map_in_order;
use crate::dictionary::{DictionaryError, SampleSet};
use mithril_codec::dictionary::Samples;

/// Slots of the hash of a run.
const SLOTS: usize = 256;
/// Bytes of a run.
const RUN_LEN: usize = 5;
/// Bytes of a sample that are looked at.
const LOOKED_AT: usize = 4096;
/// Of the samples that a group would have if all had the same, the share that may be alone, as one part in so many.
const OUTLIERS: usize = 8;
/// Times that samples are assigned anew at most.
const ROUNDS: usize = 12;
/// Length of the list of numbers of every sample, which is what makes long and short samples alike.
const NORM: i64 = 1 << 12;

type Features = [i32; SLOTS];

/// The group of each sample, from 0; there are at most `n_groups`, and each has enough samples to train on, unless all
/// together have too few.
///
/// # Errors
/// When no group or more groups than samples are asked for.
pub fn find_groups(
    samples: &Samples<'_>,
    n_groups: usize,
    threads: usize,
) -> Result<Vec<usize>, DictionaryError> {
    let n_samples = samples.n_samples();
    if n_groups == 0 || n_groups > n_samples {
        return Err(DictionaryError::invalid(format!(
            "{n_samples} samples make 1 to {n_samples} groups, not {n_groups}"
        )));
    }
    let all: Vec<usize> = (0..n_samples).collect();
    let parts: Vec<&[usize]> = all.chunks(512).collect();
    let features: Vec<Features> = map_in_order(&parts, threads, |part| {
        part.iter().map(|&sample_idx| features_of(samples.get(sample_idx))).collect::<Vec<_>>()
    })
    .into_iter()
    .flatten()
    .collect();
    let assign = |centres: &[Features]| -> Vec<usize> {
        let nearest_of = |part: &&[usize]| {
            part.iter().map(|&sample_idx| nearest(&features[sample_idx], centres).0).collect::<Vec<_>>()
        };
        map_in_order(&parts, threads, nearest_of).into_iter().flatten().collect()
    };
    let mut centres = first_centres(&features, n_groups);
    let mut groups = vec![0; n_samples];
    for _ in 0..ROUNDS {
        let assigned = assign(&centres);
        let is_settled = assigned == groups;
        groups = assigned;
        if is_settled {
            break;
        }
        centres = means(&features, &groups, &centres);
    }
    // A group that cannot be trained on goes to its neighbours.
    while centres.len() > 1 {
        let Some(group) = (0..centres.len()).find(|&group| !can_train(samples, &groups, group)) else {
            break;
        };
        centres.remove(group);
        groups = assign(&centres);
    }
    Ok(groups)
}

/// Whether the samples of a group are enough to train on.
fn can_train(samples: &Samples<'_>, groups: &[usize], group: usize) -> bool {
    let of_group = samples.iter().zip(groups).filter(|&(_, &its_group)| its_group == group);
    let set: SampleSet = of_group.map(|(sample, _)| sample).collect();
    check_samples(&set.samples()).is_ok()
}

/// How often the runs of a sample fall into each slot, scaled to the same length for all samples.
fn features_of(sample: &[u8]) -> Features {
    let mut counts = [0i64; SLOTS];
    for run in sample[..sample.len().min(LOOKED_AT)].windows(RUN_LEN) {
        let word = run.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        let slot = word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
        counts[usize::try_from(slot).expect("eight bits")] += 1;
    }
    let length = counts.iter().map(|count| count * count).sum::<i64>().isqrt().max(1);
    counts.map(|count| i32::try_from(count * NORM / length).expect("at most the norm"))
}

/// The first sample, and then each time one that is far from those chosen. The farthest of all are often like no other,
/// and would be groups of one, so some are left out.
fn first_centres(features: &[Features], n_groups: usize) -> Vec<Features> {
    let n_left_out = features.len() / n_groups / OUTLIERS;
    let mut centres = vec![features[0]];
    let mut away: Vec<i64> = features.iter().map(|sample| distance(sample, &centres[0])).collect();
    let mut order: Vec<usize> = (0..features.len()).collect();
    while centres.len() < n_groups {
        order.sort_unstable_by_key(|&sample_idx| (std::cmp::Reverse(away[sample_idx]), sample_idx));
        let centre = features[order[n_left_out]];
        for (near, sample) in away.iter_mut().zip(features) {
            *near = (*near).min(distance(sample, &centre));
        }
        centres.push(centre);
    }
    centres
}

fn nearest(sample: &Features, centres: &[Features]) -> (usize, i64) {
    let mut best = (0, i64::MAX);
    for (centre_idx, centre) in centres.iter().enumerate() {
        let far = distance(sample, centre);
        if far < best.1 {
            best = (centre_idx, far);
        }
    }
    best
}

fn distance(a: &Features, b: &Features) -> i64 {
    a.iter().zip(b).map(|(a, b)| i64::from(a - b) * i64::from(a - b)).sum()
}

/// The middle of each group; a group that has lost its samples keeps its centre.
fn means(features: &[Features], groups: &[usize], centres: &[Features]) -> Vec<Features> {
    let mut sums = vec![([0i64; SLOTS], 0i64); centres.len()];
    for (sample, &group) in features.iter().zip(groups) {
        let (sum, n) = &mut sums[group];
        *n += 1;
        for (total, &value) in sum.iter_mut().zip(sample) {
            *total += i64::from(value);
        }
    }
    let mean = |((sum, n), old): (&([i64; SLOTS], i64), &Features)| match n {
        0 => *old,
        n => sum.map(|total| i32::try_from(total / n).expect("between the samples")),
    };
    sums.iter().zip(centres).map(mean).collect()
}
