//! Reading Huffman-coded bits back into symbols.
//!
//! Codes have at most 11 bits, so the next 11 bits of a stream select, in a table of 2048 entries,
//! the symbol they start with and how many bits it takes. The length rule of the format (the codes fill
//! the code space exactly) makes every entry valid: no bit pattern needs a check while decoding.
//!
//! The fast loops run only while every stream has 8 bytes to load, which hold more bits than a burst
//! of 5 lookups can take, so they need no check for the end either. A careful loop does the rest and
//! establishes that each stream ends where it must.

use super::code_lengths::assign_canonical;
use super::table::read_table;
use super::{MAX_CODE_LEN, MIN_SPLIT, symbols_per_stream};
use crate::CodecError;
use crate::bytes::Cursor;

const TABLE_LEN: usize = 1 << MAX_CODE_LEN;

/// Lookups between two refills: 5 codes of 11 bits are within the 56 bits a refill guarantees.
const BURST: usize = 5;

/// For each 11 bits: the symbol in the high byte, its code length in the low one.
type SymbolTable = [u16; TABLE_LEN];

/// For each 11 bits: how many bits all whole codes in them take (lowest byte), how many symbols these
/// are (next byte) and the symbols, first one lowest (the upper 6 bytes).
type RunTable = [u64; TABLE_LEN];

/// The most symbols an entry of a [`RunTable`] has place for.
const MAX_RUN: usize = 6;

/// What a burst of run lookups may write: the last run starts at most at 24 and is written as 8 bytes.
/// Offsets are masked to 31 to let the compiler see the bound, hence 8 more.
const RUN_WINDOW: usize = 40;

/// Runs pay from here on: at 16 Ki symbols, building their table (about 11 us) costs more than it saves.
const MIN_SYMBOLS_FOR_RUNS: usize = 1 << 15;

/// Runs pay if the average code is at most this long, in bits; see [`should_use_runs`].
const MAX_AVERAGE_FOR_RUNS: usize = 5;

pub(super) fn decode_into(coded: &[u8], symbols: &mut [u8]) -> Result<(), CodecError> {
    if symbols.is_empty() {
        return if coded.is_empty() {
            Ok(())
        } else {
            Err(CodecError::corrupt("bytes after the last symbol"))
        };
    }
    let mut cursor = Cursor::new(coded, "Huffman code table");
    let [first, last] = cursor.array()?;
    if first == last {
        symbols.fill(first);
        return if cursor.is_empty() {
            Ok(())
        } else {
            Err(CodecError::corrupt("bytes after the last symbol"))
        };
    }
    let lengths = read_table(first, last, &mut cursor)?;
    let table = build_symbol_table(&lengths);

    if symbols.len() < MIN_SPLIT {
        let mut reader = BitReader::new(cursor.rest());
        let n_done = decode_bursts(&table, &mut reader, symbols);
        return decode_end(&table, reader, &mut symbols[n_done..], END_OF_DATA);
    }

    let mut cursor = Cursor::new(cursor.rest(), "Huffman bit streams");
    let stream_lens = [cursor.len32()?, cursor.len32()?, cursor.len32()?];
    let [a, b, c] =
        [cursor.take(stream_lens[0])?, cursor.take(stream_lens[1])?, cursor.take(stream_lens[2])?];
    let readers = [a, b, c, cursor.rest()].map(BitReader::new);
    let n_symbols = symbols.len();
    let quarter_len = symbols_per_stream(n_symbols);
    let (front, back) = symbols.split_at_mut(2 * quarter_len);
    let (a, b) = front.split_at_mut(quarter_len);
    let (c, d) = back.split_at_mut(quarter_len);
    let runs =
        (n_symbols >= MIN_SYMBOLS_FOR_RUNS && should_use_runs(&lengths)).then(|| build_run_table(&table));
    decode_quarters(&table, runs.as_ref(), readers, [a, b, c, d])
}

