//! Frames cut off at every length: refused as truncated, never a panic.

use crate::samples::{every_kind, packed};
use crate::stream::decode_stream;
use mithril::ErrorKind;

#[test]
fn truncated_frame_is_refused_at_every_length() {
    for sample in every_kind().into_iter().chain([packed()]) {
        for len in 0..sample.frame.len() {
            let error = mithril::decompress(&sample.frame[..len]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Truncated, "{} cut to {len}: {error}", sample.name);
        }
    }
}

#[test]
fn truncated_stream_is_refused_at_every_length() {
    for sample in every_kind().into_iter().chain([packed()]) {
        for len in 0..sample.frame.len() {
            let error = decode_stream(&sample.frame[..len]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Truncated, "{} cut to {len}: {error}", sample.name);
        }
    }
}

#[test]
fn truncated_frame_names_the_part_and_its_offset() {
    let sample = every_kind().into_iter().find(|sample| sample.name == "stored").unwrap();
    let message = |len: usize| decode_stream(&sample.frame[..len]).unwrap_err().to_string();
    assert_eq!(message(10), "file ends early: frame header at offset 0 is cut off");
    assert_eq!(message(35), "file ends early: block header at offset 32 is cut off");
    assert_eq!(message(100), "file ends early: block at offset 32 is cut off");
    assert_eq!(message(sample.frame.len() - 1), "file ends early: frame trailer at offset 203 is cut off");
}
