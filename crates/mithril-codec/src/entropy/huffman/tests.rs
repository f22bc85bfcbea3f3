//! Round trips, sizes, optimality and damage of the Huffman coder.

use super::code_lengths::{assign_canonical, length_limited};
use super::table::table_len;
use super::{MAX_CODE_LEN, coded_len, decode_into, encode};
use crate::CodecError;

/// Fixed-seed data: xorshift, which needs no seed but a non-zero one.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u32) -> u32 {
        let [_, _, _, a, b, c, d, _] = self.next().to_le_bytes();
        u32::from_le_bytes([a, b, c, d]) % limit
    }

    /// Roughly normal with the given standard deviation, as a two's complement byte.
    fn gaussian(&mut self, deviation: i64) -> u8 {
        let sum: i64 = (0..12).map(|_| i64::from(self.below(1 << 16))).sum();
        let value = (sum - 6 * 65536) * deviation / 65536;
        value.clamp(-128, 127).to_le_bytes()[0]
    }
}

/// Every distribution the tests go through, `n` symbols of each.
fn distributions(n: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut fibonacci = Vec::new();
    let (mut count, mut next_count) = (1usize, 1usize);
    for symbol in 0..=255u8 {
        fibonacci.extend(std::iter::repeat_n(symbol.wrapping_mul(37), count));
        if fibonacci.len() >= n {
            break;
        }
        (count, next_count) = (next_count, count + next_count);
    }
    fibonacci.resize(n, 201);
    let mut generate =
        |f: &mut dyn FnMut(&mut Random) -> u8| -> Vec<u8> { (0..n).map(|_| f(&mut random)).collect() };
    vec![
        ("all equal", vec![77; n]),
        ("two symbols", generate(&mut |r| if r.below(3) == 0 { 255 } else { 0 })),
        ("uniform", generate(&mut |r| r.below(256).to_le_bytes()[0])),
        ("gaussian 30", generate(&mut |r| r.gaussian(30))),
        ("gaussian 4", generate(&mut |r| r.gaussian(4))),
        ("gaussian 1", generate(&mut |r| r.gaussian(1))),
        ("geometric", generate(&mut |r| 120 + r.next().leading_zeros().to_le_bytes()[0])),
        ("one rare symbol", (0..n).map(|idx| if idx == n / 2 { 9 } else { 8 }).collect()),
        ("every symbol in turn", (0..n).map(|idx| idx.to_le_bytes()[0]).collect()),
        (
            "quarters that differ",
            (0..n).map(|idx| if 4 * idx < n { 3 } else { idx.to_le_bytes()[0] % 9 }).collect(),
        ),
        ("fibonacci", fibonacci),
    ]
}

fn count(symbols: &[u8]) -> [u32; 256] {
    let mut histogram = [0; 256];
    symbols.iter().for_each(|&symbol| histogram[usize::from(symbol)] += 1);
    histogram
}

fn encode_alone(symbols: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    encode(symbols, &mut coded);
    coded
}

fn assert_round_trip(name: &str, symbols: &[u8]) {
    let coded = encode_alone(symbols);
    let mut decoded = vec![0xaa; symbols.len()];
    assert_eq!(decode_into(&coded, &mut decoded), Ok(()), "{name}, {} symbols", symbols.len());
    assert!(decoded == symbols, "{name}, {} symbols differ", symbols.len());
    let bound = coded_len(&count(symbols));
    assert!((coded.len()..=coded.len() + 3).contains(&bound), "{name}: {bound} for {}", coded.len());
}

fn is_truncated(result: &Result<(), CodecError>) -> bool {
    matches!(result, Err(CodecError::Truncated { .. }))
}

fn is_corrupt(result: &Result<(), CodecError>) -> bool {
    matches!(result, Err(CodecError::Corrupt { .. }))
}

fn cost(histogram: &[u32; 256], lengths: &[u8; 256]) -> u64 {
    histogram.iter().zip(lengths).map(|(&count, &length)| u64::from(count) * u64::from(length)).sum()
}

