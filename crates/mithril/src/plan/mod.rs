//! What to do with a tensor, decided from a sample of it and written down as data.
//!
//! A plan says how blocks are cut and by which [`Recipe`] they are coded; the pipeline follows it blindly. Every choice
//! compares sizes counted from histograms in integers, so that the same input gives the same plan on every machine.
//!
//! What each effort may use is a table in `effort`; how long blocks are, one in `blocks`.

mod blocks;
mod classes;
mod delta;
mod effort;
mod grid;
mod low_rank;
mod prediction;
mod sample;
mod signs;

#[cfg(test)]
mod tests;

pub use blocks::MIN_BLOCK_LEN;
pub(crate) use delta::expected_len_against;
pub(crate) use prediction::sampled_len;

use crate::Error;
use crate::options::{FrameOptions, HONEST_BLOCK_LEN};
use blocks::block_len;
use delta::Alone;
use effort::{ClassSearch, MAX_TABLES_SHARE};
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
    /// What would be done without the base, if the tensor has one.
    pub(crate) alone: Option<Alone>,
}

impl TensorPlan {
    /// A plan whose blocks share nothing.
    pub(crate) fn unshared(recipe: Recipe, block_len: usize) -> Self {
        Self { recipe, shared: Shared::default(), block_len: blocks::block_len(block_len), alone: None }
    }

    /// Whether blocks are so long that a frame of constant ones holds more than readers take for its length.
    pub(crate) fn may_hold_too_much(&self) -> bool {
        self.block_len as usize > HONEST_BLOCK_LEN
    }

    /// Cuts blocks so short that readers take whatever the frame holds. For blocks that share nothing.
    pub(crate) fn shorten(&mut self, dtype: Dtype) {
        let step = 256 * dtype.unit_len();
        self.block_len = self.block_len.min(block_len(HONEST_BLOCK_LEN / step * step));
    }

    /// Cuts blocks for a tensor that is coded in batches. If one of some pieces of it is constant, all others may be.
    fn cut_for_batches(&mut self, dtype: Dtype, pieces: &[u8], piece_len: usize) {
        let unit = dtype.unit_len();
        self.block_len = self.block_len.min(block_len(blocks::MAX_IN_BATCHES / unit * unit));
        let is_constant = |piece: &[u8]| piece.len() > 8 && piece[8..] == piece[..piece.len() - 8];
        // Of a frame against a base, the base says how much a reader takes.
        if self.may_hold_too_much() && self.alone.is_none() && pieces.chunks(piece_len).any(is_constant) {
            self.shorten(dtype);
        }
    }
}

/// How much of a tensor there is to plan from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// All of it.
    All,
    /// Its front. It is coded in batches, so that its blocks share nothing.
    Front,
    /// Pieces of this length from all over a tensor of `len` bytes, of whole elements. It is coded in batches, so that its
    /// blocks share nothing.
    Sample {
        /// Bytes of the tensor.
        len: usize,
        /// Bytes of every piece.
        piece_len: usize,
    },
    /// One slice of `times` equal ones, with an outermost dimension of its own: whole rows, or as long a part of each row.
    /// Tables are weighed as for the whole tensor.
    Slice {
        /// How many slices the tensor has.
        times: u64,
    },
}

impl Evidence {
    fn is_all(self) -> bool {
        matches!(self, Self::All | Self::Front | Self::Slice { times: 1 })
    }

    fn times(self) -> u64 {
        if let Self::Slice { times } = self { times } else { 1 }
    }

    /// Bytes of the tensor, when `seen` bytes are there to plan from.
    fn tensor_len(self, seen: usize) -> usize {
        if let Self::Sample { len, .. } = self { len } else { seen }
    }
}

/// Raw bytes of the pieces that tell how bytes of unknown type are cut.
const UNTYPED_PIECE: usize = 512 << 10;

/// Bytes that compressors are tried on.
const PIECE: usize = 128 << 10;

/// Bytes up to which all recipes are tried on a tensor that repeats itself.
const SMALL: usize = 8 << 10;

/// Smaller tensors are not searched for classes: tables would cost more than they save.
const MIN_CLASSED: u64 = 1 << 14;

