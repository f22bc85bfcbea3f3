//! What the tensors of a file will take, alone and against their bases, by a sample of each.

use super::PackOptions;
use super::bases::{BaseFinder, BaseTensor, sampled_lens};
use super::layout::Layout;
use super::raw::Raw;
use crate::{Effort, Error};
use mithril_format::ReadAt;
use std::collections::BTreeSet;

/// What a tensor is expected to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpectedSize {
    pub(crate) name: String,
    /// Bytes of a frame of its own.
    pub(crate) alone: u64,
    /// Bytes of a frame against the base tensor of the same name.
    pub(crate) against: u64,
}

/// What those tensors of these names will take that have a base of the same name, type and shape. Counted at `fast`: other
/// efforts make both frames smaller.
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
        let (alone, against) =
            sizes(&raw, &base, options, tensor).map_err(|error| error.in_tensor(&tensor.name))?;
        expected.push(ExpectedSize { name: tensor.name.clone(), alone, against });
    }
    Ok(expected)
}

fn sizes(
    raw: &Raw<'_>,
    base: &BaseTensor<'_>,
    options: &PackOptions,
    tensor: &mithril_format::TensorInfo,
) -> Result<(u64, u64), Error> {
    let mut options =
        options.frame_options(tensor.dtype, &tensor.shape).with_effort(Effort::Fast).with_threads(1);
    options.shape = None;
    let sampled = sampled_lens(raw, base, &options)?;
    let whole = |len: usize| {
        u64::try_from(u128::from(raw.len()) * len as u128 / u128::from(sampled.raw.max(1)))
            .unwrap_or(u64::MAX)
    };
    Ok((whole(sampled.alone), whole(sampled.against)))
}
