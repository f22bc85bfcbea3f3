//! Tensors given their base come back bit for bit; a base that is another is refused before anything is written.

use mithril::{
    Base, DecodeOptions, Digest, Dtype, Effort, ErrorKind, FrameOptions, Stored, apply_into,
    apply_known_into, compress, compress_bound, compress_delta, compress_delta_into, decompress,
    decompress_delta, decompress_delta_into, inspect,
};

/// A fixed generator.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Bytes that look like a tensor of this type, and what they were before some of them changed a little.
fn pair(dtype: Dtype, len: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut next = random(seed);
    let width = dtype.unit_len();
    let mut base: Vec<u8> = (0..len).map(|_| next().to_le_bytes()[3]).collect();
    for element in base.chunks_exact_mut(width) {
        // Sizes of one sign and few exponents, as trained weights have them.
        let top = width - 1;
        element[top] = element[top] & 0x80 | 0x3c | element[top] & 3;
    }
    let mut current = base.clone();
    for element in current.chunks_exact_mut(width) {
        if next().is_multiple_of(3) {
            element[0] = element[0].wrapping_add((next() % 5).to_le_bytes()[0]);
        }
    }
    (current, base)
}

fn check(current: &[u8], base: &[u8], options: &FrameOptions) -> usize {
    let base = Base::new(base);
    let frame = compress_delta(current, &base, options).unwrap();
    let alone = compress(current, options).unwrap();
    assert!(frame.len() <= alone.len(), "{options:?}: {} against {} alone", frame.len(), alone.len());
    assert!(decompress_delta(&frame, &base).unwrap() == current, "{options:?}");
    let mut out = vec![0x5a; current.len()];
    let mut into = vec![0; compress_bound(current.len(), options)];
    let (len, stored) = compress_delta_into(current, &base, options, &mut into).unwrap();
    assert_eq!(stored == Stored::Delta, inspect(&into[..len]).unwrap().base.is_some(), "{options:?}");
    decompress_delta_into(&into[..len], &base, &mut out, &DecodeOptions::default()).unwrap();
    assert!(out == current, "{options:?}");
    let mut live = base.bytes().to_vec();
    apply_into(&frame, &mut live, &DecodeOptions::default()).unwrap();
    assert!(live == current, "{options:?}");
    frame.len()
}

#[test]
fn every_type_and_odd_length_comes_back_at_every_effort() {
    for &dtype in Dtype::ALL {
        for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
            let options = FrameOptions::default().with_dtype(dtype).with_effort(effort);
            for len in [0, 1, 2, 3, 7, 8, 24, 100, 1001, 50_000, 300_003] {
                let (current, base) = pair(dtype, len, len as u64 + 1);
                check(&current, &base, &options);
            }
        }
    }
}

#[test]
fn special_numbers_come_back_against_each_other() {
    let special =
        [0u32, 1 << 31, 1, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xffff_ffff, 0x7fff_ffff, 0x0080_0000];
    let mut next = random(77);
    let mut numbers = |n: usize| -> Vec<u8> {
        (0..n).flat_map(|_| special[usize::try_from(next() % 9).unwrap()].to_le_bytes()).collect()
    };
    let (current, base) = (numbers(5000), numbers(5000));
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::F64, Dtype::F8E4m3] {
        check(&current, &base, &FrameOptions::default().with_dtype(dtype));
    }
}

#[test]
fn an_equal_tensor_costs_a_byte_per_block() {
    let (current, _) = pair(Dtype::Bf16, 1 << 20, 5);
    let len = check(&current, &current, &FrameOptions::default().with_dtype(Dtype::Bf16));
    assert!(len < 300, "{len}");
}

#[test]
fn a_small_change_costs_less_than_the_tensor_alone() {
    for dtype in [Dtype::Bf16, Dtype::F32, Dtype::I32, Dtype::I8, Dtype::Bytes] {
        let (current, base) = pair(dtype, 400_000, 9);
        let options = FrameOptions::default().with_dtype(dtype);
        let len = check(&current, &base, &options);
        assert!(len * 2 < compress(&current, &options).unwrap().len(), "{dtype:?}: {len}");
    }
}

#[test]
fn an_unrelated_base_costs_nothing() {
    let (current, _) = pair(Dtype::Bf16, 300_000, 3);
    let (_, base) = pair(Dtype::Bf16, 300_000, 4);
    check(&current, &base, &FrameOptions::default().with_dtype(Dtype::Bf16));
}

/// Parts of a matrix are close to the base and others are not, or its numbers have bits that are always zero, so that
/// what is true of a sample is not true of the whole.
#[test]
fn a_base_that_helps_in_places_only_never_costs() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for (share_of_close, has_dead_bits) in [(64, false), (8, false), (8, true), (2, true)] {
            let width = dtype.unit_len();
            let (mut current, base) = pair(dtype, 192 << 10, 3);
            let (far, _) = pair(dtype, 192 << 10, 4);
            let close = current.len() / share_of_close / width * width;
            current[close..].copy_from_slice(&far[close..]);
            if has_dead_bits {
                current.chunks_exact_mut(width).for_each(|element| element[..width - 1].fill(0));
            }
            let shape = vec![256, (current.len() / width / 256) as u64];
            for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
                check(&current, &base, &options(dtype, &shape).with_effort(effort));
            }
        }
    }
}

