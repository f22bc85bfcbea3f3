//! Frequencies of 16 symbols in 256ths, and the alias tables that both directions derive from them.

use crate::CodecError;

/// How often each of 16 symbols occurs, in 256ths: they sum to 256 and none is 256, so each fits a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequencies([u8; 16]);

/// Both sides of the probabilities add up to this.
const TOTAL: u32 = 256;

impl Frequencies {
    /// Nearly optimal frequencies for these counts. A symbol that occurs gets at least one 256th; when fewer
    /// than two occur, unused symbols fill up, because a frequency of 256 does not exist.
    #[expect(clippy::cast_possible_truncation, reason = "frequencies are clamped to 1..=255 before the cast")]
    pub fn from_counts(counts: &[u32; 16]) -> Self {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum::<u64>().max(1);
        let mut freq = [0u32; 16];
        for (freq, &count) in freq.iter_mut().zip(counts) {
            if count > 0 {
                let rounded = (u64::from(count) * u64::from(TOTAL) + total / 2) / total;
                *freq = (rounded as u32).clamp(1, TOTAL - 1);
            }
        }
        while freq.iter().filter(|&&f| f > 0).count() < 2 {
            let unused = freq.iter().position(|&f| f == 0).unwrap_or(0);
            freq[unused] = 1;
        }
        Self::settle(&mut freq, counts);
        Self(freq.map(|f| f as u8))
    }

    /// Moves single 256ths until the sum is right, each time where the code length suffers least:
    /// one step changes it by about `count / (freq -+ 1/2)`, compared as fractions to stay in integers.
    fn settle(freq: &mut [u32; 16], counts: &[u32; 16]) {
        let cheaper = |a: (u64, u64), b: (u64, u64)| {
            u128::from(a.0) * u128::from(b.1) < u128::from(b.0) * u128::from(a.1)
        };
        loop {
            let sum: u32 = freq.iter().sum();
            if sum == TOTAL {
                return;
            }
            let mut best: Option<(usize, (u64, u64))> = None;
            for (symbol, (&f, &count)) in freq.iter().zip(counts).enumerate() {
                let change = if sum > TOTAL {
                    (f > 1).then(|| (u64::from(count), u64::from(2 * f - 1)))
                } else {
                    // The most gainful addition comes first, so the fraction is turned over.
                    (f > 0 && f < TOTAL - 1).then_some((u64::from(2 * f + 1), u64::from(count).max(1)))
                };
                if let Some(change) = change
                    && best.is_none_or(|(_, least)| cheaper(change, least))
                {
                    best = Some((symbol, change));
                }
            }
            match best {
                Some((symbol, _)) if sum > TOTAL => freq[symbol] -= 1,
                Some((symbol, _)) => freq[symbol] += 1,
                None => return,
            }
        }
    }

    /// Reads frequencies off a file.
    ///
    /// # Errors
    /// `Corrupt` when they do not sum to 256.
    pub fn parse(bytes: [u8; 16]) -> Result<Self, CodecError> {
        let sum: u32 = bytes.iter().map(|&f| u32::from(f)).sum();
        if sum == TOTAL {
            Ok(Self(bytes))
        } else {
            Err(CodecError::corrupt("rANS8 frequencies do not sum to 256"))
        }
    }

    /// The sixteen bytes that [`Frequencies::parse`] reads.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// The 256 slots of a state's low byte, cut into 16 buckets of 16: bucket `b` belongs to symbol `b` up to its
/// divider and to one other symbol, its alias, from there on.
///
/// A symbol's ranks run through its own bucket first and then through its alias slots by ascending bucket, so
/// that a slot below the divider has its own offset as rank and needs no look-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeTable {
    /// Slots below this belong to the bucket's own symbol.
    pub(crate) divider: [u8; 16],
    /// What turns the bucket's number into its alias, wrapping.
    pub(crate) alias_step: [u8; 16],
    /// What turns the offset of an alias slot into the symbol's rank, wrapping.
    pub(crate) rank_step: [u8; 16],
    pub(crate) freq: [u8; 16],
}

