//! Entropy coders: symbols to fewer bytes, and back.

pub mod huffman;
pub mod lz;
pub mod rans12;
pub mod rans8;
pub(crate) mod stream;
