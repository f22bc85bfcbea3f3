//! The matrix printed in the specification decodes to the codes described beside it.

use crate::hex_blocks::hex_blocks;
use mithril::convert::ecq::{Coding, Layout, MatrixHeader, MatrixPlan, Parts, SideSum, matrix_parts};
use std::path::Path;

/// Row 0 is all 7; row 1 is 8, but 7 in every 16th column from 0 on and 9 in every 64th from 5 on.
fn codes() -> Vec<u8> {
    let second = (0..256).map(|column| match column {
        _ if column % 16 == 0 => 7,
        _ if column % 64 == 5 => 9,
        _ => 8,
    });
    std::iter::repeat_n(7, 256).chain(second).collect()
}

#[test]
fn the_example_of_the_specification_decodes_to_its_codes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format/ecq.md");
    let markdown = std::fs::read_to_string(path).unwrap();
    let parts = hex_blocks(&markdown, "part=");
    let part = |name: &str| parts.get(name).map(Vec::as_slice).unwrap_or_default();
    let plan = MatrixPlan {
        layout: Layout::Codes,
        bits: 4,
        group_size: 0,
        scale_dtype: None,
        size: (2, 256),
        rows_per_block: Some(1),
        escapes: &[],
        coding: Coding::Entropy,
        side_sum: SideSum::default(),
    };
    let written = matrix_parts("example", &plan, &codes()).unwrap();
    for (suffix, name) in
        [(".compressed", "compressed"), (".stream_offsets", "stream_offsets"), (".freq", "freq")]
    {
        let bytes = &written.iter().find(|part| part.name.ends_with(suffix)).unwrap().bytes;
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(part(name), bytes, "{name} is now:\n{}", hex.join(" "));
    }
    let given = Parts {
        compressed: part("compressed"),
        stream_offsets: part("stream_offsets"),
        freq: part("freq"),
        low_bits: &[],
    };
    let (header, coded) = MatrixHeader::read("example", given).unwrap();
    assert_eq!((header.layout, header.bits, header.shape.rows_per_block()), (Layout::Codes, 4, 1));
    let mut decoded = vec![0; 512];
    coded.decode_rows(0..2, &mut decoded).unwrap();
    assert_eq!(decoded, codes());
}
