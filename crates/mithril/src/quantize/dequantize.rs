//! A quantised model as plain weights again: what the codes stand for, in the original types and shapes.

use super::weights::bytes_of;
use crate::convert::ecq::EcqFile;
use crate::convert::ecq::NewPart;
use crate::convert::ecq::levels::Levels;
use crate::convert::ecq::spool::Spool;
use crate::convert::repository::list;
use crate::convert::{OutputDirectory, Progress};
use crate::{Dtype, Error};
use mithril_format::ecq::{COLUMN_SCALES, LEVELS, QUANTIZATION_KEY, SCALES, damaged, invalid};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// What came of a quantised model.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct DequantizeSummary {
    /// Matrices that were decoded.
    pub n_matrices: usize,
    /// Bytes of the plain file.
    pub raw_len: u64,
}

/// What the metadata say of a matrix.
#[derive(Debug, Deserialize)]
struct Described {
    tensor: String,
    dtype: String,
    shape: Vec<u64>,
}

#[derive(Debug, Deserialize)]
struct Quantization {
    #[serde(default)]
    tensors: BTreeMap<String, Described>,
}

/// Writes the weights that a quantised model stands for as plain safetensors.
///
/// # Errors
/// When it is no such model, is damaged, or a file cannot be read or written. Nothing is left behind then.
pub fn dequantize(
    path: &Path,
    output: OutputDirectory,
    progress: Progress<'_>,
) -> Result<DequantizeSummary, Error> {
    let (weights, others) = if path.is_dir() { list(path)? } else { (vec![path.to_owned()], Vec::new()) };
    let mut summary = DequantizeSummary::default();
    for weights in &weights {
        let file = EcqFile::open(weights)?
            .ok_or_else(|| Error::invalid(format!("`{}` is not entropy-coded", weights.display())))?;
        let name = weights.file_name().map(PathBuf::from).unwrap_or_default();
        summary.raw_len += plain_file(&file, &output, &name, progress, &mut summary.n_matrices)?;
    }
    for other in &others {
        output.copy(path, other)?;
    }
    output.commit()?;
    Ok(summary)
}

fn plain_file(
    file: &EcqFile,
    output: &OutputDirectory,
    name: &Path,
    progress: Progress<'_>,
    n_matrices: &mut usize,
) -> Result<u64, Error> {
    let text = file.metadata().get(QUANTIZATION_KEY).map_or("{}", String::as_str);
    let quantization: Quantization =
        serde_json::from_str(text).map_err(|error| invalid(format!("`{QUANTIZATION_KEY}`: {error}")))?;
    let matrices: Vec<&str> = file.matrices().collect();
    let spool = Spool::create(output)?;
    let mut parts_of: HashSet<String> = HashSet::new();
    for matrix in &matrices {
        let described = quantization.tensors.get(*matrix).ok_or_else(|| {
            Error::invalid(format!("`{matrix}` was quantised elsewhere: use `--to mlx` or `--to gguf`"))
        })?;
        spool.add(vec![plain_tensor(file, matrix, described)?])?;
        let suffixes =
            [".compressed", ".stream_offsets", ".freq", ".low_bits", LEVELS, SCALES, COLUMN_SCALES];
        parts_of.extend(suffixes.iter().map(|suffix| format!("{matrix}{suffix}")));
        *n_matrices += 1;
        progress(described.shape.iter().product());
    }
    for tensor in file.tensors().iter().filter(|tensor| !parts_of.contains(&tensor.name)) {
        let bytes = file.read(&tensor.name)?;
        let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        spool.add(vec![NewPart { name, dtype, shape, bytes }])?;
    }
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok(spool.finish(output, &name.to_string_lossy(), &metadata)?.1)
}

fn plain_tensor(file: &EcqFile, matrix: &str, described: &Described) -> Result<NewPart, Error> {
    let dtype = Dtype::from_name(&described.dtype)
        .filter(|dtype| matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16))
        .ok_or_else(|| damaged(matrix, "its original type is no float"))?;
    let weights = weights(file, matrix)?;
    let n = described.shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    if n != Some(weights.len() as u64) {
        return Err(damaged(matrix, "its original shape has another number of weights").into());
    }
    let bytes = bytes_of(dtype, &weights);
    Ok(NewPart { name: described.tensor.clone(), dtype, shape: described.shape.clone(), bytes })
}

/// The weights that a matrix of levels stands for.
pub(crate) fn weights(file: &EcqFile, matrix: &str) -> Result<Vec<f32>, Error> {
    let parts = file.matrix(matrix)?;
    let (header, coded) = parts.read(matrix)?;
    let side = |suffix: &str| {
        let name = format!("{matrix}{suffix}");
        file.find(&name).map_or(Ok(Vec::new()), |_| file.read(&name))
    };
    let levels = Levels::read(matrix, &header, &side(LEVELS)?, &side(SCALES)?, &side(COLUMN_SCALES)?)?;
    let (rows, columns) = (header.shape.rows(), header.shape.columns());
    let refused = |error: mithril_codec::CodecError| Error::from(damaged(matrix, error));
    let mut codes = vec![0; rows * columns];
    coded.decode_rows(0..rows, &mut codes).map_err(refused)?;
    let mut weights = vec![0.0; codes.len()];
    for (row, (codes, out)) in codes.chunks_exact(columns).zip(weights.chunks_exact_mut(columns)).enumerate()
    {
        levels.weights(row, codes, out);
    }
    for block in 0..header.shape.n_blocks() {
        for escape in coded.escapes(block).map_err(refused)? {
            weights[escape.row * columns + escape.column] = escape.value;
        }
    }
    Ok(weights)
}
