//! Weights to coded exponents: count, plan, write.
//!
//! Counting and writing are two passes over the same weights in pieces of any size, so that neither the weights nor the
//! result need to be in memory: after the first pass the size of everything is known to the byte.

use super::code::Code;
use super::{GAP_BITS, Geometry, Unencodable, exponent, sign_mantissa, tables};

/// How often each exponent occurs, and which is the last: all that a [`Plan`] needs to know.
#[derive(Debug, Clone)]
pub struct Profile {
    counts: [u64; 256],
    last: u8,
}

impl Default for Profile {
    fn default() -> Self {
        Self { counts: [0; 256], last: 0 }
    }
}

impl Profile {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts the exponents of weights that follow those before.
    ///
    /// # Panics
    /// If `raw` is not whole BF16 numbers.
    pub fn add(&mut self, raw: &[u8]) {
        let (numbers, rest) = raw.as_chunks::<2>();
        assert!(rest.is_empty(), "half a BF16 number");
        // Four tables: a count that was just written is slow to read again.
        for numbers in numbers.chunks(1 << 24) {
            let mut counts = [[0u32; 256]; 4];
            let (fours, rest) = numbers.as_chunks::<4>();
            for four in fours {
                for (counts, &number) in counts.iter_mut().zip(four) {
                    counts[usize::from(exponent(u16::from_le_bytes(number)))] += 1;
                }
            }
            for &number in rest {
                counts[0][usize::from(exponent(u16::from_le_bytes(number)))] += 1;
            }
            for (symbol, total) in self.counts.iter_mut().enumerate() {
                *total += counts.iter().map(|counts| u64::from(counts[symbol])).sum::<u64>();
            }
        }
        if let Some(&number) = numbers.last() {
            self.last = exponent(u16::from_le_bytes(number));
        }
    }

    /// Elements counted.
    #[must_use]
    pub fn n_elements(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The code of a run of weights, its tables, and how large everything will be.
#[derive(Debug, Clone)]
pub struct Plan {
    code: Code,
    luts: Vec<u8>,
    geometry: Geometry,
    n_elements: usize,
    n_bits: usize,
    /// The bit where the last code starts: that of the end symbol, unless the codes before it end on a byte.
    last_start: usize,
}

impl Plan {
    /// Plans the coding of weights with this profile.
    ///
    /// # Errors
    /// When DF11 cannot hold them.
    pub fn new(profile: &Profile, geometry: Geometry) -> Result<Self, Unencodable> {
        let n_elements = profile.n_elements();
        if n_elements == 0 {
            return Err(Unencodable::Empty);
        }
        let code = Code::from_counts(&profile.counts);
        let luts = tables::build(&code)?;
        let pairs = profile.counts.iter().zip(code.lengths);
        let n_bits: u128 = pairs.map(|(&count, length)| u128::from(count) * u128::from(length)).sum();
        let encoded_len = u64::try_from(n_bits.div_ceil(8)).unwrap_or(u64::MAX);
        let too_long = Unencodable::TooLong { n_elements, encoded_len };
        if u32::try_from(n_elements).is_err() || i32::try_from(encoded_len).is_err() {
            return Err(too_long);
        }
        let n_bits = usize::try_from(n_bits).map_err(|_| too_long)?;
        let last_length = usize::from(code.lengths[usize::from(profile.last)]);
        let last_start = if n_bits.is_multiple_of(8) { n_bits - last_length } else { n_bits };
        let n_elements = usize::try_from(n_elements).map_err(|_| too_long)?;
        Ok(Self { code, luts, geometry, n_elements, n_bits, last_start })
    }

    /// The same codes for other threads.
    #[must_use]
    pub fn with_geometry(self, geometry: Geometry) -> Self {
        Self { geometry, ..self }
    }

    /// Threads and their bytes.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The tables and the row of code lengths: rows of 256 bytes.
    #[must_use]
    pub fn luts(&self) -> &[u8] {
        &self.luts
    }

    /// Elements, and so bytes of signs and mantissas.
    #[must_use]
    pub fn n_elements(&self) -> usize {
        self.n_elements
    }

    /// Bytes of coded exponents.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.n_bits.div_ceil(8)
    }

    /// Bytes of gaps.
    #[must_use]
    pub fn gaps_len(&self) -> usize {
        self.geometry.gaps_len(self.n_workgroups())
    }

    /// Bytes of output positions.
    #[must_use]
    pub fn output_positions_len(&self) -> usize {
        4 * (self.n_starts(self.geometry.workgroup_bits()) + 1)
    }

    fn n_workgroups(&self) -> usize {
        self.geometry.n_workgroups(self.encoded_len())
    }

    /// Pieces of so many bits in which a code starts. The last piece may have none: when a code from before runs over
    /// into it and ends there on a byte.
    fn n_starts(&self, piece_bits: usize) -> usize {
        self.last_start / piece_bits + 1
    }
}

/// Where threads and workgroups start: the two small parts that are known only at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPoints {
    /// Bits between the start of a chunk and its first code, five bits each.
    pub gaps: Vec<u8>,
    /// First element of each workgroup and the number of elements, as little-endian `u32`.
    pub output_positions: Vec<u8>,
}

