//! Many records at once: compressed, decompressed and measured on several threads.

use super::DictionaryError;
use super::workers::map_in_order;
use mithril_codec::dictionary::{Header, Prepared, Samples, dictionary_id_of_frame, record_len};
use std::sync::{Mutex, PoisonError};

/// Longest record that is decompressed, unless the caller says otherwise.
pub const MAX_RECORD_LEN: usize = 64 << 20;

/// Memory that is taken at once for what frames state, before any is decoded: so much, and so many times their bytes.
/// Frames that state more are believed one by one.
const UNASKED_LEN: usize = 4 << 20;
const UNASKED_RATIO: usize = 64;

/// Records in a piece of work for a thread.
const RECORDS_PER_PART: usize = 512;

/// What records are compressed with: one dictionary, or one of several for each record.
pub trait RecordCodec: Sync {
    /// Checksum of its bytes, which tells it from others of the same id.
    fn checksum(&self) -> u64;

    /// The frame of one record.
    ///
    /// # Errors
    /// When libzstd fails.
    fn compress(&self, record: &[u8]) -> Result<Vec<u8>, DictionaryError>;

    /// The record of one frame.
    ///
    /// # Errors
    /// When the frame is damaged, needs another dictionary, or holds more than [`MAX_RECORD_LEN`] bytes.
    fn decompress(&self, frame: &[u8]) -> Result<Vec<u8>, DictionaryError>;

