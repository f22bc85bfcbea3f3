//! What to try on the blocks of a tensor, as plain data.

use crate::delta::DeltaRecipe;
use crate::entropy::lz::Compressor;
use crate::transform::fields::Layout;

/// How the blocks of a tensor are to be coded. A plan holds one per tensor; whoever wants other bytes writes
/// another value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipe {
    /// As they are.
    Stored,
    /// Coded top bits and packed rest.
    Fields(FieldRecipe),
    /// As `Fields`, with the rows of a block that have dead low bits, or few values of them, apart from the others.
    Rows(FieldRecipe),
    /// Byte `j` of every element together, each plane in the coder that makes it smallest. Width 0 is nibbles.
    Planes {
        /// Bytes of an element, at most 16, or 0 to split bytes into nibbles.
        width: u8,
        /// Compressors to try beside the entropy coders.
        compressors: Vec<Compressor>,
    },
    /// Bytes of unknown type: as they are, or in planes of the width that suits the block.
    Untyped {
        /// Compressors to try beside the entropy coders.
        compressors: Vec<Compressor>,
    },
    /// Elements cut into runs of bytes: run `k` of every element together, each in the coder that makes it smallest.
    /// For quantised blocks, whose bytes of one kind share a table.
    Runs {
        /// Bytes of each run; they make up an element of 17 to 255 bytes.
        run_lens: &'static [u8],
        /// Compressors to try beside the entropy coders.
        compressors: Vec<Compressor>,
    },
    /// The distinct elements, and the number of the one at each place.
    Palette {
        /// Bytes of an element: 1, 2, 4 or 8.
        width: u8,
        /// Compressors to try on the numbers.
        compressors: Vec<Compressor>,
        /// For blocks with more than 256 distinct elements, or that get larger.
        otherwise: Box<Recipe>,
    },
    /// Where the elements are not zero, and those elements by another recipe.
    Sparse {
        /// Bytes of an element: 1, 2, 4 or 8.
        width: u8,
        /// What the elements that are not zero are coded by.
        nonzero: Box<Recipe>,
    },
    /// Given the same block of a base; alone where that is smaller, or where there is no base.
    AgainstBase {
        /// How it is coded against the base.
        delta: Delta,
        /// How it is coded alone.
        alone: Box<Recipe>,
    },
    /// Given the prediction that the frame shares.
    Predicted,
}

/// How a block is coded against that of the base.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delta {
    /// How far every number has moved.
    Difference(DeltaRecipe),
    /// The exclusive or of both, by another recipe.
    Xor(Box<Recipe>),
}

/// How bit fields are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldRecipe {
    /// Layout of the element.
    pub layout: Layout,
    /// Mantissa bits that are coded together with the exponent.
    pub joint: u8,
    /// Smallest coded field that a plane can hold.
    pub base: u16,
    /// Coder of the top bits.
    pub coder: SymbolCoder,
    /// Whether low bytes of the elements that are no noise are coded, too.
    pub coded_low: bool,
}

/// The coder of top bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SymbolCoder {
    /// Sixteen symbols at memory speed.
    Rans8,
    /// Sixteen symbols whose values are listed, for top fields of at most six bits: sign and exponent together, where
    /// nearly all signs are equal.
    Rans8Listed,
    /// 256 symbols, finer probabilities, a third of the speed.
    Rans12,
}
