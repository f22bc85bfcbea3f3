//! Frames that every reader must refuse, each with one defect and sums that are right otherwise.

use crate::golden::push_block;
use mithril_codec::block::Shared;
use mithril_codec::entropy::huffman;
use mithril_codec::{Dtype, checksum};
use mithril_format::frame::{FrameHeader, Trailer};

/// Name, expected kind and variant of the error, and the bytes.
type Rejected = (&'static str, (&'static str, &'static str), Vec<u8>);

/// A frame of 64 raw bytes: sixteen F32 in one stored block.
struct Parts {
    header: Vec<u8>,
    blocks: Vec<(u32, Vec<u8>)>,
    trailer_raw_len: u64,
}

const RAW_LEN: u32 = 64;

/// The raw bytes that blocks claim to hold; no damaged block gets as far as their checksum.
fn raw() -> Vec<u8> {
    (0..64).collect()
}

impl Parts {
    /// One block with these coded bytes.
    fn of(coded: &[u8]) -> Self {
        let header = FrameHeader {
            dtype: Dtype::F32,
            shape: Some(vec![16]),
            block_len: RAW_LEN,
            raw_len: Some(u64::from(RAW_LEN)),
            checksums: true,
            shared: Shared::default(),
        };
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        bytes.truncate(bytes.len() - 8);
        Self { header: bytes, blocks: vec![(RAW_LEN, coded.to_vec())], trailer_raw_len: u64::from(RAW_LEN) }
    }

    fn stored() -> Self {
        Self::of(&[&[0], &raw()[..]].concat())
    }

    /// Overwrites part of the header, before its checksum is taken.
    fn with_header(mut self, at: usize, bytes: &[u8]) -> Self {
        self.header[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn write(self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let mut frame = self.header;
        frame.extend(checksum(&frame).to_le_bytes());
        let mut trailer = Trailer { coded_lens: Vec::new(), raw_len: self.trailer_raw_len };
        for (raw_len, coded) in &self.blocks {
            push_block(&mut frame, &mut trailer, Some(checksum(&raw())), *raw_len as usize, coded)?;
        }
        trailer.write(&mut frame);
        Ok(frame)
    }
}

/// A block of sixteen F32 bit fields, up to its symbols.
fn fields(flags: u8, symbols: &[u8]) -> Vec<u8> {
    // One vector of a tile: three bytes of rest for each of 32 places. Too long for 64 raw bytes, so the elements
    // have 16 dead bits and one byte of rest.
    [&[2, flags, 23, 0, 16, 0, 0], &[0; 32][..], symbols].concat()
}

/// A block of byte planes of width 1: one stream.
fn stream(coder: u8, coded: &[u8]) -> Vec<u8> {
    let len = u8::try_from(coded.len()).unwrap_or(u8::MAX);
    [&[3, 1, coder, len, 0, 0, 0], coded].concat()
}

/// All rejected frames.
pub(crate) fn frames() -> Result<Vec<Rejected>, Box<dyn std::error::Error>> {
    let corrupt = ("corrupt", "Block.Corrupt");
    let unsupported = ("unsupported", "Block.Unsupported");
    let good = Parts::stored().write()?;
    let mut frames: Vec<Rejected> = vec![
        (
            "magic_of_another_format",
            ("corrupt", "NotAFrame"),
            Parts::stored().with_header(0, b"MCKP").write()?,
        ),
        ("version_2", ("unsupported", "UnsupportedVersion"), Parts::stored().with_header(4, &[2]).write()?),
        (
            "reserved_frame_flag",
            ("unsupported", "Unknown"),
            Parts::stored().with_header(5, &[0b1111]).write()?,
        ),
        ("dtype_23", ("unsupported", "Unknown"), Parts::stored().with_header(6, &[23]).write()?),
        ("rank_65", ("corrupt", "Limit"), Parts::stored().with_header(7, &[65]).write()?),
        ("block_len_zero", ("corrupt", "Limit"), Parts::stored().with_header(8, &[0; 4]).write()?),
        (
            "block_len_not_whole_units",
            ("corrupt", "Limit"),
            Parts::stored().with_header(8, &[66, 0, 0, 0]).write()?,
        ),
        ("shared_len_4_gib", ("corrupt", "Limit"), Parts::stored().with_header(12, &[0xff; 4]).write()?),
        (
            "raw_len_2_to_the_60",
            ("corrupt", "Corrupt"),
            Parts::stored().with_header(16, &(1u64 << 60).to_le_bytes()).write()?,
        ),
        ("shape_of_17_elements", ("corrupt", "Corrupt"), Parts::stored().with_header(24, &[17]).write()?),
        (
            "shape_product_overflows",
            ("corrupt", "Corrupt"),
            Parts::stored().with_header(24, &[0xff; 8]).write()?,
        ),
        ("raw_len_not_flagged", ("corrupt", "Corrupt"), Parts::stored().with_header(5, &[0b011]).write()?),
        ("shape_not_flagged", ("corrupt", "Corrupt"), Parts::stored().with_header(5, &[0b101]).write()?),
        (
            "trailer_raw_len_differs",
            ("corrupt", "Corrupt"),
            Parts { trailer_raw_len: 65, ..Parts::stored() }.write()?,
        ),
        ("short_block_before_the_last", ("corrupt", "Corrupt"), short_block_first().write()?),
        ("cut_within_header", ("truncated", "Truncated"), good[..30].to_vec()),
        ("cut_within_block", ("truncated", "Truncated"), good[..90].to_vec()),
        ("cut_within_trailer", ("truncated", "Truncated"), good[..good.len() - 1].to_vec()),
        ("header_checksum", ("corrupt", "Checksum"), flipped(&good, 33)),
        ("trailer_checksum", ("corrupt", "Checksum"), flipped(&good, good.len() - 5)),
        ("block_checksum", ("corrupt", "BlockChecksum"), flipped(&good, 60)),
    ];
    let blocks: Vec<(&str, (&str, &str), Vec<u8>)> = vec![
        ("block_kind_7", unsupported, vec![7; 8]),
        ("stored_block_too_short", corrupt, vec![0; 64]),
        ("constant_of_three_bytes", corrupt, vec![1, 9, 9, 9]),
        ("fields_reserved_flag", unsupported, fields(0b0100_0110, &[0, 127, 0, 0, 0, 0])),
        ("fields_do_not_fit_the_element", corrupt, vec![2, 0b101, 23, 0, 16, 0, 0]),
        ("fields_packed_broken_vector", corrupt, fields(0b1_0110, &[0, 127, 0, 0, 0, 0])),
        ("symbol_coder_6", unsupported, fields(0b110, &[6, 127, 0, 0, 0, 0])),
        ("shared_symbols_without_tables", corrupt, fields(0b110, &[2, 1, 0, 0, 0, 0])),
        ("coded_signs_without_tables", corrupt, vec![2, 0b10_0110, 23, 0, 23, 0, 0, 0, 127, 0, 0, 0, 0]),
        ("escape_behind_the_last_element", corrupt, fields(0b110, &[0, 127, 1, 0, 0, 0, 16, 0, 127])),
        ("more_escapes_than_elements", corrupt, fields(0b110, &[0, 127, 17, 0, 0, 0])),
        ("bytes_behind_the_fields", corrupt, fields(0b110, &[0, 127, 0, 0, 0, 0, 0])),
        ("rans8_frequencies_sum_to_255", corrupt, stream(2, &[&[0; 1], &[15; 16][..], &[31, 1]].concat())),
        ("rans8_three_streams", corrupt, stream(2, &[&[0; 1], &[16; 16][..], &[3]].concat())),
        ("rans12_absorber_outside", corrupt, stream(4, &[5, 9, 10])),
        ("huffman_code_incomplete", corrupt, stream(3, &[0, 2, 0x22, 0x02, 1])),
        ("huffman_without_end_mark", corrupt, stream(3, &huffman_without_end_mark())),
        ("stored_stream_too_short", corrupt, stream(0, &[0; 50])),
        ("stream_coder_8", unsupported, stream(8, &[0; 50])),
        (
            "stream_longer_than_its_block",
            ("truncated", "Block.Truncated"),
            vec![3, 1, 0, 64, 0, 0, 0, 1, 2, 3],
        ),
        ("zstd_bomb", corrupt, stream(5, &zstd_bomb())),
        ("lz4_block_too_short", corrupt, stream(6, &[0x10, 7])),
        ("planes_of_17_bytes", corrupt, vec![3, 17, 1, 0]),
        ("nibble_above_15", corrupt, vec![3, 0, 1, 16, 1, 0]),
        ("palette_of_width_3", corrupt, vec![4, 3, 0, 1, 2, 3, 1, 0]),
        ("number_beyond_the_palette", corrupt, vec![4, 4, 1, 1, 0, 0, 0, 2, 0, 0, 0, 1, 2]),
        ("sparse_within_sparse", corrupt, vec![5, 4, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 5]),
        ("sparse_masks_miscounted", corrupt, vec![5, 4, 1, 0, 0, 0, 1, 0, 5, 0, 0, 0, 0, 1, 2, 3, 4]),
        ("sparse_mask_above_15", corrupt, vec![5, 4, 8, 0, 0, 0, 1, 0x30, 2, 0, 0, 0, 1, 0]),
        ("rows_that_do_not_divide", corrupt, vec![6, 4, 5, 0, 0, 0, 1, 0]),
    ];
    for (name, expected, coded) in blocks {
        frames.push((name, expected, Parts::of(&coded).write()?));
    }
    Ok(frames)
}

/// A block of 32 bytes, where all but the last have 64, before one of 64.
fn short_block_first() -> Parts {
    let mut parts = Parts::stored().with_header(16, &96u64.to_le_bytes()).with_header(24, &[24]);
    parts.blocks.insert(0, (32, [&[0; 1], &raw()[..32]].concat()));
    parts.trailer_raw_len = 96;
    parts
}

/// 64 symbols whose bit stream ends in zeros.
fn huffman_without_end_mark() -> Vec<u8> {
    let symbols: Vec<u8> = (0..64).map(|i| i % 2).collect();
    let mut coded = Vec::new();
    huffman::encode(&symbols, &mut coded);
    if let Some(last) = coded.last_mut() {
        *last = 0;
    }
    coded
}

/// A zstd frame that says it holds 1 GiB, in one run-length block of 128 KiB.
fn zstd_bomb() -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((1u32 << 30).to_le_bytes());
    frame.extend([0x03, 0x00, 0x10, 0x00]);
    frame
}

/// One bit of the frame flipped.
fn flipped(frame: &[u8], at: usize) -> Vec<u8> {
    let mut damaged = frame.to_vec();
    damaged[at] ^= 1;
    damaged
}
