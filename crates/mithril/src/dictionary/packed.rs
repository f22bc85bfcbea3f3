//! Many records in one file, with random access: see `docs/format/records.md`.
//!
//! ```text
//! frame of record 0 │ frame of record 1 │ … │ index, a skippable frame │
//! ```
//! Every zstd that has the dictionary reads such a file as the records one after the other.

use super::DictionaryError;
use mithril_codec::checksum;
use mithril_codec::dictionary::Samples;

/// Magic number of a skippable frame of zstd, the one that holds the index.
const INDEX_MAGIC: [u8; 4] = 0x184D_2A5Du32.to_le_bytes();
/// Last bytes of a packed file.
const END_MAGIC: [u8; 4] = *b"MREC";
/// The only version.
const VERSION: u8 = 1;
/// Bytes behind the lengths: checksum, number of records, version, three zeros, end magic.
const TAIL_LEN: usize = 8 + 8 + 1 + 3 + 4;
/// Magic number and length of the skippable frame.
const HEAD_LEN: usize = 8;

/// Frames of records, side by side, to a packed file.
///
/// # Errors
/// When there are too many records for one index.
pub fn pack(frames: &Samples<'_>) -> Result<Vec<u8>, DictionaryError> {
    let mut lens = Vec::new();
    for frame in frames.iter() {
        let len = u32::try_from(frame.len())
            .map_err(|_| DictionaryError::invalid("a frame of 4 GiB or more cannot be packed"))?;
        lens.extend_from_slice(&len.to_le_bytes());
    }
    let index_len = u32::try_from(lens.len() + TAIL_LEN)
        .map_err(|_| DictionaryError::invalid("too many records for one packed file"))?;
    let mut packed = frames.bytes()[..frames.total_len()].to_vec();
    packed.extend_from_slice(&INDEX_MAGIC);
    packed.extend_from_slice(&index_len.to_le_bytes());
    packed.extend_from_slice(&lens);
    packed.extend_from_slice(&checksum(&lens).to_le_bytes());
    packed.extend_from_slice(&(frames.n_samples() as u64).to_le_bytes());
    packed.extend_from_slice(&[VERSION, 0, 0, 0]);
    packed.extend_from_slice(&END_MAGIC);
    Ok(packed)
}

/// A packed file that is ready to be read, one record or all.
#[derive(Debug)]
pub struct PackedRecords<'a> {
    bytes: &'a [u8],
    ends: Vec<usize>,
}

impl<'a> PackedRecords<'a> {
    /// Reads the index and checks that it agrees with the file.
    ///
    /// # Errors
    /// When the file is damaged or no packed file.
    pub fn parse(file: &'a [u8]) -> Result<Self, DictionaryError> {
        let damaged = |what| DictionaryError::Packed { what };
        let (_, tail) =
            file.split_last_chunk::<TAIL_LEN>().ok_or(damaged("file is shorter than an index"))?;
        if tail[TAIL_LEN - 4..] != END_MAGIC {
            return Err(damaged("file does not end like one"));
        }
        if tail[16] != VERSION || tail[17..20] != [0; 3] {
            return Err(damaged("version is not known"));
        }
        let sum = u64::from_le_bytes(tail[..8].try_into().expect("eight bytes"));
        let n_records = u64::from_le_bytes(tail[8..16].try_into().expect("eight bytes"));
        // Compared with the bytes at hand before anything is taken for them.
        let index_len = usize::try_from(n_records)
            .ok()
            .and_then(|n_records| n_records.checked_mul(4))
            .filter(|len| len.checked_add(TAIL_LEN + HEAD_LEN).is_some_and(|len| len <= file.len()))
            .ok_or(damaged("index is longer than the file"))?;
        let frames_len = file.len() - HEAD_LEN - index_len - TAIL_LEN;
        let (head, rest) = file[frames_len..].split_at(HEAD_LEN);
        let stated = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
        if head[..4] != INDEX_MAGIC || u64::from(stated) != (index_len + TAIL_LEN) as u64 {
            return Err(damaged("index does not start like one"));
        }
        let lens = &rest[..index_len];
        if checksum(lens) != sum {
            return Err(damaged("index has another checksum"));
        }
        let mut ends = Vec::with_capacity(index_len / 4);
        let mut end = 0usize;
        for len in lens.as_chunks::<4>().0 {
            end = usize::try_from(u32::from_le_bytes(*len))
                .ok()
                .and_then(|len| end.checked_add(len))
                .filter(|&end| end <= frames_len)
                .ok_or(damaged("a record reaches beyond the frames"))?;
            ends.push(end);
        }
        if end != frames_len {
            return Err(damaged("frames and index differ in length"));
        }
        Ok(Self { bytes: file, ends })
    }

    /// All frames, in order.
    pub fn frames(&self) -> Samples<'_> {
        Samples::new(self.bytes, &self.ends).expect("ends were checked to rise and to stay within the file")
    }

    /// How many records there are.
    pub fn n_records(&self) -> usize {
        self.ends.len()
    }

    /// The frame of one record.
    pub fn frame(&self, record_idx: usize) -> Option<&'a [u8]> {
        let end = *self.ends.get(record_idx)?;
        let start = if record_idx == 0 { 0 } else { self.ends[record_idx - 1] };
        Some(&self.bytes[start..end])
    }
}