/// Elements coded between two looks at the caller's buffers.
const BURST: usize = 2048;

/// Words that a burst can fill: 32 bits each, and what was left over before.
const BURST_WORDS: usize = BURST / 2 + 1;

/// The word that codes are being added to.
#[derive(Debug, Clone, Copy)]
struct OpenWord {
    /// Bits that fill no word yet, in the lowest places; what is above them has been written.
    bits: u64,
    n_filled: u32,
}

impl OpenWord {
    /// Adds the code of an entry of the encoder's table; returns the word if that fills it.
    #[inline(always)]
    fn push(&mut self, entry: u64) -> Option<u64> {
        let code = entry >> 8;
        self.n_filled += length(entry);
        if self.n_filled < 64 {
            self.bits = self.bits << length(entry) | code;
            return None;
        }
        self.n_filled -= 64;
        let word = self.bits << (length(entry) - self.n_filled) | code >> self.n_filled;
        self.bits = code;
        Some(word)
    }
}

/// Writes the weights of a plan, piece by piece.
#[derive(Debug)]
pub struct Encoder<'a> {
    plan: &'a Plan,
    /// Code in the upper bits, its length in the lowest byte.
    table: [u64; 256],
    open: OpenWord,
    n_words: usize,
    n_elements: usize,
    /// The words that the next chunk and the next workgroup start with.
    next_chunk: usize,
    next_workgroup: usize,
    /// One gap per chunk.
    gaps: Vec<u8>,
    positions: Vec<u32>,
}

impl<'a> Encoder<'a> {
    /// Starts with the first weight.
    #[must_use]
    pub fn new(plan: &'a Plan) -> Self {
        let entry =
            |symbol: usize| u64::from(plan.code.codes[symbol]) << 8 | u64::from(plan.code.lengths[symbol]);
        let mut gaps = Vec::with_capacity(plan.n_bits / plan.geometry.chunk_bits() + 2);
        gaps.push(0);
        let mut positions = Vec::with_capacity(plan.n_workgroups() + 2);
        positions.push(0);
        Self {
            plan,
            table: std::array::from_fn(entry),
            open: OpenWord { bits: 0, n_filled: 0 },
            n_words: 0,
            n_elements: 0,
            next_chunk: plan.geometry.chunk_bits() / 64,
            next_workgroup: plan.geometry.workgroup_bits() / 64,
            gaps,
            positions,
        }
    }

    /// Codes the weights that follow; appends what is complete to `encoded`, and every sign and mantissa.
    ///
    /// # Panics
    /// If `raw` is not whole BF16 numbers, or its exponents are not those of the profile.
    pub fn push(&mut self, raw: &[u8], encoded: &mut Vec<u8>, signs_mantissas: &mut Vec<u8>) {
        let (numbers, rest) = raw.as_chunks::<2>();
        assert!(rest.is_empty(), "half a BF16 number");
        signs_mantissas.extend(numbers.iter().map(|&number| sign_mantissa(u16::from_le_bytes(number))));
        for burst in numbers.chunks(BURST) {
            let mut words = [0; BURST_WORDS];
            let n_words = self.push_burst(burst, &mut words);
            encoded.extend(words[..n_words].iter().flat_map(|word| word.to_be_bytes()));
        }
    }

    /// Codes a burst into `words`; returns how many are full.
    ///
    /// Four codes that fit into the word go there at once; those that fill it go one by one.
    #[inline]
    fn push_burst(&mut self, burst: &[[u8; 2]], words: &mut [u64; BURST_WORDS]) -> usize {
        let mut n_words = 0;
        // A copy that stays in registers.
        let mut open = self.open;
        let (fours, rest) = burst.as_chunks::<4>();
        for (four_idx, four) in fours.iter().enumerate() {
            let [a, b, c, d] = four.map(|number| self.entry(number));
            let (len_ab, len_cd) = (length(a) + length(b), length(c) + length(d));
            if open.n_filled + len_ab + len_cd < 64 {
                let ab = a >> 8 << length(b) | b >> 8;
                let cd = c >> 8 << length(d) | d >> 8;
                open.bits = open.bits << (len_ab + len_cd) | ab << len_cd | cd;
                open.n_filled += len_ab + len_cd;
                continue;
            }
            for (entry, element_idx) in [a, b, c, d].into_iter().zip(4 * four_idx + 1..) {
                if let Some(word) = open.push(entry) {
                    words[n_words] = word;
                    n_words += 1;
                    self.note_start(open.n_filled, element_idx);
                }
            }
        }
        for (&number, element_idx) in rest.iter().zip(4 * fours.len() + 1..) {
            if let Some(word) = open.push(self.entry(number)) {
                words[n_words] = word;
                n_words += 1;
                self.note_start(open.n_filled, element_idx);
            }
        }
        self.open = open;
        self.n_elements += burst.len();
        n_words
    }

