//! What each effort may use: one row of a table per effort. Plans look it up and never ask which effort it is.

use crate::options::Effort;

/// What plans of an effort may use.
#[derive(Debug)]
pub(crate) struct Means {
    /// Level of zstd, where data repeats itself, and whether brotli is tried, too.
    pub(super) zstd_level: i32,
    pub(super) brotli: bool,
    /// Whether low bytes that are no noise are coded, and all recipes are tried on small tensors that repeat themselves.
    pub(super) thorough: bool,
    /// How classes of rows and columns are found.
    pub(super) classes: Option<ClassSearch>,
    /// Lengths of rows that are tried where no shape gives them.
    pub(super) row_lens: &'static [u64],
    /// How classes of signs are found.
    pub(super) signs: SignSearch,
    /// Whether fields are coded as 256 symbols, with up to two mantissa bits, or as the sixteen of a window.
    pub(super) wide_symbols: bool,
    /// Whether numbers are predicted from their base.
    pub(super) predicts: bool,
    /// Whether a matrix of low rank may predict them.
    pub(super) low_rank: bool,
    /// Whether plans are compared by blocks that are coded, and not by counts alone.
    pub(super) measures: bool,
    /// The effort by which a tensor is first planned without its base, where a prediction from the base may leave no use
    /// for that plan.
    pub(super) alone_at_first: Option<Effort>,
    /// Shared tables may take this share of the raw bytes, in percent.
    pub(crate) max_shared_share: usize,
    /// Whether a large tensor of a file is planned from a sample and coded in small batches, instead of as a whole.
    pub(crate) in_batches: bool,
}

/// How classes of rows and columns are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClassSearch {
    /// Merged neighbors among the quantiles of the mean field.
    Quantiles,
    /// The same, then refined by code length.
    CodeLength,
}

/// How classes of signs are found.
#[derive(Debug, Clone, Copy)]
pub(super) struct SignSearch {
    /// Signs looked at in each row.
    pub(super) n_per_row: usize,
    /// Coded signs must save this share of them, in 256ths: they cost decoding speed.
    pub(super) min_gain: u64,
    /// Whether some rows decide if all others are looked at.
    pub(super) samples_first: bool,
}

/// One pass at memory speed.
const FAST: Means = Means {
    zstd_level: 3,
    brotli: false,
    thorough: false,
    classes: None,
    row_lens: &[],
    signs: SignSearch { n_per_row: 128, min_gain: 8, samples_first: true },
    wide_symbols: false,
    predicts: false,
    low_rank: false,
    measures: false,
    alone_at_first: None,
    max_shared_share: MAX_TABLES_SHARE,
    in_batches: true,
};

/// What decodes about as fast.
const BALANCED: Means = Means {
    zstd_level: 9,
    thorough: true,
    classes: Some(ClassSearch::Quantiles),
    predicts: true,
    max_shared_share: MAX_PREDICTED_SHARE,
    in_batches: false,
    ..FAST
};

/// Everything that the format can express.
const MAX: Means = Means {
    zstd_level: 19,
    brotli: true,
    classes: Some(ClassSearch::CodeLength),
    row_lens: &[16, 64, 256],
    signs: SignSearch { n_per_row: 512, min_gain: 3, samples_first: false },
    wide_symbols: true,
    low_rank: true,
    measures: true,
    alone_at_first: Some(Effort::Balanced),
    ..BALANCED
};

/// Tables of classes may take this share of the raw bytes, in percent.
pub(super) const MAX_TABLES_SHARE: usize = 2;

/// Predictions may take this share of the raw bytes, in percent.
pub(super) const MAX_PREDICTED_SHARE: usize = 25;

/// An effort at which blocks share nothing.
pub(super) const WITHOUT_SHARED: Effort = Effort::Fast;

impl Effort {
    /// What plans may use.
    pub(crate) const fn means(self) -> &'static Means {
        match self {
            Self::Fast => &FAST,
            Self::Balanced => &BALANCED,
            Self::Max => &MAX,
        }
    }
}
