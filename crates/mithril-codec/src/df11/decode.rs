//! Decoding on four lanes at once, each over its own workgroups.
//!
//! The code of one element must be read before the next one can be, so one lane mostly waits. Workgroups can be entered
//! alone, so four of them advance in step. A lane takes 11 bits to up to six exponents by one lookup, five times for
//! each load of 64 bits; longer codes go through the tables of the file. Exponents are gathered in a small buffer and
//! joined with signs and mantissas from there, which the compiler turns into vector code.

use super::tables::{Found, Tables};
use super::{Coded, join, two_phase};
use crate::CodecError;
use std::ops::Range;

/// Bits of one lookup.
const LOOKUP_BITS: u8 = 11;

/// Lookups for each load: 57 bits of it are there, whatever bit of a byte it starts with.
const LOOKUPS: usize = 5;

/// The most exponents of one lookup.
const MAX_RUN: usize = 6;

/// Bytes that the stores of one load can touch.
const REACH: usize = 40;

/// Exponents that a lane gathers before it joins them: four lanes and the table of lookups stay in the L1 cache.
const GATHER: usize = 2048;

/// For each value of 11 bits: a bit for each place where a code starts, that behind the last whole code included.
type Starts = [u16; 1 << LOOKUP_BITS];

/// For each value of 11 bits: how many of them are used, how many exponents they are, and the exponents.
struct Runs(Box<[u64; 1 << LOOKUP_BITS]>);

/// A run with its table of lookups, which is made once for any number of calls.
pub struct Decoder<'a> {
    coded: &'a Coded<'a>,
    runs: Runs,
}

impl Coded<'_> {
    /// Decodes all elements to little-endian BF16 numbers.
    ///
    /// # Errors
    /// When the codes are damaged.
    ///
    /// # Panics
    /// If `out` has no room for exactly all elements.
    pub fn decode_into(&self, out: &mut [u8]) -> Result<(), CodecError> {
        self.decode_workgroups(0..self.n_workgroups(), out)
    }

    /// Decodes the elements of some workgroups, those that [`Coded::elements`] names.
    ///
    /// # Errors
    /// When the codes are damaged.
    ///
    /// # Panics
    /// If there are not so many workgroups, or `out` has no room for exactly their elements.
    pub fn decode_workgroups(&self, workgroups: Range<usize>, out: &mut [u8]) -> Result<(), CodecError> {
        self.decoder().decode_workgroups(workgroups, out)
    }

    /// What decodes workgroups from anywhere in the run, one call after the other.
    #[must_use]
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder { coded: self, runs: Runs::new(&self.tables) }
    }

    /// Checks that every thread and every workgroup can be entered where the gaps and the output positions say.
    ///
    /// Decoding here needs the entry points of workgroups only, and checks those; a GPU needs all of them.
    ///
    /// # Errors
    /// When a thread's codes do not end where the next thread's start, or a workgroup holds another number of codes.
    pub fn check_entry_points(&self) -> Result<(), CodecError> {
        let runs = Runs::new(&self.tables);
        let starts = runs.starts(&self.tables);
        let n_threads = self.geometry.n_threads();
        for workgroup in 0..self.n_workgroups() {
            let elements = self.elements(workgroup..workgroup + 1);
            if elements.end == self.n_elements() {
                two_phase::places(self, workgroup)?;
                continue;
            }
            let mut n_codes = 0;
            for thread in workgroup * n_threads..(workgroup + 1) * n_threads {
                n_codes += count(&runs, &starts, self, thread)?;
            }
            if n_codes != elements.len() {
                return Err(CodecError::corrupt(
                    "DF11 workgroup with another number of codes than it states",
                ));
            }
        }
        Ok(())
    }
}

