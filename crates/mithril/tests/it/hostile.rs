//! Frames made to hurt: refused for the right reason, in no time, and without memory for what they claim.

use crate::samples::{Sample, every_kind, first_block, frame_of, frame_of_block, with_header, with_trailer};
use crate::stream::decode_stream;
use mithril::block::Shared;
use mithril::{DecodeOptions, Dtype, Error, ErrorKind, checksum, decompress_with};
use mithril_format::frame::{FrameHeader, FrameView};
use std::time::{Duration, Instant};

/// Bytes that a refusal may take on top of the frame itself: decoding tables and the like.
const LITTLE: u64 = 256 << 10;

/// Refused in one piece and as a stream, with the same kind, at once, and within `memory` bytes.
fn check_refused_within(memory: u64, name: &str, frame: &[u8], kind: ErrorKind) {
    check_one("in one piece", memory, name, kind, || {
        decompress_with(frame, &DecodeOptions::default().with_threads(1)).map(|raw| raw.len())
    });
    check_one("as a stream", memory, name, kind, || decode_stream(frame).map(|raw| raw.len()));
}

fn check_one(
    how: &str,
    memory: u64,
    name: &str,
    kind: ErrorKind,
    decode: impl FnOnce() -> Result<usize, Error>,
) {
    let start = Instant::now();
    let mut result = Ok(0);
    let allocated = allocation_counter::measure(|| result = decode());
    let elapsed = start.elapsed();
    let error = result.expect_err(name);
    assert_eq!(error.kind(), kind, "{name}, {how}: {error}");
    assert!(elapsed < Duration::from_secs(1), "{name}, {how}: {elapsed:?}");
    assert!(allocated.bytes_max <= memory, "{name}, {how}: {} bytes allocated", allocated.bytes_max);
}

fn check_refused(name: &str, frame: &[u8], kind: ErrorKind) {
    check_refused_within(LITTLE + 4 * frame.len() as u64, name, frame, kind);
}

fn sample(name: &str) -> Sample {
    every_kind().into_iter().find(|sample| sample.name == name).unwrap()
}

#[test]
fn frames_of_later_versions_are_unsupported() {
    let frame = sample("shared_rans8").frame;
    check_refused("version 2", &with_header_unchecked(&frame, |h| h[4] = 2), ErrorKind::Unsupported);
    check_refused("version 0", &with_header_unchecked(&frame, |h| h[4] = 0), ErrorKind::Unsupported);
    // Bit 4 is a base.
    for bit in [3, 5, 6, 7] {
        let flagged = with_header(&frame, |h| h[5] |= 1 << bit);
        check_refused("unknown flag", &flagged, ErrorKind::Unsupported);
    }
    for dtype in [23, 99, 255] {
        check_refused("unknown dtype", &with_header(&frame, |h| h[6] = dtype), ErrorKind::Unsupported);
    }
    // The shared tables stand behind the shape of two dimensions.
    check_refused("unknown shared tables", &with_header(&frame, |h| h[40] = 0x18), ErrorKind::Unsupported);
    check_refused("unknown shared flag", &with_header(&frame, |h| h[40] |= 0x80), ErrorKind::Unsupported);
}

#[test]
fn other_files_are_refused() {
    for other in [&b"PK\x03\x04"[..], b"{\"a\":1}", &[0; 100], &[0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]] {
        check_refused("another file", other, ErrorKind::Corrupt);
    }
}