    /// The frames of many records side by side, and where each ends. `threads` 0 is one per core.
    ///
    /// # Errors
    /// When libzstd fails.
    fn compress_slices(
        &self,
        records: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError>;

    /// The records of many frames side by side, and where each ends. `threads` 0 is one per core.
    ///
    /// # Errors
    /// As [`Self::decompress`]; the error names the first record that fails.
    fn decompress_slices(
        &self,
        frames: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError>;
}

/// A dictionary that is ready to compress and decompress records.
///
/// ```
/// use mithril::dictionary::Dictionary;
/// let dictionary = Dictionary::new(b"{\"name\": \"\", \"version\": \"1.0.0\"}", 3)?;
/// let frame = dictionary.compress(b"{\"name\": \"x\", \"version\": \"1.0.0\"}")?;
/// assert_eq!(dictionary.decompress(&frame)?, b"{\"name\": \"x\", \"version\": \"1.0.0\"}");
/// # Ok::<(), mithril::dictionary::DictionaryError>(())
/// ```
#[derive(Debug)]
pub struct Dictionary {
    bytes: Vec<u8>,
    prepared: Prepared,
}

impl Dictionary {
    /// Loads a dictionary; `level` is what records will be compressed at. Bytes that do not start with the magic number
    /// of dictionaries are bare content.
    ///
    /// # Errors
    /// When the dictionary has a header, and it is damaged.
    pub fn new(bytes: impl Into<Vec<u8>>, level: i32) -> Result<Self, DictionaryError> {
        let bytes = bytes.into();
        let prepared = Prepared::new(&bytes, level)?;
        Ok(Self { bytes, prepared })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its id; bare content has none.
    pub fn id(&self) -> Option<u32> {
        self.header().id
    }

    /// What its header says.
    pub fn header(&self) -> &Header {
        self.prepared.header()
    }

    /// Checksum of its bytes, which tells it from others of the same id.
    pub fn checksum(&self) -> u64 {
        mithril_codec::checksum(&self.bytes)
    }

    /// Its content, without the header.
    pub fn content(&self) -> &[u8] {
        &self.bytes[self.header().header_len..]
    }

    /// The frame of one record.
    ///
    /// # Errors
    /// When libzstd fails.
    pub fn compress(&self, record: &[u8]) -> Result<Vec<u8>, DictionaryError> {
        let mut frame = Vec::new();
        self.prepared.compressor()?.append(record, &mut frame)?;
        Ok(frame)
    }

    /// The record of one frame, or of several side by side: skippable ones hold nothing, and none has to state its size.
    ///
    /// # Errors
    /// When the frame is damaged, needs another dictionary, or holds more than [`MAX_RECORD_LEN`] bytes.
    pub fn decompress(&self, frame: &[u8]) -> Result<Vec<u8>, DictionaryError> {
        self.check_id(frame)?;
        let mut record = Vec::new();
        self.prepared.decompressor()?.append(frame, MAX_RECORD_LEN, &mut record)?;
        Ok(record)
    }

    /// The frames of many records side by side, and where each ends. `threads` 0 is one per core.
    ///
    /// # Errors
    /// When libzstd fails.
    pub fn compress_many(
        &self,
        records: &Samples<'_>,
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        self.compress_slices(&records.iter().collect::<Vec<_>>(), threads)
    }

    /// As [`Self::compress_many`] for records that lie anywhere.
    ///
    /// # Errors
    /// When libzstd fails.
    pub fn compress_slices(
        &self,
        records: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        many(records, threads, |_, part| {
            let mut compressor = self.prepared.compressor()?;
            let mut out = Part::default();
            for record in part {
                let len = compressor.append(record, &mut out.bytes)?;
                out.lens.push(len);
            }
            Ok(out)
        })
    }

    /// The records of many frames side by side, and where each ends. `threads` 0 is one per core.
    ///
    /// # Errors
    /// When a frame is damaged, needs another dictionary, or holds more than [`MAX_RECORD_LEN`] bytes; the error names
    /// the first such record.
    pub fn decompress_many(
        &self,
        frames: &Samples<'_>,
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        self.decompress_slices(&frames.iter().collect::<Vec<_>>(), threads)
    }

    /// As [`Self::decompress_many`] for frames that lie anywhere.
    ///
    /// # Errors
    /// As [`Self::decompress_many`].
    pub fn decompress_slices(
        &self,
        frames: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        if let Some(lens) = self.record_lens(frames)? {
            let mut bytes = vec![0; lens.iter().sum()];
            let mut ends = lens;
            let mut rest = bytes.as_mut_slice();
            let mut records = Vec::with_capacity(frames.len());
            let mut end = 0;
            for len in &mut ends {
                let (record, later) = rest.split_at_mut(*len);
                records.push(record);
                rest = later;
                end += *len;
                *len = end;
            }
            self.decompress_into(frames, &mut records, threads)?;
            return Ok((bytes, ends));
        }
        many(frames, threads, |first_idx, part| {
            let mut decompressor = self.prepared.decompressor()?;
            let mut out = Part::default();
            for (idx, frame) in part.iter().enumerate() {
                let decoded = decompressor.append(frame, MAX_RECORD_LEN, &mut out.bytes);
                out.lens
                    .push(decoded.map_err(|error| DictionaryError::from(error).of_record(first_idx + idx))?);
            }
            Ok(out)
        })
    }

    /// Bytes that the record of each frame states, so that memory can be taken for all at once; nothing when a frame
    /// states none, or when that is much more than the frames have: memory should then be taken only for what was decoded.
    ///
    /// # Errors
    /// When a frame states too much, or needs another dictionary; the error names the first such record.
    pub fn record_lens(&self, frames: &[&[u8]]) -> Result<Option<Vec<usize>>, DictionaryError> {
        let mut lens = Vec::with_capacity(frames.len());
        let (mut coded_len, mut raw_len) = (0usize, 0usize);
        for (record_idx, frame) in frames.iter().enumerate() {
            let len = self.check_id(frame).and_then(|()| Ok(record_len(frame, MAX_RECORD_LEN)?));
            let Some(len) = len.map_err(|error| error.of_record(record_idx))? else { return Ok(None) };
            (coded_len, raw_len) = (coded_len.saturating_add(frame.len()), raw_len.saturating_add(len));
            lens.push(len);
        }
        let limit = UNASKED_LEN.saturating_add(coded_len.saturating_mul(UNASKED_RATIO));
        Ok((raw_len <= limit).then_some(lens))
    }

    /// Decodes every frame into memory of exactly its record's length.
    ///
    /// # Errors
    /// When a frame is damaged, or holds another number of bytes; the error names the first such record.
    ///
    /// # Panics
    /// When there are not as many records as frames.
    pub fn decompress_into(
        &self,
        frames: &[&[u8]],
        records: &mut [&mut [u8]],
        threads: usize,
    ) -> Result<(), DictionaryError> {
        assert_eq!(frames.len(), records.len());
        // Each part is one thread's alone; the lock says so to the compiler.
        let parts: Vec<_> = frames
            .chunks(RECORDS_PER_PART)
            .zip(records.chunks_mut(RECORDS_PER_PART))
            .enumerate()
            .map(|(part_idx, (frames, records))| (part_idx * RECORDS_PER_PART, frames, Mutex::new(records)))
            .collect();
        let done =
            map_in_order(&parts, threads, |(first_idx, frames, records)| -> Result<(), DictionaryError> {
                let mut decompressor = self.prepared.decompressor()?;
                let mut records = records.lock().unwrap_or_else(PoisonError::into_inner);
                for (idx, (frame, record)) in frames.iter().zip(records.iter_mut()).enumerate() {
                    decompressor
                        .fill(frame, record)
                        .map_err(|error| DictionaryError::from(error).of_record(first_idx + idx))?;
                }
                Ok(())
            });
        done.into_iter().collect()
    }

    /// What records take with this dictionary and without any, at a level.
    ///
    /// # Errors
    /// When libzstd fails.
    pub fn evaluate(
        &self,
        records: &Samples<'_>,
        level: i32,
        threads: usize,
    ) -> Result<Evaluation, DictionaryError> {
        Ok(Evaluation {
            n_records: records.n_samples(),
            raw_len: records.total_len() as u64,
            plain_len: super::search::measure(&[], records, level, threads)?,
            coded_len: super::search::measure(&self.bytes, records, level, threads)?,
        })
    }

    pub(super) fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Refuses a frame that names another dictionary.
    fn check_id(&self, frame: &[u8]) -> Result<(), DictionaryError> {
        match dictionary_id_of_frame(frame) {
            Some(wanted) if Some(wanted) != self.id() => {
                Err(DictionaryError::WrongDictionary { wanted, actual: self.id() })
            }
            _ => Ok(()),
        }
    }
}

impl RecordCodec for Dictionary {
    fn checksum(&self) -> u64 {
        self.checksum()
    }

    fn compress(&self, record: &[u8]) -> Result<Vec<u8>, DictionaryError> {
        self.compress(record)
    }

    fn decompress(&self, frame: &[u8]) -> Result<Vec<u8>, DictionaryError> {
        self.decompress(frame)
    }

    fn compress_slices(
        &self,
        records: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        self.compress_slices(records, threads)
    }

    fn decompress_slices(
        &self,
        frames: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        self.decompress_slices(frames, threads)
    }
}

/// Does work on parts of the records, with the number of each part's first record, and puts the results together.
pub(super) fn many(
    records: &[&[u8]],
    threads: usize,
    work: impl Fn(usize, &[&[u8]]) -> Result<Part, DictionaryError> + Sync,
) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
    let parts: Vec<(usize, &[&[u8]])> = records
        .chunks(RECORDS_PER_PART)
        .enumerate()
        .map(|(part_idx, part)| (part_idx * RECORDS_PER_PART, part))
        .collect();
    let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(records.len()));
    for part in map_in_order(&parts, threads, |&(first_idx, part)| work(first_idx, part)) {
        let part = part?;
        let mut end = bytes.len();
        ends.extend(part.lens.iter().map(|len| {
            end += len;
            end
        }));
        bytes.extend_from_slice(&part.bytes);
    }
    Ok((bytes, ends))
}

/// What records take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evaluation {
    /// How many records there are.
    pub n_records: usize,
    /// Their bytes.
    pub raw_len: u64,
    /// Bytes of their frames without a dictionary.
    pub plain_len: u64,
    /// Bytes of their frames with it.
    pub coded_len: u64,
}

/// Results of one piece of work side by side, and the length of each.
#[derive(Default)]
pub(super) struct Part {
    pub(super) bytes: Vec<u8>,
    pub(super) lens: Vec<usize>,
}
