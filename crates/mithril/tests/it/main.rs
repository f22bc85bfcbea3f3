//! Tests of the library through its public face, in one binary.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that fails here has found something"
)]

mod container;
mod container_spec;
mod damaged;
mod delta;
mod df11;
mod dictionary;
mod ecq;
mod folder;
mod foreign;
mod framed;
#[allow(unreachable_pub, reason = "the fuzz crate includes the same file and needs them public")]
mod fuzz_bodies;
mod fuzz_corpus;
mod golden_containers;
mod grouped_dictionary;
#[path = "../../../mithril-format/tests/it/hex_blocks.rs"]
mod hex_blocks;
mod hostile;
mod range;
mod repository;
mod round_trip;
mod samples;
#[path = "../../../mithril-format/tests/it/sha256.rs"]
mod sha256;
mod stream;
mod threads;
mod truncated;
