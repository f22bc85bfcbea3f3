//! Matrices of all shapes come back, and damage is found.

use super::*;
use crate::CodecError;
use crate::sizes;

/// Symbols like those of weights: a bell over 0 to 15, from a fixed seed.
fn bell(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u8::try_from(state >> 33 & 7).unwrap()
    };
    (0..n).map(|_| (next() + next() + next() + next()) / 2).collect()
}

struct Sample {
    shape: Shape,
    symbols: Vec<u8>,
    low_plane: Vec<u8>,
    escapes: Vec<Escape>,
}

fn sample(rows: usize, columns: usize, rows_per_block: usize, low: u8, symbols: Option<u8>) -> Sample {
    let shape = Shape::of_blocks(rows, columns, rows_per_block, low).unwrap();
    let n = rows * shape.padded_columns();
    let symbols = symbols.map_or_else(|| bell(n, 7 + n as u64), |symbol| vec![symbol; n]);
    let low_plane = bell(rows * shape.low_row_len(), 3);
    let escape = |row: usize| Escape { row, column: row % columns, value: 1e3 + row as f32 };
    Sample { shape, symbols, low_plane, escapes: (0..rows).step_by(5).map(escape).collect() }
}

impl Sample {
    fn encode(&self, coding: Coding) -> Encoded {
        encode(&self.shape, &self.symbols, &self.low_plane, &self.escapes, coding)
    }

    fn parts<'a>(&'a self, encoded: &'a Encoded) -> Parts<'a> {
        Parts {
            compressed: &encoded.compressed,
            stream_offsets: &encoded.stream_offsets,
            freq: &encoded.freq,
            low_bits: &self.low_plane,
        }
    }

    fn decode(&self, encoded: &Encoded) -> Result<Vec<u8>, CodecError> {
        let coded = Coded::new(self.shape, self.parts(encoded))?;
        let mut out = vec![0xff; self.symbols.len()];
        coded.decode_symbols(0..self.shape.n_blocks(), &mut out)?;
        Ok(out)
    }
}

#[test]
fn matrices_of_all_shapes_come_back() {
    for (rows, columns, per_block) in [
        (1, 1, 1),
        (1, 4096, 4),
        (9, 1, 2),
        (37, 65, 3),
        (16, 64, 4),
        (23, 384, 5),
        (4, 100, 100),
        (64, 640, 4),
    ] {
        for low in [0, 1, 2, 4, 8] {
            for coding in [Coding::Entropy, Coding::Fixed] {
                for symbol in [None, Some(0), Some(15)] {
                    let sample = sample(rows, columns, per_block, low, symbol);
                    let encoded = sample.encode(coding);
                    assert_eq!(
                        sample.decode(&encoded).unwrap(),
                        sample.symbols,
                        "{rows}x{columns}, {low} bits"
                    );
                    let coded = Coded::new(sample.shape, sample.parts(&encoded)).unwrap();
                    let escapes: Vec<Escape> =
                        (0..sample.shape.n_blocks()).flat_map(|idx| coded.escapes(idx).unwrap()).collect();
                    assert_eq!(escapes, sample.escapes);
                }
            }
        }
    }
}

#[test]
fn any_rows_are_read_alone() {
    for low in [0, 1, 2, 4] {
        let sample = sample(37, 70, 3, low, None);
        let encoded = sample.encode(Coding::Entropy);
        let coded = Coded::new(sample.shape, sample.parts(&encoded)).unwrap();
        let mut all = vec![0; 37 * 70];
        coded.decode_rows(0..37, &mut all).unwrap();
        let mut low_values = vec![0; sample.symbols.len()];
        low_bits::unpack(low, &sample.low_plane, &mut low_values);
        for (at, code) in all.iter().enumerate() {
            let at = at / 70 * sample.shape.padded_columns() + at % 70;
            assert_eq!(*code, sample.symbols[at] << low | low_values[at]);
        }
        for start in 0..37 {
            for end in start..=37 {
                let mut rows = vec![0; (end - start) * 70];
                coded.decode_rows(start..end, &mut rows).unwrap();
                assert_eq!(rows, all[start * 70..end * 70], "rows {start} to {end}");
            }
        }
    }
}

