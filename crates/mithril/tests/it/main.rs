//! Tests of the library through its public face, in one binary.

mod damaged;
mod fuzz_bodies;
mod fuzz_corpus;
mod hostile;
mod range;
mod round_trip;
mod samples;
mod stream;
mod threads;
mod truncated;
