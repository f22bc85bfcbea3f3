//! Made-up data and hand-built frames that the tests, the fuzz corpus and its replay share.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "built from constants")]

use mithril::block::{
    FieldRecipe, MAX_OVERHEAD, Place, Recipe, Scratch, Shared, SymbolCoder, SymbolTables, encode_block,
};
use mithril::entropy::lz::Compressor;
use mithril::entropy::rans8::{Frequencies, Window};
use mithril::entropy::rans12;
use mithril::{Dtype, checksum};
use mithril_codec::Contexts;
use mithril_codec::transform::fields::Layout;
use mithril_format::frame::{BlockHeader, FrameHeader, Trailer};

/// A fixed stream of numbers (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    /// About normal with deviation one: the sum of twelve uniform numbers.
    pub(crate) fn gaussian(&mut self) -> f32 {
        (0..12).map(|_| self.below(1 << 16) as f32 / 65536.0).sum::<f32>() - 6.0
    }
}

/// Kinds of content that the round trips run over.
pub(crate) const PATTERNS: &[&str] =
    &["random", "weights", "constant", "few", "sparse", "repeats", "special", "narrow", "rows"];

/// `len` bytes of a pattern, as elements of a dtype where that matters.
pub(crate) fn pattern(name: &str, dtype: Dtype, len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    let unit_len = dtype.unit_len();
    let chosen: Vec<Vec<u8>> = (0..5).map(|_| random.bytes(unit_len)).collect();
    let repeated = random.bytes(300);
    let mut row_scale = 1.0;
    while bytes.len() < len {
        match name {
            "random" => bytes.push(random.byte()),
            "weights" => bytes.extend(float(dtype, random.gaussian() * 0.05)),
            "constant" => bytes.extend(&chosen[0]),
            "few" => bytes.extend(&chosen[random.below(5) as usize]),
            "sparse" if random.below(10) > 0 => bytes.resize(bytes.len() + unit_len, 0),
            "sparse" => bytes.extend(float(dtype, random.gaussian())),
            "repeats" => bytes.extend(&repeated[random.below(200) as usize..][..100]),
            "special" => bytes.extend(special(dtype, &mut random)),
            // Elements of a wide type that hold a narrow one: their low bits are zero.
            "narrow" => {
                let mut element = float(dtype, random.gaussian());
                let dead = element.len() / 2;
                element[..dead].fill(0);
                bytes.extend(element);
            }
            "rows" => {
                if (bytes.len() / unit_len).is_multiple_of(64) {
                    row_scale = [0.001, 0.02, 0.3, 4.0][random.below(4) as usize];
                }
                bytes.extend(float(dtype, random.gaussian() * row_scale));
            }
            other => panic!("no pattern {other}"),
        }
    }
    bytes.truncate(len);
    bytes
}

/// A number in a dtype, cut off rather than rounded; integers are scaled.
fn float(dtype: Dtype, value: f32) -> Vec<u8> {
    let bits = value.to_bits();
    match dtype {
        Dtype::F32 | Dtype::C64 => bits.to_le_bytes().to_vec(),
        Dtype::F64 => f64::from(value * 1.000_1).to_bits().to_le_bytes().to_vec(),
        Dtype::Bf16 => bits.to_le_bytes()[2..].to_vec(),
        Dtype::F16 => {
            let exponent = (i64::from(bits >> 23 & 255) - 112).clamp(0, 30).unsigned_abs();
            let half = u64::from(bits >> 31) << 15 | exponent << 10 | u64::from(bits >> 13 & 1023);
            half.to_le_bytes()[..2].to_vec()
        }
        Dtype::F8E4m3 | Dtype::F8E4m3Fnuz | Dtype::F8E5m2 | Dtype::F8E5m2Fnuz => {
            let exponent = (i64::from(bits >> 23 & 255) - 118).clamp(0, 15).unsigned_abs();
            let byte = u64::from(bits >> 31) << 7 | exponent << 3 | u64::from(bits >> 20 & 7);
            byte.to_le_bytes()[..1].to_vec()
        }
        _ => repeated((value * 300.0) as i64 as u64, dtype.unit_len()),
    }
}

