//! What a pool saves when zstd itself parses the samples with it.

use super::{Credits, LITERAL, PARTS_PER_BIT, SEQUENCE, Usage};
use crate::CodecError;
use crate::arch::zdict::Parser;
use crate::dictionary::pool::NO_SAMPLE;
use crate::dictionary::{Pool, Samples};

/// Shortest sample that is parsed: zstd stores shorter ones as they are, and refuses to show sequences for them.
const MIN_PARSED: usize = 8;

/// What some of the samples save with the pool as dictionary at a level. Matches of a sample with pieces taken from
/// itself count nothing.
///
/// # Errors
/// When libzstd refuses the pool or a sample.
pub fn measure_with_zstd(
    pool: &Pool,
    samples: &Samples<'_>,
    part: &[usize],
    level: i32,
) -> Result<Usage, CodecError> {
    let refused = || CodecError::corrupt("zstd did not parse a sample with a dictionary");
    let len = pool.len();
    let mut sample_of = vec![NO_SAMPLE; len];
    for piece in pool.pieces() {
        sample_of[piece.range()].fill(piece.sample_idx);
    }
    let mut credits = Credits::new(len);
    let mut parser = Parser::new(pool.bytes(), level).ok_or_else(refused)?;
    for &sample_idx in part {
        let own = u32::try_from(sample_idx).expect("samples are fewer than 2^32");
        if samples.range(sample_idx).len() < MIN_PARSED {
            continue;
        }
        let mut at = 0;
        let mut first = true;
        for sequence in parser.parse(samples.get(sample_idx)).ok_or_else(refused)? {
            at += sequence.literal_len;
            // Content that looks like a header is not content to zstd; then offsets may reach further than the pool.
            let place = sequence
                .offset
                .checked_sub(at)
                .filter(|&back| back > 0)
                .and_then(|back| len.checked_sub(back));
            if let Some(place) = place
                && sequence.match_len > 0
            {
                let match_len = sequence.match_len.min(len - place);
                if sample_of[place] != own || own == NO_SAMPLE {
                    if std::mem::take(&mut first) {
                        credits.add_first_offset(sequence.offset);
                    }
                    let offset_price =
                        if sequence.repeats { 0 } else { PARTS_PER_BIT * (1 + sequence.offset.ilog2()) };
                    // zstd took the match, so it saved something, whatever the prices say.
                    let worth = u32::try_from(match_len).unwrap_or(u32::MAX).saturating_mul(LITERAL);
                    credits.add(place, match_len, (SEQUENCE + offset_price).min(worth - PARTS_PER_BIT));
                }
            }
            at += sequence.match_len;
        }
    }
    Ok(credits.finish())
}
