//! Files to measure: safetensors tensor by tensor, `.npy`, or raw numbers.

use crate::failure::Failure;
use mithril::{Dtype, Error, FormatError, FrameOptions, npy, safetensors};
use std::ops::Range;
use std::path::Path;

/// A file in memory, and the tensors in it.
#[derive(Debug)]
pub(crate) struct Input {
    /// The whole file.
    pub(crate) data: Vec<u8>,
    /// Its tensors, in the order of their bytes, none overlapping.
    pub(crate) pieces: Vec<Piece>,
}

/// One tensor or buffer of a file.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Its name; empty for files that hold only one.
    pub(crate) name: String,
    /// Type of its elements.
    pub(crate) dtype: Dtype,
    /// Its dimensions, if known.
    pub(crate) shape: Option<Vec<u64>>,
    /// Where its bytes are in the file.
    pub(crate) bytes: Range<usize>,
}

impl Input {
    /// Raw bytes of all tensors.
    pub(crate) fn raw_len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes.len()).sum()
    }

    /// Elements of all tensors.
    pub(crate) fn n_elements(&self) -> u64 {
        self.pieces.iter().map(Piece::n_elements).sum()
    }

    /// Bytes of each dtype, most bytes first.
    pub(crate) fn dtypes(&self) -> Vec<(Dtype, usize)> {
        let of =
            |dtype: Dtype| self.pieces.iter().filter(move |p| p.dtype == dtype).map(|p| p.bytes.len()).sum();
        let mut dtypes: Vec<(Dtype, usize)> = Dtype::ALL.iter().map(|&dtype| (dtype, of(dtype))).collect();
        dtypes.retain(|&(_, len)| len > 0);
        dtypes.sort_by_key(|&(_, len)| std::cmp::Reverse(len));
        dtypes
    }
}

impl Piece {
    /// How many elements it has.
    pub(crate) fn n_elements(&self) -> u64 {
        match &self.shape {
            Some(shape) => shape.iter().product(),
            None => self.dtype.elements_in(self.bytes.len() as u64),
        }
    }

    /// Options with its dtype and shape.
    pub(crate) fn options(&self) -> FrameOptions {
        let options = FrameOptions::default().with_dtype(self.dtype);
        match &self.shape {
            Some(shape) => options.with_shape(shape.clone()),
            None => options,
        }
    }
}

/// Reads a file. Its suffix says what it is; `dtype` is the type of raw numbers.
pub(crate) fn read(path: &Path, dtype: Option<Dtype>) -> Result<Input, Failure> {
    let name = path.display();
    let data = std::fs::read(path).map_err(|error| Failure::read(&name, &error))?;
    let pieces = if has_suffix(path, "safetensors") {
        pieces_of_safetensors(&data)
    } else if has_suffix(path, "npy") {
        piece_of_npy(&data).map(|piece| vec![piece])
    } else {
        let dtype = dtype.ok_or_else(|| {
            Failure::command(format!("the type of the numbers in `{name}` is not known"))
                .with_hint("name it for raw files, for instance `--dtype bf16`")
        })?;
        Ok(vec![Piece { name: String::new(), dtype, shape: None, bytes: 0..data.len() }])
    };
    let pieces = pieces.map_err(|error| Failure::library(&name, &Error::from(error)))?;
    let input = Input { data, pieces };
    match input.raw_len() {
        0 => Err(Failure::input(format!("`{}` holds no data", path.display()))),
        _ => Ok(input),
    }
}

/// Whether a file name ends in `.suffix`, in any case.
pub(crate) fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(suffix))
}

/// The tensors of a safetensors file.
pub(crate) fn pieces_of_safetensors(file: &[u8]) -> Result<Vec<Piece>, FormatError> {
    let invalid = |reason: String| FormatError::Foreign { format: "safetensors", reason };
    let mut end = 0;
    let mut pieces = Vec::new();
    for tensor in safetensors::tensors(file, file.len() as u64)? {
        let offset = |at: u64| {
            usize::try_from(at).map_err(|_| invalid(format!("tensor `{}` lies too far in", tensor.name)))
        };
        let bytes = offset(tensor.bytes.start)?..offset(tensor.bytes.end)?;
        // Buffers are sized by the sum of all tensors, which overlapping ones could make as large as they like.
        if bytes.start < end {
            return Err(invalid(format!("tensor `{}` overlaps the one before it", tensor.name)));
        }
        end = bytes.end;
        pieces.push(Piece { name: tensor.name, dtype: tensor.dtype, shape: Some(tensor.shape), bytes });
    }
    Ok(pieces)
}

fn piece_of_npy(file: &[u8]) -> Result<Piece, FormatError> {
    let array = npy::parse(file)?;
    let n_elements = array.shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    let len = n_elements.and_then(|n| array.dtype.len_of(n)).and_then(|len| usize::try_from(len).ok());
    let bytes = array.data_offset..file.len();
    if len != Some(bytes.len()) {
        let reason =
            format!("shape {:?} of {} does not take {} bytes", array.shape, array.dtype.name(), bytes.len());
        return Err(FormatError::Foreign { format: "npy", reason });
    }
    Ok(Piece { name: String::new(), dtype: array.dtype, shape: Some(array.shape), bytes })
}
