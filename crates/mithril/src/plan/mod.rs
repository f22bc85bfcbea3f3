//! What to do with a tensor, decided from a sample of it and written down as data.
//!
//! A plan says how blocks are cut and by which [`Recipe`] they are coded; the pipeline follows it blindly. Every choice
//! compares sizes counted from histograms in integers, so that the same input gives the same plan on every machine.
//!
//! | effort | may use |
//! |---|---|
//! | fast | bit fields with a window per block (256 symbols where it leaves out many elements), half floats with the sign in the field, palettes, sparse blocks, byte planes, zstd for data with repeats |
//! | balanced | four row and column classes of merged quantiles, sign classes, low bytes that are no noise, rows with such or dead bits apart |
//! | max | exponent and two mantissa bits as one of 256 symbols, classes refined by code length, matrices of low rank, brotli and zstd 19 |

mod classes;
mod delta;
mod grid;
mod low_rank;
mod prediction;
mod sample;
mod signs;

#[cfg(test)]
mod tests;

pub use delta::tensor_against;
pub(crate) use delta::{expected_len_against, tensor_against_and_alone};
pub(crate) use prediction::{MAX_SHARED_SHARE as MAX_PREDICTION_SHARE, sampled_len};

use crate::Error;
use crate::options::{Effort, FrameOptions, HONEST_BLOCK_LEN};
use grid::Matrix;
use mithril_codec::Dtype;
use mithril_codec::block::{
    FieldRecipe, MAX_OVERHEAD, Place, Recipe, Scratch, Shared, SymbolCoder, encode_block,
};
use mithril_codec::entropy::lz::Compressor;
use mithril_codec::transform::fields::Layout;
use sample::Sample;

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

impl TensorPlan {
    /// Whether blocks are so long that a frame of constant ones holds more than readers take for its length.
    pub(crate) fn may_hold_too_much(&self) -> bool {
        self.block_len as usize > HONEST_BLOCK_LEN
    }

    /// Cuts blocks so short that readers take whatever the frame holds. For blocks that share nothing.
    pub(crate) fn shorten(&mut self, dtype: Dtype) {
        let step = 256 * dtype.unit_len();
        self.block_len = self.block_len.min(block_len(HONEST_BLOCK_LEN / step * step));
    }

    /// As [`TensorPlan::shorten`], if it has to be and one of some pieces of the tensor is constant: then all others may be.
    pub(crate) fn shorten_if_constant(&mut self, dtype: Dtype, sample: &[u8], piece_len: usize) {
        let is_constant = |piece: &[u8]| piece.len() > 8 && piece[8..] == piece[..piece.len() - 8];
        if self.may_hold_too_much() && sample.chunks(piece_len).any(is_constant) {
            self.shorten(dtype);
        }
    }
}

/// Raw bytes of the smallest block that a plan asks for.
pub const MIN_BLOCK_LEN: usize = 1 << 15;

/// Shared tables may take this share of the raw bytes, in percent.
pub(crate) const MAX_SHARED_SHARE: usize = 2;

/// Elements of a block at `fast`. 32 K cost 0.3 % of size; 128 K gain 0.1 % and lose speed in small caches.
const FAST_BLOCK: usize = 1 << 16;

/// Elements of a block with shared classes: states and tables are then a hundredth of a bit per element.
const CLASSED_BLOCK: usize = 1 << 19;

/// Raw bytes of a block that a compressor with a window works on.
const COMPRESSOR_BLOCK: usize = 4 << 20;

/// Raw bytes of blocks of unknown type in which little repeats itself, and of the pieces that tell.
const UNTYPED_BLOCKS: [usize; 3] = [512 << 10, 128 << 10, MIN_BLOCK_LEN];
const UNTYPED_PIECE: usize = 512 << 10;

/// Bytes that compressors are tried on.
const PIECE: usize = 128 << 10;

/// Bytes up to which all recipes are tried on a tensor that repeats itself.
const SMALL: usize = 8 << 10;

