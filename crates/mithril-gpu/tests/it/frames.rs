//! Frames decoded by kernels equal what the CPU decodes, and damage is refused.

use crate::{GPU, random, repository, weights};
use mithril::container::{Bases, Model};
use mithril::{Dtype, Effort, FrameOptions};

fn bytes_of(dtype: Dtype, n: usize, seed: u64) -> Vec<u8> {
    let numbers = weights(n, seed);
    match dtype {
        Dtype::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        // The upper half of an f32 is a bf16.
        Dtype::Bf16 => numbers.iter().flat_map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]]).collect(),
        _ => {
            let mut random = random(seed);
            let low = |x: u64| u8::try_from(x & 7).expect("three bits");
            (0..n).flat_map(|_| [low(random()), 0x30 | low(random())]).collect()
        }
    }
}

fn check(raw: &[u8], options: &FrameOptions) -> usize {
    let frame = mithril::compress(raw, options).expect("compresses");
    let decoded = GPU.decode_frame(&frame).expect("decodes");
    assert!(decoded.bytes == raw, "{:?}: other bytes came back", options.dtype);
    decoded.n_on_gpu
}

#[test]
fn every_width_and_odd_length_comes_back() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F8E4m3, Dtype::I8] {
        let mut n_on_gpu = 0;
        for n in [0, 1, 31, 33, 255, 257, 1000, 4096, 16_384, 16_400, 70_001] {
            let mut raw = bytes_of(dtype, n, n as u64 + 1);
            n_on_gpu += check(&raw, &FrameOptions::default().with_dtype(dtype));
            raw.truncate(raw.len().saturating_sub(1));
            n_on_gpu += check(&raw, &FrameOptions::default().with_dtype(dtype));
        }
        assert!(n_on_gpu > 0, "{dtype:?}: no block was decoded by a kernel");
    }
}

#[test]
fn escapes_and_several_blocks_come_back() {
    let mut raw = bytes_of(Dtype::Bf16, 700_000, 5);
    let mut random = random(9);
    for _ in 0..5000 {
        let at = usize::try_from(random() % 700_000).expect("fits");
        let [a, b, ..] = random().to_le_bytes();
        raw[2 * at..2 * at + 2].copy_from_slice(&[a, b]);
    }
    assert!(check(&raw, &FrameOptions::default().with_dtype(Dtype::Bf16)) > 1);
}

#[test]
fn what_no_kernel_knows_is_decoded_by_the_cpu() {
    let raw = bytes_of(Dtype::Bf16, 300_000, 6);
    let options = FrameOptions::default().with_dtype(Dtype::Bf16).with_shape([300, 1000]);
    for effort in [Effort::Balanced, Effort::Max] {
        let frame = mithril::compress(&raw, &options.clone().with_effort(effort)).expect("compresses");
        let decoded = GPU.decode_frame(&frame).expect("decodes");
        assert!(decoded.bytes == raw && decoded.n_on_gpu + decoded.n_on_cpu > 0);
    }
}

#[test]
fn golden_frames_decode_as_on_the_cpu() {
    let mut n_frames = 0;
    for entry in std::fs::read_dir(repository("golden")).expect("the golden files are there") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "mthf") {
            let frame = std::fs::read(&path).expect("readable");
            let on_cpu = mithril::decompress(&frame).expect("golden frames decode");
            assert!(GPU.decode_frame(&frame).expect("decodes").bytes == on_cpu, "{}", path.display());
            n_frames += 1;
        }
    }
    assert!(n_frames > 20, "only {n_frames} golden frames");
}

#[test]
fn the_demo_model_decodes_tensor_by_tensor() {
    let file = std::fs::File::open(repository("assets/minilm-demo.safetensors")).expect("opens");
    let model = Model::open("demo", Box::new(file), Bases::none()).expect("a model");
    let mut n_on_gpu = 0;
    for (tensor_idx, tensor) in model.tensors().iter().enumerate() {
        let raw = model.read(tensor_idx).expect("reads");
        n_on_gpu += check(&raw, &FrameOptions::default().with_dtype(tensor.dtype));
    }
    assert!(n_on_gpu > 0);
}

#[test]
fn damage_is_refused_or_decodes_as_on_the_cpu() {
    let raw = bytes_of(Dtype::Bf16, 5000, 7);
    let frame =
        mithril::compress(&raw, &FrameOptions::default().with_dtype(Dtype::Bf16)).expect("compresses");
    let mut random = random(3);
    let mut n_refused = 0;
    for _ in 0..200 {
        let mut damaged = frame.clone();
        let bit = usize::try_from(random() % (8 * frame.len() as u64)).expect("fits");
        damaged[bit / 8] ^= 1 << (bit % 8);
        // Padding is not read: some bits do no harm.
        let on_cpu = mithril::decompress(&damaged).ok();
        n_refused += usize::from(on_cpu.is_none());
        assert_eq!(GPU.decode_frame(&damaged).ok().map(|decoded| decoded.bytes), on_cpu, "bit {bit}");
    }
    assert!(n_refused > 150, "only {n_refused} of 200 refused");
}
