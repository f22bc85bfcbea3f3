//! Behaviour of the wide rANS coder: inverse of itself, close to the entropy, safe on hostile input.

use super::decode::decode_with;
use super::*;
use crate::CodecError;
use crate::arch::{KernelSet, kernel_sets, kernels, with_kernels};
use crate::bytes::Cursor;

/// A fixed sequence of pseudo-random numbers (a counter through a multiplicative mix).
struct Generator(u64);

impl Generator {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 31).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ mixed >> 32
    }

    fn half(&mut self) -> u32 {
        u32::try_from(self.number() >> 32).unwrap()
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.number() % limit as u64).unwrap()
    }

    /// A sum of `n_parts` uniform numbers, clamped: a bell curve around `center`.
    fn bell(&mut self, center: usize, spread: usize, n_parts: usize) -> u8 {
        let sum: usize = (0..n_parts).map(|_| self.below(spread + 1)).sum();
        u8::try_from((center + sum).saturating_sub(spread * n_parts / 2).min(255)).unwrap()
    }

    fn symbol(&mut self, source: usize) -> u8 {
        match source {
            0 => 77,
            1 => u8::from(self.below(50) == 0) * 255,
            2 => u8::try_from(self.number().trailing_zeros().min(40)).unwrap(),
            3 => self.bell(32, 14, 6),
            4 => self.bell(128, 90, 6),
            _ => u8::try_from(self.below(256)).unwrap(),
        }
    }

    fn symbols(&mut self, source: usize, n_symbols: usize) -> Vec<u8> {
        (0..n_symbols).map(|_| self.symbol(source)).collect()
    }
}

const N_SOURCES: usize = 6;
/// The source of independent, equally likely bytes.
const UNIFORM: usize = 5;

fn count(symbols: &[u8]) -> [u32; 256] {
    let mut counts = [0; 256];
    symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    counts
}

/// A table for each index that the runs name, counted as the coder assigns symbols to tables.
fn fit_tables(symbols: &[u8], runs: &[Run]) -> Vec<FrequencyTable> {
    let n_tables = runs.iter().map(|run| run.table_idx + 1).max().unwrap_or(0);
    let mut counts = vec![[0u32; 256]; n_tables];
    for span in group_tables(runs, symbols.len()) {
        for &symbol in &symbols[span.symbols] {
            counts[span.table_idx][usize::from(symbol)] += 1;
        }
    }
    let unused = FrequencyTable::from_counts(&count(&[0])).unwrap();
    counts.iter().map(|counts| FrequencyTable::from_counts(counts).unwrap_or(unused.clone())).collect()
}

fn one_run(symbols: &[u8]) -> [Run; 1] {
    [Run { len: symbols.len(), table_idx: 0 }]
}

fn encode_with_fit(symbols: &[u8], runs: &[Run]) -> (Vec<u8>, Vec<DecodeTable>) {
    let tables = fit_tables(symbols, runs);
    let mut coded = Vec::new();
    encode(symbols, runs, &tables, &mut coded);
    (coded, tables.iter().map(DecodeTable::new).collect())
}

fn decode_scalar(
    coded: &[u8],
    runs: &[Run],
    tables: &[DecodeTable],
    n_symbols: usize,
) -> (Result<(), CodecError>, Vec<u8>) {
    let mut symbols = vec![0; n_symbols];
    (decode_with(|_, _, _, _| (0, 0), coded, runs, tables, &mut symbols), symbols)
}

/// The result and the symbols of the path that this machine takes, once they are those of the scalar code.
fn decode_both(
    coded: &[u8],
    runs: &[Run],
    tables: &[DecodeTable],
    n_symbols: usize,
) -> (Result<(), CodecError>, Vec<u8>) {
    let mut symbols = vec![0; n_symbols];
    let chosen = (decode_into(coded, runs, tables, &mut symbols), symbols);
    assert_eq!(chosen, decode_scalar(coded, runs, tables, n_symbols));
    chosen
}

fn assert_round_trip(symbols: &[u8], runs: &[Run]) {
    let (coded, tables) = encode_with_fit(symbols, runs);
    assert_eq!(decode_both(&coded, runs, &tables, symbols.len()), (Ok(()), symbols.to_vec()));
}

fn is_corrupt(result: &Result<(), CodecError>) -> bool {
    matches!(result, Err(CodecError::Corrupt { .. }))
}

#[test]
fn every_short_length_round_trips_for_every_source() {
    let mut generator = Generator(1);
    for source in 0..N_SOURCES {
        for n_symbols in 0..=400 {
            let symbols = generator.symbols(source, n_symbols);
            assert_round_trip(&symbols, &one_run(&symbols));
        }
    }
}

