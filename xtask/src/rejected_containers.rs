//! Containers that every reader must refuse, each with one defect and sums that are right otherwise.

use crate::forge::{
    BASE_NAME, BF16, COPY, DERIVED, DIGEST, F32, Forge, Forged, GLUE, INLINE, LINK_RECORDS, Part, REF, U8,
    number, stored_frame, stored_stream,
};
use crate::rejected::Rejected;

/// Two tensors with glue around them.
fn good() -> Forge {
    Forge::packed(
        17,
        vec![
            Forged::glue(b"abcde"),
            Forged::full("a", U8, &[4], &[1, 2, 3, 4]).behind(3),
            Forged::full("b", F32, &[2], &[9; 8]).behind(2),
        ],
    )
}

/// The same with one part overwritten.
fn with(which: Part, at: usize, value: &[u8]) -> Vec<u8> {
    good().build_with(|part, bytes| {
        if part == which {
            bytes[at..at + value.len()].copy_from_slice(value);
        }
    })
}

/// The same with another index.
fn with_index(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    good().build_with(|part, bytes| {
        if part == Part::Index {
            change(bytes);
        }
    })
}

/// The same with one more entry, which takes no bytes of the file that `original` tells of.
fn with_entry(entry: Forged) -> Vec<u8> {
    let mut forge = good();
    forge.entries.push(entry);
    forge.build()
}

/// Tensors that are no packed file.
fn of(entries: Vec<Forged>) -> Vec<u8> {
    Forge::of(entries).build()
}

fn with_name(name: &str) -> Vec<u8> {
    let mut forge = good();
    forge.entries[1].name = name.as_bytes().to_vec();
    forge.build()
}

fn with_header(json: &str) -> Vec<u8> {
    Forge { header: json.to_owned(), ..Forge::of(Vec::new()) }.build()
}