/// Second moments of an embedding: nearly all rows are zero, and the few others change by one pattern.
#[test]
fn tensors_of_mostly_empty_rows_come_back() {
    let (rows, columns) = (16384, 64);
    let mut next = random(11);
    let pattern: Vec<f32> = (0..columns).map(|_| (next() % 1000) as f32 * 1e-6 + 1e-4).collect();
    let mut make = |growth: f32| -> Vec<u8> {
        let mut numbers = random(12);
        let mut values = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            let weight = (numbers() % 1000) as f32 * 1e-3;
            let noise = (next() % 1000) as f32 * 1e-10;
            let scale = if row % 512 == 7 { weight } else { 0.0 };
            values.extend(pattern.iter().map(|value| scale * (value * growth + noise)));
        }
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    let (base, current) = (make(1.0), make(1.3));
    let options = options(Dtype::F32, &[rows as u64, columns as u64]);
    for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
        check(&current, &base, &options.clone().with_effort(effort));
    }
}

fn options(dtype: Dtype, shape: &[u64]) -> FrameOptions {
    FrameOptions::default().with_dtype(dtype).with_shape(shape.to_vec())
}

#[test]
fn another_base_is_refused_and_nothing_is_written() {
    let (current, base) = pair(Dtype::F32, 40_000, 2);
    let options = FrameOptions::default().with_dtype(Dtype::F32);
    let frame = compress_delta(&current, &Base::new(&base), &options).unwrap();
    let mut other = base.clone();
    other[39_999] ^= 1;
    let refused = |error: mithril::Error| assert_eq!(error.kind(), ErrorKind::Base, "{error}");
    refused(decompress_delta(&frame, &Base::new(&other)).unwrap_err());
    refused(decompress(&frame).unwrap_err());
    let mut out = vec![7; current.len()];
    let into = decompress_delta_into(&frame, &Base::new(&other), &mut out, &DecodeOptions::default());
    refused(into.unwrap_err());
    assert!(out.iter().all(|&byte| byte == 7));
    let before = other.clone();
    refused(apply_into(&frame, &mut other, &DecodeOptions::default()).unwrap_err());
    refused(
        apply_known_into(&frame, &mut other, Digest::of(&before), &DecodeOptions::default()).unwrap_err(),
    );
    assert!(other == before);
    let decoder = mithril::Decoder::new(&frame[..]);
    refused(decoder.err().unwrap());
}

#[test]
fn other_lengths_are_refused() {
    let (current, base) = pair(Dtype::F32, 4000, 2);
    let options = FrameOptions::default().with_dtype(Dtype::F32);
    let short = Base::new(&base[..3996]);
    let refused = |error: mithril::Error| assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    refused(compress_delta(&current, &short, &options).unwrap_err());
    let frame = compress_delta(&current, &Base::new(&base), &options).unwrap();
    let pretending = Base::with_digest(&base[..3996], Digest::of(&base));
    refused(decompress_delta(&frame, &pretending).unwrap_err());
    let mut out = vec![0; 3996];
    let into = decompress_delta_into(&frame, &Base::new(&base), &mut out, &DecodeOptions::default());
    refused(into.unwrap_err());
}

#[test]
fn threads_give_identical_deltas() {
    let (current, base) = pair(Dtype::Bf16, 3 << 20, 8);
    let base = Base::new(&base);
    let options = FrameOptions::default().with_dtype(Dtype::Bf16);
    let one = compress_delta(&current, &base, &options.clone().with_threads(1)).unwrap();
    for threads in [2, 7] {
        let frame = compress_delta(&current, &base, &options.clone().with_threads(threads)).unwrap();
        assert!(frame == one, "{threads} threads");
        let mut out = vec![0; current.len()];
        let decode = DecodeOptions::default().with_threads(threads);
        decompress_delta_into(&frame, &base, &mut out, &decode).unwrap();
        assert!(out == current);
    }
}

#[test]
fn kernels_write_the_bytes_of_the_scalar_code() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64, Dtype::F8E4m3, Dtype::I8] {
        let (current, base) = pair(dtype, 200_003, 6);
        let base = Base::new(&base);
        let options = FrameOptions::default().with_dtype(dtype).with_threads(1);
        let frame = compress_delta(&current, &base, &options).unwrap();
        let scalar = mithril_codec::without_kernels(|| compress_delta(&current, &base, &options)).unwrap();
        assert!(frame == scalar, "{dtype:?}");
        let mut out = vec![0; current.len()];
        mithril_codec::without_kernels(|| {
            decompress_delta_into(&frame, &base, &mut out, &DecodeOptions::default().with_threads(1))
        })
        .unwrap();
        assert!(out == current, "{dtype:?}");
    }
}

#[test]
fn damage_is_refused_and_leaves_the_block_of_a_live_buffer_alone() {
    let (current, base) = pair(Dtype::Bf16, 3000, 21);
    let of_base = Base::new(&base);
    let frame = compress_delta(&current, &of_base, &FrameOptions::default().with_dtype(Dtype::Bf16)).unwrap();
    for len in 0..frame.len() {
        assert!(decompress_delta(&frame[..len], &of_base).is_err(), "cut to {len}");
    }
    for bit in 0..8 * frame.len() {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(out) = decompress_delta(&damaged, &of_base) {
            assert!(out == current, "bit {bit}");
        }
        let mut live = base.clone();
        if apply_known_into(&damaged, &mut live, of_base.digest(), &DecodeOptions::default()).is_err() {
            assert!(live == base, "bit {bit}");
        }
    }
}