/// A stream before the last is short of bits: its stated length is wrong, the data may go on.
const END_OF_QUARTER: CodecError = CodecError::Corrupt { what: "Huffman stream shorter than its symbols" };
/// The last stream is short of bits.
const END_OF_DATA: CodecError = CodecError::Truncated { what: "Huffman bit stream" };

/// The unread bits of one stream: all of `rest` but the lowest `n_skip` (0..=7) bits of its first byte.
#[derive(Clone, Copy)]
struct BitReader<'a> {
    rest: &'a [u8],
    n_skip: u32,
}

/// The next bits of a stream, first one lowest, below a mark: the highest bit set. As bits are shifted
/// out, the zeros above the mark count them, which is 15 % faster than adding up code lengths.
#[derive(Clone, Copy)]
struct BitWindow(u64);

impl<'a> BitReader<'a> {
    fn new(stream: &'a [u8]) -> Self {
        Self { rest: stream, n_skip: 0 }
    }

    /// The next 56 or more bits, or nothing where fewer than 8 bytes are left.
    #[inline(always)]
    fn open(&self) -> Option<BitWindow> {
        let next = self.rest.first_chunk::<8>()?;
        Some(BitWindow((u64::from_le_bytes(*next) | 1 << 63) >> self.n_skip))
    }

    /// Moves on by what was shifted out of a window this reader opened: at most 7 skipped bits and 55
    /// of codes, hence less than 8 bytes, which the window's 8 bytes contain.
    #[inline(always)]
    fn close(&mut self, window: BitWindow) {
        let n_used = window.0.leading_zeros();
        self.rest = &self.rest[n_used as usize / 8 % 8..];
        self.n_skip = n_used % 8;
    }
}

impl BitWindow {
    /// The table index the next bits make.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "only the low 11 bits are wanted")]
    fn peek(self) -> usize {
        self.0 as usize % TABLE_LEN
    }

    /// Shifts out a code.
    #[inline(always)]
    fn consume(&mut self, n_bits: u8) {
        self.0 >>= n_bits % 64;
    }
}

/// Decodes the last symbols of a stream and checks that it ends behind them; `short` is the error if it
/// ends before.
fn decode_end(
    table: &SymbolTable,
    reader: BitReader<'_>,
    symbols: &mut [u8],
    short: CodecError,
) -> Result<(), CodecError> {
    let mut bytes = reader.rest.iter();
    let (mut bits, mut n_bits) = (0u64, 0u32);
    let mut load = |bits: &mut u64, n_bits: &mut u32| {
        while *n_bits < 56
            && let Some(&byte) = bytes.next()
        {
            *bits |= u64::from(byte) << *n_bits;
            *n_bits += 8;
        }
    };
    load(&mut bits, &mut n_bits);
    if reader.n_skip > n_bits {
        return Err(short);
    }
    bits >>= reader.n_skip;
    n_bits -= reader.n_skip;
    for symbol in symbols {
        load(&mut bits, &mut n_bits);
        let [length, value] = table[BitWindow(bits).peek()].to_le_bytes();
        if u32::from(length) > n_bits {
            return Err(short);
        }
        bits >>= length;
        n_bits -= u32::from(length);
        *symbol = value;
    }
    load(&mut bits, &mut n_bits);
    match n_bits {
        0 => Err(short),
        // With at most 8 bits buffered no byte is left unread.
        1..=8 if bits == 1 => Ok(()),
        1..=8 => Err(CodecError::corrupt("Huffman stream without its end mark")),
        _ => Err(CodecError::corrupt("Huffman stream longer than its symbols")),
    }
}

/// Decodes bursts off one stream, as many as it safely can, and returns the number of symbols decoded.
fn decode_bursts(table: &SymbolTable, reader: &mut BitReader<'_>, symbols: &mut [u8]) -> usize {
    let mut n_done = 0;
    for burst in symbols.as_chunks_mut::<BURST>().0 {
        let Some(mut window) = reader.open() else { break };
        decode_burst(table, &mut window, burst);
        reader.close(window);
        n_done += BURST;
    }
    n_done
}