/// All rejected containers.
pub(crate) fn containers() -> Vec<Rejected> {
    let file = good().build();
    let corrupt = |what: &'static str| ("corrupt", what);
    let unsupported = ("unsupported", "Unknown");
    let version = ("unsupported", "UnsupportedVersion");
    let entry = corrupt("Entry");
    let f32_tensor = || Forged::full("b", F32, &[2], &[9; 8]);
    let mut other_frame = f32_tensor();
    other_frame.frame = Some(stored_frame(U8, &[8], &[9; 8]));
    let mut damaged_frame = good();
    if let Some(frame) = &mut damaged_frame.entries[2].frame {
        let at = frame.len() - 40;
        frame[at] ^= 1;
    }
    let mut padding = file.clone();
    // The byte before the first frame, which stands at 128.
    padding[127] = 1;
    let frame_sum = with_index(|index| {
        let at = index.len() - 1;
        index[at] ^= 1;
    });
    let mut recorded = Forge::packed(
        12,
        vec![
            Forged::full("a", U8, &[4], &[1, 2, 3, 4]),
            Forged::full("b", U8, &[4], &[5, 6, 7, 8]),
            Forged::reference("tied", U8, &[4], 1),
        ],
    );
    recorded.flags = LINK_RECORDS;
    let recorded_otherwise = recorded.build_with(|part, bytes| {
        if part == Part::Record(2) {
            let target = bytes.len() - 4;
            bytes[target] = 0;
        }
    });
    vec![
        ("link_recorded_with_another_target", corrupt("Corrupt"), recorded_otherwise),
        ("cut_within_container", ("truncated", "NoFooter"), file[..file.len() / 2].to_vec()),
        ("cut_before_the_last_byte", ("truncated", "NoFooter"), file[..file.len() - 1].to_vec()),
        ("byte_behind_the_container", ("truncated", "NoFooter"), [&file[..], &[0]].concat()),
        ("zip_in_front", corrupt("NotAContainer"), [b"PK\x03\x04", &file[..]].concat()),
        ("container_in_front", corrupt("Corrupt"), [&file[..], &file].concat()),
        ("magic_of_a_frame", corrupt("NotAContainer"), with(Part::Prologue, 0, b"MTHF")),
        ("version_2_of_the_prologue", version, with(Part::Prologue, 4, &[2])),
        ("version_2_of_the_footer", version, with(Part::Footer, 8, &[2])),
        ("critical_flag", unsupported, with(Part::Footer, 10, &[1])),
        ("reserved_footer_bytes", unsupported, with(Part::Footer, 12, &[1])),
        ("alignments_differ", corrupt("Corrupt"), with(Part::Prologue, 5, &[5])),
        ("alignment_17", corrupt("Limit"), with(Part::Footer, 9, &[17])),
        ("index_offset_2_to_the_60", corrupt("Corrupt"), with(Part::Footer, 16, &(1u64 << 60).to_le_bytes())),
        ("data_offset_too_small", corrupt("Corrupt"), with(Part::Footer, 0, &[24])),
        ("index_checksum", corrupt("Checksum"), with(Part::Footer, 32, &[0; 8])),
        ("another_digest", corrupt("Corrupt"), with(Part::Footer, 40, &[0; 32])),
        ("index_raw_len_4_gib", corrupt("Limit"), with(Part::Footer, 28, &[0xff; 4])),
        ("header_raw_len_4_gib", corrupt("Limit"), with(Part::Prologue, 12, &[0xff; 4])),
        ("index_coder_99", ("unsupported", "Section.Unsupported"), with(Part::CodedIndex, 0, &[99])),
        (
            "two_streams_in_the_index",
            corrupt("Section.Corrupt"),
            good().build_with(|part, bytes| {
                if part == Part::CodedIndex {
                    bytes.extend(stored_stream(b"x"));
                }
            }),
        ),
        ("fewer_entries_than_there_are", corrupt("Corrupt"), with_index(|index| index[0] = 2)),
        ("more_entries_than_there_are", entry, with_index(|index| index[0] = 4)),
        ("number_with_a_needless_zero", entry, with_index(|index| drop(index.splice(0..1, [0x83, 0])))),
        (
            "number_of_65_bits",
            entry,
            with_index(|index| drop(index.splice(0..1, [&[0xff; 9][..], &[2]].concat()))),
        ),
        ("entry_kind_6", unsupported, with_entry(Forged::link(6, "x", U8, &[0], &[]))),
        ("inline_with_a_digest", entry, with_entry(Forged::link(INLINE | DIGEST, "x", U8, &[0], &[7; 32]))),
        ("inline_of_65_bytes", entry, with_entry(Forged::link(INLINE, "x", U8, &[65], &[7; 65]))),
        ("inline_that_is_cut_off", entry, with_entry(Forged::link(INLINE, "x", U8, &[9], &[7; 8]))),
        (
            "derived_from_inline",
            entry,
            of(vec![Forged::link(INLINE, "wide", F32, &[2], &[7; 8]), Forged::derived("x", BF16, &[2], 0)]),
        ),
        ("entry_tag_bit_7", unsupported, with_entry(Forged::link(0x80 | REF, "x", U8, &[4], &[1]))),
        ("entry_dtype_200", unsupported, with_entry(Forged::link(REF, "x", 200, &[4], &[1]))),
        ("rounding_1", unsupported, of(vec![f32_tensor(), Forged::link(DERIVED, "x", BF16, &[2], &[0, 1])])),
        ("rank_65_of_an_entry", corrupt("Limit"), with_entry(Forged::reference("x", U8, &[1; 65], 1))),
        ("shape_beyond_64_bits", entry, with_entry(Forged::reference("x", U8, &[1 << 63, 4, 0], 1))),
        ("name_twice", entry, with_name("b")),
        ("base_name_without_a_base", entry, with_entry(Forged::link(REF | BASE_NAME, "x", U8, &[4], &[1]))),
        ("ref_to_itself", entry, of(vec![Forged::reference("x", U8, &[4], 0)])),
        ("ref_to_a_later_entry", entry, of(vec![Forged::reference("x", F32, &[2], 1), f32_tensor()])),
        (
            "ref_to_a_ref",
            entry,
            of(vec![
                f32_tensor(),
                Forged::reference("x", F32, &[2], 0),
                Forged::reference("y", F32, &[2], 1),
            ]),
        ),
        ("ref_to_glue", entry, of(vec![Forged::glue(b"abcd"), Forged::reference("x", U8, &[4], 0)])),
        ("ref_of_another_length", entry, of(vec![f32_tensor(), Forged::reference("x", U8, &[9], 0)])),
        ("ref_to_entry_2_to_the_40", entry, of(vec![Forged::reference("x", U8, &[9], 1 << 40)])),
        ("derived_from_itself", entry, of(vec![Forged::derived("x", BF16, &[2], 0)])),
        (
            "derived_from_each_other",
            entry,
            of(vec![Forged::derived("x", BF16, &[2], 1), Forged::derived("y", BF16, &[2], 0)]),
        ),
        (
            "derived_from_a_ref",
            entry,
            of(vec![f32_tensor(), Forged::reference("x", F32, &[2], 0), Forged::derived("y", BF16, &[2], 1)]),
        ),
        (
            "derived_from_u8",
            entry,
            of(vec![Forged::full("w", U8, &[8], &[9; 8]), Forged::derived("x", BF16, &[2], 0)]),
        ),
        ("derived_u8", entry, of(vec![f32_tensor(), Forged::derived("x", U8, &[4], 0)])),
        ("derived_of_another_length", entry, of(vec![f32_tensor(), Forged::derived("x", BF16, &[3], 0)])),
        ("glue_behind_a_tensor", entry, of(vec![f32_tensor(), Forged::glue(b"abc")])),
        ("glue_with_a_name", entry, of(vec![Forged { name: b"g".to_vec(), ..Forged::glue(b"abc") }])),
        ("glue_before_glue", entry, of(vec![Forged::glue(b"abc").behind(1)])),
        ("glue_of_a_base", entry, of(vec![Forged::link(GLUE | COPY, "", 0, &[3], &[0; 32])])),
        ("more_glue_than_there_is", entry, of(vec![Forged::glue(b"abc"), f32_tensor().behind(4)])),
        ("frame_reaches_into_the_index", corrupt("Corrupt"), longer_frame(1)),
        ("bytes_before_the_index", corrupt("Corrupt"), longer_frame(-1)),
        ("frame_checksum", corrupt("Checksum"), frame_sum),
        ("frame_that_is_damaged", corrupt("BlockChecksum"), damaged_frame.build()),
        ("frame_of_another_dtype", corrupt("Corrupt"), Forge::packed(8, vec![other_frame]).build()),
        ("full_with_a_base", corrupt("Corrupt"), Forge::packed(8, vec![full_with_a_base()]).build()),
        ("record_of_another_entry", corrupt("Corrupt"), with(Part::Record(1), 4, &[2])),
        ("record_of_another_name", corrupt("Corrupt"), with(Part::Record(1), 12, b"x")),
        ("record_reserved_byte", corrupt("Corrupt"), with(Part::Record(1), 9, &[1])),
        ("padding_that_is_not_zero", corrupt("Corrupt"), padding),
        ("original_of_another_length", corrupt("Corrupt"), Forge::packed(9, vec![f32_tensor()]).build()),
        ("header_that_is_no_json", corrupt("Json"), with_header("{")),
        ("header_that_is_a_list", corrupt("Json"), with_header("[]")),
        ("step_twice", corrupt("Json"), with_header(r#"{"step":1,"step":2}"#)),
        ("step_that_is_a_text", corrupt("Json"), with_header(r#"{"step":"1"}"#)),
        (
            "original_name_with_directories",
            corrupt("Json"),
            with_header(r#"{"original":{"name":"../x","format":"npy","len":0}}"#),
        ),
        (
            "path_that_leads_out",
            corrupt("Json"),
            with_header(r#"{"files":[{"path":"a/../../x","mode":420,"len":0}]}"#),
        ),
    ]
}

/// The last frame said to be longer or shorter than it is.
fn longer_frame(by: i64) -> Vec<u8> {
    let len = stored_frame(F32, &[2], &[9; 8]).len() as u64;
    with_index(|index| {
        let at = index.len() - 8;
        let old = number(len).len();
        drop(index.splice(at - old..at, number(len.saturating_add_signed(by))));
    })
}

/// A tensor that is said to be full, and whose frame names a base.
fn full_with_a_base() -> Forged {
    let plain = stored_frame(F32, &[2], &[9; 8]);
    // The header ends with the shape and its checksum.
    let (header, rest) = (&plain[..32], &plain[40..]);
    let mut frame = [header, &[7; 32]].concat();
    frame[5] |= 0x10;
    let sum = mithril_codec::checksum(&frame);
    frame.extend(sum.to_le_bytes());
    frame.extend(rest);
    Forged { frame: Some(frame), ..Forged::full("b", F32, &[2], &[]) }
}
