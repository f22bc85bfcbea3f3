//! What the tensors of a file will take against their bases, by a sample of each.

use super::PackOptions;
use super::bases::{BaseFinder, BaseTensor};
use super::layout::Layout;
use super::raw::Raw;
use crate::{Error, plan};
use mithril_format::{ReadAt, TensorInfo};
use std::collections::BTreeSet;

/// Bytes that are looked at in one place.
const SAMPLE_LEN: u64 = 16 << 10;

/// One place is looked at for so many bytes of a tensor, and at most so many places: reading one decodes a block of the
/// base.
const PLACE_EVERY: u64 = 512 << 10;
const MAX_PLACES: u64 = 6;

/// What a tensor is expected to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpectedSize {
    pub(crate) name: String,
    /// Bytes of a frame against the base tensor of the same name.
    pub(crate) against: u64,
}

/// What those tensors of these names will take that have a base of the same name, type and shape. Counted at `fast`: other
/// efforts make frames smaller.
pub(crate) fn expected_sizes(
    source: &dyn ReadAt,
    names: &BTreeSet<&str>,
    options: &PackOptions,
) -> Result<Vec<ExpectedSize>, Error> {
    let layout = Layout::of(source)?;
    let finder = BaseFinder::new(&options.bases, &layout);
    let mut expected = Vec::new();
    for tensor in layout.tensors.iter().filter(|tensor| names.contains(tensor.name.as_str())) {
        let raw = Raw::new(source, tensor.bytes.clone(), None);
        let Some(base) = finder.find_named(tensor).filter(|_| raw.len() > 0) else { continue };
        let against = len_against(&raw, &base, tensor).map_err(|error| error.in_tensor(&tensor.name))?;
        expected.push(ExpectedSize { name: tensor.name.clone(), against });
    }
    Ok(expected)
}

fn len_against(raw: &Raw<'_>, base: &BaseTensor<'_>, tensor: &TensorInfo) -> Result<u64, Error> {
    let unit = tensor.dtype.unit_len() as u64;
    let len = raw.len().min(SAMPLE_LEN) / unit * unit;
    let n_places = raw.len().div_ceil(PLACE_EVERY).min(MAX_PLACES);
    let open = base.open()?;
    let mut pieces = Vec::new();
    for place in 0..n_places {
        let at = (raw.len() - len) * (2 * place + 1) / (2 * n_places) / unit * unit;
        let current = raw.read(at..at + len)?;
        let mut before = vec![0; current.len()];
        open.read_range(at..at + len, &mut before, 1)?;
        pieces.push((current, before));
    }
    Ok(plan::expected_len_against(&pieces, raw.len(), tensor.dtype))
}
