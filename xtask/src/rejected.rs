//! Frames that every reader must refuse, each with one defect and sums that are right otherwise.

use crate::golden::push_block;
use mithril_codec::block::{
    FieldRecipe, MAX_OVERHEAD, Place, Recipe, Scratch, Shared, SymbolCoder, SymbolTables, encode_block,
};
use mithril_codec::entropy::huffman;
use mithril_codec::entropy::lz::Compressor;
use mithril_codec::entropy::rans8::Window;
use mithril_codec::transform::fields::Layout;
use mithril_codec::{Contexts, Dtype, checksum};
use mithril_format::frame::{FrameHeader, Trailer};

/// Name, expected kind and variant of the error, and the bytes.
pub(crate) type Rejected = (&'static str, (&'static str, &'static str), Vec<u8>);

/// A frame of 64 raw bytes: sixteen F32 in one stored block.
struct Parts {
    header: Vec<u8>,
    blocks: Vec<(u32, Vec<u8>)>,
    /// What the blocks claim to hold.
    raw: Vec<u8>,
    trailer_raw_len: u64,
}

const RAW_LEN: u32 = 64;

/// The raw bytes that blocks claim to hold unless it is said otherwise.
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
            base: None,
        };
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        bytes.truncate(bytes.len() - 8);
        let blocks = vec![(RAW_LEN, coded.to_vec())];
        Self { header: bytes, blocks, raw: raw(), trailer_raw_len: u64::from(RAW_LEN) }
    }

    /// One block whose elements are these sixteen: what a reader that is not strict takes it for, so that no
    /// checksum covers its fault.
    fn of_elements(coded: &[u8], elements: [u32; 16]) -> Self {
        Self { raw: elements.into_iter().flat_map(u32::to_le_bytes).collect(), ..Self::of(coded) }
    }

    /// Adds a last block with so many elements.
    fn with_last_block(mut self, n: u8, coded: &[u8], elements: &[u32]) -> Self {
        self.raw.extend(elements.iter().flat_map(|element| element.to_le_bytes()));
        self.blocks.push((4 * u32::from(n), coded.to_vec()));
        self.trailer_raw_len += 4 * u64::from(n);
        let raw_len = self.trailer_raw_len.to_le_bytes();
        self.with_header(16, &raw_len).with_header(24, &[16 + n])
    }

    /// Puts shared tables behind the shape.
    fn with_shared(mut self, shared: &[u8]) -> Self {
        self.header.extend(shared);
        let len = u8::try_from(shared.len()).unwrap_or(u8::MAX);
        self.with_header(12, &[len])
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
        let mut raw = &self.raw[..];
        for (raw_len, coded) in &self.blocks {
            let (block, rest) = raw.split_at((*raw_len as usize).min(raw.len()));
            push_block(&mut frame, &mut trailer, Some(checksum(block)), *raw_len as usize, coded)?;
            raw = rest;
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
        ("byte_behind_the_frame", ("corrupt", "TrailingData"), [&good[..], &[0]].concat()),
        ("frame_behind_the_frame", ("corrupt", "TrailingData"), [&good[..], &good].concat()),
        (
            "shared_tables_of_nothing",
            ("corrupt", "Shared.Corrupt"),
            Parts::stored().with_shared(&[0]).write()?,
        ),
        (
            "shared_reserved_flag",
            ("unsupported", "Shared.Unsupported"),
            Parts::stored().with_shared(&[16]).write()?,
        ),
        (
            "shared_tables_cut_off",
            ("truncated", "Shared.Truncated"),
            Parts::stored().with_shared(&[3, 1, 0]).write()?,
        ),
        (
            "shared_class_16",
            ("corrupt", "Shared.Corrupt"),
            Parts::stored().with_shared(&[3, 1, 0, 0, 0, 1, 16, 1, 0, 0, 0, 1, 0]).write()?,
        ),
        ("constant_as_long_as_its_block", corrupt, long_constant().write()?),
        ("rows_that_start_within_a_row", corrupt, misplaced_rows().write()?),
        ("classed_symbols_with_shared_tables", corrupt, Classed::PER_BLOCK.write(&Classed::SHARED, |_| ())?),
        ("shared_symbols_with_shared_classes", corrupt, Classed::SHARED.write(&Classed::PER_BLOCK, |_| ())?),
        (
            "packed_shared_symbols",
            corrupt,
            // PACKED in the flags; the elements of a vector are equal, so that their order does not show.
            Classed::SHARED.write(&Classed::SHARED, |coded| coded[1] |= 0b1_0000)?,
        ),
    ];
    let blocks: Vec<(&str, (&str, &str), Vec<u8>)> = vec![
        ("block_kind_7", unsupported, vec![7; 8]),
        ("same_without_a_base", corrupt, vec![8]),
        ("difference_without_a_base", corrupt, vec![9; 40]),
        ("xor_without_a_base", corrupt, vec![10, 1, 5]),
        ("predicted_without_a_prediction", corrupt, vec![11; 40]),
        ("stored_block_too_short", corrupt, vec![0; 64]),
        ("constant_of_three_bytes", corrupt, vec![1, 9, 9, 9]),
        ("coded_low_bits_that_are_no_bytes", corrupt, vec![2, 0b1000_0110, 23, 0, 13, 0, 0]),
        ("fields_reserved_flag", unsupported, fields(0b0100_0110, &[0, 127, 0, 0, 0, 0])),
        ("fields_do_not_fit_the_element", corrupt, vec![2, 0b101, 23, 0, 16, 0, 0]),
        ("fields_packed_broken_vector", corrupt, fields(0b1_0110, &[0, 127, 0, 0, 0, 0])),
        ("symbol_coder_6", unsupported, fields(0b110, &[6, 127, 0, 0, 0, 0])),
        ("symbol_coder_8", unsupported, fields(0b110, &[8, 127, 0, 0, 0, 0])),
        (
            "packed_bf16_without_sign",
            corrupt,
            [&[2, 0b1_0001, 7, 0, 0, 0, 0], &[0; 32][..], &[0, 127, 0, 0, 0, 0]].concat(),
        ),
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
    for (name, coded, elements) in second_encodings() {
        frames.push((name, corrupt, Parts::of_elements(&coded, elements).write()?));
    }
    frames.push(("byte_behind_a_brotli_stream", corrupt, long_brotli()?.write()?));
    Ok(frames)
}

/// Blocks that say in a second way what a writer says in one, or that say more than it means.
fn second_encodings() -> Vec<(&'static str, Vec<u8>, [u32; 16])> {
    let all = |element: u32| [element; 16];
    let but = |element: u32, others: &[(usize, u32)]| {
        let mut elements = [element; 16];
        others.iter().for_each(|&(at, other)| elements[at] = other);
        elements
    };
    let none = [0; 4];
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 64, 0x03, 0x02, 0x00, 9];
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
    let empty = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 0x01, 0x00, 0x00];
    let nines = all(0x0909_0909);
    let one = 127 << 23;
    let rows = |row_len: u8, mask: u8, parts: [&[u8]; 2]| {
        let part = |part: &[u8]| [&[u8::try_from(part.len()).unwrap_or(u8::MAX), 0, 0, 0], part].concat();
        [&[6, 4, row_len, 0, 0, 0, 1, mask], &part(parts[0])[..], &part(parts[1])].concat()
    };
    let (fives, sixes) = (top_only(0b10, 24, 0, 5, &none), top_only(0b10, 24, 0, 6, &none));
    let (five, six) = (5 << 24, 6 << 24);
    vec![
        ("skippable_frame_behind_a_zstd_frame", stream(5, &[&zstd[..], &skippable].concat()), nines),
        ("zstd_frame_behind_a_zstd_frame", stream(5, &[&zstd[..], &empty].concat()), nines),
        ("constant_of_two_equal_bytes", vec![1, 9, 9], nines),
        ("constant_of_two_equal_halves", vec![1, 1, 2, 1, 2], all(0x0201_0201)),
        ("coded_signs_without_a_sign", top_only(0b10_0010, 24, 0, 63, &none), all(63 << 24)),
        (
            "sign_that_is_flipped",
            [&[2, 0b1110, 23, 0, 23, 0, 0], &[0; 32][..], &[0, 127], &none].concat(),
            all(one | 1 << 31),
        ),
        ("base_of_a_narrow_field", top_only(0b10, 24, 1, 62, &none), all(63 << 24)),
        ("base_beyond_the_field", top_only(0b10, 22, 1024, 63, &none), all(63 << 22)),
        ("top_field_of_17_bits", top_only(0b10, 15, 0, 63, &none), all(63 << 15)),
        (
            "escapes_out_of_order",
            fields(0b110, &[0, 127, 2, 0, 0, 0, 5, 0, 3, 0, 1, 2]),
            but(one, &[(5, 1 << 23), (3, 2 << 23)]),
        ),
        ("escape_twice", fields(0b110, &[0, 127, 2, 0, 0, 0, 5, 0, 5, 0, 1, 1]), but(one, &[(5, 1 << 23)])),
        (
            "escape_wider_than_the_field",
            top_only(0b10, 27, 0, 3, &[1, 0, 0, 0, 2, 0, 33]),
            but(3 << 27, &[(2, 1 << 27)]),
        ),
        ("palette_not_ascending", vec![4, 4, 1, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0], all(2)),
        ("palette_entry_twice", vec![4, 4, 1, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0], all(2)),
        (
            "sparse_that_keeps_a_zero",
            vec![5, 4, 2, 0, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
            but(0, &[(1, 1)]),
        ),
        (
            "rows_mask_above_15",
            rows(4, 0b1_0001, [&fives, &sixes]),
            but(five, &[(0, six), (1, six), (2, six), (3, six)]),
        ),
        (
            "rows_mask_behind_the_last_row",
            rows(8, 0b110, [&fives, &sixes]),
            std::array::from_fn(|i| if i < 8 { five } else { six }),
        ),
        ("rows_all_in_the_first_part", rows(4, 0, [&fives, &top_only(0b10, 24, 0, 6, &[])]), all(five)),
        ("rows_all_in_the_second_part", rows(4, 15, [&top_only(0b10, 24, 0, 5, &[]), &sixes]), all(six)),
    ]
}

