//! The bodies of the fuzz targets, which the tests of `mithril` share.

#[path = "../../crates/mithril/tests/it/fuzz_bodies/mod.rs"]
pub mod bodies;
