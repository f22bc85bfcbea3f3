//! The raw bytes of the golden frames, rebuilt by integer arithmetic alone.
//!
//! None of these functions may ever change: the files under `golden/` hold what they returned when the files were
//! minted. New data is a new function under a new name.

/// A fixed generator: the same numbers on every machine, for ever.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 31 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// 0 half of the time, 1 a quarter of the time, and so on up to `most`: how far exponents of weights lie below the
    /// largest.
    pub(crate) fn halving(&mut self, most: u64) -> u64 {
        u64::from((self.next() | 1 << most).trailing_zeros())
    }
}

/// Elements of `width` bytes from numbers.
fn elements(width: usize, values: impl Iterator<Item = u64>) -> Vec<u8> {
    values.flat_map(|value| value.to_le_bytes().into_iter().take(width)).collect()
}

/// Floats like weights: random sign and mantissa, exponents that thin out downwards from `largest`.
fn weights(n: usize, width: usize, mantissa: u32, largest: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    elements(width, (0..n).map(|_| weight(&mut random, width, mantissa, largest)))
}

fn weight(random: &mut Random, width: usize, mantissa: u32, largest: u64) -> u64 {
    let sign = random.below(2) << (8 * width - 1);
    let exponent = largest - random.halving(12);
    let fraction = (random.next() << 31 ^ random.next()) & ((1 << mantissa) - 1);
    sign | exponent << mantissa | fraction
}

/// Overwrites elements with others, spread evenly.
fn with_specials(mut bytes: Vec<u8>, width: usize, specials: &[u64]) -> Vec<u8> {
    let n = bytes.len() / width;
    for (i, special) in specials.iter().enumerate() {
        let at = (n / specials.len() * i + 5) * width;
        bytes[at..at + width].copy_from_slice(&special.to_le_bytes()[..width]);
    }
    bytes
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    elements(1, (0..len).map(|_| random.next()))
}

/// Words from a small vocabulary: text that repeats.
fn words(n: usize, seed: u64) -> Vec<u8> {
    const VOCABULARY: [&str; 8] = ["weights", "bias", "norm", "attention", "layer", "query", "key", "value"];
    let mut random = Random::new(seed);
    let mut text = Vec::new();
    for (_, word) in (0..n).zip(std::iter::repeat_with(|| random.below(8))) {
        let word = usize::try_from(word).unwrap_or(0);
        text.extend(VOCABULARY[word].bytes());
        text.push(b'.');
    }
    text
}

fn bytes_empty() -> Vec<u8> {
    Vec::new()
}

fn f32_empty_shape() -> Vec<u8> {
    Vec::new()
}

fn f32_scalar() -> Vec<u8> {
    0x4049_0fdb_u32.to_le_bytes().to_vec()
}

fn bytes_stored() -> Vec<u8> {
    noise(777, 1)
}

fn bytes_constant() -> Vec<u8> {
    [0x00, 0x00, 0xc0, 0x3f].into_iter().cycle().take(1002).collect()
}

fn bf16_symbols_constant() -> Vec<u8> {
    let mut random = Random::new(2);
    elements(2, (0..500).map(|_| random.below(2) << 15 | 127 << 7 | random.below(128)))
}

fn bf16_rans8_one_stream() -> Vec<u8> {
    let mut bytes = weights(1500, 2, 7, 124, 3);
    bytes.push(0xa5);
    bytes
}

fn bf16_rans8_four_streams() -> Vec<u8> {
    let specials = [0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffff, 0x0001, 0x807f];
    with_specials(weights(16416, 2, 7, 124, 4), 2, &specials)
}

fn f16_rans8_four_streams() -> Vec<u8> {
    let specials = [0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0xffff, 0x0001, 0x83ff];
    with_specials(weights(16384, 2, 10, 15, 5), 2, &specials)
}

/// Half floats of which one in eight is negative, the small ones more often, with two that are not listed.
fn f16_listed_four_streams() -> Vec<u8> {
    let mut random = Random::new(90);
    let values = (0..16384 + 64).map(|_| {
        let below = random.halving(9);
        let sign = u64::from(random.below(12) < below);
        sign << 15 | (15 - below) << 10 | random.below(1024)
    });
    let bytes = elements(2, values.collect::<Vec<_>>().into_iter());
    with_specials(bytes, 2, &[0x7c00, 0xfe01, 0x8000, 0x0000])
}