#[test]
fn runs_of_any_length_round_trip() {
    let mut generator = Generator(2);
    for longest in [1, 3, 63, 64, 65, 200, 1000] {
        for n_runs in [1, 2, 40] {
            let mut symbols = Vec::new();
            let mut runs = Vec::new();
            for _ in 0..n_runs {
                let run = Run { len: generator.below(longest + 1), table_idx: generator.below(N_SOURCES) };
                symbols.extend(generator.symbols(run.table_idx, run.len));
                runs.push(run);
            }
            assert_round_trip(&symbols, &runs);
        }
    }
}

#[test]
fn a_group_uses_the_table_of_the_run_of_its_first_symbol() {
    let runs = [(10, 5), (0, 9), (54, 4), (1, 3), (20, 2), (44, 1), (100, 0)];
    let runs = runs.map(|(len, table_idx)| Run { len, table_idx });
    let spans: Vec<_> = group_tables(&runs, 229).map(|span| (span.symbols, span.table_idx)).collect();
    assert_eq!(spans, [(0..64, 5), (64..128, 3), (128..192, 1), (192..229, 0)]);
}

#[test]
fn encode_appends_and_a_lone_symbol_takes_no_words() {
    let symbols = [9; 100];
    let mut out = vec![1, 2, 3];
    encode(&symbols, &one_run(&symbols), &fit_tables(&symbols, &one_run(&symbols)), &mut out);
    assert_eq!(out[..3], [1, 2, 3]);
    assert_eq!(out[3..], [0, 0, 1, 0].repeat(LANES));
}

/// The decoder as the module documents it, one symbol at a time and with nothing precomputed.
#[test]
fn words_follow_the_documented_steps() {
    let mut generator = Generator(3);
    let symbols = generator.symbols(3, 5 * LANES);
    let tables = fit_tables(&symbols, &one_run(&symbols));
    let mut coded = Vec::new();
    encode(&symbols, &one_run(&symbols), &tables, &mut coded);
    let mut cursor = Cursor::new(&coded, "test");
    let mut states: Vec<u32> = (0..LANES).map(|_| cursor.u32().unwrap()).collect();
    for (idx, &symbol) in symbols.iter().enumerate() {
        let state = &mut states[idx % LANES];
        let frequencies = tables[0].frequencies().map(u32::from);
        let start: u32 = frequencies[..usize::from(symbol)].iter().sum();
        let frequency = frequencies[usize::from(symbol)];
        let slot = *state % 4096;
        assert!((start..start + frequency).contains(&slot));
        *state = frequency * (*state / 4096) + slot - start;
        if *state < 1 << 16 {
            *state = *state << 16 | u32::from(cursor.u16().unwrap());
        }
    }
    assert!(cursor.is_empty());
    assert_eq!(states, [1 << 16; LANES]);
}

#[test]
fn size_is_close_to_the_entropy() {
    let mut generator = Generator(4);
    for source in 0..N_SOURCES {
        let symbols = generator.symbols(source, 200_000);
        let n = symbols.len() as f64;
        let entropy: f64 = count(&symbols)
            .iter()
            .filter(|&&count| count > 0)
            .map(|&count| f64::from(count) * (n / f64::from(count)).log2() / 8.0)
            .sum();
        let (coded, _) = encode_with_fit(&symbols, &one_run(&symbols));
        assert!((coded.len() as f64) < entropy * 1.005 + 300.0, "source {source}: {}", coded.len());
        let cost = fit_tables(&symbols, &one_run(&symbols))[0].cost_bits(&count(&symbols));
        let predicted = cost as f64 / 2048.0 + STATES_LEN as f64;
        assert!((coded.len() as f64 - predicted).abs() < predicted * 0.001 + 130.0, "source {source}");
    }
}

#[test]
fn cost_counts_bits_and_refuses_absent_symbols() {
    let even = FrequencyTable::from_counts(&[7; 256]).unwrap();
    assert_eq!(even.cost_bits(&[3; 256]), 3 * 256 * 8 * 256);
    let lone = FrequencyTable::from_counts(&count(&[5])).unwrap();
    assert_eq!(lone.cost_bits(&count(&[5, 5, 5])), 0);
    assert_eq!(lone.cost_bits(&count(&[5, 6])), u64::MAX);
    assert!(even.cost_bits(&[u32::MAX; 256]) < u64::MAX);
}

