//! Containers made to hurt: refused at once, and without memory for what they claim.

use super::forge::{F32, Forge, Forged, LINK_RECORDS, Part, U8, number, stored_frame, stored_stream};
use crate::samples::frame_of;
use mithril::block::Shared;
use mithril::container::{Bases, Reader};
use mithril::entropy::lz::Compressor;
use mithril::entropy::stream;
use mithril::{Dtype, Error, ErrorKind};
use mithril_format::frame::FrameHeader;
use std::time::{Duration, Instant};

/// Bytes that a refusal may take on top of a few times the file.
const LITTLE: u64 = 256 << 10;

/// What one call allocates at most, and how it ends, within a second.
fn measured<T>(name: &str, call: impl FnOnce() -> Result<T, Error>) -> (u64, Result<T, Error>) {
    let start = Instant::now();
    let mut result = None;
    let allocated = allocation_counter::measure(|| result = Some(call()));
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(1), "{name}: {elapsed:?}");
    (allocated.bytes_max, result.unwrap())
}

/// Opening, or reading the first tensor, is refused within `memory` bytes.
fn check_refused_within(memory: u64, name: &str, file: &[u8], kind: ErrorKind) {
    let (allocated, result) = measured(name, || {
        let reader = Reader::open(file)?;
        reader.header()?;
        reader.read(0, &Bases::none())
    });
    let error = result.err().unwrap_or_else(|| panic!("{name} is accepted"));
    assert_eq!(error.kind(), kind, "{name}: {error}");
    assert!(allocated <= memory, "{name}: {allocated} bytes allocated");
}

fn check_refused(name: &str, file: &[u8], kind: ErrorKind) {
    check_refused_within(LITTLE + 4 * file.len() as u64, name, file, kind);
}

#[test]
fn claims_of_the_index_take_no_memory() {
    let huge = |shape: &[u64]| {
        let mut entry = Forged::full("a", U8, &[4], &[1, 2, 3, 4]);
        entry.shape = shape.to_vec();
        Forge::of(vec![entry]).build()
    };
    check_refused("a terabyte", &huge(&[1 << 40]), ErrorKind::Corrupt);
    check_refused("more than memory has addresses", &huge(&[1 << 63]), ErrorKind::Corrupt);
    // The frame claims as much as the index.
    let claim = |len: u64| {
        let mut frame = stored_frame(U8, &[4], &[1, 2, 3, 4]);
        frame[16..24].copy_from_slice(&len.to_le_bytes());
        frame[24..32].copy_from_slice(&len.to_le_bytes());
        let sum = mithril::checksum(&frame[..32]);
        frame[32..40].copy_from_slice(&sum.to_le_bytes());
        let mut entry = Forged::full("a", U8, &[len], &[]);
        entry.frame = Some(frame);
        Forge::of(vec![entry]).build()
    };
    check_refused("a frame of a terabyte", &claim(1 << 40), ErrorKind::Corrupt);
    let none = Forged { frame: Some(Vec::new()), ..Forged::full("a", U8, &[4], &[]) };
    check_refused("a frame of no bytes", &Forge::of(vec![none]).build(), ErrorKind::Truncated);
    let other = Forged {
        frame: Some(b"PK\x03\x04 and more of a zip file".to_vec()),
        ..Forged::full("a", U8, &[4], &[])
    };
    check_refused("a frame of something else", &Forge::of(vec![other]).build(), ErrorKind::Corrupt);
}

