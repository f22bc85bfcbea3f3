//! Ranges of a frame are slices of its raw bytes.

use crate::samples::{Random, pattern};
use mithril::{DecodeOptions, Dtype, Effort, ErrorKind, FrameOptions, compress, decompress_range};

#[test]
fn a_range_equals_a_slice_of_the_raw_bytes() {
    let mut random = Random::new(1);
    for (dtype, effort) in
        [(Dtype::Bf16, Effort::Fast), (Dtype::F32, Effort::Balanced), (Dtype::Bytes, Effort::Fast)]
    {
        let raw = pattern("weights", dtype, 1_000_003, 2);
        let frame = compress(&raw, &FrameOptions::default().with_dtype(dtype).with_effort(effort)).unwrap();
        let block_len = u64::from(mithril::inspect(&frame).unwrap().block_len);
        let len = raw.len() as u64;
        let mut ranges = vec![0..0, 0..1, 0..len, len..len, len - 1..len, block_len - 1..block_len + 1];
        ranges.extend([block_len..2 * block_len, block_len..block_len, 1..len - 1]);
        ranges.extend((0..60).map(|_| {
            let start = random.below(len);
            start..start + random.below(len - start + 1)
        }));
        for range in ranges.into_iter().filter(|range| range.end <= len) {
            for threads in [1, 3] {
                let options = DecodeOptions::default().with_threads(threads);
                let part = decompress_range(&frame, range.clone(), &options).unwrap();
                let expected = &raw[range.start as usize..range.end as usize];
                assert!(part == expected, "{} {range:?}, {threads} threads", dtype.name());
            }
        }
    }
}

#[test]
fn a_range_outside_of_the_frame_is_refused() {
    let frame = compress(&[1; 100], &FrameOptions::default()).unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "what is to be refused")]
    for range in [0..101, 101..101, 5..4, u64::MAX..u64::MAX, 50..u64::MAX] {
        let error = decompress_range(&frame, range, &DecodeOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_range_needs_only_its_own_blocks() {
    let raw = pattern("weights", Dtype::Bf16, 400_000, 3);
    let mut frame = compress(&raw, &FrameOptions::default().with_dtype(Dtype::Bf16)).unwrap();
    let view = mithril_format::frame::FrameView::parse(&frame).unwrap();
    let last = view.blocks().last().copied().unwrap();
    assert!(last.raw_offset > 1000);
    frame[last.offset as usize + 40] ^= 1;
    let options = DecodeOptions::default();
    assert_eq!(decompress_range(&frame, 0..1000, &options).unwrap(), raw[..1000]);
    assert!(decompress_range(&frame, 0..400_000, &options).is_err());
}