    #[inline(always)]
    fn entry(&self, number: [u8; 2]) -> u64 {
        self.table[usize::from(exponent(u16::from_le_bytes(number)))]
    }

    /// A word is full: notes where in the next one the first code starts, and which element of the burst that is.
    #[inline]
    fn note_start(&mut self, gap: u32, element_idx: usize) {
        self.n_words += 1;
        if self.n_words == self.next_chunk {
            self.next_chunk += self.plan.geometry.chunk_bits() / 64;
            self.gaps.push(gap.to_le_bytes()[0]);
            if self.n_words == self.next_workgroup {
                self.next_workgroup += self.plan.geometry.workgroup_bits() / 64;
                // The plan has made sure that elements have numbers of 32 bits.
                self.positions.push(u32::try_from(self.n_elements + element_idx).unwrap_or(u32::MAX));
            }
        }
    }

    /// Appends the last bytes to `encoded`.
    ///
    /// # Panics
    /// If the weights were not those of the profile.
    #[must_use]
    pub fn finish(mut self, encoded: &mut Vec<u8>) -> EntryPoints {
        let plan = self.plan;
        assert_eq!(self.n_elements, plan.n_elements, "elements that were not counted");
        let OpenWord { mut bits, mut n_filled } = self.open;
        let n_bits = self.n_words * 64 + n_filled as usize;
        assert_eq!(n_bits, plan.n_bits, "exponents that were not counted");
        if !n_bits.is_multiple_of(8) {
            let room = 8 - n_filled % 8;
            let (code, length) = plan.code.end;
            let length = u32::from(length);
            let fill = if length >= room { code >> (length - room) } else { code << (room - length) };
            bits = bits << room | u64::from(fill);
            n_filled += room;
        }
        if n_filled > 0 {
            let last = (bits << (64 - n_filled)).to_be_bytes();
            encoded.extend(&last[..n_filled as usize / 8]);
        }
        // What was noted behind the last code is no start.
        let geometry = plan.geometry;
        self.gaps.truncate(plan.n_starts(geometry.chunk_bits()));
        self.gaps.resize(geometry.n_threads() * plan.n_workgroups(), 0);
        self.positions.truncate(plan.n_starts(geometry.workgroup_bits()));
        self.positions.push(u32::try_from(self.n_elements).unwrap_or(u32::MAX));
        EntryPoints {
            gaps: pack_gaps(&self.gaps),
            output_positions: self.positions.iter().flat_map(|position| position.to_le_bytes()).collect(),
        }
    }
}

/// Counts how many elements workgroups of different sizes would hold, before anything is coded.
#[derive(Debug)]
pub struct WorkgroupSizes {
    lengths: [u8; 256],
    n_bits: u64,
    n_elements: u32,
    /// First element that starts in each run of [`Self::STEP_BITS`].
    starts: Vec<u32>,
}

impl WorkgroupSizes {
    /// Bits of the smallest workgroup that is counted: 32 threads of 8 bytes.
    const STEP_BITS: u64 = 32 * 8 * 8;

    /// Starts with the first weight of a plan.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self { lengths: plan.code.lengths, n_bits: 0, n_elements: 0, starts: vec![0] }
    }

    /// Counts the weights that follow.
    ///
    /// # Panics
    /// If `raw` is not whole BF16 numbers.
    pub fn add(&mut self, raw: &[u8]) {
        let (numbers, rest) = raw.as_chunks::<2>();
        assert!(rest.is_empty(), "half a BF16 number");
        let mut next_step = self.starts.len() as u64 * Self::STEP_BITS;
        for &number in numbers {
            self.n_bits += u64::from(self.lengths[usize::from(exponent(u16::from_le_bytes(number)))]);
            self.n_elements = self.n_elements.saturating_add(1);
            if self.n_bits >= next_step {
                self.starts.push(self.n_elements);
                next_step += Self::STEP_BITS;
            }
        }
    }

    /// The most elements of a workgroup of this many threads of 8 bytes, a multiple of 32.
    #[must_use]
    pub fn largest(&self, threads_per_block: u32) -> u64 {
        let step = (threads_per_block / 32).max(1) as usize;
        let starts: Vec<u32> = self.starts.iter().step_by(step).copied().chain([self.n_elements]).collect();
        starts.windows(2).map(|pair| u64::from(pair[1] - pair[0])).max().unwrap_or(0)
    }
}

/// The length of a code, from its entry in the encoder's table.
#[inline(always)]
fn length(entry: u64) -> u32 {
    u32::from(entry.to_le_bytes()[0])
}

/// Eight gaps in five bytes.
fn pack_gaps(gaps: &[u8]) -> Vec<u8> {
    let (eights, rest) = gaps.as_chunks::<8>();
    debug_assert!(rest.is_empty(), "workgroups have a multiple of 8 threads");
    let pack = |eight: &[u8; 8]| {
        let bits = eight.iter().fold(0u64, |bits, &gap| bits << GAP_BITS | u64::from(gap));
        let [_, _, _, bytes @ ..] = bits.to_be_bytes();
        bytes
    };
    eights.iter().flat_map(pack).collect()
}