/// Plans a tensor from what there is of it, against the same bytes of a base if it has one. Samples and slices are planned
/// without a base.
///
/// # Errors
/// `InvalidArgument` when all of the tensor is there and the shape does not describe it, or the base has another length.
pub fn tensor(
    source: &[u8],
    evidence: Evidence,
    base: Option<&[u8]>,
    options: &FrameOptions,
) -> Result<TensorPlan, Error> {
    let whole = |options: &FrameOptions| match base {
        Some(base) => delta::tensor(source, base, options),
        None => from_all(source, options),
    };
    match evidence {
        Evidence::All => whole(options),
        Evidence::Slice { .. } => {
            check_shape(source, options)?;
            Ok(unpredicted(source, options, evidence))
        }
        Evidence::Front => {
            // Classes of rows need the whole matrix.
            let options = FrameOptions { shape: None, ..options.clone() };
            let mut plan = whole(&options)?;
            if !plan.shared.is_empty() {
                plan = match base {
                    Some(_) => whole(&options.clone().with_effort(effort::WITHOUT_SHARED))?,
                    None => {
                        let (len, piece_len) = (source.len(), HONEST_BLOCK_LEN);
                        unpredicted(source, &options, Evidence::Sample { len, piece_len })
                    }
                };
            }
            plan.cut_for_batches(options.dtype, source, HONEST_BLOCK_LEN);
            Ok(plan)
        }
        Evidence::Sample { piece_len, .. } => {
            let mut plan = unpredicted(source, options, evidence);
            plan.cut_for_batches(options.dtype, source, piece_len);
            Ok(plan)
        }
    }
}

/// Plans a tensor without a base, by a prediction where that is smaller.
fn from_all(source: &[u8], options: &FrameOptions) -> Result<TensorPlan, Error> {
    check_shape(source, options)?;
    let plan = unpredicted(source, options, Evidence::All);
    let Some((predicted, predicted_len)) = low_rank(source, options) else { return Ok(plan) };
    let len = prediction::sampled_len(&plan, source, None);
    // Counts tell what cannot pay. What seems to is coded: numbers of very different sizes (dead channels are full of
    // subnormals) take more than their counts say.
    let is_smaller = predicted_len < len && prediction::sampled_len(&predicted, source, None) < len;
    Ok(if is_smaller { predicted } else { plan })
}

/// The plan by which a matrix of low rank predicts a tensor, or a slice of one, if that may pay; and about the bytes of the
/// frame. The factors of a slice are charged in full, which keeps them from fitting noise.
pub(crate) fn low_rank(source: &[u8], options: &FrameOptions) -> Option<(TensorPlan, u64)> {
    let is_tried = options.coding.effort.means().low_rank
        && options.coding.byte_grouping
        && prediction::may_pay(source, options);
    if is_tried { prediction::tensor(source, None, options) } else { None }
}

/// The plan by other means than a prediction, with blocks no longer than the caller wants, as far as their rows allow.
fn unpredicted(source: &[u8], options: &FrameOptions, evidence: Evidence) -> TensorPlan {
    let mut plan = planned(source, options, evidence);
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

/// Whether a tensor is searched for classes or a low rank above `fast`.
pub(crate) fn is_searched(dtype: Dtype, shape: &[u64], effort: crate::Effort) -> bool {
    let n = shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension)).unwrap_or(u64::MAX);
    dtype.layout().is_none()
        || n >= MIN_CLASSED
        || effort.means().low_rank && prediction::is_tried(dtype, shape)
}

