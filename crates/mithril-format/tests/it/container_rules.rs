//! Containers that break one rule each: refused for that rule, with the entry and the offset.

use crate::forge::{
    BASE_NAME, BF16, BYTES, COPY, DELTA, DERIVED, DIGEST, F16, F32, FULL, Forge, Forged, GLUE, INLINE,
    LINK_RECORDS, Part, REF, U8, number, stored_frame, stored_stream,
};
use crate::{error_kind, error_name};
use mithril_codec::entropy::lz::Compressor;
use mithril_codec::entropy::stream;
use mithril_format::container::{ContainerWriter, Content, Directory, Entry, Header, Original};
use mithril_format::{FormatError, ReadError, limits};

/// Opens a container, reads its header and checks every record.
fn open(file: &[u8]) -> Result<Directory, FormatError> {
    let in_memory = |error: ReadError| match error {
        ReadError::Format(error) => error,
        error => panic!("reading from memory fails: {error}"),
    };
    let directory = Directory::open(file).map_err(in_memory)?;
    directory.read_header(file).map_err(in_memory)?;
    for entry_idx in 0..directory.entries().len() {
        let between = directory.frame(entry_idx).map(|frame| frame.record_offset..frame.offset);
        if let Some(between) = between.or_else(|| directory.link_record(entry_idx)) {
            directory.check_record(entry_idx, &file[small(between.start)..small(between.end)])?;
        }
    }
    Ok(directory)
}

/// An offset in a file that lies in memory.
fn small(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset in memory")
}

fn refused(name: &str, file: &[u8]) -> FormatError {
    open(file).err().unwrap_or_else(|| panic!("`{name}` is accepted"))
}

/// Refused, with this text in the message.
fn check(name: &str, file: &[u8], text: &str) {
    let message = refused(name, file).to_string();
    assert!(message.contains(text), "{name}: {message}");
}

/// Two tensors and glue around them.
fn good() -> Forge {
    Forge::packed(
        3 + 4 + 2 + 8,
        vec![
            Forged::glue(b"abcde"),
            Forged::full("a", U8, &[4], &[1, 2, 3, 4]).behind(3),
            Forged::full("b", F32, &[2], &[9; 8]).behind(2),
        ],
    )
}

fn with_entry(entry: Forged) -> Vec<u8> {
    let mut forge = good();
    forge.entries.push(entry);
    forge.build()
}

#[test]
fn a_forged_container_that_breaks_no_rule_is_read() {
    let file = good().build();
    let directory = open(&file).unwrap();
    assert_eq!(directory.find("b"), Some(2));
    assert_eq!(directory.entries()[1].glue_before, 3);
    let frame = directory.frame(2).unwrap();
    assert!(frame.offset.is_multiple_of(64));
    let frame_bytes = &file[small(frame.offset)..small(frame.end())];
    assert_eq!(frame_bytes, stored_frame(F32, &[2], &[9; 8]));
}

#[test]
fn a_writer_gives_what_the_forge_gives_but_for_compression() {
    let mut writer = ContainerWriter::new(Vec::new(), &Header::default(), 6).unwrap();
    let mut frame = writer.start_frame(Entry::full("a", mithril_codec::Dtype::U8, [4])).unwrap();
    std::io::Write::write_all(&mut frame, &stored_frame(U8, &[4], &[1, 2, 3, 4])).unwrap();
    frame.finish();
    let link = |content, name, dtype, shape: &[u64]| Entry { content, ..Entry::full(name, dtype, shape) };
    let base = mithril_format::Digest::of(b"c");
    let copy = Content::Copy { base, base_name: None };
    writer.add_link(link(Content::Ref { entry_idx: 0 }, "b", mithril_codec::Dtype::U8, &[2, 2])).unwrap();
    writer.add_link(link(copy, "c", mithril_codec::Dtype::F32, &[3])).unwrap();
    let written = writer.finish().unwrap();
    let mut forge = Forge::of(vec![
        Forged::full("a", U8, &[4], &[1, 2, 3, 4]),
        Forged::reference("b", U8, &[2, 2], 0),
        Forged::link(COPY, "c", F32, &[3], &base.0),
    ]);
    forge.flags = LINK_RECORDS;
    let forged = forge.build();
    // So small that streams are stored.
    assert_eq!(written.writer, forged);
    assert_eq!(written.len, forged.len() as u64);
    assert_eq!(open(&forged).unwrap().digest(), written.digest);
}

