//! Which tensors are taken to be the 16-bit copies of 32-bit ones, which take no bytes.

use super::{TensorEstimate, len_of};
use crate::Error;
use crate::container::round_to;
use mithril_codec::Dtype;
use mithril_format::{ReadAt, TensorInfo};
use std::collections::{HashMap, HashSet};

/// Elements at the front of a tensor that are compared.
const HEAD_ELEMENTS: u64 = 32;

/// Bytes of a narrow tensor whose front may be read: of less it would be too large a share.
const MIN_LEN: u64 = 32 << 10;

/// Tensors that are taken to be derived, and what was read to tell.
pub(super) struct Derived {
    is_derived: Vec<bool>,
    read: Vec<u64>,
}

impl Derived {
    /// Compares the fronts of narrow tensors with those of the wide ones of their shape. Where all that are compared are
    /// derived, shorter ones are taken to be, too.
    pub(super) fn find(source: &dyn ReadAt, tensors: &[TensorInfo]) -> Result<Self, Error> {
        let mut found = Self { is_derived: vec![false; tensors.len()], read: vec![0; tensors.len()] };
        let shapes = |is_like: fn(Dtype) -> bool| -> HashSet<&[u64]> {
            let like = tensors.iter().filter(|tensor| is_like(tensor.dtype));
            like.map(|tensor| tensor.shape.as_slice()).collect()
        };
        let (narrow, wide) = (shapes(is_narrow), shapes(|dtype| dtype == Dtype::F32));
        let mut heads: HashSet<(Dtype, &[u64], Vec<u8>)> = HashSet::new();
        let is_long = |tensor: &TensorInfo| elements(tensor) >= MIN_LEN / 2;
        for (idx, tensor) in tensors.iter().enumerate() {
            if tensor.dtype == Dtype::F32 && is_long(tensor) && narrow.contains(tensor.shape.as_slice()) {
                let head = found.read_head(source, idx, tensor)?;
                for dtype in [Dtype::Bf16, Dtype::F16] {
                    let mut rounded = vec![0; head.len() / 2];
                    round_to(dtype, &head, &mut rounded);
                    heads.insert((dtype, &tensor.shape, rounded));
                }
            }
        }
        if heads.is_empty() {
            return Ok(found);
        }
        let mut all_are: HashMap<Dtype, bool> = HashMap::new();
        for (idx, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| is_narrow(tensor.dtype)) {
            if is_long(tensor) {
                let head = found.read_head(source, idx, tensor)?;
                found.is_derived[idx] = heads.contains(&(tensor.dtype, tensor.shape.as_slice(), head));
                *all_are.entry(tensor.dtype).or_insert(true) &= found.is_derived[idx];
            }
        }
        for (idx, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| is_narrow(tensor.dtype)) {
            if !is_long(tensor) && wide.contains(tensor.shape.as_slice()) {
                found.is_derived[idx] = all_are.get(&tensor.dtype).copied().unwrap_or(false);
            }
        }
        Ok(found)
    }

    /// Whether the tensor of this number is taken to be derived.
    pub(super) fn is_derived(&self, idx: usize) -> bool {
        self.is_derived[idx]
    }

    /// Adds what was read to what was read otherwise.
    pub(super) fn count_read(&self, estimates: &mut [TensorEstimate]) {
        estimates.iter_mut().zip(&self.read).for_each(|(estimate, read)| estimate.sampled_len += read);
    }

    fn read_head(&mut self, source: &dyn ReadAt, idx: usize, tensor: &TensorInfo) -> Result<Vec<u8>, Error> {
        let width = if tensor.dtype == Dtype::F32 { 4 } else { 2 };
        let len = (width * HEAD_ELEMENTS).min(len_of(tensor));
        self.read[idx] += len;
        source.read_range(tensor.bytes.start..tensor.bytes.start + len).map_err(Error::reading)
    }
}

fn is_narrow(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Bf16 | Dtype::F16)
}

fn elements(tensor: &TensorInfo) -> u64 {
    tensor.dtype.elements_in(len_of(tensor))
}