#[test]
fn headers_that_claim_too_much_are_refused() {
    let plain = sample("stored").frame;
    let shaped = sample("shared_rans8").frame;
    let corrupt = |name: &str, frame: &[u8]| check_refused(name, frame, ErrorKind::Corrupt);
    for len in [1u64 << 60, u64::MAX, 151, 149, 0] {
        corrupt("raw length", &with_header(&plain, |h| h[16..24].copy_from_slice(&len.to_le_bytes())));
    }
    corrupt("raw length without its flag", &with_header(&plain, |h| h[5] &= !4));
    for rank in [65, 255] {
        corrupt("rank", &with_header_unchecked(&plain, |h| h[7] = rank));
    }
    corrupt("shape without its flag", &with_header(&shaped, |h| h[5] &= !2));
    for dimension in [1u64 << 60, u64::MAX, 49, 0] {
        corrupt("dimension", &with_header(&shaped, |h| h[24..32].copy_from_slice(&dimension.to_le_bytes())));
    }
    let (many, plenty) = (1u64 << 60, u64::MAX);
    corrupt(
        "all of it",
        &with_header(&shaped, |h| {
            h[16..24].copy_from_slice(&plenty.to_le_bytes());
            h[24..32].copy_from_slice(&many.to_le_bytes());
            h[32..40].copy_from_slice(&many.to_le_bytes());
        }),
    );
    for block_len in [0u32, (32 << 20) + 1, u32::MAX] {
        corrupt("block length", &with_header(&plain, |h| h[8..12].copy_from_slice(&block_len.to_le_bytes())));
    }
    corrupt("block length of broken elements", &with_header(&shaped, |h| h[8] |= 1));
    for shared_len in [(64 << 20) + 1, u32::MAX] {
        corrupt(
            "shared length",
            &with_header_unchecked(&plain, |h| h[12..16].copy_from_slice(&shared_len.to_le_bytes())),
        );
    }
    // Within the limit, but not there: the stream must not make room for it.
    let absent = with_header_unchecked(&plain, |h| h[12..16].copy_from_slice(&(64u32 << 20).to_le_bytes()));
    check_refused_within(3 << 20, "shared tables that are not there", &absent, ErrorKind::Truncated);
    check_refused(
        "rank that is not there",
        &with_header_unchecked(&plain[..40], |h| h[7] = 64),
        ErrorKind::Truncated,
    );
}

/// Changes a header without parsing it and without mending its checksum.
fn with_header_unchecked(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut changed = frame.to_vec();
    change(&mut changed);
    changed
}

#[test]
fn shared_tables_that_claim_too_much_are_refused() {
    let header = |shared: &[u8]| {
        let mut header = vec![0; 24];
        header[..4].copy_from_slice(b"MTHF");
        (header[4], header[5], header[6]) = (1, 1, Dtype::Bf16.id());
        header[8..12].copy_from_slice(&65536u32.to_le_bytes());
        header[12..16].copy_from_slice(&u32::try_from(shared.len()).unwrap().to_le_bytes());
        header.extend(shared);
        let sum = checksum(&header);
        header.extend(sum.to_le_bytes());
        // The end of a frame without blocks.
        let mut trailer = vec![0; 16];
        let sum = checksum(&trailer[4..]);
        trailer.extend(sum.to_le_bytes());
        trailer.extend(b"MTHE");
        header.extend(trailer);
        header
    };
    let list = |n: u32, class: u8| [&n.to_le_bytes()[..], &[1, class]].concat();
    let shared = |flags: u8, rows: Vec<u8>, columns: Vec<u8>| [vec![flags], rows, columns].concat();
    let corrupt = |name: &str, shared: Vec<u8>| check_refused(name, &header(&shared), ErrorKind::Corrupt);
    corrupt("rows without end", shared(1, list(u32::MAX, 0), list(4, 0)));
    corrupt("columns without end", shared(1, list(4, 0), list(u32::MAX, 0)));
    corrupt("no columns", shared(1, list(4, 0), list(0, 0)));
    corrupt("class 16", shared(1, list(4, 0), list(4, 16)));
    check_refused("no tables", &header(&shared(1, list(4, 0), list(4, 0))), ErrorKind::Truncated);
    let tables = |bytes: &[u8]| [shared(1, list(4, 0), list(4, 0)), bytes.to_vec()].concat();
    corrupt("frequencies of zero", tables(&[0; 17]));
    corrupt("frequencies that do not sum to 256", tables(&[15; 17]));
    corrupt("bytes behind the tables", tables(&[16; 18]));
    // Two lists of a few bytes may not ask for hundreds of megabytes.
    let most = u32::try_from(mithril_codec::MAX_LISTED).unwrap();
    for flags in [1, 2, 3, 4] {
        let claim = header(&shared(flags | 4, list(most, 15), list(most, 15)));
        check_refused_within(64 << 20, "as many classes as possible", &claim, ErrorKind::Truncated);
    }
}

