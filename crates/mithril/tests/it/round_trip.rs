//! Whatever goes in comes out, bit for bit: every dtype, effort, content and odd length.

use crate::samples::{PATTERNS, pattern};
use crate::stream::{decode_stream, encode_stream};
use mithril::{
    DecodeOptions, Dtype, Effort, FrameOptions, compress, compress_bound, compress_into, decompress,
};
use proptest::prelude::*;

const EFFORTS: [Effort; 3] = [Effort::Fast, Effort::Balanced, Effort::Max];

/// Compresses and decompresses by every way there is.
fn check(raw: &[u8], options: &FrameOptions) {
    let what = || format!("{} bytes of {}, {options:?}", raw.len(), options.dtype.name());
    let frame = compress(raw, options).unwrap();
    assert!(frame.len() <= compress_bound(raw.len(), options), "{}", what());
    assert!(decompress(&frame).unwrap() == raw, "{}", what());
    let mut into = vec![0xee; compress_bound(raw.len(), options)];
    let len = compress_into(raw, options, &mut into).unwrap();
    assert!(into[..len] == frame, "{}", what());
    let mut out = vec![0xee; raw.len()];
    mithril::decompress_into(&frame, &mut out, &DecodeOptions::default()).unwrap();
    assert!(out == raw, "{}", what());
    assert!(decode_stream(&frame).unwrap() == raw, "{}", what());
    let info = mithril::inspect(&frame).unwrap();
    assert_eq!((info.raw_len, info.dtype, &info.shape), (raw.len() as u64, options.dtype, &options.shape));
}

/// A shape of several dimensions for that many bytes, if there is one.
fn shape_of(dtype: Dtype, len: usize, columns: u64) -> Option<Vec<u64>> {
    let n = dtype.elements_in(len as u64);
    let whole = dtype.len_of(n) == Some(len as u64);
    (whole && n.is_multiple_of(columns)).then(|| vec![n / columns, columns])
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    (0..Dtype::ALL.len()).prop_map(|at| Dtype::ALL[at])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn any_data_comes_back(
        dtype in dtypes(),
        effort in 0..3usize,
        content in 0..PATTERNS.len(),
        len in prop_oneof![0..40usize, 0..5000usize, 30_000..140_000usize],
        seed in any::<u64>(),
        shaped in any::<bool>(),
        columns in prop_oneof![Just(1u64), Just(3), Just(16), Just(64), Just(100)],
        checksum in any::<bool>(),
    ) {
        // Lengths with a shape are whole rows.
        let row_len = columns as usize * dtype.unit_len() / dtype.elements_per_unit() as usize;
        let len = if shaped && row_len > 0 { len / row_len * row_len } else { len };
        let raw = pattern(PATTERNS[content], dtype, len, seed);
        let mut options = FrameOptions::default().with_dtype(dtype).with_effort(EFFORTS[effort]).with_checksum(checksum);
        options.shape = if shaped { shape_of(dtype, len, columns) } else { None };
        check(&raw, &options);
    }

    #[test]
    fn any_pieces_give_the_same_stream(
        len in 0..60_000usize,
        piece_len in 1..9000usize,
        seed in any::<u64>(),
    ) {
        let raw = pattern("weights", Dtype::Bf16, len, seed);
        let options = FrameOptions::default().with_dtype(Dtype::Bf16);
        prop_assert_eq!(encode_stream(&raw, piece_len, &options).unwrap(), compress(&raw, &options).unwrap());
    }
}

#[test]
fn every_short_length_comes_back() {
    for &dtype in Dtype::ALL {
        for effort in EFFORTS {
            for content in ["weights", "random", "constant"] {
                // The odd lengths around vectors of 32, and all that are shorter than an element.
                for len in (0..20).chain([31, 32, 33, 63, 64, 65]) {
                    let raw = pattern(content, dtype, len, 3);
                    check(&raw, &FrameOptions::default().with_dtype(dtype).with_effort(effort));
                }
            }
        }
    }
}

#[test]
fn every_content_of_every_dtype_comes_back() {
    for &dtype in Dtype::ALL {
        for effort in EFFORTS {
            // Starting a compressor for each of hundreds of planes takes time: two types stand for the others.
            if effort == Effort::Max && dtype.is_quantized() && !matches!(dtype, Dtype::Q4_1 | Dtype::Mxfp4) {
                continue;
            }
            for content in PATTERNS {
                // Enough for four streams of symbols; the search of the highest effort is slow.
                let n = match effort {
                    _ if dtype.is_quantized() => 40,
                    Effort::Max => 2_000,
                    _ => 17_000,
                };
                for len in [dtype.unit_len() * n, n + 1] {
                    let raw = pattern(content, dtype, len, 8);
                    check(&raw, &FrameOptions::default().with_dtype(dtype).with_effort(effort));
                }
            }
        }
    }
}