/// Smaller tensors are not searched for classes: tables would cost more than they save.
const MIN_CLASSED: u64 = 1 << 14;

/// Plans a tensor.
///
/// # Errors
/// `InvalidArgument` when the shape does not describe exactly these bytes.
pub fn tensor(source: &[u8], options: &FrameOptions) -> Result<TensorPlan, Error> {
    let plan = unpredicted(source, options)?;
    if options.effort != Effort::Max || !options.byte_grouping || !prediction::may_pay(source, options) {
        return Ok(plan);
    }
    let predicted = prediction::tensor(source, None, options);
    let unpredicted_len = prediction::sampled_len(&plan, source, None);
    // Counts tell what cannot pay. What seems to is coded: numbers of very different sizes (dead channels are full of
    // subnormals) take more than their counts say.
    let smaller = predicted.filter(|(predicted, len)| {
        *len < unpredicted_len && prediction::sampled_len(predicted, source, None) < unpredicted_len
    });
    Ok(smaller.map_or(plan, |(predicted, _)| predicted))
}

/// As [`tensor`], but never by a prediction.
fn unpredicted(source: &[u8], options: &FrameOptions) -> Result<TensorPlan, Error> {
    choose(source, options).map(|plan| within_limit(plan, options))
}

/// The plan with blocks no longer than the caller wants, as far as their rows allow.
fn within_limit(mut plan: TensorPlan, options: &FrameOptions) -> TensorPlan {
    if let Some(max_len) = options.max_block_len
        && plan.shared.to_bytes().is_empty()
    {
        // Whole vectors of whole units, as everywhere.
        let step = 256 * options.dtype.unit_len();
        let len = usize::try_from(max_len).unwrap_or(usize::MAX).max(MIN_BLOCK_LEN) / step * step;
        plan.block_len = plan.block_len.min(block_len(len.max(MIN_BLOCK_LEN.next_multiple_of(step))));
    }
    plan
}

fn choose(source: &[u8], options: &FrameOptions) -> Result<TensorPlan, Error> {
    check_shape(source, options)?;
    Ok(planned(source, source.len(), options, Seen::All))
}

/// Plans a tensor of `len` bytes, of which only a sample is at hand: pieces of whole elements from all over it. Its
/// blocks share no tables.
pub fn tensor_from_sample(sample: &[u8], len: usize, options: &FrameOptions) -> TensorPlan {
    within_limit(planned(sample, len, options, Seen::Sample), options)
}

/// The plans that a tensor may get of which this is one part in `times`, with an outermost dimension of its own: tables
/// pay as they do for the whole. The last may be a prediction; which is smallest depends on what grows with the tensor.
///
/// # Errors
/// `InvalidArgument` when the shape does not describe exactly these bytes.
pub(crate) fn of_part(part: &[u8], options: &FrameOptions, times: u64) -> Result<Vec<TensorPlan>, Error> {
    check_shape(part, options)?;
    let seen = if times > 1 { Seen::Part { times } } else { Seen::All };
    let mut plans = vec![within_limit(planned(part, part.len(), options, seen), options)];
    if options.effort == Effort::Max && options.byte_grouping && prediction::may_pay(part, options) {
        // Factors are weighed as those of the part: what they take too much keeps them from fitting noise.
        plans.extend(prediction::tensor(part, None, options).map(|(plan, _)| plan));
    }
    Ok(plans)
}

/// Whether a tensor is searched for classes or a low rank above `fast`.
pub(crate) fn is_searched(dtype: Dtype, shape: &[u64], effort: Effort) -> bool {
    let n = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension)).unwrap_or(u64::MAX);
    dtype.layout().is_none()
        || n >= MIN_CLASSED
        || effort == Effort::Max && prediction::is_tried(dtype, shape)
}

/// How much of a tensor there is to plan from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    All,
    /// Elements from all over it.
    Sample,
    /// Whole rows, one in so many, or as long a part of each row.
    Part {
        times: u64,
    },
}

