//! A dictionary that follows its records: what still pays stays, and newer content takes the place of the rest.

use super::content::{Parameters, first_pool, refine};
use super::search::{content_len, finish_on_part};
use super::train::check_samples;
use super::{DictionaryError, TrainOptions};
use mithril_codec::dictionary::{Header, NO_SAMPLE, Pool, Samples};

/// Bytes of a piece of the old content: what is kept or dropped as a whole at first.
const OLD_PIECE_LEN: usize = 256;

/// Makes a dictionary of the content of an old one and of newer samples. There is no search, so it is several times
/// faster than training; `options.size` is the size of the new one.
///
/// # Errors
/// When the old dictionary is damaged, or the samples are too few, too small or too alike.
pub fn update(old: &[u8], samples: &Samples<'_>, options: &TrainOptions) -> Result<Vec<u8>, DictionaryError> {
    options.check()?;
    check_samples(samples)?;
    let old_content = &old[Header::parse(old)?.header_len..];
    let usual = Parameters::of_level(options.level);
    let k = options.k.unwrap_or(usual.k);
    // As much new content as old: use decides between them.
    let parameters = Parameters { k, d: options.d.unwrap_or(usual.d), pool_ratio: 1, ..usual };
    let wanted_len = if options.raw_content { options.size } else { content_len(options.size) };
    let new = first_pool(samples, wanted_len, parameters, options.threads).front(wanted_len);
    let mut pool = Pool::default();
    for piece in old_content.chunks(OLD_PIECE_LEN) {
        pool.push(NO_SAMPLE, piece);
    }
    for piece in new.pieces() {
        pool.push(piece.sample_idx, &new.bytes()[piece.range()]);
    }
    let parameters = Parameters { pool_ratio: usual.pool_ratio, ..parameters };
    let (pool, _) = refine(samples, pool, wanted_len, options.level, parameters, options.threads)?;
    if options.raw_content {
        return Ok(pool.bytes().to_vec());
    }
    finish_on_part(pool.bytes(), samples, options.level, options.id, options.size)
}
