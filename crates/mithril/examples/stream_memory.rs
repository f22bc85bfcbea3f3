//! Streams made-up bf16 weights through `Encoder` and `Decoder` at once and prints the peak memory of the process.
//!
//! ```text
//! cargo run --release -p mithril --example stream_memory -- [GiB, default 4] [threads, default 8] [effort] [dtype]
//! ```
//! The weights are made on the fly, the frame goes through a pipe and the decoder's output is compared with the same
//! weights made again, so nothing of the size of the data is ever held. The peak (`VmHWM`) covers both directions
//! and the program itself. Linux only.

use mithril::{DecodeOptions, Decoder, Dtype, Effort, Encoder, Error, FrameOptions};
use std::error::Error as StdError;
use std::io::{self, Read, Write};

/// Bytes made and compared at a time.
const PIECE_LEN: usize = 1 << 16;

fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &'static str| arguments.get(at).map_or(default, String::as_str);
    let total = argument(0, "4").parse::<u64>()? << 30;
    let threads: usize = argument(1, "8").parse()?;
    let effort = Effort::from_name(argument(2, "fast")).ok_or("effort is fast, balanced or max")?;
    let dtype = Dtype::from_name(argument(3, "bf16")).ok_or("unknown dtype")?;
    let options = FrameOptions::default().with_dtype(dtype).with_threads(threads).with_effort(effort);

    let (reader, writer) = io::pipe()?;
    let encoding = std::thread::spawn(move || -> Result<u64, Error> {
        let mut encoder = Encoder::new(Counting { writer, len: 0 }, &options)?;
        let mut weights = Weights::new();
        let mut piece = vec![0; PIECE_LEN];
        for _ in 0..total / PIECE_LEN as u64 {
            weights.fill(&mut piece);
            encoder.write_all(&piece).map_err(|source| Error::io("encoding", source))?;
        }
        Ok(encoder.finish()?.len)
    });
    let mut decoder = Decoder::with_options(reader, &DecodeOptions::default().with_threads(threads))?;
    let mut weights = Weights::new();
    let (mut piece, mut expected) = (vec![0; PIECE_LEN], vec![0; PIECE_LEN]);
    for _ in 0..total / PIECE_LEN as u64 {
        decoder.read_exact(&mut piece)?;
        weights.fill(&mut expected);
        if piece != expected {
            return Err("decoded bytes differ".into());
        }
    }
    if decoder.read(&mut piece)? != 0 {
        return Err("more bytes decoded than encoded".into());
    }
    let frame_len = encoding.join().map_err(|_| "encoding panicked")??;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    println!("{total} bytes of {} to {frame_len} ({}, {threads} threads)", dtype.name(), effort.name());
    println!("peak memory of encoder, decoder and this program: {}", peak.trim());
    Ok(())
}

/// Weights whose exponents look like those of a trained layer, each made from the one before.
struct Weights {
    state: u64,
}

impl Weights {
    fn new() -> Self {
        Self { state: 0x9E37_79B9_7F4A_7C15 }
    }

    fn fill(&mut self, piece: &mut [u8]) {
        for weight in piece.as_chunks_mut::<2>().0 {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let [mantissa, sign, exponent, ..] = self.state.to_le_bytes();
            // Half of the weights have the largest exponent, a quarter the next, and so on.
            let exponent = 122 - exponent.trailing_ones().min(7) as u16;
            let bits = u16::from(sign & 1) << 15 | exponent << 7 | u16::from(mantissa >> 1);
            *weight = bits.to_le_bytes();
        }
    }
}

/// Counts what passes.
struct Counting<W> {
    writer: W,
    len: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.writer.write(bytes)?;
        self.len += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