/// The same, too few for four streams and for whole vectors, and one byte behind them.
fn f16_listed_one_stream() -> Vec<u8> {
    let mut bytes = f16_listed_four_streams();
    bytes.truncate(2 * 1777 + 1);
    bytes
}

fn f16_joint_dead() -> Vec<u8> {
    let mut bytes = weights(1000, 2, 10, 15, 38);
    bytes.iter_mut().step_by(2).for_each(|low| *low &= 0xfe);
    bytes
}

fn f32_rans8_four_streams() -> Vec<u8> {
    let specials = [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0xffff_ffff, 1, 0x807f_ffff];
    with_specials(weights(16384, 4, 23, 124, 6), 4, &specials)
}

fn f32_dead_bits() -> Vec<u8> {
    let mut bytes = weights(16384, 4, 23, 124, 7);
    for element in bytes.chunks_exact_mut(4) {
        element[0] = 0;
        element[1] &= 0xe0;
    }
    bytes
}

fn f64_two_byte_escapes() -> Vec<u8> {
    let specials =
        [0, 1 << 63, 0x7ff << 52, 0xfff << 52, 0x7ff8_0000_0000_0001, u64::MAX, 1, 0x4341_c379_37e0_8000];
    with_specials(weights(700, 8, 52, 1020, 8), 8, &specials)
}

fn c64_pairs() -> Vec<u8> {
    weights(900, 4, 23, 120, 9)
}

fn c64_shared_rans8() -> Vec<u8> {
    classed(40, 100, 4, 23, 34)
}

fn f8_e4m3_four_streams() -> Vec<u8> {
    weights(16384, 1, 3, 12, 10)
}

fn f8_e5m2_one_stream() -> Vec<u8> {
    weights(2000, 1, 2, 20, 11)
}

fn f8_e8m0_two_segments() -> Vec<u8> {
    let mut bytes = vec![121; 70_000];
    for (i, at) in [3, 40_000, 65_535, 65_536, 69_999].into_iter().enumerate() {
        bytes[at] = if i % 2 == 0 { 0 } else { 255 };
    }
    bytes
}

fn i8_flip_four_streams() -> Vec<u8> {
    let mut random = Random::new(12);
    elements(1, (0..16384).map(|_| ((0..6).map(|_| random.below(32)).sum::<u64>() + 163) & 255))
}

fn u8_one_stream() -> Vec<u8> {
    let mut random = Random::new(13);
    elements(1, (0..3000).map(|_| (0..6).map(|_| random.below(24)).sum::<u64>() + 50))
}

fn bf16_rans12_joint() -> Vec<u8> {
    let specials = [0x0000, 0x8000, 0x7f80, 0xff80];
    with_specials(weights(4001, 2, 7, 124, 14), 2, &specials)
}

/// A matrix whose exponents depend on row and column: what classes are for.
fn classed(n_rows: u64, n_columns: u64, width: usize, mantissa: u32, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let places = (0..n_rows).flat_map(|row| (0..n_columns).map(move |column| (row, column)));
    elements(
        width,
        places.map(|(row, column)| {
            weight(&mut random, width, mantissa, 124 - 3 * row_class(row) - 2 * column_class(column))
        }),
    )
}

/// The class that a golden frame gives a row; what makes the rows differ, too.
pub(crate) fn row_class(row: u64) -> u64 {
    row * 7 % 11 % 4
}

/// The class that a golden frame gives a column.
pub(crate) fn column_class(column: u64) -> u64 {
    column * 5 % 7 % 3
}

fn bf16_shared_rans8() -> Vec<u8> {
    with_specials(classed(96, 64, 2, 7, 15), 2, &[0x0000, 0x7f80, 0xffff])
}

fn bf16_shared_rans12_joint() -> Vec<u8> {
    with_specials(classed(128, 100, 2, 7, 16), 2, &[0x0000, 0x7f80, 0xffff])
}

fn bf16_classed_rans8() -> Vec<u8> {
    with_specials(classed(120, 70, 2, 7, 35), 2, &[0x0000, 0x7f80, 0xffff])
}

fn bf16_classed_four_columns() -> Vec<u8> {
    weights(40 * 61, 2, 7, 124, 36)
}

fn bf16_classed_eight_columns() -> Vec<u8> {
    weights(20 * 260, 2, 7, 124, 37)
}