/// Numbers that arithmetic would not keep: NaN payloads, both zeros, infinities, denormals, the largest.
fn special(dtype: Dtype, random: &mut Random) -> Vec<u8> {
    let payload = random.next();
    let choice = random.below(8) as usize;
    let sign = random.next() & 1;
    let with = |exponent_bits: u32, mantissa_bits: u32, len: usize| {
        let ones = (1u64 << exponent_bits) - 1;
        let mantissa = payload & ((1 << mantissa_bits) - 1);
        let (exponent, mantissa) = [
            (ones, 0),
            (ones, mantissa | 1),
            (0, 0),
            (0, mantissa),
            (0, 1),
            (ones - 1, (1 << mantissa_bits) - 1),
            (ones / 2, mantissa),
            (payload >> 40 & ones, mantissa),
        ][choice];
        let bits = sign << (exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa;
        bits.to_le_bytes()[..len].to_vec()
    };
    match dtype {
        Dtype::F64 => with(11, 52, 8),
        Dtype::F32 | Dtype::C64 => with(8, 23, 4),
        Dtype::Bf16 => with(8, 7, 2),
        Dtype::F16 => with(5, 10, 2),
        _ => repeated(payload, dtype.unit_len()),
    }
}

/// The low bytes of a number, or all of them again and again for quantised blocks.
fn repeated(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// A frame built by hand around one recipe, and what it holds.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) frame: Vec<u8>,
    pub(crate) raw: Vec<u8>,
}

/// How to build a sample.
pub(crate) struct Build {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Option<Vec<u64>>,
    pub(crate) recipe: Recipe,
    pub(crate) shared: Shared,
    pub(crate) block_len: usize,
    pub(crate) checksums: bool,
    pub(crate) known_len: bool,
}

impl Build {
    pub(crate) fn new(dtype: Dtype, recipe: Recipe) -> Self {
        let block_len = 1 << 18;
        Self {
            dtype,
            shape: None,
            recipe,
            shared: Shared::default(),
            block_len,
            checksums: true,
            known_len: true,
        }
    }

    pub(crate) fn frame(self, raw: &[u8]) -> Vec<u8> {
        let header = self.header(raw.len() as u64);
        let mut scratch = Scratch::new();
        let mut offset = 0;
        let blocks: Vec<(u32, u64, Vec<u8>)> = raw
            .chunks(self.block_len)
            .map(|block| {
                let mut coded = vec![0; block.len() + MAX_OVERHEAD];
                let place = Place { first_byte: offset, ..Place::default() };
                let len = encode_block(&self.recipe, &header.shared, place, block, &mut scratch, &mut coded);
                coded.truncate(len);
                offset += block.len() as u64;
                (u32::try_from(block.len()).unwrap(), checksum(block), coded)
            })
            .collect();
        frame_of(&header, &blocks)
    }

    fn header(&self, raw_len: u64) -> FrameHeader {
        FrameHeader {
            dtype: self.dtype,
            shape: self.shape.clone(),
            block_len: u32::try_from(self.block_len).unwrap(),
            raw_len: self.known_len.then_some(raw_len),
            checksums: self.checksums,
            shared: Shared::parse(&self.shared.to_bytes()).unwrap(),
            base: None,
        }
    }
}

/// A frame of blocks that are already coded: raw length, checksum, coded bytes.
pub(crate) fn frame_of(header: &FrameHeader, blocks: &[(u32, u64, Vec<u8>)]) -> Vec<u8> {
    let mut frame = Vec::new();
    header.write(&mut frame);
    let mut trailer = Trailer::default();
    for (raw_len, sum, coded) in blocks {
        let coded_len = u32::try_from(coded.len()).unwrap();
        let at = frame.len();
        frame.resize(at + BlockHeader::len(header.checksums), 0);
        BlockHeader { coded_len, raw_len: *raw_len, checksum: *sum }
            .write(header.checksums, &mut frame[at..]);
        frame.extend(coded);
        trailer.coded_lens.push(coded_len);
        trailer.raw_len += u64::from(*raw_len);
    }
    trailer.write(&mut frame);
    frame
}

/// A frame of one hand-made block of plain bytes, without a checksum of the raw bytes.
pub(crate) fn frame_of_block(raw_len: u32, coded: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        dtype: Dtype::Bytes,
        shape: None,
        block_len: raw_len.max(1),
        raw_len: Some(u64::from(raw_len)),
        checksums: false,
        shared: Shared::default(),
        base: None,
    };
    frame_of(&header, &[(raw_len, 0, coded.to_vec())])
}

