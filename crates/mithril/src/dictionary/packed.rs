//! Many records in one file, with random access: see `docs/format/records.md`.
//!
//! ```text
//! frame of record 0 │ frame of record 1 │ … │ index, a skippable frame │
//! ```
//! Every zstd that has the dictionary reads such a file as the records one after the other.

use super::{DictionaryError, RecordCodec};
use mithril_codec::checksum;
use mithril_codec::dictionary::{Samples, dictionary_id_of_frame};

/// Magic number of a skippable frame of zstd, the one that holds the index.
const INDEX_MAGIC: [u8; 4] = 0x184D_2A5Du32.to_le_bytes();
/// Last bytes of a packed file.
const END_MAGIC: [u8; 4] = *b"MREC";
/// The only version.
const VERSION: u8 = 2;
/// Bytes of an entry: length and checksum of a frame.
const ENTRY_LEN: usize = 8;
/// Bytes behind the entries: checksum of the dictionary, checksum of all before it, number of records, version, three
/// zeros, end magic.
const TAIL_LEN: usize = 8 + 8 + 8 + 1 + 3 + 4;
/// Magic number and length of the skippable frame.
const HEAD_LEN: usize = 8;

/// Frames of records that a dictionary, or one of several, compressed, side by side, to a packed file.
///
/// # Errors
/// When there are too many records for one index.
pub fn pack(frames: &Samples<'_>, dictionary: &dyn RecordCodec) -> Result<Vec<u8>, DictionaryError> {
    let mut entries = Vec::with_capacity(frames.n_samples() * ENTRY_LEN + 8);
    for frame in frames.iter() {
        let len = u32::try_from(frame.len())
            .map_err(|_| DictionaryError::invalid("a frame of 4 GiB or more cannot be packed"))?;
        entries.extend_from_slice(&len.to_le_bytes());
        entries.extend_from_slice(&frame_sum(frame));
    }
    entries.extend_from_slice(&dictionary.checksum().to_le_bytes());
    let index_len = u32::try_from(entries.len() + TAIL_LEN - 8)
        .map_err(|_| DictionaryError::invalid("too many records for one packed file"))?;
    let mut packed = frames.bytes()[..frames.total_len()].to_vec();
    packed.extend_from_slice(&INDEX_MAGIC);
    packed.extend_from_slice(&index_len.to_le_bytes());
    packed.extend_from_slice(&entries);
    packed.extend_from_slice(&checksum(&entries).to_le_bytes());
    packed.extend_from_slice(&(frames.n_samples() as u64).to_le_bytes());
    packed.extend_from_slice(&[VERSION, 0, 0, 0]);
    packed.extend_from_slice(&END_MAGIC);
    Ok(packed)
}

/// The low half of a frame's checksum.
fn frame_sum(frame: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = checksum(frame).to_le_bytes();
    [a, b, c, d]
}

/// A packed file that is ready to be read, one record or all.
#[derive(Debug)]
pub struct PackedRecords<'a> {
    bytes: &'a [u8],
    ends: Vec<usize>,
    sums: Vec<[u8; 4]>,
    dictionary_sum: u64,
}

impl<'a> PackedRecords<'a> {
    /// Whether a file ends like a packed one. Then it is one, perhaps damaged, and not just frames.
    pub fn is_packed(file: &[u8]) -> bool {
        file.ends_with(&END_MAGIC)
    }

    /// Reads the index and checks that it agrees with the file.
    ///
    /// # Errors
    /// When the file is damaged or no packed file.
    pub fn parse(file: &'a [u8]) -> Result<Self, DictionaryError> {
        let damaged = |what| DictionaryError::Packed { what };
        let (_, tail) =
            file.split_last_chunk::<TAIL_LEN>().ok_or(damaged("file is shorter than an index"))?;
        if !Self::is_packed(file) {
            return Err(damaged("file does not end like one"));
        }
        if tail[24] != VERSION || tail[25..28] != [0; 3] {
            return Err(damaged("version is not known"));
        }
        let number = |at: usize| u64::from_le_bytes(tail[at..at + 8].try_into().expect("eight bytes"));
        let (dictionary_sum, sum, n_records) = (number(0), number(8), number(16));
        // Compared with the bytes at hand before anything is taken for them.
        let entries_len = usize::try_from(n_records)
            .ok()
            .and_then(|n_records| n_records.checked_mul(ENTRY_LEN))
            .filter(|len| len.checked_add(TAIL_LEN + HEAD_LEN).is_some_and(|len| len <= file.len()))
            .ok_or(damaged("index is longer than the file"))?;
        let frames_len = file.len() - HEAD_LEN - entries_len - TAIL_LEN;
        let (head, rest) = file[frames_len..].split_at(HEAD_LEN);
        let stated = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
        if head[..4] != INDEX_MAGIC || u64::from(stated) != (entries_len + TAIL_LEN) as u64 {
            return Err(damaged("index does not start like one"));
        }
        if checksum(&rest[..entries_len + 8]) != sum {
            return Err(damaged("index has another checksum"));
        }
        let n_records = entries_len / ENTRY_LEN;
        let (mut ends, mut sums) = (Vec::with_capacity(n_records), Vec::with_capacity(n_records));
        let mut end = 0usize;
        for [len @ .., a, b, c, d] in rest[..entries_len].as_chunks::<ENTRY_LEN>().0 {
            end = usize::try_from(u32::from_le_bytes(*len))
                .ok()
                .and_then(|len| end.checked_add(len))
                .filter(|&end| end <= frames_len)
                .ok_or(damaged("a record reaches beyond the frames"))?;
            ends.push(end);
            sums.push([*a, *b, *c, *d]);
        }
        if end != frames_len {
            return Err(damaged("frames and index differ in length"));
        }
        Ok(Self { bytes: file, ends, sums, dictionary_sum })
    }

    /// Refuses a dictionary that the records were not compressed with, even if it has the same id.
    ///
    /// # Errors
    /// When its bytes are others.
    pub fn check_dictionary(&self, dictionary: &dyn RecordCodec) -> Result<(), DictionaryError> {
        let (wanted, actual) = (self.dictionary_sum, dictionary.checksum());
        if wanted == actual {
            return Ok(());
        }
        let first_frame = &self.bytes[..self.ends.first().copied().unwrap_or(0)];
        let wanted_id = dictionary_id_of_frame(first_frame);
        Err(DictionaryError::OtherDictionary { wanted_id, wanted, actual })
    }

    /// All frames, in order.
    ///
    /// # Errors
    /// When one is damaged; the error names the first.
    pub fn frames(&self) -> Result<Samples<'_>, DictionaryError> {
        for record_idx in 0..self.n_records() {
            self.frame(record_idx)?;
        }
        Ok(Samples::new(self.bytes, &self.ends)
            .expect("ends were checked to rise and to stay within the file"))
    }

    /// How many records there are.
    pub fn n_records(&self) -> usize {
        self.ends.len()
    }

    /// The frame of one record; nothing when there is no such record.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn frame(&self, record_idx: usize) -> Result<Option<&'a [u8]>, DictionaryError> {
        let Some(&end) = self.ends.get(record_idx) else { return Ok(None) };
        let start = if record_idx == 0 { 0 } else { self.ends[record_idx - 1] };
        let frame = &self.bytes[start..end];
        if frame_sum(frame) != self.sums[record_idx] {
            let source = Box::new(DictionaryError::Packed { what: "frame has another checksum" });
            return Err(DictionaryError::Record { record_idx, source });
        }
        Ok(Some(frame))
    }
}
