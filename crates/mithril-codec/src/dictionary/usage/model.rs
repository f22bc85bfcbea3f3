//! A model of zstd's matching, for pools that are larger than a dictionary.

use super::{Credits, LITERAL, MatchModel, OFFSET, PARTS_PER_BIT, SEQUENCE, Usage};
use crate::dictionary::pool::NO_SAMPLE;
use crate::dictionary::{Pool, Samples};

/// A pool that is ready to be searched.
#[derive(Debug)]
pub struct PoolIndex<'a> {
    pool: &'a Pool,
    model: MatchModel,
    hash_log: u32,
    /// Newest place of each hash, plus one.
    heads: Vec<u32>,
    /// Next older place of the same hash, plus one.
    older: Vec<u32>,
    /// The piece of each byte.
    piece_of: Vec<u32>,
    /// How often a byte was used before: of two equal matches, the one into more used bytes is taken.
    rank: Vec<u32>,
}

/// Bits of a hash at most: as many slots as the pool has places, so that a chain holds few places but those of its run.
/// With 16 bits for any pool, most steps of a chain went to other runs, and parsing took twice as long.
const MAX_HASH_LOG: u32 = 20;
const SELF_HASH_LOG: u32 = 12;
/// Shortest repeat within a sample.
const SELF_MATCH: usize = 4;
/// Shortest match at the offset of the match before.
const REPEAT_MATCH: usize = 3;

impl<'a> PoolIndex<'a> {
    /// Prepares a pool. `earlier` is how its bytes were used before, if known.
    ///
    /// # Panics
    /// When the pool holds 2^32 bytes or more, or `min_match` is not within 4 to 8.
    pub fn new(pool: &'a Pool, model: MatchModel, earlier: Option<&Usage>) -> Self {
        assert!((4..=8).contains(&model.min_match));
        let len = pool.len();
        let hash_log = (len.max(1).ilog2() + 1).min(MAX_HASH_LOG);
        let mut index = Self {
            pool,
            model,
            hash_log,
            heads: vec![0; 1 << hash_log],
            older: vec![0; len],
            piece_of: vec![0; len],
            rank: earlier.map_or_else(|| vec![0; len], |usage| usage.uses.clone()),
        };
        for (piece_idx, piece) in pool.pieces().iter().enumerate() {
            let piece_number = u32::try_from(piece_idx).expect("a pool holds fewer than 2^32 bytes");
            index.piece_of[piece.range()].fill(piece_number);
            for place in piece.start..(piece.end + 1).saturating_sub(model.min_match).max(piece.start) {
                let hash = hash_of(&pool.bytes()[place..], model.min_match, hash_log);
                index.older[place] = index.heads[hash];
                index.heads[hash] = u32::try_from(place + 1).expect("a pool holds fewer than 2^32 bytes");
            }
        }
        index
    }

    /// What some of the samples save with the pool. A sample never uses pieces taken from itself: those match it
    /// perfectly, and no record to come.
    pub fn measure(&self, samples: &Samples<'_>, part: &[usize]) -> Usage {
        let len = self.pool.len();
        let mut credits = Credits::new(len);
        let mut history = History::new();
        for &sample_idx in part {
            let own = u32::try_from(sample_idx).expect("samples are fewer than 2^32");
            let mut first = true;
            self.parse(samples.get(sample_idx), own, &mut history, |at, place, match_len, cost| {
                credits.add(place, match_len, cost);
                if std::mem::take(&mut first) {
                    credits.add_first_offset(len - place + at);
                }
            });
        }
        credits.finish()
    }

    /// Parses one sample; calls for every match into the pool with the place in the sample, the place in the pool, the
    /// length and the cost.
    fn parse(
        &self,
        sample: &[u8],
        own: u32,
        history: &mut History,
        mut used: impl FnMut(usize, usize, usize, u32),
    ) {
        let base = history.start(sample.len());
        let mut at = 0;
        // Difference between the places of the last match into the pool, if it was the last match.
        let mut repeat: Option<(usize, usize)> = None;
        let mut pending: Option<Match> = None;
        while at + SELF_MATCH <= sample.len() || pending.is_some() {
            let found = if at + SELF_MATCH <= sample.len() {
                self.best(Parsed { sample, own, base }, at, history, repeat)
            } else {
                None
            };
            let chosen = match (pending.take(), found) {
                (None, None) => {
                    at += 1;
                    continue;
                }
                // One step of patience: a match that starts later may save more.
                (None, Some(found)) => {
                    pending = Some(found);
                    at += 1;
                    continue;
                }
                (Some(waiting), Some(found)) if found.gain > waiting.gain + LITERAL => {
                    pending = Some(found);
                    at += 1;
                    continue;
                }
                (Some(waiting), _) => waiting,
            };
            if let Some(place) = chosen.place {
                used(chosen.at, place, chosen.len, chosen.cost);
                repeat = Some((chosen.at + chosen.len, place + chosen.len));
            } else {
                repeat = None;
            }
            let end = chosen.at + chosen.len;
            for place in at..end.min((sample.len() + 1).saturating_sub(SELF_MATCH)) {
                history.insert(sample, place, base);
            }
            at = end;
        }
    }