#[test]
fn block_headers_that_claim_too_much_are_refused() {
    let plain = sample("stored").frame;
    let at = FrameHeader::parse(&plain).unwrap().1;
    let with_block = |change: &dyn Fn(&mut [u8])| {
        let mut frame = plain.clone();
        change(&mut frame[at..at + 16]);
        frame
    };
    let corrupt = |name: &str, frame: &[u8]| check_refused(name, frame, ErrorKind::Corrupt);
    for raw_len in [0u32, (1 << 18) + 1, u32::MAX] {
        corrupt("raw length of a block", &with_block(&|b| b[4..8].copy_from_slice(&raw_len.to_le_bytes())));
    }
    for coded_len in [152u32, u32::MAX] {
        corrupt(
            "coded length of a block",
            &with_block(&|b| b[..4].copy_from_slice(&coded_len.to_le_bytes())),
        );
    }
    // The blocks end at once, so what follows is no trailer.
    corrupt("coded length of zero", &with_block(&|b| b[..4].fill(0)));
    // The largest block that may be claimed, in two coded bytes: one block is decoded, whatever the frame claims.
    let header = FrameHeader {
        dtype: Dtype::Bytes,
        shape: None,
        block_len: 32 << 20,
        raw_len: None,
        checksums: false,
        shared: Shared::default(),
        base: None,
    };
    let bomb = frame_of(&header, &vec![(32 << 20, 0, vec![1, 0]); 1000]);
    let options = DecodeOptions::default().with_threads(1);
    check_one(
        "in one piece",
        LITTLE + 4 * bomb.len() as u64,
        "bomb of constants",
        ErrorKind::TooLarge,
        || decompress_with(&bomb, &options).map(|raw| raw.len()),
    );
}

#[test]
fn blocks_and_trailers_that_disagree_are_refused() {
    let several = sample("several_blocks").frame;
    let blocks = FrameView::parse(&several).unwrap().blocks().to_vec();
    assert_eq!(blocks.len(), 3);
    let corrupt = |name: &str, frame: &[u8]| check_refused(name, frame, ErrorKind::Corrupt);
    corrupt("lengths in another order", &with_trailer(&several, |t| t[..8].rotate_left(4)));
    corrupt("a length less", &with_trailer(&several, |t| t[0] -= 1));
    corrupt("a length more", &with_trailer(&several, |t| t[4] += 1));
    corrupt("length of zero", &with_trailer(&several, |t| t[8..12].fill(0)));
    for raw_len in [0, 2499u64, 2501, 1 << 60, u64::MAX] {
        corrupt("raw length", &with_trailer(&several, |t| t[12..20].copy_from_slice(&raw_len.to_le_bytes())));
    }
    // A block that ends inside of the next one, in its header and in the trailer.
    let overlapping = with_trailer(&several, |t| t[0] -= 1);
    let mut overlapping = overlapping;
    overlapping[blocks[0].offset as usize] -= 1;
    corrupt("overlapping blocks", &overlapping);
    // The last, short block in front.
    let (first, last) = (blocks[0].offset as usize, blocks[2].offset as usize);
    let end = several.len() - 4 - 3 * 4 - 24;
    let mut moved = several[..first].to_vec();
    moved.extend(&several[last..end]);
    moved.extend(&several[first..last]);
    moved.extend(&several[end..]);
    corrupt("blocks in another order", &moved);
    let moved = with_trailer(&moved, |t| t[..12].rotate_right(4));
    corrupt("a short block in front", &moved);
    // Number of blocks: as many as fit in four bytes, and one less than there are.
    let n_at = several.len() - 16;
    for n in [u32::MAX, 2, 4, 0] {
        let mut frame = several.clone();
        frame[n_at..n_at + 4].copy_from_slice(&n.to_le_bytes());
        let start = (several.len() - 24).saturating_sub(4 * n as usize);
        let sum = checksum(&frame[start..n_at + 4]);
        frame[n_at + 4..n_at + 12].copy_from_slice(&sum.to_le_bytes());
        let result = decompress_with(&frame, &DecodeOptions::default());
        assert!(matches!(result.unwrap_err().kind(), ErrorKind::Corrupt | ErrorKind::Truncated));
        assert!(decode_stream(&frame).is_err());
    }
}

