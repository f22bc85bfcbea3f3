//! What the parts of a dictionary are good for, and where they come from.

use super::content::{spread, zstd_budget};
use super::{Dictionary, DictionaryError};
use mithril_codec::dictionary::{NO_SAMPLE, Pool, Samples, measure_with_zstd};
use std::collections::HashMap;

/// Shortest run that tells where content comes from.
const ORIGIN_LEN: usize = 12;

/// A part of a dictionary's content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentUse {
    /// Where it starts in the content.
    pub start: usize,
    /// Its length.
    pub len: usize,
    /// A sample that holds it, if one of those given does.
    pub sample_idx: Option<usize>,
    /// Matches that used it; a match that spans two segments counts for both.
    pub n_matches: u64,
    /// Bits that its bytes saved.
    pub saved_bits: u64,
}

/// What a dictionary does for some samples.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The parts of its content, from its start on.
    pub segments: Vec<SegmentUse>,
    /// Samples that were looked at.
    pub n_samples: usize,
    /// Bytes of content that no match used.
    pub unused_len: usize,
    /// Bits that the dictionary saved, by a model of what literals and matches cost.
    pub saved_bits: u64,
}

/// Parses samples with a dictionary at a level, and says which parts of its content their matches use.
///
/// # Errors
/// When zstd refuses the dictionary.
pub fn explain(
    dictionary: &Dictionary,
    samples: &Samples<'_>,
    level: i32,
) -> Result<Explanation, DictionaryError> {
    let content = dictionary.content();
    let part = spread(samples, zstd_budget(level));
    let mut pool = Pool::default();
    pool.push(NO_SAMPLE, content);
    let usage = measure_with_zstd(&pool, samples, &part, level)?;
    let mut segments = Vec::new();
    for (start, len, sample_idx) in origins(content, samples) {
        let range = start..start + len;
        // Those that reach in from before count too.
        let mut n_matches: u64 = usage.starts[range.clone()].iter().map(|&starts| u64::from(starts)).sum();
        n_matches += u64::from(usage.uses[start].saturating_sub(usage.starts[start]));
        segments.push(SegmentUse { start, len, sample_idx, n_matches, saved_bits: usage.saved_bits(range) });
    }
    Ok(Explanation {
        segments,
        n_samples: part.len(),
        unused_len: usage.uses.iter().filter(|&&uses| uses == 0).count(),
        saved_bits: usage.saved_bits(0..content.len()),
    })
}

/// Cuts content into the longest parts that one sample holds.
fn origins(content: &[u8], samples: &Samples<'_>) -> Vec<(usize, usize, Option<usize>)> {
    // Where the first run of each content occurs in the samples; the content is small, the samples may not be.
    let mut places: HashMap<&[u8], Option<(usize, usize)>> =
        content.windows(ORIGIN_LEN).map(|run| (run, None)).collect();
    for (sample_idx, sample) in samples.iter().enumerate() {
        for (at, run) in sample.windows(ORIGIN_LEN).enumerate() {
            if let Some(place @ None) = places.get_mut(run) {
                *place = Some((sample_idx, at));
            }
        }
    }
    let mut parts: Vec<(usize, usize, Option<usize>)> = Vec::new();
    let mut start = 0;
    while start < content.len() {
        let origin =
            content.get(start..start + ORIGIN_LEN).and_then(|run| places.get(run).copied().flatten());
        let (len, sample_idx) = match origin {
            Some((sample_idx, at)) => {
                let rest = content[start..].iter().zip(&samples.get(sample_idx)[at..]);
                (rest.take_while(|(a, b)| a == b).count(), Some(sample_idx))
            }
            None => (1, None),
        };
        match parts.last_mut() {
            // Bytes that no sample holds make one part together.
            Some((_, last_len, None)) if sample_idx.is_none() => *last_len += len,
            _ => parts.push((start, len, sample_idx)),
        }
        start += len;
    }
    parts
}
