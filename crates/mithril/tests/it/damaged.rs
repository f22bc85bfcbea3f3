//! Frames with flipped bits: an error or the identical output, never other output.

use crate::samples::{Sample, every_kind, packed};
use crate::stream::decode_stream;
use mithril::DecodeOptions;
use std::time::{Duration, Instant};

/// Flips every `step`-th bit in turn.
fn check_flips(sample: &Sample, step: usize) {
    let options = DecodeOptions::default().with_threads(1);
    let mut frame = sample.frame.clone();
    let mut slowest = Duration::ZERO;
    for bit in (0..frame.len() * 8).step_by(step) {
        frame[bit / 8] ^= 1 << (bit % 8);
        let start = Instant::now();
        if let Ok(raw) = mithril::decompress_with(&frame, &options) {
            assert!(raw == sample.raw, "{} decodes to other bytes with bit {bit} flipped", sample.name);
        }
        // Streams decode blocks by the same code, so fewer of them do.
        if bit % 3 == 0
            && let Ok(raw) = decode_stream(&frame)
        {
            assert!(raw == sample.raw, "{} streams other bytes with bit {bit} flipped", sample.name);
        }
        slowest = slowest.max(start.elapsed());
        frame[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(slowest < Duration::from_secs(1), "{} took {slowest:?}", sample.name);
}

#[test]
fn a_flipped_bit_never_gives_other_output() {
    for sample in every_kind() {
        // Every bit of a small frame; the larger ones hold many alike.
        check_flips(&sample, if sample.frame.len() < 2500 { 1 } else { 3 });
    }
}

#[test]
fn a_flipped_bit_of_a_packed_block_never_gives_other_output() {
    // A frame of 20 KB: every bit would take long without kernels.
    check_flips(&packed(), 7);
}

#[test]
fn bytes_behind_a_frame_are_refused() {
    for sample in every_kind() {
        let longer = [&sample.frame[..], &[0]].concat();
        assert!(mithril::decompress(&longer).is_err(), "{}", sample.name);
        assert!(decode_stream(&longer).is_err(), "{}", sample.name);
        let twice = [&sample.frame[..], &sample.frame].concat();
        assert!(mithril::decompress(&twice).is_err(), "{}", sample.name);
        assert!(decode_stream(&twice).is_err(), "{}", sample.name);
    }
}

#[test]
fn damage_is_reported_with_block_and_offset() {
    let sample = every_kind().into_iter().find(|sample| sample.name == "several_blocks").unwrap();
    let view = mithril_format::frame::FrameView::parse(&sample.frame).unwrap();
    let entry = view.blocks()[1];
    let mut frame = sample.frame.clone();
    frame[entry.offset as usize + 8] ^= 1;
    let expected = format!("block 1 at offset {} is damaged: checksum expected", entry.offset);
    let message = mithril::decompress(&frame).unwrap_err().to_string();
    assert!(message.starts_with(&expected), "{message}");
    let message = decode_stream(&frame).unwrap_err().to_string();
    assert!(message.starts_with(&expected), "{message}");
}
