//! Bytes of a type that nobody named: files of other formats, with text, tables and numbers one behind the other.
//!
//! Numbers start at any offset in such files, so that their fields cannot be told. But byte `j` of every number has a
//! distribution of its own wherever counting starts, so byte planes serve them, and a compressor serves what repeats
//! itself. Which of them a block takes follows from a sample of it; where that is close, from the whole block.

use super::output::{DoesNotFit, Output};
use super::planes;
use crate::entropy::lz::Compressor;
use crate::entropy::order_0_65536ths;
use std::borrow::Cow;

/// Widths of numbers that are looked for, each a divisor of the next one.
const WIDTHS: [usize; 4] = [1, 2, 4, WIDEST];
const WIDEST: usize = 8;

/// A sample of a block: so many runs of so many bytes, or of a quarter of the block if that is less. Repeats are found
/// within them and between them.
const N_RUNS: usize = 8;
const RUN_LEN: usize = 16 << 10;

/// Shorter blocks are looked at as a whole.
const MIN_SAMPLED: usize = 32 << 10;

/// The compressor that stands for all of them on a sample.
const STAND_IN: Compressor = Compressor::Zstd { level: 3 };

/// What each value of a plane takes in its table, in 65536ths of a bit. A sample shows too little entropy, the less of it
/// the more planes it is split into; this makes up for that, too.
const TABLE_ENTRY: u64 = 8 << 16;

pub(super) fn encode(
    compressors: &[Compressor],
    source: &[u8],
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let blocks = ways(compressors, source)
        .into_iter()
        .filter_map(|(width, compressors)| planes::coded(width, compressors, source));
    out.push(&blocks.min_by_key(Vec::len).ok_or(DoesNotFit)?)
}

/// Planes and compressors that are worth trying on the whole block: nearly the best on a sample of it.
fn ways<'a>(compressors: &'a [Compressor], source: &[u8]) -> Vec<(u8, &'a [Compressor])> {
    let sample = sample(source);
    let len = |width, compressors: &[Compressor]| {
        planes::coded(width, compressors, &sample).map_or(usize::MAX, |coded| coded.len())
    };
    let width = width_of_numbers(&sample);
    let numbers = len(width, &[]);
    let mut ways = vec![(numbers, (width, &[][..]))];
    if !compressors.is_empty() {
        let bytes = if width > 1 { Some((1, len(1, &[]))) } else { None };
        for (width, by_entropy) in bytes.into_iter().chain([(width, numbers)]) {
            let with_compressor = len(width, &[STAND_IN]);
            // It has entropy coders of its own: only what it saves beyond ours are repeats.
            if with_compressor < by_entropy / 64 * 63 {
                ways.push((with_compressor, (width, compressors)));
            }
        }
    }
    let least = ways.iter().map(|&(len, _)| len).min().unwrap_or(0);
    // A compressor may find in the whole block what a sample of it does not show.
    let mut ways: Vec<_> =
        ways.into_iter().filter(|&(len, _)| len <= least + least / 8).map(|(_, way)| way).collect();
    // Brotli codes bytes by those before them, and parts of a block by tables of their own, which no sample shows.
    let brotli = compressors.iter().position(|compressor| matches!(compressor, Compressor::Brotli { .. }));
    if let Some(at) = brotli.filter(|_| width == 1 && !ways.iter().any(|(_, tried)| !tried.is_empty())) {
        ways.push((1, &compressors[at..=at]));
    }
    ways
}

/// Runs from all over the block, each from a place where an element of every width would start.
fn sample(source: &[u8]) -> Cow<'_, [u8]> {
    if source.len() < MIN_SAMPLED {
        return Cow::Borrowed(source);
    }
    let step = source.len() / N_RUNS / WIDEST * WIDEST;
    let run_len = RUN_LEN.min(step / 4 / WIDEST * WIDEST);
    let runs: Vec<&[u8]> = source.chunks(step).take(N_RUNS).map(|run| &run[..run_len]).collect();
    Cow::Owned(runs.concat())
}

/// The width whose planes take the fewest bits, one for bytes that are no numbers.
fn width_of_numbers(sample: &[u8]) -> u8 {
    let mut counts = [[0u32; 256]; WIDEST];
    for element in sample.as_chunks::<WIDEST>().0 {
        for (counts, &byte) in counts.iter_mut().zip(element) {
            counts[usize::from(byte)] += 1;
        }
    }
    let cost_of_planes = |width: usize| -> u64 {
        let planes = (0..width).map(|plane| {
            let mut sum = [0; 256];
            for counts in counts.iter().skip(plane).step_by(width) {
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            bits_65536ths(&sum)
        });
        planes.sum()
    };
    let width = WIDTHS.into_iter().min_by_key(|&width| cost_of_planes(width));
    width.and_then(|width| u8::try_from(width).ok()).unwrap_or(1)
}

/// What coding symbols of these counts takes, with their table.
fn bits_65536ths(counts: &[u32; 256]) -> u64 {
    let n_values = counts.iter().filter(|&&count| count > 0).count() as u64;
    order_0_65536ths(counts) + n_values * TABLE_ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{MAX_OVERHEAD, Place, Recipe, Scratch, Shared, decode_block, encode_block};

    const SAMPLED: usize = N_RUNS * RUN_LEN;

    fn coded_len(source: &[u8], compressors: &[Compressor]) -> usize {
        let recipe = Recipe::Untyped { compressors: compressors.to_vec() };
        let mut coded = vec![0; source.len() + MAX_OVERHEAD];
        let mut scratch = Scratch::new();
        let len =
            encode_block(&recipe, &Shared::default(), Place::default(), source, &mut scratch, &mut coded);
        let mut back = vec![0; source.len()];
        decode_block(coded[..len].into(), &Shared::default(), &mut back, &mut scratch).unwrap();
        assert!(back == source);
        len
    }

    /// Singles about as large as weights are.
    fn weights(n: u32) -> Vec<u8> {
        let mixed = |i: u32| i.wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
        (0..n).flat_map(|i| (f32::from_bits(mixed(i) >> 9 | 0x3f80_0000) - 1.5).to_le_bytes()).collect()
    }

    #[test]
    fn the_width_of_numbers_is_found_at_any_offset() {
        let weights = weights(50_000);
        for offset in 0..8 {
            assert_eq!(width_of_numbers(&weights[offset..]), 4, "{offset}");
        }
        let doubles: Vec<u8> =
            (0..20_000u32).flat_map(|i| (1.0 + f64::from(i).sqrt()).to_le_bytes()).collect();
        assert_eq!(width_of_numbers(&doubles), 8);
        let text = include_bytes!("untyped.rs");
        assert_eq!(width_of_numbers(text), 1);
        for len in 0..64 {
            width_of_numbers(&text[..len]);
        }
    }

    #[test]
    fn numbers_text_and_both_come_back_and_shrink() {
        let weights = weights(40_000);
        let text = include_bytes!("untyped.rs").repeat(25);
        assert!(coded_len(&weights[3..], &[STAND_IN]) * 100 < weights.len() * 90);
        assert!(coded_len(&text, &[STAND_IN]) * 30 < text.len());
        // The text stands before the middle of the block.
        let both = [&text[..60_000], &weights].concat();
        assert!(coded_len(&both, &[STAND_IN]) < weights.len());
        let around_sampled = [SAMPLED - 1, SAMPLED, SAMPLED + 63, SAMPLED + 64, SAMPLED + 65, SAMPLED + 999];
        for len in (0..40).chain(around_sampled) {
            coded_len(&weights[..len], &[STAND_IN]);
            coded_len(&text[..len], &[]);
        }
    }
}
