//! What to do with a tensor whose base is at hand.

use super::{TensorPlan, block_len, coded_len, middle, prediction, tensor};
use crate::Error;
use crate::options::FrameOptions;
use mithril_codec::Dtype;
use mithril_codec::block::{Delta, Recipe};
use mithril_codec::delta::{DeltaRecipe, common_steps, sampled_bits};
use mithril_codec::transform::fields::Layout;

/// Elements of a block. Twice as many gain 1 % of a fine-tune's size, but no longer fit a small cache with their base.
const DELTA_BLOCK: usize = 1 << 17;

/// Elements that recipes are tried on.
const TRIED: usize = 1 << 13;

/// Rows of other lengths are too short for a rule of their own, or too long to be of one kind.
const ROW_LENS: std::ops::RangeInclusive<u64> = 32..=8192;

/// Plans a tensor against its base, which has the same length.
///
/// # Errors
/// `InvalidArgument` when the shape does not describe exactly these bytes, or the base has another length.
pub fn tensor_against(source: &[u8], base: &[u8], options: &FrameOptions) -> Result<TensorPlan, Error> {
    if source.len() != base.len() {
        return Err(Error::invalid(format!("base of {} bytes, tensor of {}", base.len(), source.len())));
    }
    let mut plan = tensor(source, options)?;
    let unit = options.dtype.unit_len();
    if plan.shared.is_empty() {
        plan.block_len = block_len(evenly(source.len(), unit));
    }
    if !options.byte_grouping {
        let changed = Delta::Xor(Box::new(plan.recipe.clone()));
        plan.recipe = Recipe::AgainstBase { delta: changed, alone: Box::new(plan.recipe) };
        return Ok(plan);
    }
    let delta = delta(source, base, options);
    plan.recipe = Recipe::AgainstBase { delta, alone: Box::new(plan.recipe) };
    Ok(prediction::instead_of(&plan, source, Some(base), options).unwrap_or(plan))
}

/// Bytes of blocks of about the usual size that are cut as evenly as whole vectors allow.
fn evenly(len: usize, unit: usize) -> usize {
    let n = (len / unit).max(1);
    let n_blocks = ((n + DELTA_BLOCK / 2) / DELTA_BLOCK).max(1);
    n.div_ceil(n_blocks).next_multiple_of(256).max(super::MIN_BLOCK_LEN) * unit
}

fn delta(source: &[u8], base: &[u8], options: &FrameOptions) -> Delta {
    let dtype = options.dtype;
    let Some(layout) = dtype.layout() else { return xor(source, base, dtype).0 };
    let unit = dtype.unit_len();
    let width = usize::from(layout.width);
    let start = source.len() / 4 / unit * unit;
    let piece = start..start + (source.len() - start).min(TRIED * width);
    let (tried, tried_base) = (&source[piece.clone()], &base[piece.clone()]);
    let recipe = DeltaRecipe { layout, per_octave: 1, row_len: row_len(source, base, layout, options) };
    let finer = DeltaRecipe { per_octave: 2, ..recipe };
    let n = (source.len() / width).min(DELTA_BLOCK);
    let costs = [recipe, finer].map(|recipe| sampled_bits(&recipe, tried, tried_base, n));
    let (recipe, cost) = if costs[1] < costs[0] { (finer, costs[1]) } else { (recipe, costs[0]) };
    if !layout.sign {
        let (xor, len) = xor(source, base, dtype);
        // Both as bits of as many bytes.
        if (len as u64) * 8 * 256 * (n * width) as u64 <= cost * middle(source, unit).len() as u64 {
            return xor;
        }
    }
    Delta::Difference(recipe)
}

/// The length of rows, if some of them have all moved by the same few steps.
fn row_len(source: &[u8], base: &[u8], layout: Layout, options: &FrameOptions) -> Option<u32> {
    if common_steps(layout, source, base).is_empty() {
        return None;
    }
    let last = options.shape.as_ref().and_then(|shape| shape.last().copied());
    u32::try_from(last.filter(|len| ROW_LENS.contains(len)).unwrap_or(256)).ok()
}

/// The exclusive or by the smaller of two recipes, and what a piece takes by it.
fn xor(source: &[u8], base: &[u8], dtype: Dtype) -> (Delta, usize) {
    let unit = dtype.unit_len();
    let (source, base) = (middle(source, unit), middle(base, unit));
    let changed: Vec<u8> = source.iter().zip(base).map(|(x, base)| x ^ base).collect();
    let planes = Recipe::Planes { width: u8::try_from(unit).unwrap_or(1).min(16), compressors: Vec::new() };
    let width = if matches!(unit, 1 | 2 | 4 | 8) { unit } else { 1 };
    let sparse =
        Recipe::Sparse { width: u8::try_from(width).unwrap_or(1), nonzero: Box::new(planes.clone()) };
    let lens = [&planes, &sparse].map(|recipe| coded_len(recipe, &changed));
    let (recipe, len) = if lens[1] < lens[0] { (sparse, lens[1]) } else { (planes, lens[0]) };
    (Delta::Xor(Box::new(recipe)), len)
}