/// The coded bytes of a one-block frame.
pub(crate) fn first_block(frame: &[u8]) -> &[u8] {
    let (header, at) = FrameHeader::parse(frame).unwrap();
    let block = BlockHeader::parse(&frame[at..], &header, at as u64).unwrap().unwrap();
    &frame[at + BlockHeader::len(header.checksums)..][..block.coded_len as usize]
}

/// Half floats whose sign is part of the coded field.
fn listed_fields() -> Recipe {
    let layout = Layout { width: 2, mantissa: 10, sign: false, flip: false };
    Recipe::Fields(FieldRecipe {
        layout,
        joint: 0,
        base: 0,
        coder: SymbolCoder::Rans8Listed,
        coded_low: false,
    })
}

/// Half floats of which few are negative.
fn mostly_positive(n: usize) -> Vec<u8> {
    let mut bytes = pattern("weights", Dtype::F16, 2 * n, 5);
    for (i, element) in bytes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        if i % 9 != 0 {
            element[1] &= 0x7f;
        }
    }
    bytes
}

fn fields(dtype: Dtype, joint: u8, base: u16, coder: SymbolCoder) -> Recipe {
    Recipe::Fields(FieldRecipe { layout: dtype.layout().unwrap(), joint, base, coder, coded_low: false })
}

fn planes(width: u8, compressors: &[Compressor]) -> Recipe {
    Recipe::Planes { width, compressors: compressors.to_vec() }
}

/// One symbol in ten is not the first of `n`.
fn skewed(n: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    let mut symbol = || if random.below(10) == 0 { random.below(n) } else { 0 };
    (0..len).map(|_| u8::try_from(symbol()).unwrap()).collect()
}

/// Classes of rows and columns, and data whose size depends on both. Some rows have dead low bits.
fn classed(dtype: Dtype, n_column_classes: usize, dead_rows: bool) -> (Vec<u8>, Contexts) {
    let (n_rows, row_len) = (48, 40);
    let row_class = |row: usize| row % 3;
    let column_class = |column: usize| column * column % 11 % n_column_classes;
    let mut random = Random::new(11);
    let mut raw = Vec::new();
    for row in 0..n_rows {
        for column in 0..row_len {
            let scale = [0.01, 0.2, 3.0][row_class(row)] * [1.0, 0.1, 0.3, 0.02][column_class(column) % 4];
            let mut value = random.gaussian() * scale;
            // Signs lean to one side, more in some columns.
            if random.below(4) < 2 + column_class(column) as u64 % 2 {
                value = value.abs();
            }
            let mut element = float(dtype, value);
            if dead_rows && row % 5 == 2 {
                let dead = element.len() / 2;
                element[..dead].fill(0);
            }
            raw.extend(element);
        }
    }
    let class = |class: usize| u8::try_from(class).unwrap();
    let rows = (0..n_rows).map(|row| class(row_class(row))).collect();
    let columns = (0..row_len).map(|column| class(column_class(column))).collect();
    (raw, Contexts::new(rows, columns))
}