#[test]
fn links_that_lead_nowhere_or_in_circles_are_refused() {
    let reference = |target| with_entry(Forged::reference("r", U8, &[4], target));
    assert!(open(&reference(1)).is_ok());
    check("reference to itself", &reference(3), "entry 3 `r` of the index at offset");
    check("reference to itself", &reference(3), "does not point to an earlier tensor");
    check("reference to a later entry", &reference(4), "does not point to an earlier tensor");
    check("reference to nothing", &reference(u64::MAX), "does not point to an earlier tensor");
    check("reference to glue", &reference(0), "other bytes");
    check("reference to something longer", &reference(2), "other bytes");
    let mut forge = good();
    forge.entries.push(Forged::reference("r", U8, &[4], 1));
    forge.entries.push(Forged::reference("s", U8, &[4], 3));
    check("reference to a reference", &forge.build(), "entry 4 `s`");

    let derived = |dtype, n, target| with_entry(Forged::derived("d", dtype, &[n], target));
    assert!(open(&derived(BF16, 2, 2)).is_ok());
    assert!(open(&derived(F16, 2, 2)).is_ok());
    for (name, file) in [
        ("derived from itself", derived(BF16, 2, 3)),
        ("derived from nothing", derived(BF16, 2, 4)),
        ("derived from glue", derived(BF16, 1, 0)),
        ("derived from something that is not F32", derived(BF16, 1, 1)),
        ("derived from something of another length", derived(BF16, 3, 2)),
        ("derived to F32", derived(F32, 1, 2)),
    ] {
        check(name, &file, "no rounding of");
    }
    let mut forge = good();
    forge.entries.push(Forged::derived("d", BF16, &[2], 4));
    forge.entries.push(Forged::full("later", F32, &[2], &[7; 8]));
    assert!(open(&forge.build()).is_ok(), "the wide tensor may come later");
    forge.entries[4] = Forged::reference("later", F32, &[2], 2);
    check("derived from a reference", &forge.build(), "no rounding of");
    // Two that are derived from each other.
    let circle = vec![Forged::derived("x", BF16, &[2], 1), Forged::derived("y", BF16, &[2], 0)];
    check("a circle", &Forge::of(circle).build(), "entry 0 `x`");
    let rounding = Forged::link(DERIVED, "d", BF16, &[2], &[2, 1]);
    assert_eq!(error_kind(&refused("rounding 1", &with_entry(rounding))), "unsupported");
}

