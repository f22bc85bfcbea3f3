//! Reversible rearrangements of a block's elements, which make its parts cheap to code.

pub mod fields;