/// The cost of an unlimited Huffman code: the sum of all merged weights.
fn unlimited_cost(histogram: &[u32; 256]) -> u64 {
    let mut weights: Vec<u64> =
        histogram.iter().filter(|&&count| count > 0).map(|&count| count.into()).collect();
    let mut total = 0;
    while weights.len() > 1 {
        weights.sort_unstable_by(|a, b| b.cmp(a));
        let merged = weights.pop().unwrap() + weights.pop().unwrap();
        total += merged;
        weights.push(merged);
    }
    total
}

/// The least cost of any non-increasing lengths within the limit and the code space, by trying all.
fn brute_force_cost(descending: &[u32], max_len: u8) -> u64 {
    fn search(counts: &[u32], from: u8, max_len: u8, space: u64) -> Option<u64> {
        let Some((&count, rest)) = counts.split_first() else { return Some(0) };
        (from..=max_len)
            .filter_map(|length| {
                let left = space.checked_sub(1 << (max_len - length))?;
                Some(u64::from(count) * u64::from(length) + search(rest, length, max_len, left)?)
            })
            .min()
    }
    search(descending, 1, max_len, 1 << max_len).unwrap()
}

fn assert_complete(lengths: &[u8; 256], max_len: u8) {
    assert!(lengths.iter().all(|&length| length <= max_len));
    let space: u64 =
        lengths.iter().filter(|&&length| length > 0).map(|&length| 1u64 << (max_len - length)).sum();
    assert_eq!(space, 1 << max_len);
}

#[test]
fn every_short_length_round_trips() {
    for n in 0..=400 {
        for (name, symbols) in distributions(n) {
            assert_round_trip(name, &symbols);
        }
    }
}

#[test]
fn lengths_around_the_split_and_the_run_table_round_trip() {
    for n in (1015..=1050).chain(32760..=32775).chain([4096, 100_003]) {
        for (name, symbols) in distributions(n) {
            assert_round_trip(name, &symbols);
        }
    }
}

#[test]
fn encoding_appends_and_empty_input_adds_nothing() {
    let mut out = vec![1, 2, 3];
    encode(&[], &mut out);
    assert_eq!(out, [1, 2, 3]);
    encode(b"abracadabra", &mut out);
    assert_eq!(out[..3], [1, 2, 3]);
    assert_eq!(out[3..], encode_alone(b"abracadabra"));
}

#[test]
fn bytes_follow_the_documented_format() {
    // Lengths a 1, b 3, c 3, d 3, r 3 (equal counts: the smaller symbol gets no shorter code, and the
    // code is complete); codes a 0, b 100, c 101, d 110, r 111.
    let nibbles = [1, 3, 3, 3, 12, 10, 3];
    let bits = "0 100 111 0 101 0 110 0 100 111 0 1".replace(' ', "");
    let mut expected = vec![b'a', b'r'];
    expected.extend(nibbles.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4));
    expected.extend(
        bits.as_bytes()
            .chunks(8)
            .map(|byte| byte.iter().enumerate().map(|(idx, &bit)| (bit - b'0') << idx).sum::<u8>()),
    );
    assert_eq!(encode_alone(b"abracadabra"), expected);
    assert_eq!(encode_alone(&[5; 3000]), [5, 5]);
    let uniform: Vec<u8> = (0..=255).collect();
    // One length 8, then 255 = 19 + 12 + 16 * 14 repeats of it; codes 0, 1, 2 ... most significant first.
    assert_eq!(encode_alone(&uniform)[..8], [0, 255, 0xf8, 0xec, 0x00, 0x80, 0x40, 0xc0]);
}

#[test]
fn every_truncation_is_refused_as_truncated() {
    for n in [1, 2, 3, 50, 1023, 1024, 2000, 40_000] {
        for (name, symbols) in distributions(n) {
            let coded = encode_alone(&symbols);
            let mut decoded = vec![0; n];
            let step = (coded.len() / 500).max(1);
            for len in (0..coded.len()).step_by(step).chain([coded.len() - 1]) {
                let result = decode_into(&coded[..len], &mut decoded);
                assert!(is_truncated(&result), "{name}, {n} symbols, {len} bytes: {result:?}");
            }
        }
    }
}

#[test]
fn extra_bytes_are_refused_as_corrupt() {
    for n in [0, 1, 2, 50, 1024, 40_000] {
        for (name, symbols) in distributions(n) {
            for extra in [0, 1, 255] {
                let mut coded = encode_alone(&symbols);
                coded.push(extra);
                let result = decode_into(&coded, &mut vec![0; n]);
                assert!(is_corrupt(&result), "{name}, {n} symbols: {result:?}");
            }
        }
    }
}

