//! The examples of the specification: bytes in hexadecimal with remarks.

use std::collections::BTreeMap;

/// Blocks of the Markdown that open with ```` ```hex KEY=name ````, as bytes by name. `#` starts a remark.
pub(crate) fn hex_blocks(markdown: &str, key: &str) -> BTreeMap<String, Vec<u8>> {
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
