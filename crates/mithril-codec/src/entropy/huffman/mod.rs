//! A Huffman coder for bytes: frequent bytes get short bit strings, rare bytes long ones.
//!
//! It is the fast entropy coder: one table lookup decodes at least one symbol, and four independent
//! bit streams keep a processor core busy while each stream waits for its own lookup.
//!
//! # Decoding a stream
//!
//! Input: `coded`, exactly the bytes of one stream, and `n`, the number of symbols, which is not stored.
//! "Must" marks a rule whose breach makes the stream invalid. Integers are little-endian.
//!
//! 1. If `n` is 0, `coded` must be empty. Done.
//! 2. Read the bytes `first` and `last`, the least and the greatest symbol that occurs; `first <= last`
//!    must hold. If they are equal, all `n` symbols are `first`, and nothing must follow. Done.
//! 3. Read the code lengths of the symbols `first..=last` as a sequence of nibbles, the low nibble of a
//!    byte before its high one. Symbols outside that range have length 0. Until the length of `last` is
//!    known, take a nibble `t`; `a` and `b` are one further nibble each:
//!
//!    | `t`   | followed by | meaning                                                      |
//!    |-------|-------------|--------------------------------------------------------------|
//!    | 0..11 |             | the next symbol has length `t` (0: it does not occur)        |
//!    | 12    | `a`         | the next `3 + a` symbols have length 0                       |
//!    | 13    | `a`, `b`    | the next `19 + a + 16 * b` symbols have length 0             |
//!    | 14    | `a`         | the next `3 + a` symbols have the length of the one before   |
//!    | 15    | `a`, `b`    | the next `19 + a + 16 * b` symbols have the length of the one before |
//!
//!    "The one before" `first` has length 0. A run must not pass `last`. If the number of nibbles is
//!    odd, the high nibble of the last byte must be 0. The lengths of `first` and `last` must not be 0,
//!    and the sum of `2^(11 - length)` over all symbols with a length above 0 must be 2048.
//! 4. Assign canonical codes: go through the symbols by ascending length, equal lengths by ascending
//!    symbol. The first code is all zero bits; each next code, read as a binary number, is the code
//!    before plus one, then extended at its end with zero bits up to its own length.
//! 5. If `n < 1024`, all bytes left are one bit stream of `n` symbols. Else read three `u32` byte
//!    lengths; then follow four bit streams, the first three with these byte lengths, the fourth with all
//!    bytes left. With `q = ceil(n / 4)`, the first stream holds the symbols `0..q`, the second `q..2q`,
//!    the third `2q..3q` and the fourth `3q..n`.
//! 6. In a bit stream, bit `i` is bit `i % 8` (0 the least significant) of byte `i / 8`. The codes of
//!    its symbols follow each other, each from its first bit (the most significant of the code read as a
//!    number) to its last. After the last code stands one bit 1, and then bits 0 up to the end of the
//!    byte. The stream must end with that byte.
//!
//! The 1 bit means that a bit stream fits no other number of symbols than its own: one symbol less
//! leaves a code before the mark, one more swallows the mark. Only a stream of a single distinct value
//! says nothing about its count.
//!
//! # What the encoder chooses
//!
//! The format allows any complete code; [`encode()`] writes the optimal one under the 11-bit limit
//! ([`code_lengths::length_limited`]) and takes the longest run that fits at every step of the table
//! (a run of 2 is written as two lengths), so equal symbols give equal bytes on every machine.

pub mod code_lengths;
mod decode;
mod encode;
mod table;
#[cfg(test)]
mod tests;

use crate::CodecError;

/// The longest code. Decoding tables have `2^11` entries: 4 KiB of them stay in the L1 cache.
const MAX_CODE_LEN: u8 = 11;

/// From this many symbols on there are four bit streams; below, 12 bytes of lengths cost over 1 %.
const MIN_SPLIT: usize = 1024;

/// How many symbols each bit stream but the last holds.
fn symbols_per_stream(n_symbols: usize) -> usize {
    if n_symbols < MIN_SPLIT { n_symbols } else { n_symbols.div_ceil(4) }
}

/// Appends the stream of `symbols` to `out`. No symbols give no bytes.
///
/// # Panics
///
/// If there are `2^32` symbols or more.
pub fn encode(symbols: &[u8], out: &mut Vec<u8>) {
    encode::encode(symbols, out);
}

/// Decodes `coded`, which must be exactly one stream of `symbols.len()` symbols.
///
/// # Errors
///
/// `Truncated` if a byte is missing at the end of `coded`, `Corrupt` for any other breach of the
/// format. `symbols` then holds unspecified values.
pub fn decode_into(coded: &[u8], symbols: &mut [u8]) -> Result<(), CodecError> {
    decode::decode_into(coded, symbols)
}

/// The most bytes [`encode()`] appends for symbols with these counts; at most 3 more than it does append.
///
/// Exact below 1024 symbols; above, the fill bits of the four streams depend on the symbols' order.
#[must_use]
pub fn coded_len(histogram: &[u32; 256]) -> usize {
    encode::coded_len(histogram)
}
