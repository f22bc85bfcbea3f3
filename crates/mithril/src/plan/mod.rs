//! What to do with a tensor, decided from a sample of it and written down as data.

use crate::options::{Effort, FrameOptions};
use crate::Error;
use mithril_codec::Dtype;
use mithril_codec::block::{FieldRecipe, Recipe, Shared, SymbolCoder};
use mithril_codec::entropy::lz::Compressor;

/// What happens to every block of a tensor.
#[derive(Debug)]
pub struct TensorPlan {
    /// How blocks are coded.
    pub recipe: Recipe,
    /// What they share.
    pub shared: Shared,
    /// Raw bytes of every block but the last.
    pub block_len: u32,
}

/// Raw bytes of the smallest block that a plan asks for.
pub const MIN_BLOCK_LEN: usize = 1 << 16;

/// Shared tables may take this share of the raw bytes, in percent.
pub(crate) const MAX_SHARED_SHARE: usize = 2;

/// Elements of a block.
const BLOCK_ELEMENTS: usize = 1 << 16;

/// Plans a tensor.
///
/// # Errors
/// `InvalidArgument` when the shape does not describe exactly these bytes.
pub fn tensor(source: &[u8], options: &FrameOptions) -> Result<TensorPlan, Error> {
    if let Some(shape) = &options.shape {
        let n = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
        let len = n.and_then(|n| options.dtype.len_of(n));
        if len != Some(source.len() as u64) {
            let dtype = options.dtype.name();
            return Err(Error::invalid(format!("shape {shape:?} of {dtype} does not take {} bytes", source.len())));
        }
    }
    let width = options.dtype.layout().map_or(1, |l| usize::from(l.width));
    let recipe = match options.dtype.layout() {
        Some(layout) => Recipe::Fields(FieldRecipe { layout, joint: 0, base: 0, coder: SymbolCoder::Rans8 }),
        None => Recipe::Planes { width: u8::try_from(options.dtype.unit_len()).unwrap_or(1), compressors: vec![Compressor::Zstd { level: 3 }] },
    };
    let _ = (Effort::Fast, Dtype::F32);
    Ok(TensorPlan { recipe, shared: Shared::default(), block_len: u32::try_from(BLOCK_ELEMENTS * width).unwrap_or(u32::MAX) })
}
