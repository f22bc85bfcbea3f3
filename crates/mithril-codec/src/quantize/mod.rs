//! A uniform step and an entropy coder: weights to levels, with loss, at the fewest bits for their error.
//!
//! Entropy coding makes short codes of frequent levels, so nothing is gained by fitting scales to groups: one step for a
//! whole tensor is the best there is for a squared error (0.25 bits above what any quantiser can reach). Levels are not
//! the middles of their intervals but the means of the weights in them.
//!
//! * [`Grid`]: which levels there are; [`quantize()`]: weights to codes, [`quantize_by`]: with
//!   [`Steps`] of rows and columns; [`Quantised::decode`] back.
//! * [`mod@reference`]: what MLX's own formats make of the same weights, to compare with.
//!
//! Everything here is lossy. Results depend on floating point only in the order that the code states, so every machine
//! writes the same codes.

mod grid;
pub mod reference;

pub use grid::{Grid, Quantised, Steps, quantize, quantize_by};