#[test]
fn bytes_in_the_index_are_few_and_have_no_digest() {
    let inline =
        |tag: u8, n: u64, len: usize| with_entry(Forged::link(INLINE | tag, "i", U8, &[n], &vec![7; len]));
    for n in [0, 1, 64] {
        let directory = open(&inline(0, n, small(n))).unwrap();
        let entry = &directory.entries()[3];
        let raw = vec![7; small(n)];
        assert_eq!((entry.digest, entry.stored_len()), (Some(mithril_format::Digest::of(&raw)), n));
        assert_eq!(entry.content, Content::Inline { bytes: raw.into() });
    }
    check("65 bytes", &inline(0, 65, 65), "too many bytes for the index");
    check("as many bytes as there can be", &inline(0, 1 << 40, 8), "too many bytes for the index");
    check("a digest", &inline(DIGEST, 32, 64), "digest of bytes that are in the index themselves");
    check("a base name", &inline(BASE_NAME, 4, 4), "base name of a tensor without a base");
    check("fewer bytes than the shape says", &inline(0, 9, 8), "ends inside an entry");
    check("more bytes than the shape says", &inline(0, 7, 8), "bytes after the last entry");
    let step = inline(0x80, 4, 4);
    assert_eq!(error_kind(&refused("a step", &step)), "unsupported");
    // Others may refer to them, and none is derived from them.
    let mut forge = good();
    forge.entries.push(Forged::link(INLINE, "i", F32, &[2], &[7; 8]));
    forge.entries.push(Forged::reference("r", F32, &[2], 3));
    assert!(open(&forge.build()).is_ok());
    forge.entries.push(Forged::derived("d", BF16, &[2], 3));
    check("derived from bytes in the index", &forge.build(), "no rounding of");
    // Records repeat them.
    let mut forge = Forge::of(vec![Forged::link(INLINE, "i", U8, &[4], &[1, 2, 3, 4])]);
    forge.flags = LINK_RECORDS;
    assert!(open(&forge.build()).is_ok());
    forge.entries[0].recorded[3] = 5;
    check("other bytes in the record", &forge.build(), "record and index do not agree");
    forge.entries[0].recorded.pop();
    assert!(open(&forge.build()).is_err());
}