impl Seen {
    fn times(self) -> u64 {
        if let Self::Part { times } = self { times } else { 1 }
    }
}

/// Plans a tensor of `len` bytes from `source`.
fn planned(source: &[u8], len: usize, options: &FrameOptions, seen: Seen) -> TensorPlan {
    let dtype = options.dtype;
    if options.is_metadata {
        let compressors = [compressors(options), vec![Compressor::ZstdMetadata]].concat();
        let recipe = Recipe::Planes { width: 1, compressors };
        return TensorPlan { recipe, shared: Shared::default(), block_len: block_len(COMPRESSOR_BLOCK) };
    }
    if !options.byte_grouping {
        return as_they_are(options);
    }
    if !dtype.run_lens().is_empty() {
        return quantized(source, options);
    }
    let Some(layout) = dtype.layout() else { return without_fields(source, options) };
    let width = usize::from(layout.width);
    if options.effort != Effort::Fast
        && seen == Seen::All
        && let Some(plan) = small(source, options, layout)
    {
        return plan;
    }
    let sample = Sample::of(source, width);
    if width > 1 && sample.is_sparse() {
        let nonzero = Box::new(fast_fields(source, layout, options));
        return own_tables(Recipe::Sparse { width: layout.width, nonzero }, len, width);
    }
    if width > 1 && sample.has_few_values() {
        let otherwise = Box::new(fast_fields(source, layout, options));
        let recipe = Recipe::Palette { width: layout.width, compressors: compressors(options), otherwise };
        return own_tables(recipe, len, width);
    }
    if sample.has_repeats()
        && let Some(plan) = repeats_pay(source, options, layout)
    {
        return plan;
    }
    let plain = plain_fields(source, len, options, layout);
    let is_short = ((source.len() / width) as u64).saturating_mul(seen.times()) < MIN_CLASSED;
    if options.effort == Effort::Fast || is_short {
        return plain;
    }
    let other = match (seen, options.effort) {
        (Seen::All | Seen::Part { .. }, _) => classed(source, options, layout, seen.times()),
        (Seen::Sample, Effort::Max) => {
            own_tables(Recipe::Fields(sample::wide_fields(source, layout)), len, width)
        }
        (Seen::Sample, _) => return plain,
    };
    let plain_is_smaller = match (seen, options.effort) {
        // Tables of blocks serve more elements in the whole than in a part, which says too little of them.
        (Seen::Part { .. }, Effort::Max) => false,
        // What it adds costs more than it saves now and then; it has the time to see.
        (_, Effort::Max) => {
            prediction::sampled_len(&plain, source, None) < prediction::sampled_len(&other, source, None)
        }
        _ => other.shared.is_empty(),
    };
    if plain_is_smaller { plain } else { other }
}

/// Bit fields whose blocks have tables of their own, with the sign where that pays.
fn plain_fields(source: &[u8], len: usize, options: &FrameOptions, layout: Layout) -> TensorPlan {
    let recipe = match sample::sign_and_exponent(source, layout) {
        Some(layout) => {
            let fields = fast_field_recipe(source, layout, options);
            Recipe::Fields(FieldRecipe { coder: SymbolCoder::Rans8Listed, ..fields })
        }
        None => fast_fields(source, sample::without_equal_signs(source, layout), options),
    };
    own_tables(recipe, len, usize::from(layout.width))
}

fn check_shape(source: &[u8], options: &FrameOptions) -> Result<(), Error> {
    let Some(shape) = &options.shape else { return Ok(()) };
    let n = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension));
    if n.and_then(|n| options.dtype.len_of(n)) == Some(source.len() as u64)
        && shape.len() <= mithril_format::limits::MAX_RANK
    {
        return Ok(());
    }
    let dtype = options.dtype.name();
    Err(Error::invalid(format!("shape {shape:?} of {dtype} does not take {} bytes", source.len())))
}

/// Bit fields with a window of their own per block.
fn fast_fields(source: &[u8], layout: Layout, options: &FrameOptions) -> Recipe {
    Recipe::Fields(fast_field_recipe(source, layout, options))
}

