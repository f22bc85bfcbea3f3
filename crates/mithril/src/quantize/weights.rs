//! Tensors of floats as rows of singles.

use crate::convert::Repository;
use crate::{Dtype, Error};
use mithril_codec::narrow::{f16_to_f32, to_bf16, to_f16};
use mithril_format::TensorInfo;

/// Rows and columns of a tensor that can be quantised: a matrix of floats. Of more dimensions, as convolutions have, all
/// but the first are columns.
pub(super) fn matrix_of(tensor: &TensorInfo) -> Option<(usize, usize)> {
    let is_float = matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
    let (rows, rest) = tensor.shape.split_first().filter(|(_, rest)| is_float && !rest.is_empty())?;
    let columns = rest.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension))?;
    let (rows, columns) = (usize::try_from(*rows).ok()?, usize::try_from(columns).ok()?);
    // Below this the tables and names of a coded matrix weigh more than its bits.
    (rows.checked_mul(columns)? >= 4096 && columns >= 32).then_some((rows, columns))
}

/// Elements of a tensor as singles.
pub(super) fn singles(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = |widen: fn(u16) -> u32| {
        let one = |bytes: &[u8; 2]| f32::from_bits(widen(u16::from_le_bytes(*bytes)));
        bytes.as_chunks().0.iter().map(one).collect()
    };
    match dtype {
        Dtype::F16 => halves(f16_to_f32),
        Dtype::Bf16 => halves(|bits| u32::from(bits) << 16),
        _ => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
    }
}

/// Singles as elements of a tensor, rounded to its type.
pub(super) fn bytes_of(dtype: Dtype, singles: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F16 => singles.iter().flat_map(|x| to_f16(x.to_bits()).to_le_bytes()).collect(),
        Dtype::Bf16 => singles.iter().flat_map(|x| to_bf16(x.to_bits()).to_le_bytes()).collect(),
        _ => singles.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// About so many weights of a tensor, in whole rows at equal distances.
pub(super) fn sample(
    repository: &Repository,
    idx: usize,
    (rows, columns): (usize, usize),
    n_wanted: usize,
) -> Result<Vec<f32>, Error> {
    let dtype = repository.tensors()[idx].dtype;
    let row_len = columns * dtype.unit_len();
    let n_rows = (n_wanted / columns).clamp(1, rows);
    let mut bytes = vec![0; n_rows * row_len];
    for (at, row) in bytes.chunks_exact_mut(row_len).enumerate() {
        let from = at * rows / n_rows;
        repository.read_into(idx, from as u64 * row_len as u64, row)?;
    }
    Ok(singles(dtype, &bytes))
}
