//! What the library writes for fixed inputs, as checksums: two builds that agree write the same bytes.
//!
//! `scripts/test.sh` compares debug with release, and kernels with their scalar definitions.

use crate::sha256::sha256;
use crate::{Outcome, repository};
use mithril::{Base, Dtype, Effort, FrameOptions, safetensors};
use std::fs;

/// A tensor to compress, alone or against an earlier version of itself.
struct Sample {
    name: String,
    dtype: Dtype,
    shape: Option<Vec<u64>>,
    raw: Vec<u8>,
    base: Option<Vec<u8>>,
}

/// Compresses every sample at every effort, checks that it comes back, and prints the digest of its frame.
pub(crate) fn print() -> Outcome {
    for Sample { name, dtype, shape, raw, base } in samples()? {
        let base = base.as_deref().map(Base::new);
        for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
            let mut options = FrameOptions::default().with_dtype(dtype).with_effort(effort);
            options.shape.clone_from(&shape);
            let (frame, restored) = match &base {
                Some(base) => {
                    let frame = mithril::compress_delta(&raw, base, &options)?;
                    let restored = mithril::decompress_delta(&frame, base)?;
                    (frame, restored)
                }
                None => {
                    let frame = mithril::compress(&raw, &options)?;
                    let restored = mithril::decompress(&frame)?;
                    (frame, restored)
                }
            };
            if restored != raw {
                return Err(format!("{name} does not come back at effort {}", effort.name()).into());
            }
            println!("{} {} {name} {}", sha256(&frame), frame.len(), effort.name());
        }
    }
    Ok(())
}

/// The inputs of all golden frames, which are small and of every dtype, and the tensors of the demo model, alone and
/// against a version without an update.
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
                base: None,
            });
        }
    }
    // Directories have no order of their own.
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    let model = fs::read(repository("assets/minilm-demo.safetensors"))?;
    for tensor in safetensors::tensors(&model, model.len() as u64)? {
        let (start, end) = (usize::try_from(tensor.bytes.start)?, usize::try_from(tensor.bytes.end)?);
        let raw = model.get(start..end).ok_or("a tensor lies outside of the demo model")?.to_vec();
        let base = before_an_update(&raw, tensor.dtype, &tensor.shape);
        let [name, against_base] = [tensor.name.clone(), format!("{} against its base", tensor.name)];
        let (dtype, shape) = (tensor.dtype, Some(tensor.shape));
        samples.push(Sample {
            name: against_base,
            dtype,
            shape: shape.clone(),
            raw: raw.clone(),
            base: Some(base),
        });
        samples.push(Sample { name, dtype, shape, raw, base: None });
    }
    Ok(samples)
}

/// What a tensor may have been a training step ago: an update of rank one, as those of matrices are mostly, and noise on
/// every third element; bits as unsigned numbers where values are neither F32 nor BF16.
fn before_an_update(raw: &[u8], dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    let n_columns = shape.last().copied().unwrap_or(1).max(1);
    let mut base = raw.to_vec();
    let mut noise = 1_u32;
    for (idx, element) in (0_u64..).zip(base.chunks_exact_mut(dtype.unit_len())) {
        let of_row = u16::try_from(idx / n_columns % 7).unwrap_or_default();
        let of_column = u16::try_from(idx % n_columns % 5).unwrap_or_default();
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let of_noise = if idx.is_multiple_of(3) { noise >> 30 } else { 0 };
        let mut word = [0; 8];
        word[..element.len()].copy_from_slice(element);
        let bits = u64::from_le_bytes(word);
        // BF16 is the upper half of F32.
        let moved = match (dtype, word) {
            (Dtype::F32, [a, b, c, d, ..]) => {
                value_before(f32::from_le_bytes([a, b, c, d]), of_row, of_column).into()
            }
            (Dtype::Bf16, [a, b, ..]) => {
                (value_before(f32::from_le_bytes([0, 0, a, b]), of_row, of_column) >> 16).into()
            }
            _ => bits.wrapping_sub((of_row * of_column / 4).into()),
        };
        element.copy_from_slice(&moved.wrapping_sub(of_noise.into()).to_le_bytes()[..element.len()]);
    }
    base
}

/// Bits of the value without its part of the update.
fn value_before(value: f32, of_row: u16, of_column: u16) -> u32 {
    (value - (f32::from(of_row) - 3.0) * (f32::from(of_column) - 2.0) * 1e-3).to_bits()
}