#[test]
fn a_tensor_of_nothing_but_constants_is_read_in_parts_only() {
    // 1000 blocks of 32 MiB in 22 bytes each.
    let header = FrameHeader {
        dtype: Dtype::U8,
        shape: Some(vec![32_000 << 20]),
        block_len: 32 << 20,
        raw_len: Some(32_000 << 20),
        checksums: false,
        shared: Shared::default(),
        base: None,
    };
    let frame = frame_of(&header, &vec![(32 << 20, 0, vec![1, 7]); 1000]);
    let mut entry = Forged::full("bomb", U8, &[32_000 << 20], &[]);
    entry.frame = Some(frame);
    let file = Forge::of(vec![entry, Forged::derived("copy", 11, &[1], 0)]);
    let file = Forge { entries: file.entries[..1].to_vec(), ..file }.build();
    check_refused("a bomb of constants", &file, ErrorKind::TooLarge);
    let reader = Reader::open(file.as_slice()).unwrap();
    let bases = Bases::none();
    let tensor = reader.open_tensor(0, &bases).unwrap();
    let mut out = [0; 1000];
    tensor.read_range((20_000 << 20)..(20_000 << 20) + 1000, &mut out, 1).unwrap();
    assert_eq!(out, [7; 1000]);
}

#[test]
fn sections_that_unpack_to_much_take_no_memory() {
    let bomb = |raw: &[u8]| stream::encode(raw, &[Compressor::Zstd { level: 3 }]);
    let with_index = |coded: Vec<u8>, raw_len: usize| {
        Forge::of(Vec::new()).build_with(|part, bytes| match part {
            Part::CodedIndex => *bytes = coded.clone(),
            Part::Footer => bytes[28..32].copy_from_slice(&u32::try_from(raw_len).unwrap().to_le_bytes()),
            _ => {}
        })
    };
    // As many entries without a name as fit: the second is refused where it stands.
    let nameless = Forged::reference("", U8, &[1], 0);
    let entry = [&[nameless.tag, 0, U8, 1, 1, 0][..], &nameless.content].concat();
    let mut raw = number(1 << 24);
    raw.extend(entry.repeat(12 << 20));
    raw.truncate(90 << 20);
    check_refused("90 MiB of one entry", &with_index(bomb(&raw), raw.len()), ErrorKind::Corrupt);
    let mut zeros = vec![0; 1 << 20];
    zeros[0] = 255;
    check_refused_within(
        3 << 20,
        "1 MiB of zeros",
        &with_index(bomb(&zeros), zeros.len()),
        ErrorKind::Corrupt,
    );
    let short = stored_stream(&[0]);
    check_refused("a length that is not there", &with_index(short, 4_000_000_000), ErrorKind::Corrupt);
}

#[test]
fn names_that_differ_in_the_end_only_take_bounded_memory() {
    // The most raw bytes that coded ones may claim: long names, each once.
    let mut index = number(8000);
    for i in 0..8000 {
        let name = format!("{}{i:05}", "n".repeat(4000));
        index.extend([1]);
        index.extend(number(name.len() as u64));
        index.extend(name.as_bytes());
        index.extend([U8, 0, 0, 0]);
    }
    let coded = stream::encode(&index, &[Compressor::Zstd { level: 3 }]);
    let coded_len = coded.len();
    let file = Forge::of(Vec::new()).build_with(|part, bytes| match part {
        Part::CodedIndex => *bytes = coded.clone(),
        Part::Footer => bytes[28..32].copy_from_slice(&u32::try_from(index.len()).unwrap().to_le_bytes()),
        _ => {}
    });
    assert!(index.len() > 32 * coded_len, "{coded_len}");
    check_refused("names without end", &file, ErrorKind::Corrupt);
}

#[test]
fn a_mebibyte_of_entries_opens_within_a_second_and_128_mib() {
    // What costs a reader most for its bytes: references with short names.
    let mut entries = vec![Forged::full("", F32, &[1], &[0; 4])];
    let name = |i: u32| char::from_u32(0x1_0000 + i).map(|name| name.to_string());
    entries.extend((0..26_000).filter_map(|i| Some(Forged::reference(&name(i)?, F32, &[1], 0))));
    let without_records = Forge::of(entries);
    check_refused("an index of more than there is room for", &without_records.build(), ErrorKind::Corrupt);
    let file = Forge { flags: LINK_RECORDS, ..without_records }.build();
    assert!(file.len() > 1 << 20, "{}", file.len());
    let (allocated, reader) = measured("many references", || Reader::open(file.as_slice()));
    assert!(reader.unwrap().entries().len() > 25_000);
    assert!(allocated <= 128 << 20, "{allocated} bytes allocated");
}
