//! General compressors to measure beside ours: zstd, lz4 and brotli through their Rust crates.

use super::codec::Codec;
use super::measure::Contestant;
use std::io::{self, Read};

/// A compressor named on the command line, with its level if one was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rival {
    kind: Kind,
    level: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Zstd,
    Lz4,
    Brotli,
}

impl Rival {
    /// Reads `name` or `name:level`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level.parse().map_err(|_| format!("`{level}` is no level"))?)),
            None => (text, None),
        };
        let (kind, levels) = match name {
            "zstd" => (Kind::Zstd, 1..=22),
            "brotli" => (Kind::Brotli, 0..=11),
            "lz4" if level.is_none() => (Kind::Lz4, 0..=0),
            "lz4" => return Err("lz4 has no levels here".to_owned()),
            _ => return Err("expected `zstd`, `lz4` or `brotli`".to_owned()),
        };
        match level {
            Some(level) if !levels.contains(&level) => {
                Err(format!("{name} has levels {} to {}", levels.start(), levels.end()))
            }
            _ => Ok(Self { kind, level }),
        }
    }

    /// The compressors it stands for: zstd alone is its two fast levels.
    pub(crate) fn contestants(self) -> io::Result<Vec<Contestant>> {
        let levels = match (self.level, self.kind) {
            (Some(level), _) => vec![level],
            (None, Kind::Zstd) => vec![1, 3],
            (None, Kind::Brotli) => vec![5],
            (None, Kind::Lz4) => vec![0],
        };
        let contestant = |level: i32| -> io::Result<Contestant> {
            let (name, codec): (String, Box<dyn Codec>) = match self.kind {
                Kind::Zstd => (format!("zstd {level}"), Box::new(Zstd::new(level)?)),
                Kind::Lz4 => ("lz4".to_owned(), Box::new(Lz4)),
                Kind::Brotli => (format!("brotli {level}"), Box::new(Brotli { quality: level })),
            };
            Ok(Contestant::other(name, codec))
        };
        levels.into_iter().map(contestant).collect()
    }
}

/// zstd with its contexts kept, as a program that cares for speed uses it.
struct Zstd {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl Zstd {
    fn new(level: i32) -> io::Result<Self> {
        Ok(Self {
            compressor: zstd::bulk::Compressor::new(level)?,
            decompressor: zstd::bulk::Decompressor::new()?,
        })
    }
}

impl Codec for Zstd {
    fn bound(&self, _: usize, source_len: usize) -> usize {
        zstd::zstd_safe::compress_bound(source_len)
    }

    fn encode(&mut self, _: usize, source: &[u8], out: &mut [u8]) -> Result<usize, String> {
        self.compressor.compress_to_buffer(source, out).map_err(|error| error.to_string())
    }

    fn decode(&mut self, coded: &[u8], out: &mut [u8]) -> Result<(), String> {
        let expected = out.len();
        let len = self.decompressor.decompress_to_buffer(coded, out).map_err(|error| error.to_string())?;
        check_len(len, expected)
    }
}

struct Lz4;

impl Codec for Lz4 {
    fn bound(&self, _: usize, source_len: usize) -> usize {
        lz4_flex::block::get_maximum_output_size(source_len)
    }

    fn encode(&mut self, _: usize, source: &[u8], out: &mut [u8]) -> Result<usize, String> {
        lz4_flex::block::compress_into(source, out).map_err(|error| error.to_string())
    }

    fn decode(&mut self, coded: &[u8], out: &mut [u8]) -> Result<(), String> {
        let expected = out.len();
        check_len(lz4_flex::block::decompress_into(coded, out).map_err(|error| error.to_string())?, expected)
    }
}

struct Brotli {
    quality: i32,
}

impl Codec for Brotli {
    fn bound(&self, _: usize, source_len: usize) -> usize {
        // Blocks that do not shrink are stored, a few bytes for each.
        source_len + source_len / 1000 + 1024
    }

    fn encode(&mut self, _: usize, source: &[u8], out: &mut [u8]) -> Result<usize, String> {
        let parameters = brotli::enc::BrotliEncoderParams {
            quality: self.quality,
            lgwin: 24,
            size_hint: source.len(),
            ..Default::default()
        };
        let room = out.len();
        let mut left = out;
        brotli::BrotliCompress(&mut &source[..], &mut left, &parameters)
            .map_err(|error| error.to_string())?;
        Ok(room - left.len())
    }

    fn decode(&mut self, coded: &[u8], out: &mut [u8]) -> Result<(), String> {
        let mut reader = brotli::Decompressor::new(coded, 1 << 16);
        reader.read_exact(out).map_err(|error| error.to_string())
    }
}

fn check_len(len: usize, expected: usize) -> Result<(), String> {
    if len == expected { Ok(()) } else { Err(format!("expected {expected} bytes, found {len}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Budget, measure};
    use crate::input::{Input, Piece};
    use mithril::Dtype;

    #[test]
    fn every_rival_gives_its_input_back() {
        let data: Vec<u8> = (0..100_000u32).flat_map(|i| (i % 251).to_le_bytes()).collect();
        let piece = |name: &str, bytes| Piece { name: name.to_owned(), dtype: Dtype::U8, shape: None, bytes };
        let input = Input {
            pieces: vec![piece("most", 0..399_999), piece("one", 399_999..400_000), piece("none", 0..0)],
            data,
        };
        let mut contestants = Vec::new();
        for name in ["zstd", "zstd:9", "lz4", "brotli:2"] {
            contestants.extend(Rival::parse(name).unwrap().contestants().unwrap());
        }
        measure(&input, &mut contestants, Budget::Rounds(1)).unwrap();
        assert_eq!(
            contestants.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
            ["zstd 1", "zstd 3", "zstd 9", "lz4", "brotli 2"]
        );
        assert!(contestants.iter().all(|contestant| contestant.coded_len < 100_000));
    }

    #[test]
    fn unknown_names_and_levels_are_refused() {
        for text in ["gzip", "zstd:0", "zstd:x", "lz4:3", "brotli:12", ""] {
            assert!(Rival::parse(text).is_err(), "{text}");
        }
    }
}