fn bf16_shared_coded_signs() -> Vec<u8> {
    let mut bytes = classed(90, 75, 2, 7, 17);
    let mut random = Random::new(18);
    for (i, element) in (0u64..).zip(bytes.chunks_exact_mut(2)) {
        let negative = random.below(8) < row_class(i / 75) * 2;
        element[1] = element[1] & 0x7f | if negative { 0x80 } else { 0 };
    }
    bytes
}

fn f16_signs_only() -> Vec<u8> {
    let mut random = Random::new(19);
    elements(
        2,
        (0..4000u64).map(|i| {
            let negative = u64::from(random.below(16) < 1 + 13 * (row_class(i / 100) % 2));
            weight(&mut random, 2, 10, 15) & 0x7fff | negative << 15
        }),
    )
}

fn f32_rows() -> Vec<u8> {
    let mut bytes = classed(48, 80, 4, 23, 20);
    for (row, bytes) in bytes.chunks_exact_mut(4 * 80).enumerate() {
        if row % 3 == 1 {
            bytes.chunks_exact_mut(4).for_each(|element| element[..2].fill(0));
        }
    }
    bytes
}

/// Low bits that a few steps of weight decay have left in all elements alike.
fn decayed(bytes: &mut [u8]) {
    for (i, element) in (0usize..).zip(bytes.chunks_exact_mut(4)) {
        let low: u16 = [0x1c1a, 0x1b3e, 0x1ab3][i * i % 7 % 3];
        let kept = u16::from_le_bytes([element[0], element[1]]) & 0xe000;
        element[..2].copy_from_slice(&(kept | low).to_le_bytes());
    }
}

fn f32_coded_low() -> Vec<u8> {
    let mut bytes = with_specials(weights(16_416, 4, 23, 122, 41), 4, &[0x0000_0000, 0x7f80_0000]);
    decayed(&mut bytes);
    bytes.extend([1, 2, 3]);
    bytes
}

fn f32_rows_coded_low() -> Vec<u8> {
    let mut bytes = classed(48, 80, 4, 23, 42);
    bytes.chunks_exact_mut(4 * 80).skip(1).step_by(3).for_each(decayed);
    bytes
}

fn bf16_no_length_no_checksums() -> Vec<u8> {
    weights(3000, 2, 7, 124, 21)
}

fn i32_planes_zstd() -> Vec<u8> {
    let mut random = Random::new(22);
    let phrases: Vec<u64> = (0..64).map(|_| random.below(50_000)).collect();
    elements(4, (0..2000).map(|i: usize| phrases[(i * i / 7 + i) % 64]))
}

fn i64_planes() -> Vec<u8> {
    let mut random = Random::new(23);
    let mut bytes = elements(8, (0..400).map(|i| (i * 977 + random.below(40)).wrapping_sub(1000)));
    bytes.extend([1, 2, 3]);
    bytes
}

fn u16_planes_huffman() -> Vec<u8> {
    let mut random = Random::new(24);
    elements(2, (0..2000).map(|_| (0..4).map(|_| random.below(20)).sum::<u64>() + 1000))
}

fn i16_planes_huffman_one_stream() -> Vec<u8> {
    let mut random = Random::new(25);
    elements(2, (0..600).map(|_| (random.below(40) + random.below(40)).wrapping_sub(40)))
}

fn bytes_planes_rans12() -> Vec<u8> {
    let mut random = Random::new(26);
    elements(1, (0..14_000).map(|_| if random.below(100) < 93 { 7 } else { 7 + random.below(90) }))
}

fn bytes_planes_lz4() -> Vec<u8> {
    words(400, 27)
}

fn bytes_planes_brotli() -> Vec<u8> {
    words(700, 28)
}

fn f4_nibbles_rans8() -> Vec<u8> {
    let mut random = Random::new(29);
    let mut nibble = || if random.below(100) < 85 { 0 } else { 1 + random.below(15) };
    elements(1, (0..5000).map(|_| nibble() | nibble() << 4))
}

/// Blocks of a scale, a minimum and sixteen bytes of quants.
fn q4_1_planes_of_runs() -> Vec<u8> {
    let mut random = Random::new(40);
    let mut bytes = Vec::new();
    for _ in 0..300 {
        bytes.extend(elements(2, [0x2400 + 16 * random.halving(6), 0xa800 + random.below(512)].into_iter()));
        bytes.extend(elements(1, (0..16).map(|_| random.halving(15) | random.halving(15) << 4)));
    }
    bytes
}