fn fast_field_recipe(source: &[u8], layout: Layout, options: &FrameOptions) -> FieldRecipe {
    FieldRecipe {
        layout,
        joint: 0,
        base: sample::base(source, layout, 0),
        coder: SymbolCoder::Rans8,
        coded_low: options.effort != Effort::Fast,
    }
}

/// The smallest of all that may be done to a small tensor whose elements repeat themselves. So few bytes are coded faster
/// than a sample of them is judged; but starting a compressor costs more than all else, so repeats must be there.
fn small(source: &[u8], options: &FrameOptions, layout: Layout) -> Option<TensorPlan> {
    if source.len() > SMALL || !sample::repeats_elements(source, usize::from(layout.width)) {
        return None;
    }
    let width = layout.width;
    let planes = |width: u8| Recipe::Planes { width, compressors: compressors(options) };
    let fields = fast_fields(source, layout, options);
    let mut candidates = vec![fields, planes(1)];
    if width > 1 {
        candidates.push(planes(width));
        let palette = |otherwise: Recipe| Recipe::Palette {
            width,
            compressors: compressors(options),
            otherwise: Box::new(otherwise),
        };
        candidates.push(palette(planes(1)));
        candidates.push(Recipe::Sparse { width, nonzero: Box::new(palette(planes(1))) });
    }
    let recipe = candidates.into_iter().min_by_key(|recipe| coded_len(recipe, source))?;
    Some(own_tables(recipe, source.len(), usize::from(width)))
}

/// A plan whose blocks share nothing, cut as evenly as whole vectors allow.
fn own_tables(recipe: Recipe, len: usize, width: usize) -> TensorPlan {
    let n = (len / width).max(1);
    let n_blocks = ((n + FAST_BLOCK / 2) / FAST_BLOCK).max(1);
    let block = n.div_ceil(n_blocks).next_multiple_of(256).max(MIN_BLOCK_LEN);
    TensorPlan { recipe, shared: Shared::default(), block_len: block_len(block * width) }
}

fn block_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX).min(mithril_format::limits::MAX_BLOCK_LEN)
}

/// Bytes in their order, for general compressors only.
fn as_they_are(options: &FrameOptions) -> TensorPlan {
    let unit = options.dtype.unit_len();
    let recipe = Recipe::Planes { width: 1, compressors: compressors(options) };
    TensorPlan { recipe, shared: Shared::default(), block_len: block_len(COMPRESSOR_BLOCK / unit * unit) }
}

/// Quantised blocks: bytes of a kind together. Compressors are tried only where the data repeats itself.
fn quantized(source: &[u8], options: &FrameOptions) -> TensorPlan {
    let unit = options.dtype.unit_len();
    let compressors = if Sample::of(source, 1).has_repeats() { compressors(options) } else { Vec::new() };
    let whole = Recipe::Planes { width: 1, compressors: compressors.clone() };
    let runs = Recipe::Runs { run_lens: options.dtype.run_lens(), compressors };
    let piece = middle(source, unit);
    let recipe = if coded_len(&whole, piece) < coded_len(&runs, piece) { whole } else { runs };
    TensorPlan { recipe, shared: Shared::default(), block_len: block_len(COMPRESSOR_BLOCK / unit * unit) }
}

