//! Runs the body of the same name.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| mithril_fuzz::bodies::read_manifest(input));