fn f6_planes_width_three() -> Vec<u8> {
    let mut random = Random::new(30);
    elements(3, (0..700).map(|_| (0..4).map(|i| (random.halving(20) + 6) << (6 * i)).sum()))
}

fn bool_planes_rans8() -> Vec<u8> {
    let mut random = Random::new(31);
    elements(1, (0..5000).map(|_| u64::from(random.below(10) == 0)))
}

fn f32_palette() -> Vec<u8> {
    let mut random = Random::new(32);
    let mut bytes = elements(4, (0..3000).map(|_| 0x3d00_0000 + (random.halving(14) * 0x0011_1110)));
    bytes.extend([9, 8]);
    bytes
}

fn f32_sparse() -> Vec<u8> {
    let mut random = Random::new(33);
    let mut bytes = elements(
        4,
        (0..8002).map(|_| if random.below(9) == 0 { weight(&mut random, 4, 23, 124) } else { 0 }),
    );
    bytes.push(77);
    bytes
}

/// The name of a golden frame without its version, and what it holds.
pub(crate) type Input = (&'static str, fn() -> Vec<u8>);

/// Every golden frame of version 0.1.0.
pub(crate) const V0_1_0: &[Input] = &[
    ("bytes_empty", bytes_empty),
    ("f32_empty_shape", f32_empty_shape),
    ("f32_scalar", f32_scalar),
    ("bytes_stored", bytes_stored),
    ("bytes_constant", bytes_constant),
    ("bf16_symbols_constant", bf16_symbols_constant),
    ("bf16_rans8_one_stream", bf16_rans8_one_stream),
    ("bf16_rans8_four_streams", bf16_rans8_four_streams),
    ("f16_rans8_four_streams", f16_rans8_four_streams),
    ("f16_joint_dead", f16_joint_dead),
    ("f16_listed_four_streams", f16_listed_four_streams),
    ("f16_listed_one_stream", f16_listed_one_stream),
    ("f32_rans8_four_streams", f32_rans8_four_streams),
    ("f32_dead_bits", f32_dead_bits),
    ("f64_two_byte_escapes", f64_two_byte_escapes),
    ("c64_pairs", c64_pairs),
    ("c64_shared_rans8", c64_shared_rans8),
    ("f8_e4m3_four_streams", f8_e4m3_four_streams),
    ("f8_e5m2_one_stream", f8_e5m2_one_stream),
    ("f8_e8m0_two_segments", f8_e8m0_two_segments),
    ("i8_flip_four_streams", i8_flip_four_streams),
    ("u8_one_stream", u8_one_stream),
    ("bf16_rans12_joint", bf16_rans12_joint),
    ("bf16_shared_rans8", bf16_shared_rans8),
    ("bf16_shared_rans12_joint", bf16_shared_rans12_joint),
    ("bf16_classed_rans8", bf16_classed_rans8),
    ("bf16_classed_four_columns", bf16_classed_four_columns),
    ("bf16_classed_eight_columns", bf16_classed_eight_columns),
    ("bf16_shared_coded_signs", bf16_shared_coded_signs),
    ("f16_signs_only", f16_signs_only),
    ("f32_rows", f32_rows),
    ("f32_coded_low", f32_coded_low),
    ("f32_rows_coded_low", f32_rows_coded_low),
    ("bf16_no_length_no_checksums", bf16_no_length_no_checksums),
    ("i32_planes_zstd", i32_planes_zstd),
    ("i64_planes", i64_planes),
    ("u16_planes_huffman", u16_planes_huffman),
    ("i16_planes_huffman_one_stream", i16_planes_huffman_one_stream),
    ("bytes_planes_rans12", bytes_planes_rans12),
    ("bytes_planes_lz4", bytes_planes_lz4),
    ("bytes_planes_brotli", bytes_planes_brotli),
    ("f4_nibbles_rans8", f4_nibbles_rans8),
    ("f6_planes_width_three", f6_planes_width_three),
    ("q4_1_planes_of_runs", q4_1_planes_of_runs),
    ("bool_planes_rans8", bool_planes_rans8),
    ("f32_palette", f32_palette),
    ("f32_sparse", f32_sparse),
];