/// F32 weights, some of them with dead low bits, so that rows differ in those.
fn coarse_weights(n: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let numbers = (0..n).map(|_| ((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * 0.02);
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// A file of plain bytes may be called numbers and end inside of one. Above `fast`, and without a shape, such blocks were
/// written as rows without that end, and could not be read.
#[test]
fn an_element_that_is_cut_off_comes_back_whatever_its_block_is() {
    for dtype in [Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::F16, Dtype::I32, Dtype::I64] {
        let unit = dtype.unit_len();
        let mut halves = coarse_weights(64 << 10);
        // Rows of 64 elements, some of them with half of their low bytes dead.
        for row in halves.chunks_mut(64 * unit).step_by(3) {
            row.chunks_mut(unit).for_each(|element| element[..unit / 2].fill(0));
        }
        for raw in [coarse_weights(64 << 10), halves] {
            for cut in 1..unit {
                for len in [(32 << 10) * unit.min(4), 48_000, 64 * unit, 4096 * unit] {
                    let end = (len + cut).min(raw.len());
                    for effort in EFFORTS {
                        check(&raw[..end], &FrameOptions::default().with_dtype(dtype).with_effort(effort));
                    }
                }
            }
        }
    }
}

#[test]
fn all_bit_patterns_of_8_and_16_bits_come_back() {
    let all_16: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let all_8: Vec<u8> = (0..=u8::MAX).cycle().take(256 * 300).collect();
    // Mixed with common values, so that rare ones are escapes.
    let mixed = |raw: &[u8], dtype: Dtype| [pattern("weights", dtype, 200_000, 9), raw.to_vec()].concat();
    for &dtype in Dtype::ALL.iter().filter(|dtype| dtype.bits() <= 16 && !dtype.is_quantized()) {
        let raw = if dtype.bits() == 16 { &all_16 } else { &all_8 };
        for effort in EFFORTS {
            let options = FrameOptions::default().with_dtype(dtype).with_effort(effort);
            check(raw, &options);
            if effort != Effort::Max {
                check(&mixed(raw, dtype), &options);
            }
        }
    }
}

#[test]
fn special_numbers_come_back() {
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::C64] {
        for effort in EFFORTS {
            for len in [8, 800, 200_000] {
                let raw = pattern("special", dtype, len, 10);
                check(&raw, &FrameOptions::default().with_dtype(dtype).with_effort(effort));
            }
        }
    }
}

#[test]
fn shapes_of_every_rank_come_back() {
    let raw = pattern("rows", Dtype::F32, 4 * 64 * 128, 11);
    for shape in [
        vec![8192],
        vec![64, 128],
        vec![128, 64],
        vec![4, 16, 128],
        vec![1, 8192],
        vec![8192, 1],
        vec![1; 63],
    ] {
        let raw = if shape.len() == 63 { &raw[..4] } else { &raw[..] };
        for effort in EFFORTS {
            check(
                raw,
                &FrameOptions::default().with_dtype(Dtype::F32).with_effort(effort).with_shape(shape.clone()),
            );
        }
    }
    check(&raw[..4], &FrameOptions::default().with_dtype(Dtype::F32).with_shape([]));
    check(&[], &FrameOptions::default().with_dtype(Dtype::F32).with_shape([5, 0, 3]));
}

#[test]
fn levels_reach_the_compressors_and_come_back() {
    let raw = pattern("repeats", Dtype::Bytes, 100_000, 12);
    for effort in EFFORTS {
        for level in [-5, 1, 9, 22, 100] {
            check(&raw, &FrameOptions::default().with_effort(effort).with_level(level));
        }
    }
}

#[test]
fn quantised_blocks_are_split_into_planes() {
    // Scales that vary little before quants that vary much: bytes of a kind are far better alone.
    for dtype in [Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0, Dtype::Mxfp4, Dtype::Q4K] {
        let unit = dtype.unit_len();
        let n_scales = dtype.run_lens().iter().take_while(|&&len| len == 1).count();
        let mut raw = pattern("random", Dtype::Bytes, 20_000 * unit, 11);
        for block in raw.chunks_exact_mut(unit) {
            let (scales, quants) = block.split_at_mut(n_scales);
            scales[0] &= 7;
            scales[1..].fill(0x11);
            quants.iter_mut().for_each(|quant| *quant &= 0x77);
        }
        let n_elements = 20_000 * u64::from(dtype.elements_per_unit());
        let options = FrameOptions::default().with_dtype(dtype).with_shape([n_elements]);
        check(&raw, &options);
        let frame = compress(&raw, &options).unwrap();
        let as_bytes = compress(&raw, &FrameOptions::default().with_dtype(Dtype::Bytes)).unwrap();
        assert!(frame.len() < as_bytes.len(), "{}: {} {}", dtype.name(), frame.len(), as_bytes.len());
        // One scale byte of three bits, the others constant, quants of six.
        let entropy = 20_000 * (3 + 6 * (unit - n_scales)) / 8;
        assert!(frame.len() < entropy + entropy / 50, "{}: {} {entropy}", dtype.name(), frame.len());
    }
}