#[test]
fn unknown_kinds_and_coders_are_unsupported() {
    let unsupported =
        |name: &str, block: &[u8]| check_refused(name, &frame_of_block(100, block), ErrorKind::Unsupported);
    for kind in [7, 12, 255] {
        unsupported("block kind", &[kind, 0, 0]);
    }
    for coder in [8, 99, 255] {
        unsupported("stream coder", &[3, 1, coder, 1, 0, 0, 0, 0]);
    }
    // Bit fields of one byte, four bits coded: the rest takes 64 bytes, then the coder.
    let mut block = vec![2, 0, 4, 0, 0, 0, 0];
    block.resize(7 + 64, 0);
    block.push(9);
    unsupported("symbol coder", &block);
    unsupported("bit field flags", &[2, 0x40, 4, 0, 0, 0, 0]);
}

#[test]
fn blocks_that_contradict_themselves_are_refused() {
    let corrupt = |name: &str, raw_len: u32, block: &[u8]| {
        check_refused(name, &frame_of_block(raw_len, block), ErrorKind::Corrupt)
    };
    corrupt("stored, too short", 100, &[0; 100]);
    corrupt("constant of three bytes", 100, &[1, 1, 2, 3]);
    corrupt("constant of none", 100, &[1]);
    corrupt("runs that do not fill an element", 100, &[3, 17, 1, 16, 1, 0]);
    corrupt("stored plane, too short", 100, &[3, 1, 0, 1, 0, 0, 0, 5]);
    corrupt("nibble of 16", 100, &[3, 0, 1, 16, 1, 0]);
    corrupt("bytes behind planes", 100, &[3, 1, 1, 5, 0]);
    corrupt("palette of three bytes", 100, &[4, 3, 0]);
    corrupt("number beyond the palette", 100, &[4, 1, 0, 9, 1, 1]);
    corrupt("sparse width", 100, &[5, 3]);
    corrupt("sparse with too many", 100, &[5, 4, 26, 0, 0, 0]);
    corrupt("sparse with far too many", 100, &[5, 4, 255, 255, 255, 255]);
    corrupt("sparse masks and count", 100, &[5, 4, 3, 0, 0, 0, 1, 0]);
    corrupt("sparse masks of five", 4, &[5, 1, 5, 0, 0, 0, 1, 31]);
    let nested = |kind: u8| [5, 4, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, kind];
    corrupt("sparse in sparse", 100, &nested(5));
    corrupt("rows in sparse", 100, &nested(6));
    corrupt("rows of none", 100, &[6, 4, 0, 0, 0, 0]);
    corrupt("rows of a broken length", 100, &[6, 4, 7, 0, 0, 0]);
    corrupt("rows too long", 100, &[6, 8, 255, 255, 255, 255]);
    corrupt("rows of something else", 100, &[6, 4, 5, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (name, header) in [
        ("mantissa of all bits", [2, 0, 8, 0, 0, 0, 0]),
        ("more joint than mantissa", [2, 0, 4, 5, 0, 0, 0]),
        ("more dead than mantissa", [2, 0, 4, 0, 5, 0, 0]),
        ("joint and dead overlap", [2, 0, 4, 3, 3, 0, 0]),
        ("packed order of bytes", [2, 0x10, 4, 0, 0, 0, 0]),
        ("mantissa of 255 bits", [2, 3, 255, 0, 0, 0, 0]),
    ] {
        corrupt(name, 100, &[&header[..], &[0; 90]].concat());
    }
}

#[test]
fn damaged_tables_are_refused() {
    // A plane of sixteen symbols: coder, length, offset, frequencies, streams.
    let plane = sample("planes_rans8");
    let raw_len = u32::try_from(plane.raw.len()).unwrap();
    let block = first_block(&plane.frame);
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut block = block.to_vec();
        change(&mut block);
        frame_of_block(raw_len, &block)
    };
    let corrupt = |name: &str, frame: &[u8]| check_refused(name, frame, ErrorKind::Corrupt);
    corrupt("no frequencies", &with(&|b| b[8..24].fill(0)));
    corrupt("frequencies of less than 256", &with(&|b| b[8] -= 1));
    corrupt("frequencies of more than 256", &with(&|b| b[23] += 1));
    corrupt("three streams", &with(&|b| b[24] = 3));
    corrupt("a state of zero", &with(&|b| b[25] = 0));
    let fields = sample("fields_rans8");
    let block = first_block(&fields.frame);
    // The rest of 700 elements, one byte each in whole vectors; then coder, offset, frequencies.
    let symbols = 7 + 704;
    assert_eq!(block[symbols], 1);
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut block = block.to_vec();
        change(&mut block[symbols..]);
        frame_of_block(1400, &block)
    };
    corrupt("no frequencies of fields", &with(&|b| b[2..18].fill(0)));
    corrupt("frequencies of fields that do not sum", &with(&|b| b[2..18].fill(17)));
    corrupt("symbols without shared tables", &with(&|b| b[0] = 2));
    corrupt("symbols of rANS12 without shared tables", &with(&|b| b[0] = 4));
    // rANS12: first, last and absorbing symbol, then lengths of four bits each.
    let stream = |coded: &[u8]| {
        let len = u32::try_from(coded.len()).unwrap().to_le_bytes();
        frame_of_block(1000, &[&[3, 1, 4], &len[..], coded].concat())
    };
    corrupt("symbols out of order", &stream(&[9, 3, 5, 0, 0]));
    corrupt("absorber outside", &stream(&[3, 9, 10, 0xff, 0xff, 0xff]));
    corrupt("frequencies above 4096", &stream(&[&[0, 255, 0], &[0xcc; 300][..]].concat()));
    corrupt("range that is not tight", &stream(&[&[0, 255, 128], &[0; 300][..]].concat()));
    check_refused("rANS12 table cut off", &stream(&[0, 255, 0, 0x11]), ErrorKind::Truncated);
    // Huffman: first and last symbol, then lengths of four bits each.
    let stream = |coded: &[u8]| {
        let len = u32::try_from(coded.len()).unwrap().to_le_bytes();
        frame_of_block(1000, &[&[3, 1, 3], &len[..], coded].concat())
    };
    corrupt("Huffman symbols out of order", &stream(&[9, 3, 0x11]));
    corrupt("Huffman codes too many", &stream(&[0, 3, 0x11, 0x11, 0, 0]));
    corrupt("Huffman codes too few", &stream(&[0, 3, 0x33, 0x33, 0, 0]));
    corrupt("Huffman codes of none", &stream(&[0, 3, 0x00, 0x00, 0, 0]));
    corrupt("Huffman run too long", &stream(&[0, 3, 0xf1, 0xff, 0, 0]));
    corrupt("Huffman bytes behind one symbol", &stream(&[5, 5, 1]));
}

