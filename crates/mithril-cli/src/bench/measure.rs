//! The measuring itself: every codec and memcpy over the same pieces, in turns, each result checked.

use super::codec::{Codec, Frames};
use crate::clock::{Elapsed, time};
use crate::input::{Input, Piece};
use mithril::Effort;

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// After so many seconds for each codec, but not before one round.
    Seconds(f64),
    /// After so many rounds.
    Rounds(u32),
}

/// One codec, and the best it has done so far.
pub(crate) struct Contestant {
    /// What its row is called.
    pub(crate) name: String,
    /// Whether its blocks carry checksums, if that is a question.
    pub(crate) checksums: Option<bool>,
    /// Threads that it runs on.
    pub(crate) threads: usize,
    codec: Box<dyn Codec>,
    /// Compressed bytes of all pieces.
    pub(crate) coded_len: usize,
    /// Best time to compress all pieces.
    pub(crate) encode: Elapsed,
    /// Best time to restore all pieces.
    pub(crate) decode: Elapsed,
    /// Rounds it took part in.
    pub(crate) n_rounds: u32,
    spent_seconds: f64,
}

impl Contestant {
    /// Our frames of these pieces.
    pub(crate) fn frames(pieces: &[Piece], effort: Effort, threads: usize, checksums: bool) -> Self {
        let codec = Box::new(Frames::new(pieces, effort, threads, checksums));
        let contestant = Self::other(format!("mithril {}", effort.name()), codec);
        Self { checksums: Some(checksums), threads, ..contestant }
    }

    /// Another codec, on one thread.
    pub(crate) fn other(name: String, codec: Box<dyn Codec>) -> Self {
        let (encode, decode) = (Elapsed::FOREVER, Elapsed::FOREVER);
        Self {
            name,
            checksums: None,
            threads: 1,
            codec,
            coded_len: 0,
            encode,
            decode,
            n_rounds: 0,
            spent_seconds: 0.0,
        }
    }

    fn is_done(&self, budget: Budget) -> bool {
        match budget {
            Budget::Seconds(seconds) => self.n_rounds > 0 && self.spent_seconds >= seconds,
            Budget::Rounds(n_rounds) => self.n_rounds >= n_rounds,
        }
    }

    fn coded_bound(&self, pieces: &[Piece]) -> usize {
        pieces
            .iter()
            .enumerate()
            .map(|(piece_idx, piece)| self.codec.bound(piece_idx, piece.bytes.len()))
            .sum()
    }

    /// Compresses, restores and compares all pieces once.
    fn run(&mut self, input: &Input, buffers: &mut Buffers) -> Result<(), String> {
        let Buffers { coded, coded_ends, restored } = buffers;
        let (result, encode) = time(|| encode_all(&mut *self.codec, input, coded, coded_ends));
        result?;
        // What an earlier run left must not pass for this one's result.
        restored.fill(0xa5);
        let (result, decode) =
            time(|| decode_all(&mut *self.codec, &input.pieces, coded, coded_ends, restored));
        result?;
        for piece in &input.pieces {
            if restored[piece.bytes.clone()] != input.data[piece.bytes.clone()] {
                return Err(describe(piece, "came back with other bits"));
            }
        }
        self.coded_len = coded_ends.last().copied().unwrap_or(0);
        self.encode = self.encode.min(encode);
        self.decode = self.decode.min(decode);
        self.n_rounds += 1;
        self.spent_seconds += encode.wall + decode.wall;
        Ok(())
    }
}

/// Buffers of one file, whose pages are in use before the first round: fresh ones would be charged to the codecs.
struct Buffers {
    coded: Vec<u8>,
    coded_ends: Vec<usize>,
    restored: Vec<u8>,
}

/// Runs all contestants in turns until the budget is spent; returns the best time of memcpy. Stops at the first
/// contestant whose result is not exact, and says which and where.
pub(crate) fn measure(
    input: &Input,
    contestants: &mut [Contestant],
    budget: Budget,
) -> Result<Elapsed, String> {
    let bound = contestants.iter().map(|contestant| contestant.coded_bound(&input.pieces)).max().unwrap_or(0);
    let mut buffers =
        Buffers { coded: vec![1; bound], coded_ends: Vec::new(), restored: vec![1; input.data.len()] };
    let mut memcpy = Elapsed::FOREVER;
    while contestants.iter().any(|contestant| !contestant.is_done(budget)) {
        let ((), elapsed) = time(|| {
            for piece in &input.pieces {
                buffers.restored[piece.bytes.clone()].copy_from_slice(&input.data[piece.bytes.clone()]);
            }
        });
        memcpy = memcpy.min(elapsed);
        for contestant in &mut *contestants {
            if !contestant.is_done(budget) {
                contestant.run(input, &mut buffers).map_err(|what| format!("{}: {what}", contestant.name))?;
            }
        }
    }
    Ok(memcpy)
}

fn encode_all(
    codec: &mut dyn Codec,
    input: &Input,
    coded: &mut [u8],
    ends: &mut Vec<usize>,
) -> Result<(), String> {
    ends.clear();
    let mut at = 0;
    for (piece_idx, piece) in input.pieces.iter().enumerate() {
        let source = &input.data[piece.bytes.clone()];
        at += codec.encode(piece_idx, source, &mut coded[at..]).map_err(|error| describe(piece, &error))?;
        ends.push(at);
    }
    Ok(())
}

fn decode_all(
    codec: &mut dyn Codec,
    pieces: &[Piece],
    coded: &[u8],
    ends: &[usize],
    restored: &mut [u8],
) -> Result<(), String> {
    let mut start = 0;
    for (piece, &end) in pieces.iter().zip(ends) {
        let out = &mut restored[piece.bytes.clone()];
        codec.decode(&coded[start..end], out).map_err(|error| describe(piece, &error))?;
        start = end;
    }
    Ok(())
}

fn describe(piece: &Piece, what: &str) -> String {
    match piece.name.as_str() {
        "" => what.to_owned(),
        name => format!("tensor `{name}` {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mithril::Dtype;

    /// Loses the last bit of every piece.
    struct Lossy;

    impl Codec for Lossy {
        fn bound(&self, _: usize, source_len: usize) -> usize {
            source_len
        }

        fn encode(&mut self, _: usize, source: &[u8], out: &mut [u8]) -> Result<usize, String> {
            out[..source.len()].copy_from_slice(source);
            out[source.len() - 1] ^= 1;
            Ok(source.len())
        }

        fn decode(&mut self, coded: &[u8], out: &mut [u8]) -> Result<(), String> {
            out.copy_from_slice(coded);
            Ok(())
        }
    }

    #[test]
    fn a_single_wrong_bit_is_found_and_its_tensor_named() {
        let piece = Piece { name: "w".to_owned(), dtype: Dtype::U8, shape: None, bytes: 2..9 };
        let input = Input { data: vec![7; 10], pieces: vec![piece] };
        let mut contestants = [Contestant::other("lossy".to_owned(), Box::new(Lossy))];
        let what = measure(&input, &mut contestants, Budget::Rounds(1)).unwrap_err();
        assert_eq!(what, "lossy: tensor `w` came back with other bits");
    }
}
