//! What to try on the blocks of a tensor, as plain data.

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
    /// As `Fields`, with the rows of a block that have dead low bits apart from the others.
    Rows(FieldRecipe),
    /// Byte `j` of every element together, each plane in the coder that makes it smallest. Width 0 is nibbles.
    Planes {
        /// Bytes of an element, or 0 to split bytes into nibbles.
        width: u8,
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
}

/// The coder of top bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SymbolCoder {
    /// Sixteen symbols at memory speed.
    Rans8,
    /// 256 symbols, finer probabilities, a third of the speed.
    Rans12,
}