impl Decoder<'_> {
    /// As [`Coded::decode_workgroups`].
    ///
    /// # Errors
    /// When the codes are damaged.
    ///
    /// # Panics
    /// If there are not so many workgroups, or `out` has no room for exactly their elements.
    pub fn decode_workgroups(&self, workgroups: Range<usize>, out: &mut [u8]) -> Result<(), CodecError> {
        let coded = self.coded;
        assert_eq!(
            out.len(),
            2 * coded.elements(workgroups.clone()).len(),
            "room for another number of elements"
        );
        let n_lanes = workgroups.len().clamp(1, 4);
        let cut = |lane: usize| workgroups.start + workgroups.len() * lane / n_lanes;
        let mut lanes = Vec::with_capacity(n_lanes);
        let mut rest = out;
        for lane in 0..n_lanes {
            let own = cut(lane)..cut(lane + 1);
            let (out, behind) = std::mem::take(&mut rest).split_at_mut(2 * coded.elements(own.clone()).len());
            rest = behind;
            lanes.push(Lane::new(coded, own, out));
        }
        if let [a, b, c, d] = lanes.as_mut_slice() {
            while [&*a, &*b, &*c, &*d].into_iter().all(|lane| !lane.is_done()) {
                run_four(&self.runs, coded.encoded, [a, b, c, d]);
                for lane in [&mut *a, &mut *b, &mut *c, &mut *d] {
                    lane.settle(coded)?;
                }
            }
        }
        for lane in &mut lanes {
            while !lane.is_done() {
                run_one(&self.runs, coded.encoded, lane);
                lane.settle(coded)?;
            }
        }
        Ok(())
    }
}

/// The codes that start in a thread's chunk, which is not the last one.
fn count(runs: &Runs, starts: &Starts, coded: &Coded<'_>, thread: usize) -> Result<usize, CodecError> {
    let end = (thread + 1) * coded.geometry.chunk_bits();
    let mut bit = two_phase::first_bit(coded, thread);
    let mut n_codes = 0;
    let lookup = usize::from(LOOKUP_BITS);
    while bit < end {
        let idx = (coded.bits_at(bit) >> (32 - LOOKUP_BITS)) as usize;
        if bit + lookup <= end {
            let [used, n_run, ..] = runs.0[idx].to_le_bytes();
            bit += usize::from(used);
            n_codes += usize::from(n_run);
            if n_run > 0 {
                continue;
            }
        } else {
            // Only the codes that start before the end count, and the next one must start behind it.
            let n_left = end - bit;
            let starts = starts[idx];
            if starts >> n_left != 0 {
                n_codes += (starts & ((1 << n_left) - 1)).count_ones() as usize;
                bit = end + (starts >> n_left).trailing_zeros() as usize;
                break;
            }
        }
        bit += usize::from(two_phase::find(coded, bit)?.1);
        n_codes += 1;
    }
    let is_right = bit == two_phase::first_bit(coded, thread + 1);
    is_right
        .then_some(n_codes)
        .ok_or(CodecError::corrupt("DF11 thread that ends where the next does not start"))
}

/// One lane: the workgroups it has to decode, and how far it is.
struct Lane<'a> {
    /// The workgroup being decoded and those after it.
    workgroups: Range<usize>,
    /// The bit of the next code.
    bit: usize,
    /// Elements that the workgroup has left, those gathered included.
    n_left: usize,
    /// The first element that is gathered.
    first: usize,
    n_gathered: usize,
    gathered: Box<[u8; GATHER]>,
    /// Room for the elements of all its workgroups that are not joined.
    out: &'a mut [[u8; 2]],
    /// Whether a code is too long for a lookup, or too close to the end for a load.
    is_stuck: bool,
}

impl<'a> Lane<'a> {
    fn new(coded: &Coded<'_>, workgroups: Range<usize>, out: &'a mut [u8]) -> Self {
        let first = coded.position(workgroups.start);
        let mut lane = Self {
            workgroups,
            bit: 0,
            n_left: 0,
            first,
            n_gathered: 0,
            gathered: Box::new([0; GATHER]),
            out: out.as_chunks_mut().0,
            is_stuck: false,
        };
        lane.enter(coded);
        lane
    }

    fn is_done(&self) -> bool {
        self.workgroups.is_empty()
    }

    /// Goes to the start of its first workgroup.
    fn enter(&mut self, coded: &Coded<'_>) {
        while !self.is_done() {
            self.bit = coded.start_bit(self.workgroups.start);
            self.n_left = coded.elements(self.workgroups.start..self.workgroups.start + 1).len();
            if self.n_left > 0 {
                break;
            }
            // Nothing starts behind the last element.
            self.workgroups.start += 1;
        }
    }

