//! Decoding: the definition in safe scalar code, and the choice of a vector kernel.
//!
//! # Idea
//!
//! `decode_group` is the whole algorithm. It sees its words through a window of 128 bytes, as many as one
//! group can take, so it needs no bounds check: where fewer bytes are left the window is filled up with
//! zeros, and a group that took more than was left is an error. The kernels decode as many whole groups as
//! they can read 128 bytes for; the scalar code here does all others, and hence finds all errors.

use super::{
    FREQUENCY_BITS, FREQUENCY_SUM, FrequencyTable, GROUP_WORDS_LEN, LANES, Run, STATE_FLOOR, group_tables,
    runs_fit,
};
use crate::CodecError;
use crate::arch::kernels;
use crate::bytes::Cursor;

/// For each of 4096 slots the symbol that owns it and the place of the slot among those of the symbol.
///
/// Made once per table, used for any number of blocks, shared freely between threads. A cell is the symbol
/// in bits 0 to 7, the slot less the first slot of the symbol in bits 8 to 19, and the frequency less one
/// in bits 20 to 31 (less one because a lone symbol has 4096). 16 KiB, half of a first-level cache.
#[derive(Debug, Clone)]
pub struct DecodeTable {
    cells: Box<[u32; FREQUENCY_SUM]>,
}

impl DecodeTable {
    /// Lays out the slots of a table.
    pub fn new(table: &FrequencyTable) -> Self {
        let mut cells = Box::new([0u32; FREQUENCY_SUM]);
        let mut rest = cells.as_mut_slice();
        for (symbol, &frequency) in (0u32..).zip(table.frequencies()) {
            // Frequencies sum to the number of cells, so every split succeeds and none is left.
            let Some((own, behind)) = rest.split_at_mut_checked(usize::from(frequency)) else { break };
            let common = u32::from(frequency).wrapping_sub(1) << 20 | symbol;
            for (cell, offset) in own.iter_mut().zip(0u32..) {
                *cell = common | offset << 8;
            }
            rest = behind;
        }
        Self { cells }
    }

    /// One cell for each slot, in the layout described at the type.
    pub(crate) fn cells(&self) -> &[u32; FREQUENCY_SUM] {
        &self.cells
    }
}

/// Decodes one group and returns how many bytes of the window it took.
#[expect(clippy::cast_possible_truncation, reason = "the symbol is the low byte of a cell")]
pub(super) fn decode_group(
    states: &mut [u32; LANES],
    cells: &[u32; FREQUENCY_SUM],
    window: &[u8; GROUP_WORDS_LEN],
    symbols: &mut [u8; LANES],
) -> usize {
    let words = window.as_chunks::<2>().0;
    let mut n_words = 0;
    for (state, symbol) in states.iter_mut().zip(symbols) {
        let cell = cells[*state as usize % FREQUENCY_SUM];
        *symbol = cell as u8;
        let quotient = *state >> FREQUENCY_BITS;
        let reduced = quotient * (cell >> 20) + quotient + (cell >> 8 & 0xFFF);
        // Each lane before this one took at most one word, so the index is in range without the remainder,
        // which only tells the compiler. Arithmetic in place of a branch: which lane reads is random.
        let word = u32::from(u16::from_le_bytes(words[n_words % LANES]));
        let reads = u32::from(reduced < STATE_FLOOR);
        *state = (reduced << (reads * 16)) | (word * reads);
        n_words += reads as usize;
    }
    2 * n_words
}

/// The words not yet read and the states; every path through a block shares one of these.
struct Decoder<'a> {
    states: [u32; LANES],
    words: &'a [u8],
}

impl Decoder<'_> {
    fn decode_group(&mut self, table: &DecodeTable, symbols: &mut [u8; LANES]) -> Result<(), CodecError> {
        let taken = if let Some(window) = self.words.first_chunk() {
            decode_group(&mut self.states, table.cells(), window, symbols)
        } else {
            let mut window = [0; GROUP_WORDS_LEN];
            window[..self.words.len()].copy_from_slice(self.words);
            decode_group(&mut self.states, table.cells(), &window, symbols)
        };
        self.words = self.words.get(taken..).ok_or(CodecError::truncated("rANS words"))?;
        Ok(())
    }
}

/// Decodes with a kernel for many groups and the scalar code for what the kernel leaves.
///
/// The kernel is called with states, cells, words and room for whole groups. It decodes groups from the
/// front while at least [`GROUP_WORDS_LEN`] bytes of words are left, exactly as [`decode_group`] would, and
/// returns how many groups it decoded and how many bytes they took.
pub(super) fn decode_with(
    kernel: impl Fn(&mut [u32; LANES], &[u32; FREQUENCY_SUM], &[u8], &mut [[u8; LANES]]) -> (usize, usize),
    coded: &[u8],
    runs: &[Run],
    tables: &[DecodeTable],
    symbols: &mut [u8],
) -> Result<(), CodecError> {
    if !runs_fit(runs, symbols.len(), tables.len()) {
        return Err(CodecError::corrupt("rANS runs do not match the symbols and tables"));
    }
    let mut cursor = Cursor::new(coded, "rANS states");
    let mut states = [0; LANES];
    for state in &mut states {
        *state = cursor.u32()?;
    }
    if states.iter().any(|&state| state < STATE_FLOOR) {
        return Err(CodecError::corrupt("initial rANS state"));
    }
    let mut decoder = Decoder { states, words: cursor.rest() };
    for span in group_tables(runs, symbols.len()) {
        let table = &tables[span.table_idx];
        let (groups, tail) = symbols[span.symbols].as_chunks_mut::<LANES>();
        let (n_groups, taken) = kernel(&mut decoder.states, table.cells(), decoder.words, groups);
        decoder.words = decoder.words.get(taken..).unwrap_or_default();
        for group in groups.iter_mut().skip(n_groups) {
            decoder.decode_group(table, group)?;
        }
        if !tail.is_empty() {
            let mut group = [0; LANES];
            decoder.decode_group(table, &mut group)?;
            tail.copy_from_slice(&group[..tail.len()]);
        }
    }
    if !decoder.words.is_empty() {
        return Err(CodecError::corrupt("rANS words left over"));
    }
    if decoder.states != [STATE_FLOOR; LANES] {
        return Err(CodecError::corrupt("final rANS state"));
    }
    Ok(())
}

/// Decodes all of `coded` into `symbols`, the inverse of [`super::encode()`] with the same runs and tables.
///
/// Safe on any input: it neither panics nor allocates. After an error the symbols are unspecified.
///
/// # Errors
///
/// `Truncated` if states or words are missing. `Corrupt` if the runs do not sum to the number of symbols
/// or name a table that is not there, if a state is out of range at the start or not 2^16 at the end, or
/// if bytes are left over.
pub fn decode_into(
    coded: &[u8],
    runs: &[Run],
    tables: &[DecodeTable],
    symbols: &mut [u8],
) -> Result<(), CodecError> {
    let kernels = kernels();
    let kernel = |states: &mut _, cells: &_, words: &_, groups: &mut _| {
        kernels.rans12_decode_groups(states, cells, words, groups)
    };
    decode_with(kernel, coded, runs, tables, symbols)
}
