//! Predicted blocks come back for every format and bit pattern, and damage is refused.

use super::*;
use crate::arch::{kernel_sets, with_kernels};
use crate::bytes::Cursor;
use crate::sizes;

/// A fixed generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

const FORMATS: [Format; 3] = [Format::Bf16, Format::F16, Format::F32];

/// Numbers of a few sizes, some of them odd ones, and the same a little later.
fn pair(format: Format, n: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random(seed);
    let bits = 8 * format.width();
    let mask = u64::MAX >> (64 - bits);
    let one = (mask >> 2) & !((1 << format.mantissa()) - 1);
    let (mut source, mut base) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let octaves = (random.next() | 1 << 12).trailing_zeros();
        let mut before =
            one - (u64::from(octaves) << format.mantissa()) + random.below(1 << format.mantissa());
        before |= random.below(2) << (bits - 1);
        let mut after = before.wrapping_add(random.below(9)).wrapping_sub(4) & mask;
        match random.below(60) {
            0 => after = random.next() & mask,
            1 => before = random.next() & mask,
            2 => (before, after) = (0, 0),
            3 => before = 0,
            _ => {}
        }
        base.extend(&before.to_le_bytes()[..format.width()]);
        source.extend(&after.to_le_bytes()[..format.width()]);
    }
    (source, base)
}

fn factors(rank: usize, n_rows: usize, row_len: usize) -> LowRank {
    let mut random = Random(7);
    let shifts: Vec<u8> = (0..rank).map(|at| u8::try_from(at / 3 % 5).unwrap()).collect();
    let entry = |random: &mut Random| {
        let bits = random.below(12);
        i16::try_from(random.below(1 << bits)).unwrap()
    };
    let mut list = |n: usize| -> Vec<Vec<i16>> {
        let mut entries = || (0..n).map(|_| entry(&mut random) - entry(&mut random)).collect();
        (0..rank).map(|_| entries()).collect()
    };
    let rows = list(n_rows);
    let rows = rows.into_iter().map(|row| row.into_iter().map(|x| x.clamp(-2000, 2000)).collect()).collect();
    let columns = list(row_len);
    let powers = |n: usize| (0..n).map(|at| u8::try_from(at % 4).unwrap()).collect();
    LowRank::new(-28, powers(n_rows), powers(row_len), Factors { shifts, rows, columns }).unwrap()
}

/// All shapes of predictors of a matrix.
fn predictors(format: Format, n_rows: usize, row_len: usize) -> Vec<Predictor> {
    let scale = i16::try_from(format.size(u32::from_le_bytes(match format {
        Format::F32 => 1e-4f32.to_le_bytes(),
        Format::Bf16 => [0xd2, 0x38, 0, 0],
        Format::F16 => [0x00, 0x10, 0, 0],
    })));
    let plain = Predictor { format, from_base: true, decay: None, scale: scale.unwrap(), matrix: None };
    let list = |n: usize| -> Vec<u8> { (0..n).map(|at| u8::try_from(at % 5).unwrap()).collect() };
    let matrix =
        Matrix { row_len, n_rows, row_scales: list(n_rows), column_scales: list(row_len), low_rank: None };
    let with = |matrix: Matrix| Predictor { matrix: Some(matrix), ..plain.clone() };
    let mut all = vec![
        plain.clone(),
        Predictor { from_base: false, ..plain.clone() },
        with(matrix.clone()),
        with(Matrix { row_scales: Vec::new(), n_rows: 0, ..matrix.clone() }),
        with(Matrix { column_scales: Vec::new(), ..matrix.clone() }),
        Predictor { from_base: false, ..with(matrix.clone()) },
    ];
    if format != Format::F16 {
        all.push(Predictor { decay: Some(0.348_678_4), ..plain.clone() });
        for rank in [1, 2, 7, 16] {
            let low_rank = Some(factors(rank, n_rows, row_len));
            all.push(with(Matrix { low_rank: low_rank.clone(), ..matrix.clone() }));
            let alone = with(Matrix { low_rank, row_scales: Vec::new(), ..matrix.clone() });
            all.push(Predictor { from_base: false, ..alone.clone() });
            all.push(Predictor { decay: Some(-1.5), ..alone });
        }
    }
    all
}

fn prediction(predictor: &Predictor, source: &[u8], base: &[u8]) -> Prediction {
    let mut counts = Counts::default();
    let whole = source.len() / predictor.format.width() * predictor.format.width();
    count(predictor, 0, Some(base), &source[..whole], &mut counts);
    let (tables, _) = Tables::choose(predictor.format, &counts);
    let prediction = Prediction::new(predictor.clone(), tables);
    let mut section = Vec::new();
    prediction.write(&mut section);
    let mut cursor = Cursor::new(&section, "section");
    let read = Prediction::read(&mut cursor).unwrap();
    assert!(cursor.is_empty());
    assert!(read.predictor == prediction.predictor && read.tables == prediction.tables);
    read
}

fn decoded(
    prediction: &Prediction,
    block: &[u8],
    base: &[u8],
    len: usize,
) -> Result<Vec<u8>, crate::CodecError> {
    let mut out = vec![0; len];
    let cursor = Cursor::new(block, "block");
    decode(prediction, cursor, 0, Some(base), &mut out, &mut Scratch::default()).map(|()| out)
}