    /// The exponents that may be gathered before the lane must settle.
    fn room(&mut self) -> &mut [u8] {
        let len = self.n_left.min(GATHER);
        &mut self.gathered[..len]
    }

    /// Does what the fast loop cannot: single codes, joining, going from one workgroup to the next.
    fn settle(&mut self, coded: &Coded<'_>) -> Result<(), CodecError> {
        let n_open = self.n_left - self.n_gathered;
        // The end of a workgroup goes code by code, as does a code that the fast loop cannot read.
        let n_single = if n_open < REACH { n_open } else { usize::from(self.is_stuck) };
        self.is_stuck = false;
        if self.n_gathered + n_single + REACH > GATHER || n_single == n_open {
            self.join(coded);
        }
        for place in &mut self.gathered[self.n_gathered..self.n_gathered + n_single] {
            let (exponent, length) = two_phase::find(coded, self.bit)?;
            *place = exponent;
            self.bit += usize::from(length);
        }
        self.n_gathered += n_single;
        if self.n_gathered == self.n_left {
            self.join(coded);
            self.workgroups.start += 1;
            coded.check_end(self.workgroups.start, self.bit)?;
            self.enter(coded);
        }
        Ok(())
    }

    /// Writes what is gathered.
    fn join(&mut self, coded: &Coded<'_>) {
        let (done, rest) = std::mem::take(&mut self.out).split_at_mut(self.n_gathered);
        let signs_mantissas = &coded.signs_mantissas[self.first..self.first + self.n_gathered];
        for ((number, &exponent), &sign_mantissa) in
            done.iter_mut().zip(&self.gathered[..]).zip(signs_mantissas)
        {
            *number = join(exponent, sign_mantissa).to_le_bytes();
        }
        self.out = rest;
        self.first += self.n_gathered;
        self.n_left -= self.n_gathered;
        self.n_gathered = 0;
    }
}

