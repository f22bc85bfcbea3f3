//! What to do with a tensor whose base is at hand.

use super::blocks::{AGAINST_BASE, block_len, evenly};
use super::{Evidence, TensorPlan, check_shape, coded_len, middle, prediction, unpredicted};
use crate::Error;
use crate::options::FrameOptions;
use mithril_codec::Dtype;
use mithril_codec::block::{Delta, Recipe, least_len};
use mithril_codec::delta::{DeltaRecipe, common_steps, sampled_bits};
use mithril_codec::transform::fields::Layout;

/// Elements that recipes are tried on.
const TRIED: usize = 1 << 13;

/// Rows of other lengths are too short for a rule of their own, or too long to be of one kind.
const ROW_LENS: std::ops::RangeInclusive<u64> = 32..=8192;

/// How the blocks of a tensor would be cut and coded without its base.
#[derive(Debug)]
pub(crate) struct Alone {
    recipe: Recipe,
    block_len: u32,
}

impl Alone {
    /// Bytes that a frame takes at least. Counted without coding anything.
    pub(crate) fn least_len(&self, source: &[u8]) -> usize {
        source.chunks(self.block_len as usize).map(|block| least_len(&self.recipe, block)).sum()
    }
}

/// Plans a tensor against its base, which has the same length; says what to do without the base, too.
pub(super) fn tensor(source: &[u8], base: &[u8], options: &FrameOptions) -> Result<TensorPlan, Error> {
    if source.len() != base.len() {
        return Err(Error::invalid(format!("base of {} bytes, tensor of {}", base.len(), source.len())));
    }
    check_shape(source, options)?;
    let predicted =
        if options.coding.byte_grouping { prediction::tensor(source, Some(base), options) } else { None };
    let Some((predicted, len)) = predicted else { return Ok(without_prediction(source, base, options)) };
    if let Some(effort) = options.coding.effort.means().alone_at_first {
        let plan = without_prediction(source, base, &options.clone().with_effort(effort));
        let alone_len = plan.alone.as_ref().map_or(0, |alone| alone.least_len(source));
        if len * 4 < alone_len as u64 * 3 && len < prediction::sampled_len(&plan, source, Some(base)) {
            return Ok(TensorPlan { alone: plan.alone, ..predicted });
        }
    }
    let plan = without_prediction(source, base, options);
    let is_smaller = len < prediction::sampled_len(&plan, source, Some(base));
    Ok(if is_smaller { TensorPlan { alone: plan.alone, ..predicted } } else { plan })
}

/// As [`tensor`], by differences of each element or without them.
fn without_prediction(source: &[u8], base: &[u8], options: &FrameOptions) -> TensorPlan {
    let mut plan = unpredicted(source, options, Evidence::All);
    plan.alone = Some(Alone { recipe: plan.recipe.clone(), block_len: plan.block_len });
    let unit = options.dtype.unit_len();
    if plan.shared.is_empty() {
        plan.block_len = block_len(evenly(source.len() / unit, AGAINST_BASE) * unit);
    }
    let delta = match options.coding.byte_grouping {
        true => delta(source, base, options),
        false => Delta::Xor(Box::new(plan.recipe.clone())),
    };
    plan.recipe = Recipe::AgainstBase { delta, alone: Box::new(plan.recipe) };
    plan
}

/// Bytes of a block of floats that depend on nothing: states of coders, tables, headers.
const BLOCK_OVERHEAD: u64 = 1024;

/// About how many bytes a tensor of `len` bytes will take against its base at `fast`, by some pieces of both.
pub(crate) fn expected_len_against(pieces: &[(Vec<u8>, Vec<u8>)], len: u64, dtype: Dtype) -> u64 {
    let sampled: u64 = pieces.iter().map(|(piece, _)| piece.len() as u64).sum();
    let of_all = |sum: u64| {
        u64::try_from(u128::from(sum) * u128::from(len) / u128::from(sampled.max(1))).unwrap_or(u64::MAX)
    };
    let expected = match dtype.layout() {
        Some(layout) => {
            let bytes = |(piece, base): &(Vec<u8>, Vec<u8>)| {
                // As a part of a block, with its contexts.
                let of_block = sampled_bits(layout, piece, base, AGAINST_BASE);
                let n = (piece.len() / usize::from(layout.width)) as u64;
                of_block.into_iter().min().unwrap_or(0) / (8 * 256) * n / AGAINST_BASE as u64
            };
            let n_blocks = (len / u64::from(layout.width)).div_ceil(AGAINST_BASE as u64);
            of_all(pieces.iter().map(bytes).sum()) + n_blocks * BLOCK_OVERHEAD
        }
        None => {
            let bytes = |(piece, base): &(Vec<u8>, Vec<u8>)| {
                let tried = middle(piece, dtype.unit_len()).len().max(1);
                (xor(piece, base, dtype).1 * piece.len() / tried) as u64
            };
            of_all(pieces.iter().map(bytes).sum())
        }
    };
    expected.min(len)
}

fn delta(source: &[u8], base: &[u8], options: &FrameOptions) -> Delta {
    let dtype = options.dtype;
    let Some(layout) = dtype.layout() else { return xor(source, base, dtype).0 };
    let unit = dtype.unit_len();
    let width = usize::from(layout.width);
    let start = source.len() / 4 / unit * unit;
    let piece = start..start + (source.len() - start).min(TRIED * width);
    let (tried, tried_base) = (&source[piece.clone()], &base[piece.clone()]);
    let n = (source.len() / width).min(AGAINST_BASE);
    let costs = sampled_bits(layout, tried, tried_base, n);
    let (per_octave, cost) = if costs[1] < costs[0] { (2, costs[1]) } else { (1, costs[0]) };
    let recipe = DeltaRecipe { layout, per_octave, row_len: row_len(source, base, layout, options) };
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
