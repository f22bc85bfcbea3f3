//! The frames printed in the specification decode to the output printed beside them.

use super::{decode, repository};
use std::collections::BTreeMap;

/// Blocks of the Markdown that open with ```` ```hex KEY=name ````, as bytes by name. `#` starts a remark.
fn hex_blocks(markdown: &str, key: &str) -> BTreeMap<String, Vec<u8>> {
    let mut blocks = BTreeMap::new();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```hex ").and_then(|info| info.strip_prefix(key)) else {
            continue;
        };
        let hex: String = lines
            .by_ref()
            .take_while(|line| *line != "```")
            .flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace())
            .collect();
        let pairs = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
        let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).expect("two hexadecimal digits")).collect();
        assert!(blocks.insert(name.to_owned(), bytes).is_none(), "two examples named {name}");
    }
    blocks
}

#[test]
fn examples_of_the_specification_decode_to_their_outputs() {
    let markdown = std::fs::read_to_string(repository("docs/format/frame.md")).unwrap();
    let (frames, outputs) = (hex_blocks(&markdown, "name="), hex_blocks(&markdown, "output="));
    assert!(frames.len() >= 7 && frames.keys().eq(outputs.keys()), "every example has an output");
    for (name, frame) in &frames {
        let raw = decode(frame).unwrap_or_else(|error| panic!("example {name}: {error}"));
        assert_eq!(raw, outputs[name], "example {name}");
    }
}

#[test]
fn checksums_of_the_specification_are_right() {
    let markdown = std::fs::read_to_string(repository("docs/format/frame.md")).unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    for sum in [mithril_codec::checksum(b"a"), mithril_codec::checksum(&bytes)] {
        assert!(markdown.contains(&format!("`{sum:016x}`")), "{sum:016x}");
    }
}
