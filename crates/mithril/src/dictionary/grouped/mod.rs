//! Dictionaries of two levels: a base for all records, and for each kind of record a small addition to it.
//!
//! Every member, the base and one for each group, is a standard zstd dictionary: that of a group is its own header, the
//! content of the base and the group's own content. Only the base and what is the group's own are stored: see
//! `docs/format/grouped.md`. Each record takes the member that makes its frame smallest; the frame names it.

mod file;
mod groups;
mod train;

pub use groups::find_groups;
pub use train::{GroupedOptions, TrainedGroups, train_grouped};

use super::records::{MAX_RECORD_LEN, Part, many};
use super::search::measure;
use super::{Dictionary, DictionaryError, Evaluation, RecordCodec};
use mithril_codec::dictionary::{Header, Samples, dictionary_id_of_frame};

/// A base dictionary and those of its groups, ready to compress and decompress records.
#[derive(Debug)]
pub struct GroupedDictionary {
    bytes: Vec<u8>,
    members: Vec<Member>,
}

/// The base, or the dictionary of a group.
#[derive(Debug)]
pub struct Member {
    name: String,
    own_len: usize,
    dictionary: Dictionary,
}

impl Member {
    /// Its name; that of the base is empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that it takes in the file: header and content without that of the base.
    pub fn own_len(&self) -> usize {
        self.own_len
    }

    /// The whole of it, as zstd needs it.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }
}

impl GroupedDictionary {
    /// Whether bytes start like a file of grouped dictionaries.
    pub fn is_grouped(bytes: &[u8]) -> bool {
        bytes.starts_with(&file::MAGIC)
    }

    /// Reads a file of grouped dictionaries; `level` is what records will be compressed at.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn new(bytes: impl Into<Vec<u8>>, level: i32) -> Result<Self, DictionaryError> {
        let bytes = bytes.into();
        let file = file::parse(&bytes)?;
        let base_content = &file.base[Header::parse(file.base)?.header_len..];
        let base = Dictionary::new(file.base, level)?;
        let mut members = vec![Member { name: String::new(), own_len: file.base.len(), dictionary: base }];
        for group in &file.groups {
            let dictionary = Dictionary::new([group.head, base_content, group.content].concat(), level)?;
            let own_len = group.head.len() + group.content.len();
            // Tables that end elsewhere than the header would make some of the base a table, or the other way round.
            if dictionary.header().header_len != group.head.len() {
                return Err(DictionaryError::Grouped { what: "header of a group has another length" });
            }
            members.push(Member { name: group.name.to_owned(), own_len, dictionary });
        }
        let mut ids: Vec<Option<u32>> = members.iter().map(|member| member.dictionary.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != members.len() || ids[0].is_none() {
            return Err(DictionaryError::Grouped { what: "members need ids, each another one" });
        }
        Ok(Self { bytes, members })
    }

    /// The file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The base, then the dictionaries of all groups.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member that makes a record's frame smallest, by its number, and that frame.
    ///
    /// # Errors
    /// When libzstd fails.
    pub fn choose(&self, record: &[u8]) -> Result<(usize, Vec<u8>), DictionaryError> {
        let mut best = (0, self.members[0].dictionary.compress(record)?);
        for (member_idx, member) in self.members.iter().enumerate().skip(1) {
            let frame = member.dictionary.compress(record)?;
            if frame.len() < best.1.len() {
                best = (member_idx, frame);
            }
        }
        Ok(best)
    }

    /// What records take with the best member for each, and without any, at a level.
    ///
    /// # Errors
    /// When libzstd fails.
    pub fn evaluate(
        &self,
        records: &Samples<'_>,
        level: i32,
        threads: usize,
    ) -> Result<Evaluation, DictionaryError> {
        let at_level = Self::new(self.bytes.clone(), level)?;
        let (frames, _) = at_level.compress_slices(&records.iter().collect::<Vec<_>>(), threads)?;
        Ok(Evaluation {
            n_records: records.n_samples(),
            raw_len: records.total_len() as u64,
            plain_len: measure(&[], records, level, threads)?,
            coded_len: frames.len() as u64,
        })
    }

    /// The member that a frame names, by its number.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn member_of_frame(&self, frame: &[u8]) -> Result<usize, DictionaryError> {
        let wanted = dictionary_id_of_frame(frame);
        let found =
            self.members.iter().position(|member| wanted.is_some() && member.dictionary.id() == wanted);
        found.ok_or_else(|| DictionaryError::NoMember {
            wanted,
            known: self.members.iter().filter_map(|member| member.dictionary.id()).collect(),
        })
    }
}

impl RecordCodec for GroupedDictionary {
    fn checksum(&self) -> u64 {
        mithril_codec::checksum(&self.bytes)
    }

    fn compress(&self, record: &[u8]) -> Result<Vec<u8>, DictionaryError> {
        Ok(self.choose(record)?.1)
    }

    fn decompress(&self, frame: &[u8]) -> Result<Vec<u8>, DictionaryError> {
        self.members[self.member_of_frame(frame)?].dictionary.decompress(frame)
    }

    fn compress_slices(
        &self,
        records: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        many(records, threads, |_, part| {
            let mut compressors = Vec::with_capacity(self.members.len());
            for member in &self.members {
                compressors.push(member.dictionary.prepared().compressor()?);
            }
            let (mut out, mut frame, mut best) = (Part::default(), Vec::new(), Vec::new());
            for record in part {
                best.clear();
                for compressor in &mut compressors {
                    frame.clear();
                    compressor.append(record, &mut frame)?;
                    if best.is_empty() || frame.len() < best.len() {
                        std::mem::swap(&mut frame, &mut best);
                    }
                }
                out.bytes.extend_from_slice(&best);
                out.lens.push(best.len());
            }
            Ok(out)
        })
    }

    fn decompress_slices(
        &self,
        frames: &[&[u8]],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>), DictionaryError> {
        many(frames, threads, |first_idx, part| {
            let mut decompressors = Vec::with_capacity(self.members.len());
            for member in &self.members {
                decompressors.push(member.dictionary.prepared().decompressor()?);
            }
            let mut out = Part::default();
            for (idx, frame) in part.iter().enumerate() {
                let decoded = self.member_of_frame(frame).and_then(|member_idx| {
                    Ok(decompressors[member_idx].append(frame, MAX_RECORD_LEN, &mut out.bytes)?)
                });
                out.lens.push(decoded.map_err(|error| error.of_record(first_idx + idx))?);
            }
            Ok(out)
        })
    }
}
