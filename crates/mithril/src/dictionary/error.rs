//! Why training or using a dictionary failed, and what to do about it.

use crate::ErrorKind;
use mithril_codec::CodecError;

/// Any failure about dictionaries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DictionaryError {
    /// There are not enough samples to tell what is common.
    #[error("too few samples: {n_samples}, and training needs at least {needed}")]
    TooFewSamples {
        /// Samples that are not empty.
        n_samples: usize,
        /// How many there must be.
        needed: usize,
    },
    /// The samples hold next to nothing.
    #[error("samples are too small: {total_len} bytes in all, and training needs at least {needed}")]
    TooSmall {
        /// Bytes of all samples.
        total_len: usize,
        /// How many there must be.
        needed: usize,
    },
    /// The samples are the same record over and over.
    #[error("samples are too alike: {n_samples} samples, {n_distinct} distinct")]
    TooAlike {
        /// Samples that are not empty.
        n_samples: usize,
        /// Different ones among them.
        n_distinct: usize,
    },
    /// The samples have nothing in common, so that records which training did not see gain nothing.
    #[error(
        "samples have too little in common: records that training did not see take {coded_len} bytes with the \
         dictionary and {plain_len} without"
    )]
    TooRandom {
        /// Bytes of held-out records without a dictionary.
        plain_len: u64,
        /// Bytes of the same records with it.
        coded_len: u64,
    },
    /// An argument is out of its range, or contradicts another.
    #[error("{what}")]
    InvalidArgument {
        /// Which rule it breaks.
        what: String,
    },
    /// A frame needs another dictionary than the one at hand.
    #[error("record needs the dictionary with id {wanted}, and this one {}", describe(*actual))]
    WrongDictionary {
        /// The id that the frame names.
        wanted: u32,
        /// The id of the dictionary at hand.
        actual: Option<u32>,
    },
    /// Records were compressed with a dictionary that holds other bytes, whatever its id is.
    #[error(
        "records were compressed with another dictionary: it {}, its checksum is {wanted:016x}, and that of this one \
         {actual:016x}",
        describe(*wanted_id)
    )]
    OtherDictionary {
        /// Id of the dictionary that the first record was compressed with, if it names one.
        wanted_id: Option<u32>,
        /// Checksum of the dictionary that the records were compressed with.
        wanted: u64,
        /// Checksum of the dictionary at hand.
        actual: u64,
    },
    /// A record is damaged.
    #[error("record {record_idx}: {source}")]
    Record {
        /// Its number, from 0.
        record_idx: usize,
        /// What is wrong with it.
        source: Box<DictionaryError>,
    },
    /// A packed file is damaged.
    #[error("packed records are damaged: {what}")]
    Packed {
        /// The rule that is broken.
        what: &'static str,
    },
    /// A frame needs another dictionary than those of a file of groups.
    #[error("record needs {}, and the members of this file are {}", wanted_id(*wanted), list(known))]
    NoMember {
        /// The id that the frame names, if it names one.
        wanted: Option<u32>,
        /// The ids of all members.
        known: Vec<u32>,
    },
    /// A file of grouped dictionaries is damaged.
    #[error("grouped dictionaries are damaged: {what}")]
    Grouped {
        /// The rule that is broken.
        what: &'static str,
    },
    /// Training failed for a group.
    #[error("group `{name}`: {source}")]
    Group {
        /// Its name.
        name: String,
        /// What is wrong with its samples.
        source: Box<DictionaryError>,
    },
    /// The bytes of a dictionary or of a frame are damaged.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl DictionaryError {
    /// What the user can do, if that is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TooFewSamples { .. } => Some(
                "give more records; if one file holds many, say how to split it: `--split lines`, `jsonl`, \
                 `length-prefixed` or `fixed:N`",
            ),
            Self::TooSmall { .. } => {
                Some("give more records; about 100 times the size of the dictionary is a good amount")
            }
            Self::TooAlike { .. } => Some(
                "records that are all the same need no training: use one of them as it is, as a raw-content dictionary",
            ),
            Self::TooRandom { .. } => Some(
                "encrypted, compressed or random records gain nothing; if the records have structure, check how they \
                 are split, or give more of them",
            ),
            Self::Group { source, .. } => source.hint(),
            Self::WrongDictionary { .. } | Self::OtherDictionary { .. } | Self::NoMember { .. } => {
                Some("pass the dictionary that the records were compressed with")
            }
            _ => None,
        }
    }

    /// Who is at fault.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TooFewSamples { .. }
            | Self::TooSmall { .. }
            | Self::TooAlike { .. }
            | Self::TooRandom { .. }
            | Self::InvalidArgument { .. } => ErrorKind::InvalidArgument,
            Self::WrongDictionary { .. } | Self::OtherDictionary { .. } | Self::NoMember { .. } => {
                ErrorKind::Base
            }
            Self::Record { source, .. } | Self::Group { source, .. } => source.kind(),
            Self::Codec(CodecError::Truncated { .. }) => ErrorKind::Truncated,
            Self::Packed { .. } | Self::Grouped { .. } | Self::Codec(_) => ErrorKind::Corrupt,
        }
    }

    /// The same, of a record.
    pub(super) fn of_record(self, record_idx: usize) -> Self {
        Self::Record { record_idx, source: Box::new(self) }
    }

    /// The same, of a group.
    pub(super) fn of_group(self, name: &str) -> Self {
        Self::Group { name: name.to_owned(), source: Box::new(self) }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::InvalidArgument { what: what.into() }
    }
}

fn describe(id: Option<u32>) -> String {
    id.map_or_else(|| "has no id".to_owned(), |id| format!("has id {id}"))
}

fn wanted_id(id: Option<u32>) -> String {
    id.map_or_else(
        || "a dictionary that it does not name".to_owned(),
        |id| format!("the dictionary with id {id}"),
    )
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
