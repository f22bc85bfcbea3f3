//! What went wrong, and whose fault it is.

use mithril_format::FormatError;

/// Any failure of this library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no intact frame.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An argument contradicts the data or the other arguments.
    #[error("{what}")]
    InvalidArgument {
        /// Which rule it breaks.
        what: String,
    },
    /// The content is larger than the caller allows.
    #[error("frame holds {raw_len} bytes, which is above the limit of {limit}")]
    TooLarge {
        /// Raw bytes of the frame.
        raw_len: u64,
        /// The caller's limit.
        limit: u64,
    },
    /// Reading or writing failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and to which file.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Who is at fault, and what a caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes are damaged: fetch them again.
    Corrupt,
    /// The bytes end early: fetch the rest.
    Truncated,
    /// Written by a later version, or with a compressor that this build lacks: update.
    Unsupported,
    /// The caller's arguments are at fault.
    InvalidArgument,
    /// The content exceeds the caller's limit: raise it, or decode into a buffer of the right size.
    TooLarge,
    /// The system refused: see the reason.
    Io,
}

impl Error {
    /// Who is at fault.
    pub fn kind(&self) -> ErrorKind {
        use mithril_codec::CodecError;
        match self {
            Self::InvalidArgument { .. } => ErrorKind::InvalidArgument,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Io { .. } => ErrorKind::Io,
            Self::Format(error) => match error {
                FormatError::Truncated { .. }
                | FormatError::Shared { source: CodecError::Truncated { .. }, .. }
                | FormatError::Block { source: CodecError::Truncated { .. }, .. } => ErrorKind::Truncated,
                FormatError::UnsupportedVersion { .. }
                | FormatError::Unknown { .. }
                | FormatError::Shared { source: CodecError::Unsupported { .. }, .. }
                | FormatError::Block { source: CodecError::Unsupported { .. }, .. } => ErrorKind::Unsupported,
                _ => ErrorKind::Corrupt,
            },
        }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::InvalidArgument { what: what.into() }
    }

    /// An I/O failure with what was being done.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}
