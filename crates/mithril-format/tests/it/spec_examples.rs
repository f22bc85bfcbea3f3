//! The frames printed in the specification decode to the output printed beside them.

use super::hex_blocks::hex_blocks;
use super::{decode, repository};

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