#[test]
fn a_writer_writes_no_inline_entry_that_readers_refuse() {
    let mut writer = ContainerWriter::new(Vec::new(), &Header::default(), 6).unwrap();
    for (n, len) in [(65, 65), (4, 5), (5, 4)] {
        let content = Content::Inline { bytes: vec![1; len].into() };
        let entry = Entry { content, ..Entry::full("i", mithril_codec::Dtype::U8, [n]) };
        assert_eq!(writer.add_link(entry).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
    writer.add_link(Entry::inline("i", mithril_codec::Dtype::Bf16, [2], &[1, 2, 3, 4])).unwrap();
    let file = writer.finish().unwrap().writer;
    assert_eq!(open(&file).unwrap().entries()[0].raw_len(), 4);
}

#[test]
fn names_are_any_texts_and_what_is_none_is_refused() {
    let named = |name: &[u8]| {
        let mut forge = good();
        forge.entries[1].name = name.to_vec();
        forge.build()
    };
    let longest = "n".repeat(65_535);
    for good in
        ["model/layers.0/w", "..", "a..b", "", "é", "../a", "a\\..\\b", "/dense/kernel", "a\0b", &longest]
    {
        let file = open(&named(good.as_bytes())).unwrap();
        assert!(file.find(good).is_some(), "{good}");
    }
    check("not UTF-8", &named(&[0x61, 0xff]), "UTF-8");
    // Records say how long a name is in two bytes, the index in any number.
    check("64 KiB", &named(&vec![b'n'; 65_536]), "too long");
    check("twice the same", &named(b"b"), "entry 2 `b` of the index");
    check("twice the same", &named(b"b"), "two tensors of the same name");
    // A name of nothing is one name too.
    let nameless = || Forged::full("", U8, &[1], &[1]);
    check("two without a name", &Forge::of(vec![nameless(), nameless()]).build(), "same name");
}

#[test]
fn glue_must_be_first_and_enough() {
    let glue_behind = |entries: Vec<Forged>| Forge::of(entries).build();
    let tensor = || Forged::full("a", U8, &[4], &[1, 2, 3, 4]);
    check("glue behind a tensor", &glue_behind(vec![tensor(), Forged::glue(b"abc")]), "glue");
    check("glue twice", &glue_behind(vec![Forged::glue(b"a"), Forged::glue(b"b")]), "entry 1");
    check("glue before glue", &glue_behind(vec![Forged::glue(b"a").behind(1), tensor()]), "entry 0");
    check("no glue at all", &glue_behind(vec![tensor().behind(1)]), "more glue than there is");
    let most = u64::MAX;
    let entries =
        vec![Forged::glue(b"abc"), tensor().behind(3), Forged::full("b", U8, &[1], &[1]).behind(most)];
    check("more than 64 bits of glue", &glue_behind(entries), "more glue than there is");
    let mut named = Forged::glue(b"abc");
    named.name = b"g".to_vec();
    check("glue with a name", &glue_behind(vec![named]), "has a name");
    let linked = Forged::link(GLUE | COPY, "", BYTES, &[3], &[0; 32]);
    check("glue of a base", &glue_behind(vec![linked]), "not stored in full");
}

#[test]
fn entries_that_are_not_known_are_unsupported() {
    for tag in [5, 15, FULL | 0x80, REF | 0x80] {
        let mut forge = good();
        forge.entries[1].tag = tag;
        let error = refused("tag", &forge.build());
        assert_eq!(error_kind(&error), "unsupported", "{tag}: {error}");
    }
    let mut forge = good();
    forge.entries[1].dtype = 200;
    assert_eq!(error_kind(&refused("dtype", &forge.build())), "unsupported");
    check(
        "a base name without a base",
        &with_entry(Forged::link(REF | BASE_NAME, "r", U8, &[4], &[1])),
        "base name",
    );
    let copy = |content: &[u8]| with_entry(Forged::link(COPY | BASE_NAME, "c", U8, &[4], content));
    assert!(open(&copy(&[&[7; 32][..], &[1, b'x']].concat())).is_ok());
    assert!(open(&copy(&[&[7; 32][..], &[2, b'.', b'.']].concat())).is_ok());
    check("a base name that is not text", &copy(&[&[7; 32][..], &[1, 0xff]].concat()), "entry 3");
    check("a base that is cut off", &copy(&[7; 31]), "ends inside an entry");
    check(
        "a delta without a frame",
        &with_entry(Forged::link(DELTA, "c", U8, &[4], &[7; 32])),
        "inside an entry",
    );
}

#[test]
fn lengths_that_lie_are_refused() {
    let index = |change: &dyn Fn(&mut Vec<u8>)| {
        good().build_with(|part, bytes| {
            if part == Part::Index {
                change(bytes);
            }
        })
    };
    check("fewer entries than there are", &index(&|bytes| bytes[0] = 2), "after the last entry");
    check("more entries than there are", &index(&|bytes| bytes[0] = 4), "entry 3");
    check(
        "a claim of 2^63 entries",
        &index(&|bytes| drop(bytes.splice(0..1, number(1 << 63)))),
        "above the limit",
    );
    check("a byte more", &index(&|bytes| bytes.push(0)), "after the last entry");
    check("a needless zero", &index(&|bytes| drop(bytes.splice(0..1, [0x83, 0]))), "needless zeros");
    check("65 bits", &index(&|bytes| drop(bytes.splice(0..1, [0xff; 9].into_iter().chain([2])))), "64 bits");
    check("no index", &index(&|bytes| bytes.clear()), "ends inside");
    // Name length of the first tensor: behind the glue's 18 bytes comes its tag.
    for len in [3, 100, u64::MAX] {
        let file = index(&|bytes| {
            let at = bytes.iter().position(|&byte| byte == b'a').unwrap() - 1;
            drop(bytes.splice(at..=at, number(len)));
        });
        assert!(open(&file).is_err(), "name of {len}");
    }
    for shape in [vec![5], vec![u64::MAX], vec![1 << 33, 1 << 33], vec![0, 1 << 63], vec![1; 65]] {
        let mut forge = good();
        forge.entries[2].shape = shape.clone();
        let result = open(&forge.build());
        // What only contradicts the frame is found when the frame is opened.
        assert_eq!(result.is_ok(), shape == [5] || shape == [0, 1 << 63], "{shape:?}");
    }
    for len in [0, 1, 127, 1 << 20, u64::MAX] {
        let file = index(&|bytes| {
            let at = bytes.len() - 8;
            let old = number(stored_frame(F32, &[2], &[9; 8]).len() as u64).len();
            drop(bytes.splice(at - old..at, number(len)));
        });
        check(&format!("frame of {len} bytes"), &file, "index");
    }
}

#[test]
fn prologue_header_and_footer_must_agree() {
    let change = |which: Part, at: usize, value: &[u8]| {
        good().build_with(|part, bytes| {
            if part == which {
                bytes[at..at + value.len()].copy_from_slice(value);
            }
        })
    };
    for (which, at) in [(Part::Prologue, 4), (Part::Footer, 8)] {
        for version in [0, 2, 255] {
            let error = refused("version", &change(which, at, &[version]));
            assert_eq!(error_name(&error), "UnsupportedVersion", "{error}");
        }
        check("records of links on one side", &change(which, at + 2, &[LINK_RECORDS]), "do not agree");
        for bit in (0..8).filter(|bit| 1 << bit != LINK_RECORDS) {
            let error = refused("critical flag", &change(which, at + 2, &[1 << bit]));
            assert_eq!(error_kind(&error), "unsupported", "{error}");
        }
        check("another alignment", &change(which, at + 1, &[5]), "do not agree");
        check("alignment of 128 KiB", &change(which, at + 1, &[17]), "alignment");
        check("optional flags on one side", &change(which, at + 3, &[1]), "do not agree");
    }
    let optional = good().build_with(|part, bytes| match part {
        Part::Prologue => bytes[7] = 0x80,
        Part::Footer => bytes[11] = 0x80,
        _ => {}
    });
    // The digest is that of the head as it is.
    assert!(open(&optional).is_ok(), "flags that may be ignored are ignored");
    assert_eq!(error_kind(&refused("reserved", &change(Part::Footer, 12, &[1]))), "unsupported");

    for (name, at, value) in [
        ("header of 100 MB more", 8, &[0, 0xe1, 0xf5, 0x05][..]),
        ("header one byte shorter", 8, &[0x4d, 0, 0, 0]),
        ("raw header of 4 GiB", 12, &[0xff; 4]),
        ("raw header one byte longer", 12, &[0x4c, 0, 0, 0]),
    ] {
        assert!(open(&change(Part::Prologue, at, value)).is_err(), "{name}");
    }
    let far = (1u64 << 60).to_le_bytes();
    for (name, at, value) in [
        ("data offset", 0, &far[..]),
        ("data offset of zero", 0, &[0; 8]),
        ("data offset one less", 0, &[0x64]),
        ("index offset", 16, &far),
        ("index offset one less", 16, &[0]),
        ("index length", 24, &[0xff; 4]),
        ("index raw length", 28, &[0xff; 4]),
        ("index raw length one less", 28, &[1]),
        ("index checksum", 32, &[0; 8]),
        ("digest", 40, &[0; 32]),
    ] {
        assert!(open(&change(Part::Footer, at, value)).is_err(), "{name}");
    }
}

#[test]
fn records_must_be_those_of_their_entries() {
    let change = |change: &dyn Fn(&mut Vec<u8>)| {
        good().build_with(|part, bytes| {
            if part == Part::Record(1) {
                change(bytes);
            }
        })
    };
    check("another number", &change(&|record| record[4] = 2), "record and index do not agree");
    check("another name", &change(&|record| record[12] = b'x'), "record and index do not agree");
    check("another kind", &change(&|record| record[8] = DELTA), "record and index do not agree");
    check("glue", &change(&|record| record[8] = GLUE), "record and index do not agree");
    check("a kind without a frame", &change(&|record| record[8] = REF), "record");
    check("a kind that is not known", &change(&|record| record[8] = 6), "kind that is not known");
    check("flags of the index", &change(&|record| record[8] = FULL | DIGEST), "kind that is not known");
    check("a reserved byte", &change(&|record| record[9] = 1), "kind that is not known");
    check("another magic", &change(&|record| record[3] = b'X'), "no record");
    check("a name beyond the frame", &change(&|record| record[11] = 0xff), "record");
    let mut file = good().build();
    let at = small(Directory::open(&file).unwrap().frame(1).unwrap().offset) - 1;
    file[at] = 1;
    let error = refused("padding", &file);
    let expected = FormatError::Corrupt { what: "padding that is not zero", offset: at as u64 };
    assert_eq!(error, expected);
}

#[test]
fn records_of_links_must_be_those_of_their_entries() {
    let mut forge = good();
    forge.flags = LINK_RECORDS;
    forge.entries.push(Forged::reference("r", U8, &[4], 1));
    forge.entries.push(Forged::derived("d", BF16, &[2], 2));
    forge.entries.push(Forged::link(COPY, "c", U8, &[4], &[7; 32]));
    let file = forge.build();
    let directory = open(&file).unwrap();
    for entry_idx in 3..6 {
        assert!(directory.link_record(entry_idx).is_some(), "entry {entry_idx}");
    }
    assert_eq!(directory.link_record(1), None);
    let change = |entry_idx: usize, at: usize, value: u8| {
        forge.build_with(|part, bytes| {
            if part == Part::Record(entry_idx) {
                bytes[at] = value;
            }
        })
    };
    // Behind magic, number, tag and name of one byte: dtype, rank, dimension, glue, content.
    let (dtype, rank, dimension, glue, content) = (13, 14, 15, 16, 17);
    check("another dtype", &change(3, dtype, BF16), "do not agree");
    check("an unknown dtype", &change(3, dtype, 0xff), "impossible tensor");
    check("another rank", &change(3, rank, 0), "record");
    check("a rank above the limit", &change(3, rank, 65), "record of a link");
    check("another dimension", &change(3, dimension, 3), "do not agree");
    check("a number without an end", &change(4, dimension, 0xff), "record");
    check("other glue", &change(3, glue, 1), "do not agree");
    check("another target", &change(3, content, 2), "do not agree");
    check("another target", &change(4, content, 1), "do not agree");
    check("an unknown rounding", &change(4, content + 4, 1), "impossible tensor");
    check("another base", &change(5, content + 31, 0), "do not agree");
    check("another kind of link", &change(3, 8, DERIVED), "record");
    check("glue that is a link", &change(3, 8, REF | GLUE), "kind that is not known");
}

#[test]
fn headers_that_name_files_elsewhere_are_refused() {
    let named = |name: &str| {
        let header = serde_json::json!({ "original": { "name": name, "format": "npy", "len": 0 } });
        Forge { header: header.to_string(), ..Forge::of(Vec::new()) }.build()
    };
    for name in ["", "model.safetensors", "..model", "a b"] {
        assert!(open(&named(name)).is_ok(), "{name}");
    }
    for name in ["..", ".", "../x", "/x", "a/b", "a\\b", "a\0b"] {
        check(name, &named(name), "no safe file name");
        let mut header = Header::default();
        header.original = Some(Original::new(name, "npy", 0));
        assert!(ContainerWriter::new(Vec::new(), &header, 6).is_err(), "{name} is written");
    }
    let with_file = |path: &str| {
        let header = serde_json::json!({ "files": [{ "path": path, "mode": 0, "len": 0 }] });
        Forge { header: header.to_string(), ..Forge::of(Vec::new()) }.build()
    };
    assert!(open(&with_file("a/b.json")).is_ok());
    for path in ["", "/a", "../a", "a/../../b"] {
        check(path, &with_file(path), "no safe file name");
    }
    for (name, json) in [
        ("no JSON", "{".to_owned()),
        ("another type", r#"{"step":"ten"}"#.to_owned()),
        ("twice", r#"{"step":1,"step":2}"#.to_owned()),
        ("nested too deep", format!(r#"{{"metadata":{{"a":{}{}}}}}"#, "[".repeat(1000), "]".repeat(1000))),
    ] {
        check(name, &Forge { header: json, ..Forge::of(Vec::new()) }.build(), "container header");
    }
    let unknown = r#"{"colour":"blue"}"#.to_owned();
    assert!(
        open(&Forge { header: unknown, ..Forge::of(Vec::new()) }.build()).is_ok(),
        "later fields are ignored"
    );
}

#[test]
fn a_container_of_nothing_is_one() {
    let file = Forge::of(Vec::new()).build();
    assert_eq!(open(&file).unwrap().entries().len(), 0);
    let empty = ContainerWriter::new(Vec::new(), &Header::default(), 0).unwrap().finish().unwrap();
    assert_eq!(open(&empty.writer).unwrap().entries().len(), 0);
}

#[test]
fn bytes_before_or_behind_a_container_are_refused() {
    let file = good().build();
    check("a zip file in front", &[b"PK\x03\x04", &file[..]].concat(), "not a mithril container");
    check("itself in front", &[&file[..], &file].concat(), "do not meet");
    check("a byte behind", &[&file[..], &[0]].concat(), "bytes behind it");
    check("a zip file behind", &[&file[..], b"PK\x05\x06"].concat(), "bytes behind it");
    check("nothing", &[], "not a mithril container");
    check("zeros", &[0; 500], "not a mithril container");
}

#[test]
fn sections_that_unpack_to_too_much_are_refused() {
    let bomb = |raw_len: usize| {
        // Not constant, which has a coder of its own.
        let mut raw = vec![0; raw_len];
        raw[0] = 1;
        stream::encode(&raw, &[Compressor::Zstd { level: 3 }])
    };
    for raw_len in [2u32 << 20, limits::MAX_SECTION_LEN, limits::MAX_SECTION_LEN + 1, u32::MAX] {
        let coded = bomb(raw_len.min(100 << 20) as usize);
        let in_index = good().build_with(|part, bytes| match part {
            Part::CodedIndex => *bytes = coded.clone(),
            Part::Footer => bytes[28..32].copy_from_slice(&raw_len.to_le_bytes()),
            _ => {}
        });
        let in_header = good().build_with(|part, bytes| match part {
            Part::Header => *bytes = coded.clone(),
            Part::Prologue => bytes[12..16].copy_from_slice(&raw_len.to_le_bytes()),
            _ => {}
        });
        for file in [in_index, in_header] {
            assert_eq!(error_name(&refused("bomb", &file)), "Limit", "{raw_len}");
        }
    }
    // Within what a small section may be, it is the content that counts.
    let small = bomb(1 << 20);
    let file = good().build_with(|part, bytes| match part {
        Part::CodedIndex => *bytes = small.clone(),
        Part::Footer => bytes[28..32].copy_from_slice(&(1u32 << 20).to_le_bytes()),
        _ => {}
    });
    assert_eq!(error_name(&refused("small bomb", &file)), "Corrupt");
    let wrong = good().build_with(|part, bytes| {
        if part == Part::CodedIndex {
            bytes[0] = 99;
        }
    });
    assert_eq!(error_kind(&refused("unknown coder", &wrong)), "unsupported");
    let longer = good().build_with(|part, bytes| {
        if part == Part::CodedIndex {
            bytes.extend(stored_stream(b"x"));
        }
    });
    assert_eq!(error_name(&refused("two streams", &longer)), "Section.Corrupt");
}

#[test]
fn what_compresses_too_well_is_still_readable() {
    let mut header = Header::default();
    header.metadata.insert("notes".to_owned(), "a".repeat(3 << 20).into());
    let mut writer = ContainerWriter::new(Vec::new(), &header, 6).unwrap();
    for i in 0..1000 {
        let name = format!("{}{i:04}", "n".repeat(4000));
        let entry = Entry::full(name, mithril_codec::Dtype::U8, [0]);
        let mut frame = writer.start_frame(entry).unwrap();
        std::io::Write::write_all(&mut frame, &stored_frame(U8, &[0], &[])).unwrap();
        frame.finish();
    }
    let file = writer.finish().unwrap().writer;
    let directory = open(&file).unwrap();
    assert_eq!(directory.entries().len(), 1000);
    assert_eq!(directory.read_header(file.as_slice()).unwrap(), header);
}
