//! Diffusers pipelines: a directory of models, some of which are coded.

use super::{
    CONFIG_FILE, Config, DecodeSummary, EncodeOptions, EncodeSummary, Model, ShapeSource, decode, encode,
};
use crate::Error;
use crate::convert::{OutputDirectory, Progress, Repository, components, repository};
use mithril_codec::Dtype;
use std::path::Path;

/// Components that are coded without being named. Others, such as a VAE, are small and mostly convolutions.
const CODED: [&str; 3] = ["transformer", "unet", "text_encoder"];

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
    let is_wanted = |name: &String| CODED.iter().any(|coded| name.starts_with(coded));
    let mut summaries = Vec::new();
    for name in components(path)?.into_iter().filter(is_wanted) {
        let repository = Repository::open(&path.join(&name))?;
        let has_matrices =
            repository.tensors().iter().any(|tensor| tensor.dtype == Dtype::Bf16 && tensor.shape.len() == 2);
        if has_matrices {
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