/// Advances four lanes in step until one of them must settle.
fn run_four(runs: &Runs, encoded: &[u8], lanes: [&mut Lane<'_>; 4]) {
    let [a, b, c, d] = lanes;
    // Separate variables, not arrays: these stay in registers.
    let (mut bit_a, mut bit_b, mut bit_c, mut bit_d) = (a.bit, b.bit, c.bit, d.bit);
    let (mut n_a, mut n_b, mut n_c, mut n_d) = (a.n_gathered, b.n_gathered, c.n_gathered, d.n_gathered);
    let [mut stuck_a, mut stuck_b, mut stuck_c, mut stuck_d] = [false; 4];
    let (room_a, room_b, room_c, room_d) = (a.room(), b.room(), c.room(), d.room());
    while let Some(place_a) = room_a[n_a..].first_chunk_mut()
        && let Some(place_b) = room_b[n_b..].first_chunk_mut()
        && let Some(place_c) = room_c[n_c..].first_chunk_mut()
        && let Some(place_d) = room_d[n_d..].first_chunk_mut()
    {
        let (Some(load_a), Some(load_b), Some(load_c), Some(load_d)) =
            (load(encoded, bit_a), load(encoded, bit_b), load(encoded, bit_c), load(encoded, bit_d))
        else {
            // One of them is at the end of all codes; it goes on alone.
            [stuck_a, stuck_b, stuck_c, stuck_d] =
                [bit_a, bit_b, bit_c, bit_d].map(|bit| load(encoded, bit).is_none());
            break;
        };
        stuck_a = burst(runs, load_a, &mut bit_a, &mut n_a, place_a);
        stuck_b = burst(runs, load_b, &mut bit_b, &mut n_b, place_b);
        stuck_c = burst(runs, load_c, &mut bit_c, &mut n_c, place_c);
        stuck_d = burst(runs, load_d, &mut bit_d, &mut n_d, place_d);
        if stuck_a | stuck_b | stuck_c | stuck_d {
            break;
        }
    }
    (a.bit, a.n_gathered, a.is_stuck) = (bit_a, n_a, stuck_a);
    (b.bit, b.n_gathered, b.is_stuck) = (bit_b, n_b, stuck_b);
    (c.bit, c.n_gathered, c.is_stuck) = (bit_c, n_c, stuck_c);
    (d.bit, d.n_gathered, d.is_stuck) = (bit_d, n_d, stuck_d);
}

/// Advances one lane until it must settle.
fn run_one(runs: &Runs, encoded: &[u8], lane: &mut Lane<'_>) {
    let (mut bit, mut n_gathered, mut is_stuck) = (lane.bit, lane.n_gathered, false);
    let room = lane.room();
    while let Some(place) = room[n_gathered..].first_chunk_mut()
        && !is_stuck
    {
        match load(encoded, bit) {
            Some(window) => is_stuck = burst(runs, window, &mut bit, &mut n_gathered, place),
            None => is_stuck = true,
        }
    }
    (lane.bit, lane.n_gathered, lane.is_stuck) = (bit, n_gathered, is_stuck);
}

/// The bits from `bit` on, at least 57 of them, the first one highest.
#[inline(always)]
fn load(encoded: &[u8], bit: usize) -> Option<u64> {
    let bytes = encoded.get(bit / 8..)?.first_chunk()?;
    Some(u64::from_be_bytes(*bytes) << (bit % 8))
}

/// Five lookups; returns whether the next code is too long for one.
#[inline(always)]
fn burst(
    runs: &Runs,
    mut window: u64,
    bit: &mut usize,
    n_gathered: &mut usize,
    place: &mut [u8; REACH],
) -> bool {
    let mut n_exponents = 0;
    let mut n_bits = 0;
    let mut n_last = 0;
    for _ in 0..LOOKUPS {
        let entry = runs.0[(window >> (64 - LOOKUP_BITS)) as usize];
        let [used, n_run, ..] = entry.to_le_bytes();
        window <<= used;
        n_bits += usize::from(used);
        let start = n_exponents % 32;
        place[start..start + 8].copy_from_slice(&(entry >> 16).to_le_bytes());
        n_exponents += usize::from(n_run);
        n_last = n_run;
    }
    *bit += n_bits;
    *n_gathered += n_exponents;
    n_last == 0
}

impl Runs {
    fn new(tables: &Tables<'_>) -> Self {
        const LEN: usize = 1 << LOOKUP_BITS;
        let mut first = [None; LEN];
        for (bits, found) in (0u32..).zip(&mut first) {
            *found = tables.find_in(bits << (32 - LOOKUP_BITS), u32::from(LOOKUP_BITS));
        }
        // From each value on, how many have the same first exponent: a code whose last bits are not known yet counts
        // only if all that they can be lead to it.
        let mut n_equal = [1u32; LEN];
        for bits in (0..LEN - 1).rev() {
            if first[bits] == first[bits + 1] {
                n_equal[bits] = n_equal[bits + 1] + 1;
            }
        }
        let mut runs = Box::new([0; LEN]);
        for (bits, run) in runs.iter_mut().enumerate() {
            *run = Self::entry(&first, &n_equal, bits);
        }
        Self(runs)
    }

    fn starts(&self, tables: &Tables<'_>) -> Box<Starts> {
        let mut starts = Box::new([0; 1 << LOOKUP_BITS]);
        for (bits, (starts, run)) in (0u32..).zip(starts.iter_mut().zip(self.0.iter())) {
            let [_, n_run, ..] = run.to_le_bytes();
            let mut at = 0;
            *starts = 1;
            for _ in 0..n_run {
                // The run was made of what the tables find, so that they find it again.
                at +=
                    tables.find(bits << (32 - LOOKUP_BITS) << at).map_or(0, |(_, length)| u32::from(length));
                *starts |= 1 << at;
            }
        }
        starts
    }

    fn entry(first: &[Option<Found>], n_equal: &[u32], bits: usize) -> u64 {
        let mut bytes = [0; 8];
        let mut n_bits = 0;
        let mut n_run = 0;
        for place in &mut bytes[2..2 + MAX_RUN] {
            let at = (bits << n_bits) & (first.len() - 1);
            let Some((exponent, length)) = first[at] else { break };
            if n_bits + length > LOOKUP_BITS || n_equal[at] < 1 << n_bits {
                break;
            }
            *place = exponent;
            n_bits += length;
            n_run += 1;
        }
        bytes[..2].copy_from_slice(&[n_bits, n_run]);
        u64::from_le_bytes(bytes)
    }
}