#[test]
fn entropy_is_reached_within_two_percent() {
    let mut sample = sample(64, 1024, 16, 0, None);
    sample.escapes.clear();
    let encoded = sample.encode(Coding::Entropy);
    let mut counts = [0f64; 16];
    sample.symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1.0);
    let n = sample.symbols.len() as f64;
    let bits: f64 =
        counts.iter().filter(|&&count| count > 0.0).map(|count| -count * (count / n).log2()).sum();
    let coded_bits = 8.0 * (encoded.compressed.len() + encoded.stream_offsets.len()) as f64;
    assert!(coded_bits < 1.02 * bits, "{coded_bits} against {bits}");
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    let sample = sample(7, 70, 3, 1, None);
    for coding in [Coding::Entropy, Coding::Fixed] {
        let encoded = sample.encode(coding);
        let check = |damaged: &Encoded, low_plane: &[u8], what: &str, bit: usize| {
            let parts = Parts { low_bits: low_plane, ..sample.parts(damaged) };
            let decoded = Coded::new(sample.shape, parts).and_then(|coded| {
                let mut out = vec![0; sample.symbols.len()];
                coded.decode_symbols(0..sample.shape.n_blocks(), &mut out)?;
                (0..sample.shape.n_blocks()).try_for_each(|idx| coded.escapes(idx).map(|_| ()))
            });
            // A table that no block uses may change without effect.
            let is_unused = coding == Coding::Fixed && what == "freq";
            assert!(decoded.is_err() || is_unused, "bit {bit} of {what}");
        };
        for bit in 8 * HEADER_LEN..8 * encoded.compressed.len() {
            let mut damaged = encoded.clone();
            damaged.compressed[bit / 8] ^= 1 << (bit % 8);
            check(&damaged, &sample.low_plane, "compressed", bit);
        }
        for bit in 0..8 * encoded.stream_offsets.len() {
            let mut damaged = encoded.clone();
            damaged.stream_offsets[bit / 8] ^= 1 << (bit % 8);
            check(&damaged, &sample.low_plane, "stream_offsets", bit);
        }
        for bit in 0..8 * encoded.freq.len() {
            let mut damaged = encoded.clone();
            damaged.freq[bit / 8] ^= 1 << (bit % 8);
            check(&damaged, &sample.low_plane, "freq", bit);
        }
        for bit in 0..8 * sample.low_plane.len() {
            let mut low_plane = sample.low_plane.clone();
            low_plane[bit / 8] ^= 1 << (bit % 8);
            check(&encoded, &low_plane, "low_bits", bit);
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let sample = sample(7, 70, 3, 1, None);
    let encoded = sample.encode(Coding::Entropy);
    let parts = sample.parts(&encoded);
    let refused = |parts: Parts<'_>| Coded::new(sample.shape, parts).is_err();
    assert!(!refused(parts));
    for cut in 0..encoded.compressed.len() {
        assert!(refused(Parts { compressed: &encoded.compressed[..cut], ..parts }), "cut at {cut}");
    }
    assert!(refused(Parts { stream_offsets: &[], ..parts }));
    assert!(refused(Parts { stream_offsets: &encoded.stream_offsets[4..], ..parts }));
    assert!(refused(Parts { freq: &[], ..parts }));
    assert!(refused(Parts { freq: &[0; 16], ..parts }));
    assert!(refused(Parts { freq: &[16; 15], ..parts }));
    assert!(refused(Parts { freq: &[16; 16 * 17], ..parts }));
    assert!(refused(Parts { low_bits: &[], ..parts }));
    for (rows, columns, per_block, low) in [
        (0, 5, 1, 0),
        (5, 0, 1, 0),
        (5, 5, 0, 0),
        (5, 5, 1, 3),
        (5, 5, 1, 9),
        (usize::MAX, 2, 1, 0),
        (2, usize::MAX, 1, 0),
        (1 << 30, 1 << 10, 1 << 30, 0),
    ] {
        assert!(Shape::of_blocks(rows, columns, per_block, low).is_err(), "{rows} x {columns}");
    }
}

#[test]
fn kernels_write_the_bytes_and_give_the_products_of_the_scalar_code() {
    use crate::arch::{kernel_sets, with_kernels};
    use gemv::{Activations, Exponents, dot_plain_bf16};
    let shapes = [(1, 1, 1), (5, 65, 2), (37, 65, 3), (1, 4096, 4), (45, 384, 11), (70, 640, 4)];
    for (rows, columns, per_block) in shapes.into_iter().take(sizes(6, 2)) {
        let sample = sample(rows, columns, per_block, 8, None);
        let padded = sample.shape.padded_columns();
        let x: Vec<f32> = (0..columns).map(|at| ((at * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let x = Activations::new(&x, padded);
        let exponents = Exponents::new(110);
        let weights: Vec<u8> = sample
            .symbols
            .iter()
            .zip(&sample.low_plane)
            .flat_map(|(&symbol, &low)| exponents.weight(symbol, low).to_le_bytes())
            .collect();
        let mut results = kernel_sets().map(|kernels| {
            with_kernels(kernels, || {
                let mut plain = vec![0.0; rows];
                dot_plain_bf16(&weights, &x, &mut plain);
                let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
                [Coding::Entropy, Coding::Fixed].map(|coding| {
                    let encoded = sample.encode(coding);
                    let coded = Coded::new(sample.shape, sample.parts(&encoded)).unwrap();
                    let mut sums = vec![0.0; rows];
                    coded.dot_bf16(0..sample.shape.n_blocks(), &exponents, &x, &mut sums).unwrap();
                    assert_eq!(bits(&sums), bits(&plain), "{rows} x {columns}, {coding:?}, {kernels:?}");
                    (encoded, bits(&sums))
                })
            })
        });
        let first = results.next().unwrap();
        assert!(results.all(|result| result == first), "{rows} x {columns}");
    }
}