/// Counts that are hard to normalise, next to ordinary ones.
fn difficult_counts() -> Vec<[u32; 256]> {
    let mut generator = Generator(6);
    let mut cases = vec![[1; 256], [u32::MAX; 256], count(&[0]), count(&[255]), count(&[3, 200, 200])];
    let from = |count: &dyn Fn(usize) -> u32| std::array::from_fn(count);
    // Rounding up 155 rare symbols takes more slots than the most frequent has; odd shares just above 32.
    cases
        .push(from(&|symbol| [1, 400_000, 960_000][usize::from(symbol >= 155) + usize::from(symbol == 255)]));
    cases.push(from(&|symbol| [0, 33_000][usize::from(symbol < 124)]));
    cases.push(from(&|symbol| [1, u32::MAX][usize::from(symbol == 9)]));
    cases.push(from(&|symbol| [1, u32::MAX][usize::from(symbol >= 254)]));
    cases.extend((0..N_SOURCES).map(|source| count(&generator.symbols(source, 3000))));
    for _ in 0..200 {
        let shift = generator.below(32);
        cases.push(std::array::from_fn(|_| generator.half() >> generator.below(shift + 1)));
    }
    cases
}

#[test]
fn normalised_frequencies_keep_the_rules_and_survive_storage() {
    assert_eq!(FrequencyTable::from_counts(&[0; 256]), None);
    for counts in difficult_counts() {
        let table = FrequencyTable::from_counts(&counts).unwrap();
        assert_eq!(table.frequencies().iter().map(|&frequency| u32::from(frequency)).sum::<u32>(), 4096);
        let most = counts.iter().max().unwrap();
        let absorber = counts.iter().position(|count| count == most).unwrap();
        for (symbol, (&frequency, &count)) in table.frequencies().iter().zip(&counts).enumerate() {
            assert_eq!(frequency > 0, count > 0);
            let significant = frequency.checked_shr(frequency.trailing_zeros()).unwrap_or(0);
            assert!(symbol == absorber || significant < 32, "{symbol} has {frequency}");
        }
        let mut bytes = vec![];
        table.write(&mut bytes);
        assert_eq!(bytes.len(), table.coded_len());
        for len in 0..bytes.len() {
            let short = FrequencyTable::read(&mut Cursor::new(&bytes[..len], "test"));
            assert!(matches!(short, Err(CodecError::Truncated { .. })));
        }
        bytes.push(0xEE);
        let mut cursor = Cursor::new(&bytes, "test");
        assert_eq!(FrequencyTable::read(&mut cursor), Ok(table));
        assert_eq!(cursor.rest(), [0xEE]);
    }
}

#[test]
fn normalisation_leaves_no_single_change_that_saves_bits() {
    for counts in difficult_counts() {
        let table = FrequencyTable::from_counts(&counts).unwrap();
        let price = |frequencies: &[f64]| -> f64 {
            frequencies
                .iter()
                .zip(&counts)
                .map(|(f, &c)| if c == 0 { 0.0 } else { -f64::from(c) * f.log2() })
                .sum()
        };
        let absorber = counts.iter().position(|count| count == counts.iter().max().unwrap()).unwrap();
        let best = table.frequencies().map(f64::from);
        for symbol in (0..256).filter(|&symbol| symbol != absorber && counts[symbol] > 0) {
            let unit = f64::from(1u16 << table.frequencies()[symbol].ilog2().saturating_sub(4));
            for change in [unit, -unit] {
                let mut other = best;
                other[symbol] += change;
                other[absorber] -= change;
                if other[symbol] >= 1.0 && other[absorber] >= 1.0 {
                    // Each of two differences of logarithms is good to two units of 2^-16 bits.
                    let noise = f64::from(counts[symbol]) + f64::from(counts[absorber]);
                    assert!(price(&other) > price(&best) - noise * 2f64.powi(-15));
                }
            }
        }
    }
}

#[test]
fn stored_tables_have_the_documented_bytes() {
    // 3072 slots for symbol 2, which absorbs; none for 3; 1024 = 0b10000 << 6, of bit length 11, for 4.
    let table = FrequencyTable::from_counts(&count(&[2, 2, 2, 4])).unwrap();
    let mut bytes = vec![];
    table.write(&mut bytes);
    assert_eq!(bytes, [2, 4, 2, 0xB0, 0x00]);
}

#[test]
fn hostile_tables_are_refused() {
    let cases: [(&str, &[u8]); 7] = [
        ("first above last", &[4, 2, 3, 0, 0]),
        ("absorber below first", &[2, 4, 1, 0xB0, 0]),
        ("absorber above last", &[2, 4, 5, 0xB0, 0]),
        ("padding not zero", &[2, 4, 2, 0xB0, 0x10]),
        ("bit length 13", &[2, 3, 2, 0x0D, 0]),
        ("nothing left for the absorber", &[2, 4, 2, 0x0C, 0x0C]),
        ("last symbol absent", &[2, 4, 2, 0x0B, 0]),
    ];
    for (what, bytes) in cases {
        let result = FrequencyTable::read(&mut Cursor::new(bytes, "test")).map(|_| ());
        assert!(is_corrupt(&result), "{what}: {result:?}");
    }
}