/// Bytes of unknown type, whose blocks decide for themselves. Where most of them repeat themselves, blocks are long, so
/// that repeats are found far back; else as short as pays, because numbers of another kind or of another scale may follow
/// at any offset.
fn untyped(source: &[u8], options: &FrameOptions) -> TensorPlan {
    let pieces = [1, 2, 3].map(|quarter| {
        let piece = &source[source.len() / 4 * quarter..];
        &piece[..piece.len().min(source.len() / 4).min(UNTYPED_PIECE)]
    });
    let len = |recipe: &Recipe, block_len: usize| -> usize {
        let blocks = pieces.iter().flat_map(|piece| piece.chunks(block_len));
        blocks.map(|block| coded_len(recipe, block)).sum()
    };
    let numbers = Recipe::Untyped { compressors: Vec::new() };
    // Shorter blocks cost time and places in the index, so they must save more than a little.
    let mut best = (usize::MAX, UNTYPED_BLOCKS[0]);
    for block_len in UNTYPED_BLOCKS {
        let len = len(&numbers, block_len);
        if len < best.0 - best.0 / 256 {
            best = (len, block_len);
        }
    }
    let repeats = Recipe::Planes { width: 1, compressors: vec![Compressor::Zstd { level: 3 }] };
    let mut best_len = if len(&repeats, UNTYPED_PIECE) < best.0 { COMPRESSOR_BLOCK } else { best.1 };
    // Compressors tell parts of a block apart themselves, so that they like blocks longer than numbers do.
    if options.effort == Effort::Max && best_len < UNTYPED_BLOCKS[1] {
        let tried = Recipe::Untyped { compressors: compressors(options) };
        if len(&tried, UNTYPED_BLOCKS[1]) < len(&tried, best_len) {
            best_len = UNTYPED_BLOCKS[1];
        }
    }
    let recipe = Recipe::Untyped { compressors: compressors(options) };
    TensorPlan { recipe, shared: Shared::default(), block_len: block_len(best_len) }
}

/// Types without fields worth coding: integers of several bytes, bools, packed small floats.
fn without_fields(source: &[u8], options: &FrameOptions) -> TensorPlan {
    if options.dtype == Dtype::Bytes {
        return untyped(source, options);
    }
    let unit = options.dtype.unit_len();
    let width = match options.dtype {
        Dtype::F4 => 0,
        _ if unit > 8 => 1,
        _ => u8::try_from(unit).unwrap_or(1),
    };
    let piece = middle(source, unit);
    let pays = |width: u8| {
        let planes = |compressors| Recipe::Planes { width, compressors };
        let zstd = Compressor::Zstd { level: 3 };
        coded_len(&planes(vec![zstd]), piece) * 64 < coded_len(&planes(Vec::new()), piece) * 63
    };
    let compressors = if pays(width) || width > 1 && pays(1) { compressors(options) } else { Vec::new() };
    let candidates = [width, 1]
        .map(|width| Recipe::Planes { width, compressors: compressors.iter().copied().take(1).collect() });
    let width = if coded_len(&candidates[1], piece) < coded_len(&candidates[0], piece) { 1 } else { width };
    let planes = Recipe::Planes { width, compressors: compressors.clone() };
    let few_values = matches!(unit, 1 | 2 | 4 | 8) && Sample::of(source, unit).has_few_values();
    let recipe = if options.dtype == Dtype::Bool || few_values {
        Recipe::Palette { width: u8::try_from(unit).unwrap_or(1), compressors, otherwise: Box::new(planes) }
    } else {
        planes
    };
    TensorPlan { recipe, shared: Shared::default(), block_len: block_len(COMPRESSOR_BLOCK / unit * unit) }
}

/// A piece from the middle of the data, of whole units.
fn middle(source: &[u8], unit: usize) -> &[u8] {
    let start = source.len() / 4 / unit * unit;
    &source[start..][..(source.len() - start).min(PIECE / unit * unit)]
}

/// Size of a piece by a recipe.
fn coded_len(recipe: &Recipe, piece: &[u8]) -> usize {
    let mut out = vec![0; piece.len() + MAX_OVERHEAD];
    encode_block(recipe, &Shared::default(), Place::default(), piece, &mut Scratch::new(), &mut out)
}

/// Compressors that data with repeats is offered to. A level given by the caller counts for all of them.
fn compressors(options: &FrameOptions) -> Vec<Compressor> {
    let zstd = |level: i32| Compressor::Zstd { level: options.level.unwrap_or(level).clamp(1, 22) };
    let quality = u32::try_from(options.level.unwrap_or(11).clamp(0, 11)).unwrap_or(11);
    match options.effort {
        Effort::Fast => vec![zstd(3)],
        Effort::Balanced => vec![zstd(9)],
        Effort::Max => vec![zstd(19), Compressor::Brotli { quality }],
    }
}