#[test]
fn escapes_out_of_range_are_refused() {
    let fields = sample("fields_escapes");
    let block = first_block(&fields.frame).to_vec();
    let n = fields.raw.len() / 4;
    // Count, positions and values stand at the end of the block.
    let n_escapes = (1..n)
        .find(|&count| {
            let at = block.len() - 3 * count - 4;
            block[at..at + 4] == u32::try_from(count).unwrap().to_le_bytes()
        })
        .expect("the sample has escapes");
    let at = block.len() - 3 * n_escapes - 4;
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut block = block.clone();
        change(&mut block[at..]);
        frame_of_block(u32::try_from(fields.raw.len()).unwrap(), &block)
    };
    let corrupt = |name: &str, frame: &[u8]| check_refused(name, frame, ErrorKind::Corrupt);
    corrupt(
        "escape behind the end",
        &with(&|b| b[4..6].copy_from_slice(&u16::try_from(n).unwrap().to_le_bytes())),
    );
    corrupt("escape far behind the end", &with(&|b| b[4..6].fill(255)));
    corrupt(
        "more escapes than elements",
        &with(&|b| b[..4].copy_from_slice(&u32::try_from(n + 1).unwrap().to_le_bytes())),
    );
    corrupt("far more escapes", &with(&|b| b[..4].fill(255)));
    corrupt("an escape less", &with(&|b| b[0] -= 1));
    check_refused("an escape more", &with(&|b| b[0] += 1), ErrorKind::Truncated);
}

