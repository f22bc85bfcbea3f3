//! Quantised formats as codes and scales: taken apart without loss, and put together again bit for bit.
//!
//! * [`Layout`]: the formats that are known.
//! * [`bit_packing`]: codes of 1 to 8 bits in rows of bytes, as MLX and PyTorch's quantisers pack them.
//! * [`gguf`]: the blocks of GGUF.
//! * [`zero_codes`]: biases that are nearly a multiple of their scales.
//! * [`values`]: the weights that codes stand for; [`products`]: their products with vectors.

pub mod bit_packing;
pub mod gguf;
mod layout;
pub mod products;
pub mod values;
pub mod zero_codes;

pub use layout::{Layout, Side};
