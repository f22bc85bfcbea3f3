//! Tests of the library through its public face, in one binary.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that fails here has found something"
)]

mod damaged;
#[allow(unreachable_pub, reason = "the fuzz crate includes the same file and needs them public")]
mod fuzz_bodies;
mod fuzz_corpus;
mod hostile;
mod range;
mod round_trip;
mod samples;
mod stream;
mod threads;
mod truncated;
