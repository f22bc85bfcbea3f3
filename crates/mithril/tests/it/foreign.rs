//! Foreign files made to hurt: they take no memory for what they claim, and time and memory of their own size at most.

use crate::fuzz_bodies::archive;
use mithril_format::source::{Kind, tensors};
use std::time::{Duration, Instant};

/// Bytes that reading takes whatever the file: windows and messages.
const LITTLE: u64 = 512 << 10;

/// Reads a file; refused or not, at once and within so many bytes for each of its own.
fn check_bounded(name: &str, kind: Kind, file: &[u8], per_byte: u64) {
    let start = Instant::now();
    let allocated = allocation_counter::measure(|| {
        // Only the cost counts here.
        let _ = tensors(kind, &file);
    });
    let elapsed = start.elapsed();
    let memory = LITTLE + per_byte * file.len() as u64;
    assert!(allocated.bytes_max <= memory, "{name}: {} bytes allocated", allocated.bytes_max);
    assert!(elapsed < Duration::from_secs(20), "{name}: {elapsed:?}");
}

#[test]
fn claims_cost_nothing() {
    let zip_of = |pickle: &[u8]| archive(&[("m/data.pkl", pickle)]);
    let huge = u64::MAX.to_le_bytes();
    let gguf = |n_tensors: &[u8], n_metadata: &[u8], rest: &[u8]| {
        [b"GGUF\x03\0\0\0", n_tensors, n_metadata, rest].concat()
    };
    let zero = [0; 8];
    let one = 1u64.to_le_bytes();
    let array = [&one[..], b"k", &9u32.to_le_bytes(), &4u32.to_le_bytes(), &huge].concat();
    let texts = [&one[..], b"k", &9u32.to_le_bytes(), &8u32.to_le_bytes(), &huge].concat();
    let cases = [
        ("header of 100 MB", Kind::Safetensors, [&100_000_000u64.to_le_bytes()[..], b"{"].concat()),
        ("npy header of 1 MiB", Kind::Npy, b"\x93NUMPY\x02\x00\x00\x00\x10\x00{".to_vec()),
        ("2^64 tensors", Kind::Gguf, gguf(&huge, &zero, b"")),
        ("2^64 metadata", Kind::Gguf, gguf(&zero, &huge, b"")),
        ("2^64 numbers", Kind::Gguf, gguf(&zero, &one, &array)),
        ("2^64 texts", Kind::Gguf, gguf(&zero, &one, &texts)),
        ("number of 2 GiB", Kind::Torch, zip_of(b"\x80\x02\x8b\xff\xff\xff\x7f")),
        ("text of 4 GiB", Kind::Torch, zip_of(b"\x80\x02X\xff\xff\xff\xff")),
        ("bytes of 2^63", Kind::Torch, zip_of(b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\x7f")),
        ("memo at the end", Kind::Torch, zip_of(b"\x80\x02Nr\xff\xff\xff\xff.")),
    ];
    for (name, kind, file) in cases {
        check_bounded(name, kind, &file, 4);
    }
}

#[test]
fn pickles_full_of_values_take_memory_of_their_size() {
    let fills: [(&str, Vec<u8>); 7] = [
        ("marks", vec![b'('; 300_000]),
        ("nones", vec![b'N'; 300_000]),
        ("lists", vec![b']'; 300_000]),
        ("memo", [b"N".to_vec(), vec![0x94; 300_000]].concat()),
        ("lists in lists", b"](".repeat(150_000)),
        ("copies", [b"]q\x00".to_vec(), b"h\x002".repeat(100_000)].concat()),
        (
            "dictionaries of one",
            [b"}q\x00".to_vec(), b"ccollections\nCounter\nh\x00\x85R".repeat(10_000)].concat(),
        ),
    ];
    for (name, fill) in fills {
        let file = archive(&[("m/data.pkl", &[&b"\x80\x02"[..], &fill, b"."].concat())]);
        // A list takes 48 bytes and its entry on the stack 16, and vectors grow twofold.
        check_bounded(name, Kind::Torch, &file, 200);
    }
}

#[test]
fn many_entries_take_linear_time() {
    let names: Vec<String> = (0..20_000).map(|i| format!("array_{i}.npy")).collect();
    let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    check_bounded("20,000 entries", Kind::Npz, &archive(&entries), 10);
}