/// Five lookups in a fresh window.
#[inline(always)]
fn decode_burst(table: &SymbolTable, window: &mut BitWindow, burst: &mut [u8; BURST]) {
    for symbol in burst {
        let [length, value] = table[window.peek()].to_le_bytes();
        window.consume(length);
        *symbol = value;
    }
}

fn decode_quarters(
    table: &SymbolTable,
    runs: Option<&RunTable>,
    readers: [BitReader<'_>; 4],
    mut quarters: [&mut [u8]; 4],
) -> Result<(), CodecError> {
    let (readers, n_done) = match runs {
        Some(runs) => decode_runs_in_step(runs, readers, &mut quarters),
        None => decode_bursts_in_step(table, readers, &mut quarters),
    };
    let short = [END_OF_QUARTER, END_OF_QUARTER, END_OF_QUARTER, END_OF_DATA];
    for (((mut reader, quarter), n_done), short) in readers.into_iter().zip(quarters).zip(n_done).zip(short) {
        let quarter = &mut quarter[n_done..];
        let n_done = runs.map_or(0, |runs| decode_runs(runs, &mut reader, quarter));
        let quarter = &mut quarter[n_done..];
        let n_done = decode_bursts(table, &mut reader, quarter);
        decode_end(table, reader, &mut quarter[n_done..], short)?;
    }
    Ok(())
}

/// Decodes bursts off all four streams in turn until one of them is near its end. Returns the readers and
/// how many symbols of each quarter are done.
fn decode_bursts_in_step<'a>(
    table: &SymbolTable,
    readers: [BitReader<'a>; 4],
    quarters: &mut [&mut [u8]; 4],
) -> ([BitReader<'a>; 4], [usize; 4]) {
    // Separate variables, not an array: these stay in registers.
    let [mut reader_a, mut reader_b, mut reader_c, mut reader_d] = readers;
    let [a, b, c, d] = quarters;
    let (a, b, c, d) = (a.as_chunks_mut().0, b.as_chunks_mut().0, c.as_chunks_mut().0, d.as_chunks_mut().0);
    let mut n_done = 0;
    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
        let (Some(mut bits_a), Some(mut bits_b), Some(mut bits_c), Some(mut bits_d)) =
            (reader_a.open(), reader_b.open(), reader_c.open(), reader_d.open())
        else {
            break;
        };
        decode_burst(table, &mut bits_a, a);
        decode_burst(table, &mut bits_b, b);
        decode_burst(table, &mut bits_c, c);
        decode_burst(table, &mut bits_d, d);
        reader_a.close(bits_a);
        reader_b.close(bits_b);
        reader_c.close(bits_c);
        reader_d.close(bits_d);
        n_done += BURST;
    }
    ([reader_a, reader_b, reader_c, reader_d], [n_done; 4])
}

/// As [`decode_bursts_in_step`], with several symbols per lookup.
fn decode_runs_in_step<'a>(
    runs: &RunTable,
    readers: [BitReader<'a>; 4],
    quarters: &mut [&mut [u8]; 4],
) -> ([BitReader<'a>; 4], [usize; 4]) {
    let [mut reader_a, mut reader_b, mut reader_c, mut reader_d] = readers;
    let [a, b, c, d] = quarters;
    let [mut done_a, mut done_b, mut done_c, mut done_d] = [0; 4];
    while let Some(place_a) = a[done_a..].first_chunk_mut()
        && let Some(place_b) = b[done_b..].first_chunk_mut()
        && let Some(place_c) = c[done_c..].first_chunk_mut()
        && let Some(place_d) = d[done_d..].first_chunk_mut()
        && let Some(mut bits_a) = reader_a.open()
        && let Some(mut bits_b) = reader_b.open()
        && let Some(mut bits_c) = reader_c.open()
        && let Some(mut bits_d) = reader_d.open()
    {
        done_a += decode_run_burst(runs, &mut bits_a, place_a);
        done_b += decode_run_burst(runs, &mut bits_b, place_b);
        done_c += decode_run_burst(runs, &mut bits_c, place_c);
        done_d += decode_run_burst(runs, &mut bits_d, place_d);
        reader_a.close(bits_a);
        reader_b.close(bits_b);
        reader_c.close(bits_c);
        reader_d.close(bits_d);
    }
    ([reader_a, reader_b, reader_c, reader_d], [done_a, done_b, done_c, done_d])
}

/// As [`decode_bursts`], with several symbols per lookup. It matters where the quarters differ: the one
/// with the shortest codes ends the work in step long before the others are done.
fn decode_runs(runs: &RunTable, reader: &mut BitReader<'_>, symbols: &mut [u8]) -> usize {
    let mut n_done = 0;
    while let Some(place) = symbols[n_done..].first_chunk_mut()
        && let Some(mut window) = reader.open()
    {
        n_done += decode_run_burst(runs, &mut window, place);
        reader.close(window);
    }
    n_done
}

/// Five run lookups in a fresh window; returns the number of symbols.
#[inline(always)]
fn decode_run_burst(runs: &RunTable, window: &mut BitWindow, place: &mut [u8; RUN_WINDOW]) -> usize {
    let mut n_symbols = 0;
    for _ in 0..BURST {
        let entry = runs[window.peek()];
        let [n_bits, n_run, ..] = entry.to_le_bytes();
        window.consume(n_bits);
        let start = n_symbols % 32;
        place[start..start + 8].copy_from_slice(&(entry >> 16).to_le_bytes());
        n_symbols += usize::from(n_run);
    }
    n_symbols
}

fn build_symbol_table(lengths: &[u8; 256]) -> SymbolTable {
    let mut table = [0; TABLE_LEN];
    let codes = assign_canonical(lengths);
    for ((symbol, &length), &code) in (0u8..=255).zip(lengths).zip(&codes) {
        if length > 0 {
            // A code's first bit is the lowest of the index; the bits after the code may be anything.
            let start = (code.reverse_bits() >> (32 - u32::from(length))) as usize;
            let entry = u16::from_le_bytes([length, symbol]);
            table[start..].iter_mut().step_by(1 << length).for_each(|place| *place = entry);
        }
    }
    table
}

/// Whether lookups yield enough symbols each to pay for the longer way of storing them.
///
/// The average is that of symbols as frequent as their code lengths imply, since the counts are not
/// known here. Measured on 256 Ki symbols, one core of an AMD EPYC, in G symbols/s, against 1.12 with one
/// symbol per lookup: 2.29 at 2.7 bits, 1.78 at 3.7, 1.29 at 4.9, 1.12 at 5.7, 1.10 at 7.0.
fn should_use_runs(lengths: &[u8; 256]) -> bool {
    let present = lengths.iter().filter(|&&length| length > 0);
    let weighted_sum: usize = present.map(|&length| usize::from(length) * (TABLE_LEN >> length)).sum();
    weighted_sum <= MAX_AVERAGE_FOR_RUNS * TABLE_LEN
}

/// Joins the entries of `table` into runs.
fn build_run_table(table: &SymbolTable) -> RunTable {
    let mut runs = [0; TABLE_LEN];
    for (idx, run) in runs.iter_mut().enumerate() {
        let mut bytes = [0u8; 8];
        let mut n_bits = 0;
        let mut n_run = 0u8;
        for place in &mut bytes[2..2 + MAX_RUN] {
            // The bits shifted in on top are not real, so only a code below them counts.
            let [length, symbol] = table[idx >> n_bits].to_le_bytes();
            if n_bits + length > MAX_CODE_LEN {
                break;
            }
            *place = symbol;
            n_bits += length;
            n_run += 1;
        }
        bytes[..2].copy_from_slice(&[n_bits, n_run]);
        *run = u64::from_le_bytes(bytes);
    }
    runs
}