impl DecodeTable {
    #[expect(clippy::cast_possible_truncation, reason = "all numbers are below 256 by construction")]
    pub(crate) fn new(frequencies: &Frequencies) -> Self {
        let freq = frequencies.0;
        let (divider, alias) = alias_buckets(&freq);
        let mut table = Self { divider, alias_step: [0; 16], rank_step: [0; 16], freq };
        // The rank that the next alias slot of each symbol gets.
        let mut next_rank = divider;
        for bucket in 0..16 {
            if divider[bucket] < 16 {
                let symbol = usize::from(alias[bucket]);
                table.alias_step[bucket] = alias[bucket].wrapping_sub(bucket as u8);
                table.rank_step[bucket] = next_rank[symbol].wrapping_sub(divider[bucket]);
                next_rank[symbol] = next_rank[symbol].wrapping_add(16 - divider[bucket]);
            }
        }
        table
    }

    /// The symbol that owns a slot, and the slot's rank among the slots of that symbol.
    #[inline]
    pub(crate) fn symbol_and_rank(&self, slot: u8) -> (u8, u8) {
        let (bucket, offset) = (slot >> 4, slot & 15);
        let at = usize::from(bucket);
        if offset < self.divider[at] {
            (bucket, offset)
        } else {
            (bucket.wrapping_add(self.alias_step[at]) & 15, offset.wrapping_add(self.rank_step[at]))
        }
    }
}

/// The same slots as the encoder needs them: from symbol and rank to slot.
///
/// AVX2 has no room for a table of 256 bytes. It lays the alias ranks of all symbols in one row;
/// every divided bucket is one piece of that row, inside which the distance from row to slot is constant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodeTable {
    pub(crate) freq: [u8; 16],
    pub(crate) divider: [u8; 16],
    /// `min(65535, 65536 / freq)` as low and high bytes.
    pub(crate) reciprocal_low: [u8; 16],
    pub(crate) reciprocal_high: [u8; 16],
    /// Start of the symbol in the row of alias ranks, minus its divider, minus 128 for signed comparison.
    pub(crate) row_start: [u8; 16],
    /// Last row position before each piece, minus 128; 127 where there is no piece.
    pub(crate) piece_start: [u8; 16],
    /// Slot minus row position inside each piece, plus 128.
    pub(crate) piece_step: [u8; 16],
    pub(crate) n_pieces: usize,
    pub(crate) max_freq: u8,
    /// Slots by symbol and rank, where a look-up among 256 bytes is cheap; `first_slot` says where a symbol starts.
    pub(crate) slots: [u8; 256],
    pub(crate) first_slot: [u8; 16],
}

impl EncodeTable {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "all numbers are below 256 by construction, or wrap on purpose"
    )]
    pub(crate) fn new(frequencies: &Frequencies) -> Self {
        let freq = frequencies.0;
        let (divider, alias) = alias_buckets(&freq);
        let mut table = Self {
            freq,
            divider,
            reciprocal_low: [0; 16],
            reciprocal_high: [0; 16],
            row_start: [0; 16],
            piece_start: [127; 16],
            piece_step: [0; 16],
            n_pieces: 0,
            max_freq: freq.iter().copied().max().unwrap_or(0),
            slots: [0; 256],
            first_slot: [0; 16],
        };
        let mut row = 0u32;
        let mut first_slot = 0u32;
        // Buckets whose alias each symbol is, one bit for each.
        let mut buckets_of = [0u16; 16];
        for (bucket, (&at, &symbol)) in divider.iter().zip(&alias).enumerate() {
            buckets_of[usize::from(symbol & 15)] |= u16::from(at < 16) << bucket;
        }
        // A row of sixteen is written at once, over what comes next; so there is room for one behind the last.
        let mut slots = [0; 256 + 16];
        let mut put = |rank: u32, slot: u32| {
            let room: &mut [u8; 16] = slots[rank as usize..].first_chunk_mut().expect("ranks are below 256");
            *room = std::array::from_fn(|offset| (slot as u8).wrapping_add(offset as u8));
        };
        for symbol in 0..16 {
            let f = u32::from(freq[symbol]);
            if let Some(reciprocal) = 65536u32.checked_div(f) {
                let reciprocal = reciprocal.min(65535);
                table.reciprocal_low[symbol] = reciprocal as u8;
                table.reciprocal_high[symbol] = (reciprocal >> 8) as u8;
            }
            table.first_slot[symbol] = first_slot as u8;
            let own = u32::from(divider[symbol]);
            if own > 0 {
                put(first_slot, 16 * symbol as u32);
            }
            let mut rank = first_slot + own;
            table.row_start[symbol] = row.wrapping_sub(own).wrapping_sub(128) as u8;
            let mut left = buckets_of[symbol];
            while left != 0 {
                let bucket = left.trailing_zeros() as usize;
                left &= left - 1;
                let at = u32::from(divider[bucket]);
                let slot = 16 * bucket as u32 + at;
                // The first piece starts below every row position, so that its comparison always holds.
                table.piece_start[table.n_pieces] = if row == 0 { 128 } else { row.wrapping_sub(129) as u8 };
                table.piece_step[table.n_pieces] = slot.wrapping_sub(row).wrapping_add(128) as u8;
                table.n_pieces += 1;
                put(rank, slot);
                rank += 16 - at;
                row += 16 - at;
            }
            first_slot += f;
        }
        table.slots.copy_from_slice(&slots[..256]);
        table
    }

    /// The slot of a symbol's `rank`-th 256th.
    #[inline]
    pub(crate) fn slot(&self, symbol: usize, rank: u8) -> u8 {
        self.slots[usize::from(self.first_slot[symbol].wrapping_add(rank))]
    }
}