#[test]
fn another_symbol_count_is_refused_unless_all_are_equal() {
    for n in [2usize, 3, 40, 700, 1500, 40_000] {
        for (name, symbols) in distributions(n) {
            let coded = encode_alone(&symbols);
            if coded.len() == 2 {
                continue;
            }
            for other in [n - 1, n + 1, n.saturating_sub(5), n + 5, n + 64, 2 * n] {
                assert!(decode_into(&coded, &mut vec![0; other]).is_err(), "{name}: {other} for {n}");
            }
        }
    }
}

#[test]
fn single_bit_flips_never_panic_and_fill_bits_are_checked() {
    for n in [6, 90, 1100] {
        for (name, symbols) in distributions(n) {
            let coded = encode_alone(&symbols);
            let mut n_refused = 0;
            for bit in 0..coded.len() * 8 {
                let mut damaged = coded.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let mut decoded = vec![0; n];
                match decode_into(&damaged, &mut decoded) {
                    Ok(()) => assert!(decoded != symbols, "{name}: bit {bit} of {n} symbols means nothing"),
                    Err(_) => n_refused += 1,
                }
            }
            assert!(n_refused > 0, "{name}: no flip was noticed");
        }
    }
}

#[test]
fn damage_in_large_streams_never_panics() {
    let mut random = Random(77);
    for (_, symbols) in distributions(33_000) {
        let coded = encode_alone(&symbols);
        let mut decoded = vec![0; symbols.len()];
        for _ in 0..60 {
            let mut damaged = coded.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(200) as usize % damaged.len();
                damaged[at] = random.next().to_le_bytes()[3];
            }
            if decode_into(&damaged, &mut decoded).is_ok() && decoded == symbols {
                assert_eq!(damaged, coded, "two streams for the same symbols");
            }
        }
    }
}

#[test]
fn hostile_tables_are_refused() {
    let refuse = |coded: &[u8], rule: &str| {
        for n in [4, 5000] {
            let result = decode_into(coded, &mut vec![0; n]);
            let Err(CodecError::Corrupt { what }) = result else { panic!("{rule}: {result:?}") };
            assert!(what.contains(rule), "{what} instead of {rule}");
        }
    };
    let tail = [0x55; 24];
    let with_tail = |table: &[u8]| [table, &tail].concat();
    refuse(&with_tail(&[9, 8]), "out of order");
    refuse(&with_tail(&[0, 1, 0x12]), "code space");
    refuse(&with_tail(&[0, 2, 0x11, 0x01]), "code space");
    refuse(&with_tail(&[0, 255, 0x1 | 14 << 4, 0xff, 0xff]), "run past");
    refuse(&with_tail(&[0, 255, 0x1 | 15 << 4, 0xff]), "run past");
    refuse(&with_tail(&[0, 3, 0x1 | 13 << 4, 0xff]), "run past");
    refuse(&with_tail(&[0, 2, 0x20, 0x01]), "unused");
    refuse(&with_tail(&[0, 2, 0x11, 0x00]), "unused");
    refuse(&with_tail(&[0, 2, 0x01 | 12 << 4, 0x00]), "run past");
    refuse(&with_tail(&[0, 5, 0x1e]), "unused");
    refuse(&with_tail(&[0, 2, 0x21, 0x12]), "fill nibble");
    // Sound lengths 1, 2, 2 in front of a stream without an end mark, then with a byte too many.
    assert!(is_corrupt(&decode_into(&[0, 2, 0x21, 0x02, 0b0000_0000], &mut [0; 4])));
    assert!(is_corrupt(&decode_into(&[0, 2, 0x21, 0x02, 0b0011_0000], &mut [0; 4])));
    assert!(is_corrupt(&decode_into(&[0, 2, 0x21, 0x02, 0b0001_0000, 0], &mut [0; 4])));
    assert_eq!(decode_into(&[0, 2, 0x21, 0x02, 0b0001_0000], &mut [0; 4]), Ok(()));
}

