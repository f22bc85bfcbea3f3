//! The bytes written do not depend on the number of threads.

use crate::samples::pattern;
use crate::stream::{decode_stream, encode_stream};
use mithril::{DecodeOptions, Dtype, Effort, FrameOptions, compress, decompress_with};

#[test]
fn threads_give_identical_bytes_at_every_effort() {
    for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
        for (dtype, content) in
            [(Dtype::Bf16, "rows"), (Dtype::F32, "narrow"), (Dtype::Bytes, "repeats"), (Dtype::I8, "weights")]
        {
            let n_rows = if effort == Effort::Max { 5_000 } else { 12_000 } / dtype.unit_len();
            let raw = pattern(content, dtype, n_rows * 64 * dtype.unit_len(), 4);
            let options =
                FrameOptions::default().with_dtype(dtype).with_effort(effort).with_shape([n_rows as u64, 64]);
            let frames: Vec<Vec<u8>> = [1, 2, 7]
                .into_iter()
                .map(|n| compress(&raw, &options.clone().with_threads(n)).unwrap())
                .collect();
            assert!(frames[0] == frames[1] && frames[0] == frames[2], "{} {}", dtype.name(), effort.name());
            for threads in [1, 2, 7] {
                let decoded =
                    decompress_with(&frames[0], &DecodeOptions::default().with_threads(threads)).unwrap();
                assert!(decoded == raw, "{} {}", dtype.name(), effort.name());
            }
        }
    }
}

#[test]
fn threads_give_identical_streams() {
    // Longer than what is planned from, so that batches are coded one after the other.
    let raw = pattern("weights", Dtype::Bf16, (20 << 20) + 77, 5);
    let options = FrameOptions::default().with_dtype(Dtype::Bf16);
    let streams: Vec<Vec<u8>> = [1, 2, 7]
        .into_iter()
        .map(|n| encode_stream(&raw, 1 << 20, &options.clone().with_threads(n)).unwrap())
        .collect();
    assert!(streams[0] == streams[1] && streams[0] == streams[2]);
    assert!(decode_stream(&streams[0]).unwrap() == raw);
    assert!(mithril::decompress(&streams[0]).unwrap() == raw);
}

#[test]
fn the_first_damaged_block_is_reported_whatever_the_threads() {
    let raw = pattern("weights", Dtype::Bf16, 3 << 20, 6);
    let mut frame = compress(&raw, &FrameOptions::default().with_dtype(Dtype::Bf16)).unwrap();
    let view = mithril_format::frame::FrameView::parse(&frame).unwrap();
    let offsets: Vec<usize> = [3, 9, 17].map(|at| view.blocks()[at].offset as usize).to_vec();
    for offset in offsets {
        frame[offset + 9] ^= 1;
    }
    for threads in [1, 2, 7] {
        let error = decompress_with(&frame, &DecodeOptions::default().with_threads(threads)).unwrap_err();
        assert!(error.to_string().starts_with("block 3 at"), "{error}");
    }
}