/// Divider and alias of each bucket. The order of the two stacks is part of the format.
fn alias_buckets(freq: &[u8; 16]) -> ([u8; 16], [u8; 16]) {
    let mut left = *freq;
    let mut divider = [16u8; 16];
    let mut alias: [u8; 16] = std::array::from_fn(|b| u8::try_from(b).unwrap_or(0));
    let (mut small, mut large) = (Stack::default(), Stack::default());
    for symbol in 0..16u8 {
        if freq[usize::from(symbol)] < 16 { small.push(symbol) } else { large.push(symbol) }
    }
    while let (Some(poor), Some(rich)) = (small.top(), large.top()) {
        small.len -= 1;
        let (p, r) = (usize::from(poor), usize::from(rich));
        divider[p] = left[p];
        alias[p] = rich;
        left[r] -= 16 - left[p];
        if left[r] < 16 {
            large.len -= 1;
            small.push(rich);
        }
    }
    (divider, alias)
}

/// At most sixteen symbols; tables are built for every block, so nothing is allocated.
#[derive(Default)]
struct Stack {
    symbols: [u8; 16],
    len: usize,
}

impl Stack {
    fn push(&mut self, symbol: u8) {
        self.symbols[self.len] = symbol;
        self.len += 1;
    }

    fn top(&self) -> Option<u8> {
        self.symbols[..self.len].last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_counts(seed: u64) -> [u32; 16] {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let shift = next() % 20;
        std::array::from_fn(|_| {
            if next() % 3 == 0 {
                0
            } else {
                u32::try_from(next() % 100_000).unwrap() >> (next() % (shift + 1))
            }
        })
    }

    #[test]
    fn frequencies_sum_to_256_and_keep_every_symbol_that_occurs() {
        for seed in 0..5000 {
            let counts = random_counts(seed);
            let freq = *Frequencies::from_counts(&counts).bytes();
            assert_eq!(freq.iter().map(|&f| u32::from(f)).sum::<u32>(), 256, "seed {seed}");
            for (f, count) in freq.iter().zip(counts) {
                assert!(count == 0 || *f > 0, "seed {seed}");
            }
            Frequencies::parse(freq).unwrap();
        }
    }

    #[test]
    fn every_slot_belongs_to_exactly_one_symbol_and_rank() {
        for seed in 0..2000 {
            let frequencies = Frequencies::from_counts(&random_counts(seed));
            let (decode, encode) = (DecodeTable::new(&frequencies), EncodeTable::new(&frequencies));
            for slot in 0..=255u8 {
                let (symbol, rank) = decode.symbol_and_rank(slot);
                assert!(rank < decode.freq[usize::from(symbol)], "seed {seed}");
                assert_eq!(encode.slot(usize::from(symbol), rank), slot, "seed {seed}");
            }
        }
    }

    #[test]
    fn frequencies_that_do_not_sum_to_256_are_refused() {
        assert!(Frequencies::parse([16; 16]).is_ok());
        assert!(Frequencies::parse([15; 16]).is_err());
        assert!(Frequencies::parse([255; 16]).is_err());
        assert!(Frequencies::parse([0; 16]).is_err());
    }
}
