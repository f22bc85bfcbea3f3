use super::*;
use crate::CodecError;
use crate::arch::{kernel_sets, with_kernels};
use crate::entropy::rans8::decode::{Slots, decode_group};
use crate::entropy::rans8::encode::encode_groups_scalar;
use crate::sizes;

pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

const IDENTITY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Symbols of a random skew, and frequencies that fit them.
fn sample(random: &mut Random, n: usize) -> (Vec<u8>, Frequencies) {
    let skew = 1 + random.below(15);
    let symbols: Vec<u8> =
        (0..n).map(|_| u8::try_from((0..skew).map(|_| random.below(16)).min().unwrap()).unwrap()).collect();
    let mut counts = [0; 16];
    for &symbol in &symbols {
        counts[usize::from(symbol)] += 1;
    }
    (symbols, Frequencies::from_counts(&counts))
}

fn encode_with<const N: usize>(
    symbols: &[u8],
    frequencies: &Frequencies,
    encode: impl Fn(&mut EncodeState<'_, N>, &EncodeTable, &[u8]),
) -> Vec<u8> {
    let mut room = vec![0; EncodeState::<N>::room_len(symbols.len())];
    let mut state = EncodeState::<N>::new(&mut room, symbols.len());
    let table = EncodeTable::new(frequencies);
    // Two calls, so that states carried from call to call are covered.
    let cut = symbols.len() / 2 / (32 * N) * (32 * N);
    encode(&mut state, &table, &symbols[cut..]);
    encode(&mut state, &table, &symbols[..cut]);
    let mut out = vec![0; state.coded_len()];
    assert_eq!(state.write(&mut out), out.len());
    out
}

fn decode<const N: usize>(coded: &[u8], frequencies: &Frequencies, n: usize) -> Result<Vec<u8>, CodecError> {
    let (mut state, end) = DecodeState::<N>::read(coded)?;
    assert!(end <= coded.len());
    let mut out = vec![0; n];
    decode_groups(&mut state, &DecodeTable::new(frequencies), &IDENTITY, coded, &mut out)?;
    state.finish()?;
    Ok(out)
}

fn decode_scalar<const N: usize>(
    coded: &[u8],
    frequencies: &Frequencies,
    n: usize,
) -> Result<Vec<u8>, CodecError> {
    let (mut state, _) = DecodeState::<N>::read(coded)?;
    let mut out = vec![0; n];
    let slots = Slots::new(&DecodeTable::new(frequencies), &IDENTITY);
    for group in out.chunks_exact_mut(32 * N) {
        decode_group(&mut state, &slots, coded, group)?;
    }
    state.finish()?;
    Ok(out)
}

fn check<const N: usize>(seed: u64, n_groups: usize) {
    let mut random = Random(seed * 2 + 1);
    let (symbols, frequencies) = sample(&mut random, n_groups * 32 * N);
    let coded = encode_with::<N>(&symbols, &frequencies, |s, t, b| encode_groups(s, t, b, &[]));
    let scalar = encode_with::<N>(&symbols, &frequencies, encode_groups_scalar);
    assert_eq!(coded, scalar, "kernel and scalar encoder differ, seed {seed}");
    assert_eq!(decode::<N>(&coded, &frequencies, symbols.len()).unwrap(), symbols, "seed {seed}");
    assert_eq!(decode_scalar::<N>(&coded, &frequencies, symbols.len()).unwrap(), symbols, "seed {seed}");
}

#[test]
fn symbols_round_trip_and_kernels_equal_the_scalar_code() {
    for kernels in kernel_sets() {
        with_kernels(kernels, || {
            for seed in 0..sizes(300, 4) {
                check::<1>(seed, usize::try_from(seed % 40).unwrap());
                check::<4>(seed, usize::try_from(seed % 40).unwrap());
            }
        });
    }
}

#[test]
fn one_frequent_symbol_and_one_rare_round_trip() {
    for rare in 1..16u8 {
        let mut symbols = vec![0u8; 128 * 50];
        symbols[77] = rare;
        let mut counts = [0; 16];
        counts[0] = 6399;
        counts[usize::from(rare)] = 1;
        let frequencies = Frequencies::from_counts(&counts);
        let coded = encode_with::<4>(&symbols, &frequencies, |s, t, b| encode_groups(s, t, b, &[]));
        assert_eq!(decode::<4>(&coded, &frequencies, symbols.len()).unwrap(), symbols);
    }
}

#[test]
fn damaged_streams_give_the_same_result_from_kernel_and_scalar_code() {
    let mut random = Random(99);
    let (symbols, frequencies) = sample(&mut random, 128 * sizes(20, 3));
    let coded = encode_with::<4>(&symbols, &frequencies, |s, t, b| encode_groups(s, t, b, &[]));
    for _ in 0..sizes(2000, 3) {
        let mut damaged = coded.clone();
        let at = usize::try_from(random.below(damaged.len() as u64)).unwrap();
        damaged[at] ^= 1 << random.below(8);
        let kernel = decode::<4>(&damaged, &frequencies, symbols.len());
        for kernels in kernel_sets() {
            let other = with_kernels(kernels, || decode::<4>(&damaged, &frequencies, symbols.len()));
            assert_eq!(kernel, other, "byte {at}, {kernels:?}");
        }
        let scalar = decode_scalar::<4>(&damaged, &frequencies, symbols.len());
        assert_eq!(kernel, scalar, "byte {at}");
        assert_ne!(kernel.as_ref(), Ok(&symbols), "a flip in byte {at} went unnoticed");
    }
}

#[test]
fn streams_cut_at_any_length_are_refused() {
    let mut random = Random(5);
    let (symbols, frequencies) = sample(&mut random, 128 * 4);
    let coded = encode_with::<4>(&symbols, &frequencies, |s, t, b| encode_groups(s, t, b, &[]));
    for len in (0..coded.len()).step_by(sizes(1, 61)) {
        let result = decode::<4>(&coded[..len], &frequencies, symbols.len());
        assert!(matches!(result, Err(CodecError::Truncated { .. })), "length {len}: {result:?}");
    }
}