fn shared_tables(dtype: Dtype, raw: &[u8], contexts: &Contexts, tables: Tables, signs: bool) -> Shared {
    let width = dtype.unit_len();
    let mantissa = u32::from(dtype.layout().unwrap().mantissa);
    let mut counts = vec![[0u32; 256]; contexts.n_contexts()];
    for (at, element) in raw.chunks_exact(width).enumerate() {
        let mut word = [0; 8];
        word[..width].copy_from_slice(element);
        let exponent = u64::from_le_bytes(word) >> mantissa & 255;
        let context = contexts.context(at / contexts.row_len(), at % contexts.row_len());
        counts[context][exponent as usize] += 1;
    }
    let tables = match tables {
        Tables::PerBlock => SymbolTables::Rans8PerBlock,
        Tables::Rans8 => {
            let window = |counts: &[u32; 256]| {
                let last = counts.iter().rposition(|&n| n > 0).unwrap();
                let first = last.saturating_sub(15);
                let mut sixteen = [0; 16];
                sixteen[..=last - first].copy_from_slice(&counts[first..=last]);
                Window::from_counts(u8::try_from(first).unwrap(), sixteen)
            };
            SymbolTables::Rans8(counts.iter().map(window).collect())
        }
        // One of everything: groups may hold symbols of the next context.
        Tables::Rans12 => SymbolTables::rans12(
            counts
                .iter()
                .map(|c| rans12::FrequencyTable::from_counts(&c.map(|n| 20 * n + 1)).unwrap())
                .collect(),
        ),
    };
    let quads = vec![
        Frequencies::from_counts(&[9, 4, 4, 2, 4, 2, 2, 1, 4, 2, 2, 1, 2, 1, 1, 1]);
        contexts.n_contexts()
    ];
    Shared::new(Some((contexts.clone(), tables)), signs.then(|| (contexts.clone(), quads)))
}

/// What the blocks of a sample share besides classes.
#[derive(Clone, Copy, PartialEq)]
enum Tables {
    Rans8,
    PerBlock,
    Rans12,
}

fn shared_sample(name: &'static str, dtype: Dtype, tables: Tables, signs: bool, rows: bool) -> Sample {
    // Two, four and eight classes of columns: kernels differ.
    let n_column_classes = [2, 8, 4][tables as usize];
    let (raw, contexts) = classed(dtype, n_column_classes, rows);
    let coder = if tables == Tables::Rans12 { SymbolCoder::Rans12 } else { SymbolCoder::Rans8 };
    let recipe = FieldRecipe { layout: dtype.layout().unwrap(), joint: 0, base: 0, coder, coded_low: false };
    let recipe = if rows { Recipe::Rows(recipe) } else { Recipe::Fields(recipe) };
    let shared = shared_tables(dtype, &raw, &contexts, tables, signs);
    let shape = Some(vec![48, 40]);
    // Blocks hold whole rows; several of them show that the place of a block matters.
    let block_len = 24 * 40 * dtype.unit_len();
    let build = Build { shared, shape, block_len, ..Build::new(dtype, recipe) };
    Sample { name, frame: build.frame(&raw), raw }
}

