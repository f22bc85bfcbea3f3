//! Diffusers pipelines: a directory of models, some of which are coded.

use super::{
    CONFIG_FILE, Config, DecodeSummary, EncodeOptions, EncodeSummary, Model, ShapeSource, decode, encode,
};
use crate::Error;
use crate::convert::{OutputDirectory, Progress, Repository, components, repository};
use mithril_codec::Dtype;
use mithril_format::safetensors::TensorInfo;
use std::path::Path;

/// Components that are coded without being named, if they have BF16 matrices.
const CODED: [&str; 3] = ["transformer", "unet", "text_encoder"];

/// A component that is coded if most of it is BF16 matrices: usually it is small and made of convolutions, and stays a
/// model that diffusers loads by itself.
const CODED_IF_MATRICES: &str = "vae";

/// Encodes the large components of a pipeline, those with BF16 matrices, and carries everything else along.
///
/// # Errors
/// As [`encode`], or when no component can be coded.
pub fn encode_pipeline(
    path: &Path,
    output: OutputDirectory,
    options: &EncodeOptions,
    progress: Progress<'_>,
) -> Result<Vec<(String, EncodeSummary)>, Error> {
    let mut summaries = Vec::new();
    for name in components(path)? {
        let repository = Repository::open(&path.join(&name))?;
        let (matrices_len, all_len) = lens(&repository);
        let is_wanted = if CODED.iter().any(|coded| name.starts_with(coded)) {
            matrices_len > 0
        } else {
            name.starts_with(CODED_IF_MATRICES) && 2 * matrices_len > all_len
        };
        if is_wanted {
            let summary = encode(&repository, output.inner(&name)?, options, progress)?;
            summaries.push((name, summary));
        }
    }
    if summaries.is_empty() {
        let what = format!("`{}` has no component with BF16 matrices", path.display());
        return Err(Error::invalid(what));
    }
    carry_others(path, &output, summaries.iter().map(|(name, _)| name.as_str()))?;
    output.commit()?;
    Ok(summaries)
}

/// Bytes of the BF16 matrices of a component, and of all its tensors.
fn lens(repository: &Repository) -> (u64, u64) {
    let len = |tensor: &TensorInfo| tensor.bytes.end - tensor.bytes.start;
    let is_matrix = |tensor: &&TensorInfo| tensor.dtype == Dtype::Bf16 && tensor.shape.len() == 2;
    let tensors = repository.tensors();
    (tensors.iter().filter(is_matrix).map(len).sum(), tensors.iter().map(len).sum())
}

/// Gives the plain weights of every coded component of a pipeline back, and carries everything else along.
///
/// # Errors
/// As [`decode`], or when no component is coded.
pub fn decode_pipeline(
    path: &Path,
    output: OutputDirectory,
    threads: usize,
    progress: Progress<'_>,
) -> Result<Vec<(String, DecodeSummary)>, Error> {
    let mut summaries = Vec::new();
    for name in components(path)? {
        let component = path.join(&name);
        let is_coded = std::fs::read(component.join(CONFIG_FILE)).is_ok_and(|text| Config::is_in(&text));
        if is_coded {
            let model = Model::open_with(&component, &ShapeSource::default())?;
            let summary = decode(&model, output.inner(&name)?, threads, progress)?;
            summaries.push((name, summary));
        }
    }
    if summaries.is_empty() {
        return Err(Error::invalid(format!("no component of `{}` is DFloat11", path.display())));
    }
    carry_others(path, &output, summaries.iter().map(|(name, _)| name.as_str()))?;
    output.commit()?;
    Ok(summaries)
}

/// Copies every file that is in none of these components.
fn carry_others<'a>(
    path: &Path,
    output: &OutputDirectory,
    done: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), Error> {
    let (weights, others) = repository::list(path)?;
    for weights in weights {
        output.copy(path, Path::new(weights.file_name().unwrap_or_default()))?;
    }
    for other in others.iter().filter(|other| !done.clone().any(|name| other.starts_with(name))) {
        output.copy(path, other)?;
    }
    Ok(())
}