#[test]
fn truncation_at_every_length_is_refused() {
    let symbols = Generator(7).symbols(4, 300);
    let (coded, tables) = encode_with_fit(&symbols, &one_run(&symbols));
    for len in 0..coded.len() {
        let (result, _) = decode_both(&coded[..len], &one_run(&symbols), &tables, symbols.len());
        assert!(matches!(result, Err(CodecError::Truncated { .. })), "{len} bytes: {result:?}");
    }
}

#[test]
fn no_flipped_bit_yields_the_same_symbols() {
    // Whole groups only: a flip in the filling of the last one could go unseen.
    let symbols = Generator(8).symbols(3, 6 * LANES);
    let (mut coded, tables) = encode_with_fit(&symbols, &one_run(&symbols));
    for bit in 0..8 * coded.len() {
        coded[bit / 8] ^= 1 << (bit % 8);
        let (result, decoded) = decode_both(&coded, &one_run(&symbols), &tables, symbols.len());
        assert!(result.is_err() || decoded != symbols, "bit {bit}");
        coded[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn contradictions_are_refused() {
    let symbols = Generator(9).symbols(3, 500);
    let runs = one_run(&symbols);
    let (coded, tables) = encode_with_fit(&symbols, &runs);
    let refuses = |coded: &[u8], runs: &[Run]| is_corrupt(&decode_both(coded, runs, &tables, 500).0);
    for surplus in 1..300 {
        assert!(refuses(&[&coded[..], &vec![0; surplus]].concat(), &runs));
    }
    let mut low_state = coded.clone();
    low_state[4 * 63..][..4].copy_from_slice(&0xFFFFu32.to_le_bytes());
    assert!(refuses(&low_state, &runs));
    assert!(refuses(&coded, &[Run { len: 499, table_idx: 0 }]));
    assert!(refuses(&coded, &[Run { len: 500, table_idx: 1 }]));
    assert!(refuses(&coded, &[Run { len: usize::MAX, table_idx: 0 }, Run { len: 501, table_idx: 0 }]));
}

#[test]
fn random_bytes_decode_alike_on_every_path() {
    let mut generator = Generator(10);
    for case in 0..300 {
        let model = generator.symbols(case % N_SOURCES, 2000);
        let (_, tables) = encode_with_fit(&model, &one_run(&model));
        let mut coded = generator.symbols(UNIFORM, 1500);
        coded[..STATES_LEN].as_chunks_mut::<4>().0.iter_mut().for_each(|state| state[3] |= 1);
        let len = STATES_LEN + generator.below(1500 - STATES_LEN);
        let n_symbols = generator.below(2000);
        let runs = [Run { len: n_symbols, table_idx: 0 }];
        let (result, _) = decode_both(&coded[..len], &runs, &tables, n_symbols);
        assert!(result.is_err());
    }
}

#[test]
fn kernels_leave_the_states_and_words_of_the_scalar_code() {
    let mut generator = Generator(11);
    for source in (0..N_SOURCES).step_by(crate::sizes(1, 3)) {
        let model = generator.symbols(source, 5000);
        let (_, tables) = encode_with_fit(&model, &one_run(&model));
        let words = generator.symbols(UNIFORM, 3000 + source);
        let initial: [u32; LANES] = std::array::from_fn(|_| generator.half() | STATE_FLOOR);
        let cells = tables[0].cells();
        for set in kernel_sets() {
            let kernels = with_kernels(set, kernels);
            let (mut states, mut groups) = (initial, [[0; LANES]; 40]);
            let (n_groups, taken) = kernels.rans12_decode_groups(&mut states, cells, &words, &mut groups);
            let (mut expected_states, mut expected_groups, mut expected_taken) =
                (initial, [[0; LANES]; 40], 0);
            for group in &mut expected_groups[..n_groups] {
                let window = words[expected_taken..].first_chunk().unwrap();
                expected_taken += super::decode::decode_group(&mut expected_states, cells, window, group);
            }
            assert_eq!((states, groups, taken), (expected_states, expected_groups, expected_taken));
            // A set either has no kernel or stops only before the end of the words.
            let has_kernel = matches!(set, KernelSet::Avx2 | KernelSet::Avx512);
            assert_eq!(n_groups > 0, has_kernel, "{set:?}");
            assert!(!has_kernel || n_groups == 40 || words.len() - taken < GROUP_WORDS_LEN);
        }
    }
}