/// A small frame of every kind of block and every coder.
pub(crate) fn every_kind() -> Vec<Sample> {
    use Dtype::{Bf16, Bytes, F8E4m3, F16, F32, F64, I8, I32};
    use SymbolCoder::{Rans8, Rans12};
    let zstd = [Compressor::Zstd { level: 3 }];
    let brotli = [Compressor::Brotli { quality: 5 }];
    let sample = |name: &'static str, dtype: Dtype, recipe: Recipe, raw: Vec<u8>| {
        let frame = Build::new(dtype, recipe).frame(&raw);
        Sample { name, frame, raw }
    };
    let random = |len: usize| Random::new(3).bytes(len);
    let weights = |dtype: Dtype, n: usize| pattern("weights", dtype, n * dtype.unit_len(), 5);
    // All exponents alike, the rest random.
    let one_exponent: Vec<u8> =
        random(600).chunks_exact(2).flat_map(|m| (u16::from(m[0] & 0x7f) | 0x3c00).to_le_bytes()).collect();
    let palette =
        |otherwise: Recipe| Recipe::Palette { width: 4, compressors: vec![], otherwise: Box::new(otherwise) };
    let sparse = |dtype: Dtype| Recipe::Sparse { width: 4, nonzero: Box::new(fields(dtype, 0, 0, Rans8)) };
    let mut samples = vec![
        sample("empty", Bytes, Recipe::Stored, vec![]),
        sample("one_byte", Bytes, Recipe::Stored, vec![200]),
        sample("stored", Bytes, Recipe::Stored, random(150)),
        sample("constant_1", Bytes, Recipe::Stored, vec![7; 1000]),
        sample("constant_2", Bf16, Recipe::Stored, [1, 2].repeat(500)),
        sample("constant_4", F32, Recipe::Stored, [1, 2, 3, 4].repeat(250)),
        sample(
            "constant_8",
            F64,
            Recipe::Stored,
            [[1, 2, 3, 4, 5, 6, 7, 8].repeat(100), vec![1, 2, 3]].concat(),
        ),
        sample("fields_rans8", Bf16, fields(Bf16, 0, 0, Rans8), weights(Bf16, 700)),
        sample("fields_rans12", Bf16, fields(Bf16, 0, 0, Rans12), weights(Bf16, 1500)),
        sample("fields_constant", Bf16, fields(Bf16, 0, 0, Rans8), one_exponent),
        sample("fields_joint", F16, fields(F16, 3, 0, Rans12), weights(F16, 1500)),
        sample("fields_base", F64, fields(F64, 0, 900, Rans8), weights(F64, 400)),
        sample(
            "fields_escapes",
            F32,
            fields(F32, 0, 0, Rans8),
            [weights(F32, 600), pattern("special", F32, 120, 9)].concat(),
        ),
        sample("fields_overflow", F64, fields(F64, 0, 0, Rans12), weights(F64, 700)),
        sample("fields_dead_bits", F32, fields(F32, 0, 0, Rans8), pattern("narrow", F32, 1600, 4)),
        sample("fields_listed", F16, listed_fields(), mostly_positive(1200)),
        sample("fields_tail", F32, fields(F32, 0, 0, Rans8), [weights(F32, 500), vec![1, 2, 3]].concat()),
        sample("fields_byte", F8E4m3, fields(F8E4m3, 0, 0, Rans8), weights(F8E4m3, 1000)),
        sample("fields_integer", I8, fields(I8, 0, 0, Rans8), skewed(40, 1000)),
        sample(
            "planes_stored",
            I32,
            planes(4, &[]),
            skewed(3, 300).into_iter().flat_map(|b| [b, b ^ 0xa5, 0, 0]).collect(),
        ),
        sample("planes_rans8", Bytes, planes(1, &[]), skewed(5, 1200)),
        sample("planes_huffman", Bytes, planes(1, &[]), skewed(200, 900)),
        sample(
            "planes_huffman_4",
            Bytes,
            planes(1, &[]),
            random(1500).into_iter().map(|b| (b & 0x91) ^ (b >> 5)).collect(),
        ),
        sample("planes_rans12", Bytes, planes(1, &[]), skewed(60, 9000)),
        sample("planes_zstd", Bytes, planes(1, &zstd), pattern("repeats", Bytes, 1500, 2)),
        sample("planes_lz4", Bytes, planes(1, &[Compressor::Lz4]), pattern("repeats", Bytes, 1500, 2)),
        sample("planes_brotli", Bytes, planes(1, &brotli), pattern("repeats", Bytes, 1500, 2)),
        sample("planes_nibbles", Bytes, planes(0, &[]), skewed(9, 900)),
        sample("planes_tail", Dtype::U16, planes(2, &zstd), [skewed(9, 800), vec![9]].concat()),
        sample("palette", F32, palette(Recipe::Stored), pattern("few", F32, 1200, 6)),
        sample("sparse", F32, sparse(F32), pattern("sparse", F32, 3000, 8)),
        shared_sample("shared_rans8", Bf16, Tables::Rans8, false, false),
        shared_sample("shared_per_block", Bf16, Tables::PerBlock, false, false),
        shared_sample("shared_rans12", Bf16, Tables::Rans12, false, false),
        shared_sample("shared_signs", Bf16, Tables::Rans8, true, false),
        shared_sample("rows_rans8", F32, Tables::Rans8, false, true),
        shared_sample("rows_signs", F32, Tables::Rans12, true, true),
    ];
    // Several blocks, the length not known in advance, as a stream is written.
    let raw = pattern("weights", Bf16, 2500, 1);
    let build = Build { block_len: 1000, known_len: false, ..Build::new(Bf16, fields(Bf16, 0, 0, Rans8)) };
    samples.push(Sample { name: "several_blocks", frame: build.frame(&raw), raw });
    samples
}