    /// What saves most at a place, if anything does. Remembers the place.
    fn best(
        &self,
        parsed: Parsed<'_>,
        at: usize,
        history: &mut History,
        repeat: Option<(usize, usize)>,
    ) -> Option<Match> {
        let model = &self.model;
        let Parsed { sample, own, base } = parsed;
        let rest = &sample[at..];
        let mut best: Option<Match> = None;
        let mut offer = |place: Option<usize>, len: usize, cost: u32| {
            let worth = u32::try_from(len).unwrap_or(u32::MAX).saturating_mul(LITERAL);
            if let Some(gain) = worth.checked_sub(cost)
                && gain > 0
                && best.as_ref().is_none_or(|best| gain > best.gain)
            {
                best = Some(Match { at, place, len, gain, cost });
            }
        };
        if let Some((sample_end, pool_end)) = repeat {
            let place = pool_end + (at - sample_end);
            if place < self.pool.len() && self.piece_of[place] == self.piece_of[pool_end - 1] {
                let len = self.match_len(place, rest);
                if len >= REPEAT_MATCH {
                    offer(Some(place), len, SEQUENCE);
                }
            }
        }
        if let Some(earlier) = history.insert(sample, at, base) {
            let len = common_len(&sample[earlier..], rest);
            if len >= SELF_MATCH {
                let distance = u32::try_from(at - earlier).unwrap_or(u32::MAX);
                offer(None, len, SEQUENCE + PARTS_PER_BIT * (1 + distance.ilog2()));
            }
        }
        if rest.len() >= model.min_match {
            let (mut longest, mut longest_place, mut longest_rank) = (model.min_match - 1, None, 0);
            let mut next = self.heads[hash_of(rest, model.min_match, self.hash_log)];
            for _ in 0..model.depth {
                let Some(place) = next.checked_sub(1).map(|place| place as usize) else { break };
                next = self.older[place];
                // Only a match that is as long can win: compare the byte that decides first.
                let decides = self.pool.bytes().get(place + longest - 1);
                if decides.is_none() || decides != rest.get(longest - 1) {
                    continue;
                }
                let piece = &self.pool.pieces()[self.piece_of[place] as usize];
                if piece.sample_idx == own && own != NO_SAMPLE {
                    continue;
                }
                let len = common_len(&self.pool.bytes()[place..piece.end], rest);
                if len > longest
                    || len == longest && longest_place.is_some() && self.rank[place] > longest_rank
                {
                    (longest, longest_place, longest_rank) = (len, Some(place), self.rank[place]);
                }
            }
            if longest_place.is_some() {
                offer(longest_place, longest, SEQUENCE + OFFSET);
            }
        }
        best
    }

    /// Length of a match at a place of the pool, within its piece.
    fn match_len(&self, place: usize, rest: &[u8]) -> usize {
        let piece = &self.pool.pieces()[self.piece_of[place] as usize];
        common_len(&self.pool.bytes()[place..piece.end], rest)
    }
}

/// A sample that is parsed.
#[derive(Clone, Copy)]
struct Parsed<'a> {
    sample: &'a [u8],
    /// Its number: pieces taken from it are not used.
    own: u32,
    /// Where its places start in the history.
    base: u32,
}

#[derive(Debug, Clone, Copy)]
struct Match {
    at: usize,
    /// Place in the pool; nothing for a repeat within the sample.
    place: Option<usize>,
    len: usize,
    gain: u32,
    cost: u32,
}

/// Where runs of the sample occurred before.
#[derive(Debug)]
struct History {
    /// Newest place of each hash, counted over all samples so far, plus one.
    newest: Vec<u32>,
    next_base: u32,
}

impl History {
    fn new() -> Self {
        Self { newest: vec![0; 1 << SELF_HASH_LOG], next_base: 0 }
    }

    /// Forgets everything; returns the number of the first place.
    fn start(&mut self, sample_len: usize) -> u32 {
        let len = u32::try_from(sample_len).unwrap_or(u32::MAX);
        if self.next_base.checked_add(len).is_none() {
            self.newest.fill(0);
            self.next_base = 0;
        }
        let base = self.next_base;
        self.next_base = base.saturating_add(len);
        base
    }

    /// Remembers a place; returns the one before it with the same hash.
    fn insert(&mut self, sample: &[u8], at: usize, base: u32) -> Option<usize> {
        let number = base.saturating_add(u32::try_from(at).unwrap_or(u32::MAX));
        let slot = &mut self.newest[hash_of(&sample[at..], SELF_MATCH, SELF_HASH_LOG)];
        let earlier = std::mem::replace(slot, number.saturating_add(1));
        earlier.checked_sub(base + 1).map(|place| place as usize).filter(|&place| place < at)
    }
}

/// A hash of the first `len` bytes, which are four to eight and there.
fn hash_of(bytes: &[u8], len: usize, log: u32) -> usize {
    let word = match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        }
    };
    let hash = (word << (64 - 8 * len)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - log);
    usize::try_from(hash).expect("hashes have at most 20 bits")
}

/// Bytes that two slices have in common at their start.
fn common_len(a: &[u8], b: &[u8]) -> usize {
    let mut len = 0;
    for (x, y) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        let difference = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if difference != 0 {
            return len + difference.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(x, y)| x == y).count()
}