fn planned(source: &[u8], options: &FrameOptions, evidence: Evidence) -> TensorPlan {
    let (dtype, means, len) =
        (options.dtype, options.coding.effort.means(), evidence.tensor_len(source.len()));
    if options.is_metadata {
        let compressors = [compressors(options), vec![Compressor::ZstdMetadata]].concat();
        return TensorPlan::unshared(Recipe::Planes { width: 1, compressors }, blocks::COMPRESSOR);
    }
    if !options.coding.byte_grouping {
        return as_they_are(options);
    }
    if !dtype.run_lens().is_empty() {
        return quantized(source, options);
    }
    let Some(layout) = dtype.layout() else { return without_fields(source, options) };
    let width = usize::from(layout.width);
    if means.thorough
        && evidence.is_all()
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
    let is_short = ((source.len() / width) as u64).saturating_mul(evidence.times()) < MIN_CLASSED;
    let Some(search) = means.classes.filter(|_| !is_short) else { return plain };
    let is_sample = matches!(evidence, Evidence::Sample { .. });
    let other = match is_sample {
        false => classed(source, options, layout, search, evidence.times()),
        true if means.wide_symbols => {
            own_tables(Recipe::Fields(sample::wide_fields(source, layout)), len, width)
        }
        true => return plain,
    };
    let plain_is_smaller = match means.measures {
        // Tables of blocks serve more elements in the whole than in a part, which says too little of them.
        true if !is_sample && !evidence.is_all() => false,
        // What it adds costs more than it saves now and then; it has the time to see.
        true => prediction::sampled_len(&plain, source, None) < prediction::sampled_len(&other, source, None),
        false => other.shared.is_empty(),
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
        coded_low: options.coding.effort.means().thorough,
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

/// A plan whose blocks have tables of their own, cut as evenly as whole vectors allow.
fn own_tables(recipe: Recipe, len: usize, width: usize) -> TensorPlan {
    TensorPlan::unshared(recipe, blocks::evenly(len / width, blocks::OWN_TABLES) * width)
}

/// Bytes in their order, for general compressors only.
fn as_they_are(options: &FrameOptions) -> TensorPlan {
    let unit = options.dtype.unit_len();
    let recipe = Recipe::Planes { width: 1, compressors: compressors(options) };
    TensorPlan::unshared(recipe, blocks::COMPRESSOR / unit * unit)
}

/// Quantised blocks: bytes of a kind together. Compressors are tried only where the data repeats itself.
fn quantized(source: &[u8], options: &FrameOptions) -> TensorPlan {
    let unit = options.dtype.unit_len();
    let compressors = if Sample::of(source, 1).has_repeats() { compressors(options) } else { Vec::new() };
    let whole = Recipe::Planes { width: 1, compressors: compressors.clone() };
    let runs = Recipe::Runs { run_lens: options.dtype.run_lens(), compressors };
    let piece = middle(source, unit);
    let recipe = if coded_len(&whole, piece) < coded_len(&runs, piece) { whole } else { runs };
    TensorPlan::unshared(recipe, blocks::COMPRESSOR / unit * unit)
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
    let mut best = (usize::MAX, blocks::UNTYPED[0]);
    for block_len in blocks::UNTYPED {
        let len = len(&numbers, block_len);
        if len < best.0 - best.0 / 256 {
            best = (len, block_len);
        }
    }
    let repeats = Recipe::Planes { width: 1, compressors: vec![Compressor::Zstd { level: 3 }] };
    let mut best_len = if len(&repeats, UNTYPED_PIECE) < best.0 { blocks::COMPRESSOR } else { best.1 };
    // Compressors tell parts of a block apart themselves, so that they like blocks longer than numbers do.
    if options.coding.effort.means().measures && best_len < blocks::UNTYPED[1] {
        let tried = Recipe::Untyped { compressors: compressors(options) };
        if len(&tried, blocks::UNTYPED[1]) < len(&tried, best_len) {
            best_len = blocks::UNTYPED[1];
        }
    }
    let recipe = Recipe::Untyped { compressors: compressors(options) };
    TensorPlan::unshared(recipe, best_len)
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
    TensorPlan::unshared(recipe, blocks::COMPRESSOR / unit * unit)
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
    let zstd = |level: i32| Compressor::Zstd { level: options.coding.level.unwrap_or(level).clamp(1, 22) };
    let quality = u32::try_from(options.coding.level.unwrap_or(11).clamp(0, 11)).unwrap_or(11);
    let means = options.coding.effort.means();
    let brotli = means.brotli.then_some(Compressor::Brotli { quality });
    [zstd(means.zstd_level)].into_iter().chain(brotli).collect()
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
    Some(TensorPlan::unshared(recipe, blocks::COMPRESSOR / unit * unit))
}

/// The coder of the effort, with those classes of rows and columns that make the tensor smallest, of which this is one part
/// in `times`.
fn classed(
    source: &[u8],
    options: &FrameOptions,
    layout: Layout,
    search: ClassSearch,
    times: u64,
) -> TensorPlan {
    let (width, means) = (usize::from(layout.width), options.coding.effort.means());
    let recipe = match means.wide_symbols {
        true => sample::wide_fields(source, layout),
        false => fast_field_recipe(source, layout, options),
    };
    let n = source.len() / width;
    let mut views = Matrix::views(n, options.shape.as_deref(), means.row_lens);
    // Where no rows are known, short ones may still tell elements apart whose low bits are no noise.
    let short_rows = Matrix::of_short_rows(n)
        .filter(|_| options.shape.as_ref().is_none_or(|shape| shape.len() < 2))
        .filter(|&matrix| width >= 4 && grid::has_rows_apart(source, width, matrix));
    if let Some(matrix) = short_rows {
        views = vec![matrix];
    }
    let models = views.into_iter().flat_map(|matrix| classes::models(source, &recipe, matrix, search, times));
    // The first of equals, so that the simpler model wins. One that gains nothing must not cost tables.
    let raw_bits = (8 * source.len() as u64).saturating_mul(times);
    let Some(model) = models.min_by_key(|model| model.cost).filter(|model| model.cost < raw_bits) else {
        return own_tables(Recipe::Fields(recipe), source.len(), width);
    };
    let matrix = model.matrix;
    let signs = if layout.sign && model.recipe.layout.sign {
        signs::model(source, layout, matrix, &means.signs)
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
    let most_shared = (source.len() * MAX_TABLES_SHARE / 100) as u64;
    if shared.to_bytes().len() as u64 > most_shared.saturating_mul(times) {
        return own_tables(Recipe::Fields(model.recipe), source.len(), width);
    }
    let block_len = block_len(blocks::rows_per_block(matrix.row_len) * matrix.row_len * width);
    TensorPlan { recipe, shared, block_len, alone: None }
}