#[test]
fn wrong_stream_lengths_are_refused() {
    let (_, symbols) = distributions(6000).swap_remove(4);
    let coded = encode_alone(&symbols);
    let lens_at = table_len(&length_limited(&count(&symbols), MAX_CODE_LEN));
    for idx in 0..3 {
        let at = lens_at + 4 * idx;
        let len = u32::from_le_bytes(*coded[at..].first_chunk().unwrap());
        for (wrong, is_expected) in [
            (0, is_corrupt as fn(&Result<(), CodecError>) -> bool),
            (len - 1, is_corrupt),
            (len + 1, is_corrupt),
            (u32::MAX, is_truncated),
        ] {
            let mut damaged = coded.clone();
            damaged[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
            let result = decode_into(&damaged, &mut vec![0; symbols.len()]);
            assert!(is_expected(&result), "length {idx} as {wrong}: {result:?}");
        }
    }
}

#[test]
fn lengths_are_complete_and_within_the_limit() {
    for n in [2, 300, 5000, 300_000] {
        for (name, symbols) in distributions(n) {
            let histogram = count(&symbols);
            let n_present = histogram.iter().filter(|&&count| count > 0).count();
            if n_present < 2 {
                continue;
            }
            for max_len in (8..=32).filter(|&max_len| n_present <= 1 << max_len) {
                assert_complete(&length_limited(&histogram, max_len), max_len);
            }
            let unlimited = unlimited_cost(&histogram);
            let limited = cost(&histogram, &length_limited(&histogram, MAX_CODE_LEN));
            if name == "fibonacci" && n == 300_000 {
                assert!(limited > unlimited, "the limit should bind");
            }
            assert_eq!(cost(&histogram, &length_limited(&histogram, 32)), unlimited, "{name}, {n}");
        }
    }
}

#[test]
fn cost_is_that_of_unlimited_huffman_where_the_limit_does_not_bind() {
    let mut random = Random(31);
    for round in 0..300 {
        let n_present = 2 + random.below(255) as usize;
        let mut histogram = [0; 256];
        for place in &mut histogram[..n_present] {
            *place = 1 + random.below(1 << (1 + round % 31));
        }
        assert_eq!(cost(&histogram, &length_limited(&histogram, 32)), unlimited_cost(&histogram));
    }
}

#[test]
fn cost_is_the_least_where_the_limit_binds() {
    let mut random = Random(99);
    for _ in 0..400 {
        let n_present = 2 + random.below(8) as usize;
        let max_len = if random.below(2) == 0 { 4 } else { 5 };
        let mut histogram = [0; 256];
        for place in &mut histogram[..n_present] {
            let magnitude = 1 + random.below(20);
            *place = 1 + random.below(1 << magnitude);
        }
        let mut descending = histogram[..n_present].to_vec();
        descending.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(
            cost(&histogram, &length_limited(&histogram, max_len)),
            brute_force_cost(&descending, max_len)
        );
    }
}

#[test]
fn equal_counts_give_the_smaller_symbol_the_longer_code() {
    let mut histogram = [0; 256];
    histogram[10..13].fill(7);
    assert_eq!(length_limited(&histogram, 11)[10..13], [2, 2, 1]);
    let mut alone = [0; 256];
    alone[200] = u32::MAX;
    let lengths = length_limited(&alone, 11);
    assert_eq!((lengths[200], lengths.iter().map(|&length| u32::from(length)).sum::<u32>()), (1, 1));
    assert_eq!(length_limited(&[0; 256], 11), [0; 256]);
    assert_eq!(length_limited(&[u32::MAX; 256], 8), [8; 256]);
}

#[test]
fn canonical_codes_are_in_order_and_prefix_free() {
    let lengths = length_limited(&count(&distributions(50_000)[3].1), 11);
    let codes = assign_canonical(&lengths);
    let mut order: Vec<usize> = (0..256).filter(|&symbol| lengths[symbol] > 0).collect();
    order.sort_by_key(|&symbol| (lengths[symbol], symbol));
    // Left-aligned, each code starts exactly where the space of the one before ends.
    let mut next_start = 0;
    for symbol in order {
        assert_eq!(codes[symbol] << (11 - lengths[symbol]), next_start, "symbol {symbol}");
        next_start += 1 << (11 - lengths[symbol]);
    }
    assert_eq!(next_start, 1 << 11);
}
