//! Size and speed of the deltas between two safetensors files, beside a copy of the same bytes.
//!
//! `cargo run --release -p mithril --example delta_figures -- TUNED BASE [EFFORT...]` prints, for each effort, the
//! bits per weight of all tensors that both files have, and encode and decode speed as multiples of `memcpy`: one
//! thread, CPU time, best of several passes over all tensors, bases hashed beforehand. Every tensor is compared with what its
//! frame decodes to.

use mithril::{
    Base, DecodeOptions, Effort, FrameOptions, compress_bound, compress_delta_into, decompress_delta_into,
    safetensors,
};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Passes over all tensors; the fastest counts.
const PASSES: usize = 7;

/// A tensor that both files have.
struct Pair<'a> {
    current: &'a [u8],
    base: Base<'a>,
    options: FrameOptions,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [current, base, efforts @ ..] = &arguments[..] else {
        return Err("usage: delta_figures TUNED.safetensors BASE.safetensors [fast|balanced|max]...".into());
    };
    let (current, base) = (std::fs::read(current)?, std::fs::read(base)?);
    let mut pairs = pairs(&current, &base)?;
    let efforts = match efforts {
        [] => vec![Effort::Fast, Effort::Balanced, Effort::Max],
        names => names.iter().filter_map(|name| Effort::from_name(name)).collect(),
    };
    println!(
        "| effort | weights | raw bytes | delta bytes | bits/weight | encode x memcpy | decode x memcpy | memcpy GB/s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for effort in efforts {
        pairs.iter_mut().for_each(|pair| pair.options.coding.effort = effort);
        report(effort, &pairs)?;
    }
    Ok(())
}

/// Tensors of both files that have the same name, type and shape.
fn pairs<'a>(current: &'a [u8], base: &'a [u8]) -> Result<Vec<Pair<'a>>, Box<dyn std::error::Error>> {
    let (tensors, bases) = (tensors(current)?, tensors(base)?);
    let mut pairs = Vec::new();
    for tensor in tensors {
        let same =
            |other: &&safetensors::TensorInfo| other.name == tensor.name && other.shape == tensor.shape;
        let Some(of_base) = bases.iter().find(same).filter(|other| other.dtype == tensor.dtype) else {
            continue;
        };
        pairs.push(Pair {
            current: bytes_of(current, &tensor)?,
            base: Base::new(bytes_of(base, of_base)?),
            options: FrameOptions::default()
                .with_dtype(tensor.dtype)
                .with_shape(tensor.shape)
                .with_threads(1),
        });
    }
    Ok(pairs)
}

fn tensors(file: &[u8]) -> Result<Vec<safetensors::TensorInfo>, Box<dyn std::error::Error>> {
    let first = *file.first_chunk().ok_or("file of fewer than eight bytes")?;
    let end = usize::try_from(safetensors::header_end(first)?)?;
    Ok(safetensors::tensors(file.get(..end).ok_or("header is cut off")?, file.len() as u64)?)
}

fn bytes_of<'a>(
    file: &'a [u8],
    tensor: &safetensors::TensorInfo,
) -> Result<&'a [u8], Box<dyn std::error::Error>> {
    let (start, end) = (usize::try_from(tensor.bytes.start)?, usize::try_from(tensor.bytes.end)?);
    file.get(start..end).ok_or("tensor lies outside of its file".into())
}

fn report(effort: Effort, pairs: &[Pair<'_>]) -> Result<(), Box<dyn std::error::Error>> {
    let mut outputs: Vec<Vec<u8>> = pairs.iter().map(|pair| vec![0; pair.current.len()]).collect();
    let mut frames: Vec<Vec<u8>> =
        pairs.iter().map(|pair| vec![0; compress_bound(pair.current.len(), &pair.options)]).collect();
    let mut lens = vec![0; pairs.len()];
    let copy = fastest(|| {
        for (pair, out) in pairs.iter().zip(&mut outputs) {
            out.copy_from_slice(pair.current);
        }
        Ok(())
    })?;
    let encode = fastest(|| {
        for ((pair, frame), len) in pairs.iter().zip(&mut frames).zip(&mut lens) {
            (*len, _) = compress_delta_into(pair.current, &pair.base, &pair.options, frame)?;
        }
        Ok(())
    })?;
    outputs.iter_mut().for_each(|out| out.fill(0));
    let options = DecodeOptions::default().with_threads(1);
    let decode = fastest(|| {
        for ((pair, out), (frame, &len)) in pairs.iter().zip(&mut outputs).zip(frames.iter().zip(&lens)) {
            decompress_delta_into(&frame[..len], &pair.base, out, &options)?;
        }
        Ok(())
    })?;
    if pairs.iter().zip(&outputs).any(|(pair, out)| pair.current != *out) {
        return Err("a tensor did not come back".into());
    }
    let raw: usize = pairs.iter().map(|pair| pair.current.len()).sum();
    let delta: usize = lens.iter().sum();
    let weights: usize =
        pairs.iter().map(|pair| pair.current.len() * 8 / pair.options.dtype.bits() as usize).sum();
    println!(
        "| {} | {weights} | {raw} | {delta} | {:.4} | {:.3} | {:.3} | {:.2} |",
        effort.name(),
        delta as f64 * 8.0 / weights as f64,
        copy / encode,
        copy / decode,
        raw as f64 / copy / 1e9,
    );
    Ok(())
}

/// CPU seconds of the fastest pass. A slow pass is not repeated as often.
fn fastest(mut pass: impl FnMut() -> Result<(), mithril::Error>) -> Result<f64, Box<dyn std::error::Error>> {
    let seconds = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    };
    let mut best = f64::INFINITY;
    let began = Instant::now();
    for _ in 0..PASSES {
        let start = seconds();
        pass()?;
        best = best.min(seconds() - start);
        if began.elapsed().as_secs() > 10 {
            break;
        }
    }
    Ok(best)
}
