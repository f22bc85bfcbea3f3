//! What the library writes for fixed inputs, as checksums: two builds that agree write the same bytes.
//!
//! `scripts/test.sh` compares debug with release, and kernels with their scalar definitions.

use crate::sha256::sha256;
use crate::{Outcome, repository};
use mithril::{Dtype, Effort, FrameOptions, safetensors};
use std::fs;

/// A tensor to compress.
struct Sample {
    name: String,
    dtype: Dtype,
    shape: Option<Vec<u64>>,
    raw: Vec<u8>,
}

/// Compresses every sample at every effort, checks that it comes back, and prints the digest of its frame.
pub(crate) fn print() -> Outcome {
    for Sample { name, dtype, shape, raw } in samples()? {
        for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
            let mut options = FrameOptions::default().with_dtype(dtype).with_effort(effort);
            options.shape.clone_from(&shape);
            let frame = mithril::compress(&raw, &options)?;
            if mithril::decompress(&frame)? != raw {
                return Err(format!("{name} does not come back at effort {}", effort.name()).into());
            }
            println!("{} {} {name} {}", sha256(&frame), frame.len(), effort.name());
        }
    }
    Ok(())
}

/// The inputs of all golden frames, which are small and of every dtype, and the tensors of the demo model.
fn samples() -> Result<Vec<Sample>, Box<dyn std::error::Error>> {
    let mut samples = Vec::new();
    for entry in fs::read_dir(repository("golden"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "mthf") {
            let frame = fs::read(&path)?;
            let info = mithril::inspect(&frame)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            samples.push(Sample {
                name,
                dtype: info.dtype,
                shape: info.shape,
                raw: mithril::decompress(&frame)?,
            });
        }
    }
    // Directories have no order of their own.
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    let model = fs::read(repository("assets/minilm-demo.safetensors"))?;
    for tensor in safetensors::tensors(&model, model.len() as u64)? {
        let (start, end) = (usize::try_from(tensor.bytes.start)?, usize::try_from(tensor.bytes.end)?);
        let raw = model.get(start..end).ok_or("a tensor lies outside of the demo model")?.to_vec();
        samples.push(Sample { name: tensor.name, dtype: tensor.dtype, shape: Some(tensor.shape), raw });
    }
    Ok(samples)
}
