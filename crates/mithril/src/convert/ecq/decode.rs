//! Entropy-coded files back to the files that they were made of, byte for byte.

use super::directory::Inputs;
use super::encode::digest;
use super::file::EcqFile;
use super::originals::Originals;
use crate::Error;
use crate::convert::repository::{cannot, in_file};
use crate::convert::{MEMORY_LEN, OutputDirectory, Progress};
use crate::options::thread_count;
use crate::pipeline::tasks::{self, Budget};
use mithril_format::TensorInfo;
use mithril_format::ecq::{SourceFormat, invalid};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What came of an entropy-coded directory.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DecodeSummary {
    /// Matrices that were decoded.
    pub n_matrices: usize,
    /// Bytes of all files of weights before.
    pub coded_len: u64,
    /// Bytes of all files of weights after.
    pub raw_len: u64,
    /// Files of weights.
    pub n_files: usize,
    /// Other files that were carried along.
    pub n_carried: usize,
}

/// Restores the files that [`super::encode`] was given. Every file is compared with the digest of its original.
///
/// # Errors
/// When a file is damaged, was made of another format, or cannot be read or written. Nothing is left behind then.
pub fn decode(
    path: &Path,
    format: SourceFormat,
    output: OutputDirectory,
    threads: usize,
    progress: Progress<'_>,
) -> Result<DecodeSummary, Error> {
    let inputs = Inputs::open(path)?;
    let mut summary = DecodeSummary::default();
    for weights in &inputs.weights {
        let file = EcqFile::open(weights)?
            .ok_or_else(|| Error::invalid(format!("`{}` is not entropy-coded", weights.display())))?;
        decode_file(&file, weights, format, &output, threads, progress, &mut summary)
            .map_err(|error| in_file(error, weights))?;
    }
    summary.n_files = inputs.weights.len();
    summary.n_carried = inputs.carry_back(&output)?;
    output.commit()?;
    Ok(summary)
}

fn decode_file(
    file: &EcqFile,
    path: &Path,
    format: SourceFormat,
    output: &OutputDirectory,
    threads: usize,
    progress: Progress<'_>,
    summary: &mut DecodeSummary,
) -> Result<(), Error> {
    let made_of = file.source().map(|source| source.format);
    if made_of != Some(format) {
        let what = match made_of {
            Some(SourceFormat::Gguf) => "a GGUF file: `--to gguf` gives it back",
            Some(SourceFormat::Safetensors) => "a safetensors file: `--to mlx` gives it back",
            None => "no quantised file: `--to safetensors` gives its weights",
        };
        return Err(Error::invalid(format!("`{}` was made of {what}", path.display())));
    }
    let originals = Originals::of(file)?;
    let Originals { source, glue, tensors, .. } = &originals;
    let target = output.temporary().join(&source.name);
    let failed = |error: io::Error| cannot("write", &target, error);
    let out = File::options().read(true).write(true).create_new(true).open(&target).map_err(failed)?;
    write_glue(&out, glue, tensors, source.len).map_err(failed)?;
    let largest = tensors.iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).max().unwrap_or(0);
    let budget = Budget::new(MEMORY_LEN + 6 * largest);
    let n_threads =
        thread_count(threads, tensors.len().max(1), usize::try_from(source.len).unwrap_or(usize::MAX));
    tasks::run(tensors.len(), n_threads, |idx| {
        let tensor = &tensors[idx];
        let len = tensor.bytes.end - tensor.bytes.start;
        let share = budget.take(6 * len);
        let bytes = originals.read(idx)?;
        out.write_all_at(&bytes, tensor.bytes.start).map_err(failed)?;
        drop(share);
        progress(len);
        Ok(())
    })?;
    if digest(&out, source.len)? != source.digest {
        return Err(
            invalid(format!("`{}` comes back with other bytes than it was made of", source.name)).into()
        );
    }
    summary.n_matrices += file.matrices().count();
    summary.coded_len += std::fs::metadata(path).map_err(|error| cannot("read", path, error))?.len();
    summary.raw_len += source.len;
    Ok(())
}

/// Writes every byte that belongs to no tensor to its place.
fn write_glue(out: &File, mut glue: &[u8], tensors: &[TensorInfo], len: u64) -> io::Result<()> {
    out.set_len(len)?;
    let mut at = 0;
    for bytes in tensors.iter().map(|tensor| tensor.bytes.clone()).chain(std::iter::once(len..len)) {
        let n = usize::try_from(bytes.start.saturating_sub(at)).unwrap_or(usize::MAX).min(glue.len());
        let (piece, rest) = glue.split_at(n);
        out.write_all_at(piece, at)?;
        glue = rest;
        at = bytes.end;
    }
    Ok(())
}
