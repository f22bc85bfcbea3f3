//! What `docs/format/container.md` prints is what the code does.

use crate::container::{Tensor, packed, safetensors};
use crate::hex_blocks::hex_blocks;
use mithril::Dtype;
use mithril::container::{Bases, EntryKind, Reader};

fn specification() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/container.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn examples_of_the_container_specification_decode_to_their_outputs() {
    let markdown = specification();
    let (containers, outputs) = (hex_blocks(&markdown, "name="), hex_blocks(&markdown, "output="));
    assert!(!containers.is_empty() && containers.keys().eq(outputs.keys()), "every example has an output");
    for (name, container) in containers {
        let reader = Reader::open(container).unwrap();
        reader.header().unwrap();
        let read = |entry_idx| reader.read(entry_idx, &Bases::none()).unwrap();
        let raw: Vec<u8> = (0..reader.entries().len()).flat_map(read).collect();
        assert_eq!(raw, outputs[&name], "example {name}");
    }
}

/// Columns of the table of roundings: F32, BF16, F16.
fn roundings(markdown: &str) -> Vec<[u32; 3]> {
    let section = markdown.split("## 7. Rounding").nth(1).unwrap().split("## 8.").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let numbers = |row: &str| {
        let cells: Vec<u32> = row
            .split('`')
            .filter(|cell| cell.len() >= 4)
            .map(|cell| u32::from_str_radix(cell, 16).unwrap())
            .collect();
        <[u32; 3]>::try_from(cells).unwrap()
    };
    rows.map(numbers).collect()
}

#[test]
fn roundings_of_the_specification_are_those_of_the_code() {
    // Tensors of a few numbers would be in the index.
    let table = roundings(&specification()).repeat(8);
    assert!(table.len() >= 56);
    let n = table.len() as u64;
    let column = |idx: usize, width: usize| -> Vec<u8> {
        table.iter().flat_map(|row| row[idx].to_le_bytes().into_iter().take(width)).collect()
    };
    let tensors = [
        Tensor::new("x", Dtype::F32, &[n], column(0, 4)),
        Tensor::new("bf16", Dtype::Bf16, &[n], column(1, 2)),
        Tensor::new("f16", Dtype::F16, &[n], column(2, 2)),
    ];
    let (container, summary) = packed(&safetensors(&tensors));
    let kinds: Vec<EntryKind> = summary.tensors.iter().map(|tensor| tensor.kind).collect();
    assert_eq!(kinds, [EntryKind::Full, EntryKind::Derived, EntryKind::Derived]);
    let reader = Reader::open(container).unwrap();
    for tensor in &tensors {
        assert_eq!(reader.read(reader.find(&tensor.name).unwrap(), &Bases::none()).unwrap(), tensor.raw);
    }
}

#[test]
fn limits_of_the_specification_are_those_of_the_code() {
    use mithril_format::limits;
    let markdown = specification();
    let rows = [
        format!("| {} bytes each |", limits::MAX_SECTION_LEN),
        format!("| {} bytes, or {} times", limits::SMALL_SECTION_LEN, limits::MAX_SECTION_RATIO),
        format!("| {} bytes |", limits::MAX_NAME_LEN),
        format!("| path in the header | {} bytes |", limits::MAX_PATH_LEN),
        format!(
            "{}, or `index_offset` divided by {} where that is more |",
            limits::FEW_ENTRIES,
            limits::MIN_BYTES_PER_ENTRY
        ),
        format!("| rank | {} |", limits::MAX_RANK),
        format!("| 2^{} |", limits::MAX_ALIGNMENT_LOG2),
    ];
    for row in rows {
        assert!(markdown.contains(&row), "{row}");
    }
}