/// A frame whose blocks take the fused kernels: long enough for four streams in packed order.
pub(crate) fn packed() -> Sample {
    let raw = pattern("weights", Dtype::Bf16, 2 * 16384, 12);
    let recipe = fields(Dtype::Bf16, 0, 0, SymbolCoder::Rans8);
    Sample { name: "fields_packed", frame: Build::new(Dtype::Bf16, recipe).frame(&raw), raw }
}

/// The header of a frame changed and its checksum made right again.
pub(crate) fn with_header(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let (_, len) = FrameHeader::parse(frame).unwrap();
    let mut changed = frame.to_vec();
    change(&mut changed[..len - 8]);
    let sum = checksum(&changed[..len - 8]);
    changed[len - 8..len].copy_from_slice(&sum.to_le_bytes());
    changed
}

/// The trailer of a frame changed (coded lengths, raw length, number of blocks) and its checksum made right again.
pub(crate) fn with_trailer(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let (trailer, marker) = Trailer::parse_at_end(frame).unwrap();
    let (start, end) = (marker + 4, marker + 4 + 4 * trailer.coded_lens.len() + 12);
    let mut changed = frame.to_vec();
    change(&mut changed[start..end]);
    let sum = checksum(&changed[start..end]);
    changed[end..end + 8].copy_from_slice(&sum.to_le_bytes());
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, kind of the first block, and a byte of it with its place.
    type Meant = (&'static str, u8, Option<(usize, u8)>);

    /// What the samples are meant to hold.
    const MEANT: &[Meant] = &[
        ("stored", 0, None),
        ("constant_1", 1, None),
        ("constant_8", 1, None),
        ("fields_rans8", 2, None),
        ("fields_rans12", 2, None),
        ("fields_constant", 2, None),
        ("fields_joint", 2, None),
        ("fields_base", 2, None),
        ("fields_escapes", 2, None),
        ("fields_overflow", 2, None),
        ("fields_dead_bits", 2, None),
        ("fields_tail", 2, None),
        ("fields_byte", 2, None),
        ("fields_integer", 2, None),
        ("fields_packed", 2, None),
        ("planes_stored", 3, None),
        ("planes_rans8", 3, Some((2, 2))),
        ("planes_huffman", 3, Some((2, 3))),
        ("planes_huffman_4", 3, Some((2, 3))),
        ("planes_rans12", 3, Some((2, 4))),
        ("planes_zstd", 3, Some((2, 5))),
        ("planes_lz4", 3, Some((2, 6))),
        ("planes_brotli", 3, Some((2, 7))),
        ("planes_nibbles", 3, Some((1, 0))),
        ("planes_tail", 3, None),
        ("palette", 4, None),
        ("sparse", 5, None),
        ("shared_rans8", 2, None),
        ("shared_per_block", 2, None),
        ("shared_rans12", 2, None),
        ("shared_signs", 2, None),
        ("rows_rans8", 6, None),
        ("rows_signs", 6, None),
    ];

    #[test]
    fn samples_hold_the_kinds_that_they_are_named_for() {
        let mut samples = every_kind();
        samples.push(packed());
        for (name, kind, byte) in MEANT {
            let sample = samples.iter().find(|sample| sample.name == *name).unwrap();
            let block = first_block(&sample.frame);
            assert_eq!(block[0], *kind, "{name}");
            if let Some((at, expected)) = byte {
                assert_eq!(block[*at], *expected, "{name}");
            }
        }
        let packed = samples.last().unwrap();
        assert_eq!(first_block(&packed.frame)[1] >> 4 & 1, 1, "packed order");
    }

    #[test]
    fn samples_decode_to_what_they_were_built_from() {
        for sample in every_kind().into_iter().chain([packed()]) {
            assert_eq!(mithril::decompress(&sample.frame).unwrap(), sample.raw, "{}", sample.name);
        }
    }
}
