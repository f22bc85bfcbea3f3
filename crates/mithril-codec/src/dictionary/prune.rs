//! Which bytes of a pool stay when it must shrink, and in which order.

use super::usage::{LITERAL, OFFSET, PARTS_PER_BIT, SEQUENCE};
use super::{Pool, Usage};
use std::ops::Range;

/// A part of a piece of a pool: the number of the piece, and where the part lies in the pool.
type Part = (usize, Range<usize>);

/// What it costs to start a part anywhere, so that parts of a few bytes must be worth it.
const PART_COST: i64 = 30 * PARTS_PER_BIT as i64;

/// What it costs for each match that a part's start cuts in two: one more sequence.
const CUT_COST: i64 = (SEQUENCE + OFFSET) as i64;

/// Shortest part that fills room that is left.
const MIN_FILL: usize = 16;

/// The parts of a pool that save most, in at most `wanted_len` bytes, and their usage.
///
/// A byte that stays costs a price, and a part that starts costs more, the more matches it cuts. For a price, the best
/// parts are found exactly, byte by byte; the price is the lowest at which they fit. Room that is left goes to what saved nothing, in the order
/// of the pool: a record to come may use it.
pub fn shrink(pool: &Pool, usage: &Usage, wanted_len: usize) -> (Pool, Usage) {
    if pool.len() <= wanted_len {
        return (pool.clone(), usage.clone());
    }
    let parts = fill(pool, keep_best(pool, usage, wanted_len), wanted_len);
    take(pool, usage, &parts)
}

/// The same pieces with the most used last, where offsets are shortest, and their usage.
pub fn most_used_last(pool: &Pool, usage: &Usage) -> (Pool, Usage) {
    let mut order: Vec<(u64, usize)> = pool
        .pieces()
        .iter()
        .enumerate()
        .map(|(piece_idx, piece)| {
            let uses: u64 = usage.uses[piece.range()].iter().map(|&uses| u64::from(uses)).sum();
            ((uses << 16) / piece.range().len().max(1) as u64, piece_idx)
        })
        .collect();
    order.sort_unstable();
    let parts: Vec<Part> =
        order.into_iter().map(|(_, piece_idx)| (piece_idx, pool.pieces()[piece_idx].range())).collect();
    take(pool, usage, &parts)
}

/// A pool of some parts, and their usage. First offsets do not hold for it, so they are left out.
fn take(pool: &Pool, usage: &Usage, parts: &[Part]) -> (Pool, Usage) {
    let mut taken = Usage::none(0);
    for (_, range) in parts {
        taken.uses.extend_from_slice(&usage.uses[range.clone()]);
        taken.starts.extend_from_slice(&usage.starts[range.clone()]);
        taken.paid.extend_from_slice(&usage.paid[range.clone()]);
    }
    (pool.parts(parts), taken)
}

/// The parts that save most and fit.
fn keep_best(pool: &Pool, usage: &Usage, wanted_len: usize) -> Vec<Part> {
    let most = i64::from(usage.uses.iter().copied().max().unwrap_or(0)) * i64::from(LITERAL);
    let (mut too_low, mut enough) = (0, most + 1);
    // Without a price everything that was used at all stays, if that fits.
    let all = parts_at(pool, usage, 0);
    if total_len(&all) <= wanted_len {
        return all;
    }
    let mut best = Vec::new();
    while enough - too_low > 1 {
        let price = too_low + (enough - too_low) / 2;
        let parts = parts_at(pool, usage, price);
        if total_len(&parts) <= wanted_len {
            (enough, best) = (price, parts);
        } else {
            too_low = price;
        }
    }
    best
}

/// Adds what lies between the parts, until there is no room.
fn fill(pool: &Pool, mut parts: Vec<Part>, wanted_len: usize) -> Vec<Part> {
    let mut room = wanted_len.saturating_sub(total_len(&parts));
    let mut kept = parts.clone().into_iter().peekable();
    for (piece_idx, piece) in pool.pieces().iter().enumerate() {
        let mut at = piece.start;
        loop {
            let next = kept.next_if(|(kept_idx, _)| *kept_idx == piece_idx).map(|(_, range)| range);
            let gap = at..next.as_ref().map_or(piece.end, |range| range.start);
            let len = gap.len().min(room);
            // A piece that is shorter than that as a whole is as good as it was.
            if len >= MIN_FILL.min(piece.range().len()) && len > 0 {
                parts.push((piece_idx, gap.start..gap.start + len));
                room -= len;
            }
            match next {
                Some(range) => at = range.end,
                None => break,
            }
        }
    }
    parts.sort_unstable_by_key(|(_, range)| range.start);
    // Neighbours become one part again.
    parts.dedup_by(|later, kept| {
        let joined = kept.0 == later.0 && kept.1.end == later.1.start;
        if joined {
            kept.1.end = later.1.end;
        }
        joined
    });
    parts
}

fn total_len(parts: &[Part]) -> usize {
    parts.iter().map(|(_, range)| range.len()).sum()
}

/// The parts with the largest sum of savings less prices.
fn parts_at(pool: &Pool, usage: &Usage, price: i64) -> Vec<Part> {
    let mut parts = Vec::new();
    for (piece_idx, piece) in pool.pieces().iter().enumerate() {
        // Two states by byte: in a part or not. `inside` is the best sum that ends in a part, which started at `start`.
        let mut outside = 0i64;
        let mut inside = i64::MIN / 2;
        let mut start = piece.start;
        // Where the best way so far, which ends outside, has its parts: a list with links to what came before.
        let mut links: Vec<(Range<usize>, usize)> = Vec::new();
        let (mut outside_link, mut inside_link) = (usize::MAX, usize::MAX);
        for place in piece.range() {
            let uses = i64::from(usage.uses[place]);
            let paid = i64::try_from(usage.paid[place]).unwrap_or(i64::MAX / 4);
            let value = uses * i64::from(LITERAL) - paid - price;
            // Where a piece starts, matches are cut already.
            let n_cut = if place == piece.start { 0 } else { uses - i64::from(usage.starts[place]) };
            let begin = outside - PART_COST - CUT_COST * n_cut.max(0);
            if begin > inside {
                (inside, start, inside_link) = (begin, place, outside_link);
            }
            inside += value;
            if inside > outside {
                outside = inside;
                links.push((start..place + 1, inside_link));
                outside_link = links.len() - 1;
            }
        }
        let mut link = outside_link;
        let first = parts.len();
        while let Some((range, earlier)) = links.get(link) {
            parts.push((piece_idx, range.clone()));
            link = *earlier;
        }
        parts[first..].reverse();
    }
    parts
}