/// A block of bit fields that are all top field, dead below, with constant symbols.
fn top_only(flags: u8, dead: u8, base: u16, symbol: u8, escapes: &[u8]) -> Vec<u8> {
    let [low, high] = base.to_le_bytes();
    [&[2, flags, dead, 0, dead, low, high, 0, symbol], escapes].concat()
}

/// A last block of one element, which is its own pattern.
fn long_constant() -> Parts {
    Parts::stored().with_last_block(1, &[1, 1, 2, 3, 4], &[0x0403_0201])
}

/// Two rows of six elements behind a block of sixteen.
fn misplaced_rows() -> Parts {
    let part = |symbol: u8| top_only(0b10, 24, 0, symbol, &[0; 4]);
    let coded = [&[6, 4, 6, 0, 0, 0, 1, 2, 13, 0, 0, 0], &part(5)[..], &[13, 0, 0, 0], &part(6)].concat();
    let elements: Vec<u32> = (0..12).map(|i| if i < 6 { 5 << 24 } else { 6 << 24 }).collect();
    Parts::stored().with_last_block(12, &coded, &elements)
}

/// A brotli stream with a byte behind it.
fn long_brotli() -> Result<Parts, Box<dyn std::error::Error>> {
    let raw: Vec<u8> = b"abcde".iter().copied().cycle().take(64).collect();
    let recipe = Recipe::Planes { width: 1, compressors: vec![Compressor::Brotli { quality: 9 }] };
    let mut coded = encoded(&recipe, &Shared::default(), &raw);
    if !coded.starts_with(&[3, 1, 7]) {
        return Err("brotli is not the smallest".into());
    }
    coded[3] += 1;
    coded.push(0);
    Ok(Parts { raw, ..Parts::of(&coded) })
}

