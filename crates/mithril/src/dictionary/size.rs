//! How large a dictionary should be: the knee of what held-out records gain.

use super::content::Parameters;
use super::search::{Split, make, measure, search_budget};
use super::train::check_samples;
use super::workers::map_in_order;
use super::{DictionaryError, TrainOptions};
use mithril_codec::dictionary::Samples;

/// Sizes that are tried.
const SIZES: [usize; 7] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 112 << 10, 256 << 10];

/// A larger dictionary must make held-out records smaller by this, in parts of 1000, to be worth its memory.
const WORTH: u64 = 10;

/// A size, and what held-out records take with a dictionary of that size.
pub type SizePoint = (usize, u64);

/// The smallest size beyond which held-out records gain less than 1 % from the next one, and the curve that says so.
///
/// # Errors
/// As [`train`](super::train).
pub fn choose_size(
    samples: &Samples<'_>,
    options: &TrainOptions,
) -> Result<(usize, Vec<SizePoint>), DictionaryError> {
    options.check()?;
    check_samples(samples)?;
    let split = Split::new(samples, search_budget(options.level));
    let (learn, judge) = (split.learn.samples(), split.judge.samples());
    let usual = Parameters::of_level(options.level);
    let parameters = Parameters { k: options.k.unwrap_or(usual.k), d: options.d.unwrap_or(usual.d), ..usual };
    let curve = map_in_order(&SIZES, options.threads, |&size| {
        let (dictionary, _) = make(&learn, size, options.level, parameters, 1)?;
        Ok((size, measure(&dictionary, &judge, options.level, 1)?))
    });
    let curve = curve.into_iter().collect::<Result<Vec<SizePoint>, DictionaryError>>()?;
    let mut chosen = curve[0];
    for &point in &curve[1..] {
        // Against the chosen one and not the one before, so that several small gains add up.
        if point.1 + chosen.1 * WORTH / 1000 < chosen.1 {
            chosen = point;
        }
    }
    Ok((chosen.0, curve))
}
