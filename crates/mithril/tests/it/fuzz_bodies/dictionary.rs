//! The body about dictionaries.

use mithril::dictionary::{Dictionary, GroupedDictionary, PackedRecords, RecordCodec};

/// Any bytes are a dictionary or are refused; with one, records come back, and foreign frames and packed files are
/// refused or read, without a panic.
///
/// The first byte says where the input parts into a dictionary and a frame or packed file.
pub fn dictionary_load(input: &[u8]) {
    let Some((cut, rest)) = input.split_first() else { return };
    let (dictionary, foreign) = rest.split_at(rest.len() * usize::from(*cut) / 255);
    if let Ok(grouped) = GroupedDictionary::new(dictionary, 3) {
        if let Ok(frame) = grouped.compress(foreign) {
            assert_eq!(grouped.decompress(&frame).as_deref(), Ok(foreign), "a record came back otherwise");
        }
        let _ = grouped.decompress(foreign);
    }
    let Ok(dictionary) = Dictionary::new(dictionary, 3) else { return };
    let header = dictionary.header();
    assert_eq!(header.header_len + header.content_len, dictionary.as_bytes().len());
    // A table that cannot express a record is an error; a record that comes back otherwise is not.
    if let Ok(frame) = dictionary.compress(foreign) {
        assert_eq!(dictionary.decompress(&frame).as_deref(), Ok(foreign), "a record came back otherwise");
    }
    let _ = dictionary.decompress(foreign);
    if let Ok(packed) = PackedRecords::parse(foreign)
        && let Ok(frames) = packed.frames()
    {
        let _ = dictionary.decompress_many(&frames, 1);
    }
}