#[test]
fn bombs_of_compressors_are_refused() {
    // A zstd frame that states 1 GiB and would unpack to it: one block of a repeated byte, again and again.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    bomb.extend((1u32 << 30).to_le_bytes());
    for block in 0..8192u32 {
        // Bit 0 marks the last block, then the type (1 repeats one byte), then the size.
        let header = u32::from(block == 8191) | 1 << 1 | (128 << 10) << 3;
        bomb.extend(&header.to_le_bytes()[..3]);
        bomb.push(0);
    }
    let block_of = |coder: u8, coded: &[u8]| {
        let len = u32::try_from(coded.len()).unwrap().to_le_bytes();
        [&[3, 1, coder], &len[..], coded].concat()
    };
    let corrupt = |name: &str, raw_len: u32, block: &[u8]| {
        check_refused(name, &frame_of_block(raw_len, block), ErrorKind::Corrupt)
    };
    corrupt("zstd bomb", 1 << 17, &block_of(5, &bomb));
    // The same that states the size of the block and unpacks to more.
    let mut lying = bomb.clone();
    lying[5..9].copy_from_slice(&(1u32 << 17).to_le_bytes());
    check_refused_within(
        1 << 20,
        "zstd that states too little",
        &frame_of_block(1 << 17, &block_of(5, &lying)),
        ErrorKind::Corrupt,
    );
    // Without a stated size nothing is unpacked at all.
    let mut silent = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    silent.extend(&bomb[9..]);
    corrupt("zstd without a size", 1 << 17, &block_of(5, &silent));
    // lz4: a literal, then a copy of 100 times 255 bytes.
    let mut lz4 = vec![0x1f, 7, 1, 0];
    lz4.extend([255; 100]);
    lz4.extend([0, 0x50, 1, 2, 3, 4, 5]);
    corrupt("lz4 bomb", 1000, &block_of(6, &lz4));
    // brotli: a long run made by the library itself, in a block that claims less.
    let long = sample("planes_brotli");
    let coded = &first_block(&long.frame)[7..];
    let claimed = u32::try_from(long.raw.len() - 1).unwrap();
    check_refused_within(
        64 << 20,
        "brotli that is longer",
        &frame_of_block(claimed, &block_of(7, coded)),
        ErrorKind::Corrupt,
    );
    check_refused_within(
        64 << 20,
        "brotli that is shorter",
        &frame_of_block(claimed + 2, &block_of(7, coded)),
        ErrorKind::Corrupt,
    );
}
