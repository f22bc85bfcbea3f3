//! The code lengths of all symbols in a few bytes, at the start of a stream.
//!
//! Four bits hold a length; the four values that are no length start runs, because neighbouring symbols
//! of weights are about equally frequent: a table for 256 symbols of normal int8 weights takes about
//! 40 bytes instead of 128. The rules stand in the parent module's documentation.

use super::MAX_CODE_LEN;
use crate::CodecError;
use crate::bytes::Cursor;

/// The codes of 11 bits, of which a shorter code takes several.
const CODE_SPACE: usize = 1 << MAX_CODE_LEN;

/// A run of zero lengths; one nibble follows.
const SHORT_ZERO_RUN: u8 = 12;
/// A run of zero lengths; two nibbles follow.
const LONG_ZERO_RUN: u8 = 13;
/// A run of the length before; one nibble follows.
const SHORT_REPEAT: u8 = 14;
/// A run of the length before; two nibbles follow.
const LONG_REPEAT: u8 = 15;
/// The length of a short run whose nibble is 0; a run of 2 takes no more nibbles as two lengths.
const MIN_SHORT_RUN: usize = 3;
/// The length of a long run whose nibbles are 0: one more than a short run can say.
const MIN_LONG_RUN: usize = MIN_SHORT_RUN + 16;

/// Writes the first and the last symbol and the lengths from one to the other.
pub(super) fn write_table(lengths: &[u8; 256], out: &mut Vec<u8>) {
    let (first, last) = find_range(lengths);
    out.extend([first, last]);
    let nibbles = table_nibbles(lengths);
    out.extend(nibbles.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |high| high << 4)));
}

/// The bytes [`write_table`] appends.
pub(super) fn table_len(lengths: &[u8; 256]) -> usize {
    2 + table_nibbles(lengths).len().div_ceil(2)
}

/// The least and the greatest symbol that has a code.
fn find_range(lengths: &[u8; 256]) -> (u8, u8) {
    let present = || (0..=255u8).filter(|&symbol| lengths[usize::from(symbol)] > 0);
    (present().next().unwrap_or(0), present().next_back().unwrap_or(0))
}

#[expect(clippy::cast_possible_truncation, reason = "a run is at most 256 long, its nibbles below 16")]
fn table_nibbles(lengths: &[u8; 256]) -> Vec<u8> {
    let (first, last) = find_range(lengths);
    let mut nibbles = Vec::with_capacity(256);
    for run in lengths[usize::from(first)..=usize::from(last)].chunk_by(|a, b| a == b) {
        let length = run[0];
        let (mut n_left, short, long) = if length == 0 {
            (run.len(), SHORT_ZERO_RUN, LONG_ZERO_RUN)
        } else {
            nibbles.push(length);
            (run.len() - 1, SHORT_REPEAT, LONG_REPEAT)
        };
        if n_left >= MIN_LONG_RUN {
            let extra = n_left - MIN_LONG_RUN;
            nibbles.extend([long, (extra % 16) as u8, (extra / 16) as u8]);
            n_left = 0;
        } else if n_left >= MIN_SHORT_RUN {
            nibbles.extend([short, (n_left - MIN_SHORT_RUN) as u8]);
            n_left = 0;
        }
        nibbles.extend(std::iter::repeat_n(length, n_left));
    }
    nibbles
}

/// Reads and checks the code lengths of the symbols `first..=last`, which the cursor has passed.
pub(super) fn read_table(first: u8, last: u8, cursor: &mut Cursor<'_>) -> Result<[u8; 256], CodecError> {
    if first > last {
        return Err(CodecError::corrupt("Huffman table with its symbols out of order"));
    }
    let mut lengths = [0; 256];
    let range = &mut lengths[usize::from(first)..=usize::from(last)];
    let mut nibbles = NibbleReader { cursor, high: None };
    let mut n_known = 0;
    let mut previous = 0;
    while n_known < range.len() {
        let kind = nibbles.read()?;
        let (n_run, length) = match kind {
            SHORT_ZERO_RUN => (nibbles.read_short_run()?, 0),
            LONG_ZERO_RUN => (nibbles.read_long_run()?, 0),
            SHORT_REPEAT => (nibbles.read_short_run()?, previous),
            LONG_REPEAT => (nibbles.read_long_run()?, previous),
            length => (1, length),
        };
        let run = range.get_mut(n_known..n_known + n_run);
        run.ok_or(CodecError::corrupt("Huffman table run past the last symbol"))?.fill(length);
        n_known += n_run;
        previous = length;
    }
    if nibbles.high.is_some_and(|unused| unused != 0) {
        return Err(CodecError::corrupt("Huffman table with a non-zero fill nibble"));
    }
    if range[0] == 0 || previous == 0 {
        return Err(CodecError::corrupt("Huffman table that starts or ends with an unused symbol"));
    }
    let space: usize = lengths.iter().filter(|&&length| length > 0).map(|length| CODE_SPACE >> length).sum();
    if space != CODE_SPACE {
        return Err(CodecError::corrupt("Huffman codes that do not fill the code space exactly"));
    }
    Ok(lengths)
}

/// Splits bytes into nibbles, low one first.
struct NibbleReader<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    high: Option<u8>,
}

impl NibbleReader<'_, '_> {
    fn read(&mut self) -> Result<u8, CodecError> {
        if let Some(high) = self.high.take() {
            return Ok(high);
        }
        let byte = self.cursor.u8()?;
        self.high = Some(byte >> 4);
        Ok(byte & 15)
    }

    fn read_short_run(&mut self) -> Result<usize, CodecError> {
        Ok(MIN_SHORT_RUN + usize::from(self.read()?))
    }

    fn read_long_run(&mut self) -> Result<usize, CodecError> {
        Ok(MIN_LONG_RUN + usize::from(self.read()?) + 16 * usize::from(self.read()?))
    }
}
