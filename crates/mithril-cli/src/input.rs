//! Files to measure: model files tensor by tensor, or raw numbers.

use crate::failure::Failure;
use mithril::{Dtype, Error, FrameOptions, source};
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

/// Reads a file. Its bytes say what it is; `dtype` is the type of raw numbers, which are bytes if it is not given.
pub(crate) fn read(path: &Path, dtype: Option<Dtype>) -> Result<Input, Failure> {
    let name = path.display();
    let data = std::fs::read(path).map_err(|error| Failure::read(&name, &error))?;
    let refused = |error: &Error| {
        Failure::library(&name, error)
            .with_hint("`--dtype` names the type of raw numbers, `bytes` if there is none")
    };
    let model = match dtype {
        Some(_) if !has_suffix(path, "safetensors") && !has_suffix(path, "npy") => None,
        _ => pieces_of_model(&data).map_err(|error| refused(&error))?,
    };
    let pieces = model.unwrap_or_else(|| {
        let dtype = dtype.unwrap_or(Dtype::Bytes);
        vec![Piece { name: String::new(), dtype, shape: None, bytes: 0..data.len() }]
    });
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

/// The tensors of a model file, or none when it is of no known kind.
pub(crate) fn pieces_of_model(file: &[u8]) -> Result<Option<Vec<Piece>>, Error> {
    let Some(kind) = source::detect(&file) else { return Ok(None) };
    let tensors = source::tensors(kind, &file)?;
    let offset = |at: u64| usize::try_from(at).expect("an offset in a file that is in memory");
    let pieces = tensors.into_iter().map(|tensor| Piece {
        name: tensor.name,
        dtype: tensor.dtype,
        shape: Some(tensor.shape),
        bytes: offset(tensor.bytes.start)..offset(tensor.bytes.end),
    });
    Ok(Some(pieces.collect()))
}