/// Whether a compressor beats the bit fields on a piece of the data; then all of it goes that way.
fn repeats_pay(source: &[u8], options: &FrameOptions, layout: Layout) -> Option<TensorPlan> {
    let piece = middle(source, options.dtype.unit_len());
    let planes = Recipe::Planes { width: 1, compressors: vec![Compressor::Zstd { level: 3 }] };
    if coded_len(&planes, piece) >= coded_len(&fast_fields(source, layout, options), piece) {
        return None;
    }
    let recipe = Recipe::Planes { width: 1, compressors: compressors(options) };
    let unit = options.dtype.unit_len();
    Some(TensorPlan {
        recipe,
        shared: Shared::default(),
        block_len: block_len(COMPRESSOR_BLOCK / unit * unit),
    })
}

/// The coder of the effort, with those classes of rows and columns that make the tensor smallest, of which this is one part
/// in `times`.
fn classed(source: &[u8], options: &FrameOptions, layout: Layout, times: u64) -> TensorPlan {
    let width = usize::from(layout.width);
    let recipe = match options.effort {
        Effort::Max => sample::wide_fields(source, layout),
        _ => fast_field_recipe(source, layout, options),
    };
    let n = source.len() / width;
    let mut views = Matrix::views(n, options.shape.as_deref(), options.effort);
    // Where no rows are known, short ones may still tell elements apart whose low bits are no noise.
    let short_rows = Matrix::of_short_rows(n)
        .filter(|_| options.shape.as_ref().is_none_or(|shape| shape.len() < 2))
        .filter(|&matrix| width >= 4 && grid::has_rows_apart(source, width, matrix));
    if let Some(matrix) = short_rows {
        views = vec![matrix];
    }
    let models =
        views.into_iter().flat_map(|matrix| classes::models(source, &recipe, matrix, options.effort, times));
    // The first of equals, so that the simpler model wins. One that gains nothing must not cost tables.
    let raw_bits = (8 * source.len() as u64).saturating_mul(times);
    let Some(model) = models.min_by_key(|model| model.cost).filter(|model| model.cost < raw_bits) else {
        return own_tables(Recipe::Fields(recipe), source.len(), width);
    };
    let matrix = model.matrix;
    let signs = if layout.sign && model.recipe.layout.sign {
        signs::model(source, layout, matrix, options.effort)
    } else {
        None
    };
    let rows_apart = width >= 4 && matrix.row_len > 1 && grid::has_rows_apart(source, width, matrix);
    if model.classes.is_none() && signs.is_none() && !rows_apart {
        return own_tables(Recipe::Fields(model.recipe), source.len(), width);
    }
    let classes = model.classes.or_else(|| rows_apart.then(|| classes::one_class(matrix)));
    let symbols = classes.map(|classes| classes::tables(source, &model.recipe, matrix, classes));
    let recipe = if rows_apart { Recipe::Rows(model.recipe) } else { Recipe::Fields(model.recipe) };
    let shared = Shared::new(symbols, signs);
    let most_shared = (source.len() * MAX_SHARED_SHARE / 100) as u64;
    if shared.to_bytes().len() as u64 > most_shared.saturating_mul(times) {
        return own_tables(Recipe::Fields(model.recipe), source.len(), width);
    }
    TensorPlan {
        recipe,
        shared,
        block_len: block_len(rows_per_block(matrix.row_len) * matrix.row_len * width),
    }
}

/// Rows that make a block of about the usual size, in whole tiles where that is possible.
fn rows_per_block(row_len: usize) -> usize {
    let whole_tiles = 256 >> row_len.trailing_zeros().min(8);
    let rows = (CLASSED_BLOCK / row_len).max(1);
    if rows > whole_tiles { rows / whole_tiles * whole_tiles } else { rows }
}