fn encoded(recipe: &Recipe, shared: &Shared, raw: &[u8]) -> Vec<u8> {
    let mut coded = vec![0; raw.len() + MAX_OVERHEAD];
    let len = encode_block(recipe, shared, Place::default(), raw, &mut Scratch::new(), &mut coded);
    coded.truncate(len);
    coded
}

/// A matrix of 8 rows and 32 columns of BF16 in one class, whose rows alternate between two exponents.
struct Classed {
    tables: fn() -> SymbolTables,
}

impl Classed {
    const SHARED: Self = Self { tables: || SymbolTables::Rans8(vec![Window::from_counts(112, [1; 16])]) };
    const PER_BLOCK: Self = Self { tables: || SymbolTables::Rans8PerBlock };

    fn shared(&self) -> Shared {
        Shared::new(Some((Contexts::new(vec![0; 8], vec![0; 32]), (self.tables)())), None)
    }

    /// The block as one writes it, changed, in a frame with the tables of the other.
    fn write(
        &self,
        header: &Self,
        change: impl Fn(&mut [u8]),
    ) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let rows = (0..8u16).map(|row| 120 + row % 2);
        let raw: Vec<u8> =
            rows.flat_map(|exponent| [exponent << 7 | 1; 32]).flat_map(u16::to_le_bytes).collect();
        let layout = Layout::float(2, 7);
        let recipe = FieldRecipe { layout, joint: 0, base: 0, coder: SymbolCoder::Rans8, coded_low: false };
        let mut coded = encoded(&Recipe::Fields(recipe), &self.shared(), &raw);
        change(&mut coded);
        let header = FrameHeader {
            dtype: Dtype::Bf16,
            shape: Some(vec![8, 32]),
            block_len: 512,
            raw_len: Some(512),
            checksums: true,
            shared: header.shared(),
            base: None,
        };
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        bytes.truncate(bytes.len() - 8);
        Parts { header: bytes, blocks: vec![(512, coded)], raw, trailer_raw_len: 512 }.write()
    }
}

/// A block of 32 bytes, where all but the last have 64, before one of 64.
fn short_block_first() -> Parts {
    let mut parts = Parts::stored().with_header(16, &96u64.to_le_bytes()).with_header(24, &[24]);
    parts.blocks.insert(0, (32, [&[0; 1], &raw()[..32]].concat()));
    parts.raw = [&raw()[..32], &raw()].concat();
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
