//! The original tensors of a matrix, bit for bit.

use super::file::EcqFile;
use crate::{Dtype, Error};
use mithril_codec::ecq::Coded;
use mithril_codec::quantised::zero_codes::ZeroCodes;
use mithril_codec::quantised::{Layout, bit_packing, gguf, zero_codes};
use mithril_format::ecq::{BIAS_RESIDUALS, BIASES, MatrixHeader, SCALES, ZERO_CODES, damaged};

/// Which original tensor a part of a matrix gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Role {
    /// The matrix.
    pub(super) matrix: String,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Codes,
    Scales,
    Biases,
}

/// The original tensors that come of a matrix of this layout; none for what was never a file of another format.
pub(super) fn roles(matrix: &str, layout: Layout, has_biases: bool) -> Vec<(String, Role)> {
    let role = |name: String, what: What| (name, Role { matrix: matrix.to_owned(), what });
    match layout {
        Layout::Gguf(_) | Layout::Codes => vec![role(matrix.to_owned(), What::Codes)],
        Layout::MlxAffine | Layout::MlxMxfp4 | Layout::MlxMxfp8 | Layout::MlxNvfp4 => {
            let mut roles = vec![
                role(format!("{matrix}.weight"), What::Codes),
                role(format!("{matrix}{SCALES}"), What::Scales),
            ];
            if has_biases {
                roles.push(role(format!("{matrix}{BIASES}"), What::Biases));
            }
            roles
        }
        _ => Vec::new(),
    }
}

/// The bytes of an original tensor.
pub(super) fn restore(file: &EcqFile, role: &Role) -> Result<Vec<u8>, Error> {
    let name = role.matrix.as_str();
    match role.what {
        What::Codes => {
            let parts = file.matrix(name)?;
            let (header, coded) = parts.read(name)?;
            packed(file, name, &header, &coded)
        }
        What::Scales => Ok(file.read_side(&format!("{name}{SCALES}"), None)?.1),
        What::Biases => {
            let plain = format!("{name}{BIASES}");
            if file.find(&plain).is_some() {
                return Ok(file.read_side(&plain, None)?.1);
            }
            let dtype = file.header(name)?.scale_dtype;
            let dtype = dtype.ok_or_else(|| damaged(name, "no type of scales to predict biases from"))?;
            let (_, scales) = file.read_side(&format!("{name}{SCALES}"), None)?;
            let (_, zero_codes) = file.read_side(&format!("{name}{ZERO_CODES}"), None)?;
            let (_, residuals) = file.read_side(&format!("{name}{BIAS_RESIDUALS}"), None)?;
            let fits = residuals.len() == scales.len()
                && scales.len().is_multiple_of(dtype.unit_len())
                && zero_codes.len() == 2 * (scales.len() / dtype.unit_len());
            if !fits {
                return Err(damaged(name, "zero codes that do not fit its scales").into());
            }
            Ok(zero_codes::join(dtype, &scales, &ZeroCodes { zero_codes, residuals }))
        }
    }
}

fn packed(file: &EcqFile, name: &str, header: &MatrixHeader, coded: &Coded<'_>) -> Result<Vec<u8>, Error> {
    let (rows, columns) = (header.shape.rows(), header.shape.columns());
    let mut codes = vec![0; rows * columns];
    coded.decode_rows(0..rows, &mut codes).map_err(|error| damaged(name, error))?;
    if let Layout::Gguf(dtype) = header.layout {
        return gguf_blocks(file, name, dtype, columns, &codes);
    }
    if header.layout == Layout::MlxMxfp8 {
        codes.iter_mut().for_each(|code| *code = bit_packing::exponent_back(*code));
    }
    let n_bits = usize::from(header.bits) * codes.len();
    if !n_bits.is_multiple_of(8) {
        return Err(damaged(name, "codes that do not fill bytes").into());
    }
    let mut packed = vec![0; n_bits / 8];
    bit_packing::pack(header.bits, &codes, &mut packed);
    Ok(packed)
}

fn gguf_blocks(
    file: &EcqFile,
    name: &str,
    dtype: Dtype,
    columns: usize,
    codes: &[u8],
) -> Result<Vec<u8>, Error> {
    let per_unit = dtype.elements_per_unit() as usize;
    if !columns.is_multiple_of(per_unit) {
        return Err(damaged(name, "rows that are no whole blocks").into());
    }
    let n_units = codes.len() / per_unit;
    let mut sides = Vec::new();
    for side in Layout::Gguf(dtype).sides() {
        let (_, values) = file.read_side(&format!("{name}.{}", side.name), None)?;
        if values.len() != n_units * side.per_unit * side.dtype.unit_len() {
            return Err(damaged(name, format!("`{}` of another length than its blocks", side.name)).into());
        }
        sides.push(values);
    }
    let sides: Vec<&[u8]> = sides.iter().map(Vec::as_slice).collect();
    let mut blocks = vec![0; n_units * dtype.unit_len()];
    gguf::join(dtype, codes, &sides, &mut blocks);
    Ok(blocks)
}
