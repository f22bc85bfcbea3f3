//! Tensors of one file that say the same: equal ones, and 16-bit copies of 32-bit ones.

use super::assumed::Assumed;
use super::layout::Layout;
use super::raw::Raw;
use crate::Error;
use crate::container::{is_rounding_of, round_to};
use mithril_codec::Dtype;
use mithril_format::{Digest, Digester, ReadAt};
use std::collections::{HashMap, HashSet};

/// Elements at the front of a wide tensor that tell most of them apart.
const HEAD_ELEMENTS: u64 = 32;

/// Bytes at the front of a tensor that tell most tensors apart.
const HEAD_LEN: u64 = 256;

/// Earlier tensors with the same first bytes that a tensor is compared with.
const MAX_COMPARED: usize = 32;

/// Narrow dtype, shape, and the first elements rounded to that dtype.
type WideKey<'a> = (Dtype, &'a [u64], Vec<u8>);

/// Finds tensors that need no bytes of their own, as the tensors come by in order.
pub(super) struct Twins<'a> {
    source: &'a dyn ReadAt,
    layout: &'a Layout,
    /// How many tensors have this length: where there is one, it has no twin.
    n_of_len: HashMap<u64, usize>,
    /// Tensors seen so far that are no references, by dtype, length and first bytes.
    seen: HashMap<(Dtype, u64, Vec<u8>), Vec<usize>>,
    /// F32 tensors by narrow dtype, shape and the rounding of their first elements.
    wide: HashMap<WideKey<'a>, Vec<usize>>,
    /// Digests of what is written of the tensors so far, if anybody keeps them.
    written: Option<Vec<Option<Digest>>>,
    assumed: &'a Assumed,
}

/// A narrow tensor that need not be stored.
pub(super) struct Rounded {
    /// The tensor that it is the rounding of.
    pub(super) wide_idx: usize,
    /// The digest of its bytes, where digests are kept.
    pub(super) digest: Option<Digest>,
}

impl<'a> Twins<'a> {
    /// Looks at the lengths, and at the heads of wide tensors where there are narrow ones of the same shape. With digests,
    /// tensors are compared with what is written of others; without, with what the source has of them now.
    pub(super) fn new(
        source: &'a dyn ReadAt,
        layout: &'a Layout,
        with_digests: bool,
        assumed: &'a Assumed,
    ) -> Result<Self, Error> {
        let mut n_of_len = HashMap::new();
        for tensor in &layout.tensors {
            *n_of_len.entry(tensor.bytes.end - tensor.bytes.start).or_insert(0) += 1;
        }
        let narrow = layout.tensors.iter().filter(|tensor| is_narrow(tensor.dtype));
        let narrow: HashSet<(Dtype, &[u64])> =
            narrow.map(|tensor| (tensor.dtype, tensor.shape.as_slice())).collect();
        let mut wide: HashMap<_, Vec<usize>> = HashMap::new();
        for (idx, tensor) in layout.tensors.iter().enumerate() {
            if tensor.dtype != Dtype::F32 || tensor.bytes.is_empty() {
                continue;
            }
            for dtype in [Dtype::Bf16, Dtype::F16] {
                if narrow.contains(&(dtype, tensor.shape.as_slice())) {
                    let raw = Raw::new(source, tensor.bytes.clone(), None);
                    let head = raw.read(0..raw.len().min(4 * HEAD_ELEMENTS))?;
                    let mut rounded = vec![0; head.len() / 2];
                    round_to(dtype, &head, &mut rounded);
                    wide.entry((dtype, tensor.shape.as_slice(), rounded)).or_default().push(idx);
                }
            }
        }
        let written = with_digests.then(|| vec![None; layout.tensors.len()]);
        Ok(Self { source, layout, n_of_len, seen: HashMap::new(), wide, written, assumed })
    }

    /// Whether digests are kept of what is written.
    pub(super) fn has_digests(&self) -> bool {
        self.written.is_some()
    }

    /// Says what is written of a tensor.
    pub(super) fn wrote(&mut self, tensor_idx: usize, digest: Option<Digest>) {
        if let Some(written) = &mut self.written {
            written[tensor_idx] = digest;
        }
    }

    /// What is written of a tensor, if it is known.
    pub(super) fn written(&self, tensor_idx: usize) -> Option<Digest> {
        self.written.as_ref().and_then(|written| written[tensor_idx])
    }

    /// Fails when what tensors are made from is not what was written of it.
    pub(super) fn check_assumed(&self) -> Result<(), Error> {
        self.written.as_ref().map_or(Ok(()), |written| self.assumed.check(written, self.layout))
    }

    /// The number of an earlier tensor with the same bytes. Remembers this one otherwise.
    pub(super) fn find_equal(&mut self, tensor_idx: usize, raw: &Raw<'_>) -> Result<Option<usize>, Error> {
        if raw.len() == 0 || self.n_of_len.get(&raw.len()) == Some(&1) {
            return Ok(None);
        }
        // Of the same type, so that what is derived from this tensor can be derived from the earlier one.
        let dtype = self.layout.tensors[tensor_idx].dtype;
        let head = raw.read(0..raw.len().min(HEAD_LEN))?;
        let candidates = self.seen.entry((dtype, raw.len(), head)).or_default();
        // Tensors that start alike and differ are rare: some are compared, and what they cost is bounded.
        for &candidate in candidates.iter().rev().take(MAX_COMPARED) {
            let is_equal = match &self.written {
                Some(written) => written[candidate] == Some(raw.digest()?),
                None => {
                    let earlier = Raw::new(self.source, self.layout.tensors[candidate].bytes.clone(), None);
                    raw.all_pieces(|at, piece| Ok(earlier.read(at..at + piece.len() as u64)? == piece))?
                }
            };
            if is_equal {
                return Ok(Some(candidate));
            }
        }
        candidates.push(tensor_idx);
        Ok(None)
    }

    /// The F32 tensor that this one is the rounding of.
    pub(super) fn find_wide(&self, tensor_idx: usize, raw: &Raw<'_>) -> Result<Option<Rounded>, Error> {
        let tensor = &self.layout.tensors[tensor_idx];
        if !is_narrow(tensor.dtype) || raw.len() == 0 || self.wide.is_empty() {
            return Ok(None);
        }
        let head = raw.read(0..raw.len().min(2 * HEAD_ELEMENTS))?;
        let key = (tensor.dtype, tensor.shape.as_slice(), head);
        for &candidate in self.wide.get(&key).into_iter().flatten() {
            let wide = Raw::new(self.source, self.layout.tensors[candidate].bytes.clone(), None);
            let mut digesters = self.written.is_some().then(<[Digester; 2]>::default);
            let is_rounding = raw.all_pieces(|at, piece| {
                let wide = wide.read(2 * at..2 * (at + piece.len() as u64))?;
                if let Some([of_narrow, of_wide]) = &mut digesters {
                    of_narrow.update(piece);
                    of_wide.update(&wide);
                }
                Ok(is_rounding_of(tensor.dtype, &wide, piece))
            })?;
            if !is_rounding {
                continue;
            }
            let Some([narrow, wide]) = digesters.map(|each| each.map(|digester| digester.finish())) else {
                return Ok(Some(Rounded { wide_idx: candidate, digest: None }));
            };
            // It may be written already, and have changed since.
            if self.written(candidate).is_none_or(|written| written == wide) {
                self.assumed.add(candidate, wide);
                return Ok(Some(Rounded { wide_idx: candidate, digest: Some(narrow) }));
            }
        }
        Ok(None)
    }
}

fn is_narrow(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Bf16 | Dtype::F16)
}