/// The block comes back, and is the same, whichever kernels run.
fn check(predictor: &Predictor, source: &[u8], base: &[u8]) -> usize {
    let prediction = prediction(predictor, source, base);
    let coded = || {
        let mut block = Vec::new();
        encode(&prediction, 0, Some(base), source, &mut Scratch::default(), &mut block).unwrap();
        block
    };
    let block = coded();
    for kernels in kernel_sets() {
        with_kernels(kernels, || {
            assert!(self::prediction(predictor, source, base).tables == prediction.tables, "{kernels:?}");
            assert!(coded() == block, "{kernels:?} {predictor:?}");
            let out = decoded(&prediction, &block, base, source.len()).unwrap();
            assert!(out == source, "{kernels:?} {predictor:?}");
        });
    }
    block.len()
}

#[test]
fn elements_of_every_format_and_predictor_come_back() {
    for format in FORMATS {
        for (n_rows, row_len) in [(1, 1), (3, 5), (40, 33), (90, 70)] {
            let (source, base) = pair(format, n_rows * row_len, 5);
            for predictor in predictors(format, n_rows, row_len) {
                check(&predictor, &source, &base);
            }
        }
    }
}

#[test]
fn all_bit_patterns_of_two_bytes_come_back() {
    for format in [Format::Bf16, Format::F16] {
        let source: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let base: Vec<u8> =
            (0..=u16::MAX).flat_map(|i| i.wrapping_mul(40_503).rotate_left(5).to_le_bytes()).collect();
        for predictor in predictors(format, 256, 256) {
            check(&predictor, &source, &base);
        }
    }
}

#[test]
fn a_good_prediction_costs_little() {
    let (source, base) = pair(Format::F32, 90 * 70, 3);
    let [plain, alone, ..] = &predictors(Format::F32, 90, 70)[..] else { panic!() };
    let len = check(plain, &source, &base);
    assert!(len * 3 < check(alone, &source, &base), "{len}");
}

#[test]
fn blocks_start_and_end_with_rows() {
    let (source, base) = pair(Format::Bf16, 40 * 33, 9);
    let predictor = &predictors(Format::Bf16, 40, 33)[2];
    let prediction = prediction(predictor, &source, &base);
    let mut scratch = Scratch::default();
    let row = 2 * 33;
    let mut whole = Vec::new();
    for rows in [0..7, 7..8, 8..40] {
        let (from, to) = (rows.start * row, rows.end * row);
        let mut block = Vec::new();
        let base = Some(&base[from..to]);
        encode(&prediction, from as u64, base, &source[from..to], &mut scratch, &mut block).unwrap();
        let mut out = vec![0; to - from];
        decode(&prediction, Cursor::new(&block, "block"), from as u64, base, &mut out, &mut scratch).unwrap();
        whole.extend(out);
        let elsewhere = |at: u64, len: usize, scratch: &mut Scratch| {
            let mut out = vec![0; len];
            decode(&prediction, Cursor::new(&block, "block"), at, base, &mut out, scratch).is_err()
        };
        assert!(elsewhere(2, to - from, &mut scratch));
        assert!(elsewhere(40 * row as u64, to - from, &mut scratch));
        assert!(elsewhere(from as u64, to - from - 2, &mut scratch));
    }
    assert!(whole == source);
}

#[test]
fn truncated_and_damaged_blocks_and_sections_are_refused_or_harmless() {
    for format in FORMATS {
        let (n_rows, row_len) = (12, 20);
        let (source, base) = pair(format, n_rows * row_len, 11);
        for predictor in predictors(format, n_rows, row_len) {
            let prediction = prediction(&predictor, &source, &base);
            let (mut block, mut section) = (Vec::new(), Vec::new());
            encode(&prediction, 0, Some(&base), &source, &mut Scratch::default(), &mut block).unwrap();
            prediction.write(&mut section);
            for len in 0..block.len() {
                assert!(decoded(&prediction, &block[..len], &base, source.len()).is_err(), "cut to {len}");
            }
            for len in 0..section.len() {
                assert!(
                    Prediction::read(&mut Cursor::new(&section[..len], "section")).is_err(),
                    "cut to {len}"
                );
            }
            // Any answer is right but a panic: what the bits mean is for the checksum to say.
            for bit in (0..8 * block.len()).step_by(5) {
                block[bit / 8] ^= 1 << (bit % 8);
                let _ = decoded(&prediction, &block, &base, source.len());
                block[bit / 8] ^= 1 << (bit % 8);
            }
            for bit in (0..8 * section.len()).step_by(3) {
                section[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = Prediction::read(&mut Cursor::new(&section, "section")) {
                    let _ = decoded(&other, &block, &base, source.len());
                }
                section[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn kernels_sum_like_the_scalar_code() {
    for row_len in [1, 31, 32, 33, 63, 64, 100].into_iter().step_by(sizes(1, 3)) {
        for rank in [1, 2, 5, 64].into_iter().take(sizes(4, 2)) {
            let low_rank = factors(rank, 9, row_len);
            for kernels in kernel_sets() {
                let mut sums = vec![7];
                with_kernels(kernels, || low_rank.sum_rows(2..9, &mut sums));
                assert_eq!(sums.len(), 7 * row_len);
                for (at, sum) in sums.into_iter().enumerate() {
                    assert_eq!(sum, low_rank.sum(2 + at / row_len, at % row_len), "{kernels:?}");
                }
            }
        }
    }
}
