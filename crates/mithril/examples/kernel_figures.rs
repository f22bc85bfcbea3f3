//! Speed of encoding and decoding at `fast` by kernel, beside a copy of the same bytes.
//!
//! `cargo run --release -p mithril --example kernel_figures -- FILE...` takes the tensors of safetensors files, one
//! thread, CPU time. Everything takes turns with the copy, and the fastest of all rounds counts. What is decoded is
//! compared with the tensor.

use mithril::{FrameOptions, compress_bound, compress_into, safetensors};
use mithril_codec::block::Scratch;
use mithril_codec::{KernelSet, kernel_sets, with_kernels};
use mithril_format::frame::FrameView;
use rustix::time::{ClockId, clock_gettime};

/// Rounds; the fastest counts.
const ROUNDS: usize = 15;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A tensor, and where its frame and what comes back go.
struct Tensor<'a> {
    raw: &'a [u8],
    options: FrameOptions,
    frame: Vec<u8>,
    frame_len: usize,
    restored: Vec<u8>,
}

fn main() -> Outcome<()> {
    println!("| file | kernels | encode x memcpy | decode x memcpy | memcpy GB/s |");
    println!("|---|---|---|---|---|");
    for path in std::env::args().skip(1) {
        let file = std::fs::read(&path)?;
        let mut tensors = tensors(&file)?;
        report(&path, &mut tensors)?;
    }
    Ok(())
}

fn tensors(file: &[u8]) -> Outcome<Vec<Tensor<'_>>> {
    let first = *file.first_chunk().ok_or("file of fewer than eight bytes")?;
    let end = usize::try_from(safetensors::header_end(first)?)?;
    let head = file.get(..end).ok_or("header is cut off")?;
    let mut tensors = Vec::new();
    for tensor in safetensors::tensors(head, file.len() as u64)? {
        let (start, end) = (usize::try_from(tensor.bytes.start)?, usize::try_from(tensor.bytes.end)?);
        let raw = file.get(start..end).ok_or("tensor lies outside of its file")?;
        let options =
            FrameOptions::default().with_dtype(tensor.dtype).with_shape(tensor.shape).with_threads(1);
        let frame = vec![1; compress_bound(raw.len(), &options)];
        tensors.push(Tensor { raw, options, frame, frame_len: 0, restored: vec![1; raw.len()] });
    }
    Ok(tensors)
}

fn report(path: &str, tensors: &mut [Tensor<'_>]) -> Outcome<()> {
    let variants: Vec<_> = kernel_sets().filter(|set| *set != KernelSet::Scalar).collect();
    let mut copy = f64::INFINITY;
    let mut best = vec![(f64::INFINITY, f64::INFINITY); variants.len()];
    for _ in 0..ROUNDS {
        copy = copy.min(seconds(|| {
            tensors.iter_mut().for_each(|tensor| tensor.restored.copy_from_slice(tensor.raw));
            Ok(())
        })?);
        for (&kernels, (encode, decode)) in variants.iter().zip(&mut best) {
            *encode = encode.min(with_kernels(kernels, || seconds(|| encode_all(tensors)))?);
            tensors.iter_mut().for_each(|tensor| tensor.restored.fill(0));
            *decode = decode.min(with_kernels(kernels, || seconds(|| decode_all(tensors)))?);
            if tensors.iter().any(|tensor| tensor.raw != tensor.restored) {
                return Err(format!("{path}: a tensor did not come back").into());
            }
        }
    }
    let raw_len: usize = tensors.iter().map(|tensor| tensor.raw.len()).sum();
    for (kernels, (encode, decode)) in variants.iter().zip(best) {
        let (encode, decode) = (copy / encode, copy / decode);
        let gb = raw_len as f64 / copy / 1e9;
        println!("| {path} | {kernels:?} | {encode:.3} | {decode:.3} | {gb:.2} |");
    }
    Ok(())
}

fn encode_all(tensors: &mut [Tensor<'_>]) -> Outcome<()> {
    for tensor in tensors {
        tensor.frame_len = compress_into(tensor.raw, &tensor.options, &mut tensor.frame)?;
    }
    Ok(())
}

fn decode_all(tensors: &mut [Tensor<'_>]) -> Outcome<()> {
    let mut scratch = Scratch::new();
    for tensor in tensors {
        let view = FrameView::parse(&tensor.frame[..tensor.frame_len])?;
        let block_len = view.header().block_len as usize;
        for (block_idx, out) in tensor.restored.chunks_mut(block_len).enumerate() {
            view.decode_block(block_idx, None, out, &mut scratch)?;
        }
    }
    Ok(())
}

/// CPU seconds of this thread.
fn seconds(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    };
    let start = now();
    work()?;
    Ok(now() - start)
}
