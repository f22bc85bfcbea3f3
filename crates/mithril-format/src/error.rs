//! What is wrong with a file, and where.

use mithril_codec::CodecError;

/// Why bytes could not be read as a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The first bytes are not ours.
    #[error("not a mithril frame: expected `MTHF` at the start, found `{found}`")]
    NotAFrame {
        /// The first bytes, in hexadecimal.
        found: String,
    },
    /// The first bytes are not ours.
    #[error("not a mithril container: expected `MCKP` at the start, found `{found}`")]
    NotAContainer {
        /// The first bytes, in hexadecimal.
        found: String,
    },
    /// The last bytes are not those of a container.
    #[error(
        "no footer at offset {offset}: the container was not written to its end, is cut off, or has bytes behind it"
    )]
    NoFooter {
        /// Where it should stand.
        offset: u64,
    },
    /// Header or index do not decode.
    #[error("{what} at offset {offset}: {source}")]
    Section {
        /// Which part.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// What is wrong with it.
        source: CodecError,
    },
    /// JSON that does not say what it must.
    #[error("{what} at offset {offset}: {reason}")]
    Json {
        /// Which part.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Written by a later version.
    #[error("format version {found} is not known to this version, which reads up to {supported}")]
    UnsupportedVersion {
        /// Version in the file.
        found: u8,
        /// Latest version that this build reads.
        supported: u8,
    },
    /// Uses something that this version does not know.
    #[error("{what} {id} at offset {offset} is not known to this version")]
    Unknown {
        /// What kind of thing is unknown.
        what: &'static str,
        /// Its number in the file.
        id: u32,
        /// Where it stands.
        offset: u64,
    },
    /// The bytes end before the data does.
    #[error("file ends early: {what} at offset {offset} is cut off")]
    Truncated {
        /// The part that is cut off.
        what: &'static str,
        /// Where that part starts.
        offset: u64,
    },
    /// There is more than the file says.
    #[error("{len} bytes behind the end of the frame at offset {offset}")]
    TrailingData {
        /// Where the frame ends.
        offset: u64,
        /// Bytes behind it.
        len: u64,
    },
    /// A size is larger than this version allows.
    #[error("{what} of {found} at offset {offset} is above the limit of {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// Its size in the file.
        found: u64,
        /// The largest size allowed.
        limit: u64,
        /// Where it stands.
        offset: u64,
    },
    /// The bytes contradict themselves.
    #[error("damaged at offset {offset}: {what}")]
    Corrupt {
        /// The rule that is broken.
        what: &'static str,
        /// Where.
        offset: u64,
    },
    /// An entry of a container's index breaks a rule.
    #[error("entry {entry_idx} `{name}` of the index at offset {offset}: {what}")]
    Entry {
        /// Number of the entry.
        entry_idx: u64,
        /// Its name, as far as a message can carry it; empty before it is known, and for glue.
        name: String,
        /// The rule that is broken.
        what: &'static str,
        /// Where the index starts.
        offset: u64,
    },
    /// The checksum of the header or of the trailer is wrong.
    #[error(
        "{what} at offset {offset} is damaged: checksum expected `{expected:016x}`, found `{actual:016x}`"
    )]
    Checksum {
        /// The damaged part.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// Checksum in the file.
        expected: u64,
        /// Checksum of the bytes.
        actual: u64,
    },
    /// The tables that the blocks share do not decode.
    #[error("shared tables at offset {offset}: {source}")]
    Shared {
        /// Where they start.
        offset: u64,
        /// What is wrong with them.
        source: CodecError,
    },
    /// A block does not decode.
    #[error("block {block_idx} at offset {offset}: {source}")]
    Block {
        /// Number of the block.
        block_idx: u64,
        /// Where it starts.
        offset: u64,
        /// What is wrong with it.
        source: CodecError,
    },
    /// A block decodes to other bytes than were encoded.
    #[error(
        "block {block_idx} at offset {offset} is damaged: checksum expected `{expected:016x}`, found `{actual:016x}`"
    )]
    BlockChecksum {
        /// Number of the block.
        block_idx: u64,
        /// Where it starts.
        offset: u64,
        /// Checksum in the file.
        expected: u64,
        /// Checksum of the decoded bytes.
        actual: u64,
    },
    /// A foreign header breaks its own rules.
    #[error("not a valid {format} file: {reason}")]
    Foreign {
        /// Which format.
        format: &'static str,
        /// Which rule.
        reason: String,
    },
}

/// Why a source could not be read: the system, or the bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The bytes are at fault.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl FormatError {
    /// The same fault, counted from the start of a file in which the damaged part starts at this offset.
    #[must_use]
    pub(crate) fn within(mut self, start: u64) -> Self {
        match &mut self {
            Self::Unknown { offset, .. }
            | Self::Truncated { offset, .. }
            | Self::TrailingData { offset, .. }
            | Self::Limit { offset, .. }
            | Self::Corrupt { offset, .. }
            | Self::Checksum { offset, .. }
            | Self::Shared { offset, .. }
            | Self::Block { offset, .. }
            | Self::BlockChecksum { offset, .. } => *offset += start,
            _ => {}
        }
        self
    }
}
