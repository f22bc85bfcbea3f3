//! Layers whose weights stay entropy-coded in memory, multiplied on the CPU.
//!
//! Three classes of weights share one layout (`docs/format/ecq.md`):
//!
//! | class | bits per weight | multiplied |
//! |---|---|---|
//! | [`WeightClass::Levels`] | what `mithril quantize` was asked for, lossy | with 8-bit activations in integers, or in singles |
//! | [`WeightClass::Fixed12`] | 12 and escapes, bf16 exactly | in singles; the class that reads less than plain bf16 and decodes by two look-ups |
//! | [`WeightClass::EntropyCoded`] | about 10.7, bf16 exactly | in singles; smallest, slower than plain bf16 |
//!
//! [`QuantisedMatrix`] holds weights of models that came quantised (GGUF, MLX), as `mithril convert --to ecq` codes them.
//! It multiplies in singles, in the arithmetic of [`mithril_codec::quantised::products`], or decodes to singles.
//!
//! Weights are decoded into registers and never stand in memory. What a layer keeps is checked once, when it is made.
//! Products of bf16 classes are bit for bit those of the plain weights in the arithmetic of
//! [`mithril_codec::ecq::gemv`].

mod embedding;
mod linear;
mod parts;
mod quantised;

pub use embedding::EntropyCodedEmbedding;
pub use linear::{EntropyCodedLinear, WeightClass};
pub use mithril_codec::ecq::gemv::{Activations, dot_plain_bf16};
pub use quantised::{QuantisedMatrix, block_values, multiply_blocks, multiply_singles};
