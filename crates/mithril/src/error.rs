//! What went wrong, and whose fault it is.

use crate::dictionary::DictionaryError;
use mithril_format::{Digest, FormatError, ReadError};
use std::path::{Path, PathBuf};

/// What was being done when a source could not be read.
const CANNOT_READ: &str = "cannot read";

/// What was being done when something could not be written.
const CANNOT_WRITE: &str = "cannot write";

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
    #[error("the output has {raw_len} bytes, which is above the limit of {limit}")]
    TooLarge {
        /// Raw bytes of the frame.
        raw_len: u64,
        /// The caller's limit.
        limit: u64,
    },
    /// A tensor of a larger file is at fault.
    #[error("tensor `{name}`: {source}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A file beside the one that is worked on is at fault, such as a base.
    #[error("`{name}`: {source}")]
    Model {
        /// Its path.
        name: String,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// It changed while others were stored by what it held.
    #[error("it changed while it was saved, and other tensors are stored by what it held: save again")]
    Changed,
    /// There is no such tensor or file.
    #[error("{what}")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// No base has the bytes that a tensor was stored against.
    #[error("its base tensor `{name}` with digest {digest} is missing: {reason}")]
    MissingBase {
        /// What the base calls it.
        name: String,
        /// Digest of its bytes.
        digest: Digest,
        /// What was found instead.
        reason: String,
    },
    /// A file is stored against a model that was not found.
    #[error("needs base {}: {n_tensors} of its tensors are stored against it, and {n_missing} cannot be restored; {first}", names(.models))]
    MissingModel {
        /// What the file calls the models that it was made against.
        models: Vec<String>,
        /// Tensors that are stored against a base.
        n_tensors: usize,
        /// Those of them whose base was not found.
        n_missing: usize,
        /// Why the first of them cannot be restored.
        first: Box<Error>,
    },
    /// The frame was made with a base that is not given, or with another one.
    #[error("{}", describe_base(expected, actual.as_ref()))]
    BaseMismatch {
        /// Digest of the base that the frame was made with.
        expected: Digest,
        /// Digest of the base that was given, if one was.
        actual: Option<Digest>,
    },
    /// A dictionary, its samples or records compressed with it are at fault.
    #[error(transparent)]
    Dictionary(#[from] DictionaryError),
    /// Reading or writing failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and to which file.
        what: String,
        /// That file, where there is one.
        path: Option<PathBuf>,
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
    /// There is no such thing: see its name.
    NotFound,
    /// The base or dictionary is missing, or is another one than the data was stored against.
    Base,
    /// Another writer came first, or what was to be made exists already.
    Conflict,
}

impl Error {
    /// Who is at fault.
    pub fn kind(&self) -> ErrorKind {
        use mithril_codec::CodecError;
        match self {
            Self::InvalidArgument { .. } | Self::Changed => ErrorKind::InvalidArgument,
            Self::Dictionary(error) => error.kind(),
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Io { .. } => ErrorKind::Io,
            Self::Tensor { source, .. } | Self::Model { source, .. } => source.kind(),
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::MissingBase { .. } | Self::MissingModel { .. } | Self::BaseMismatch { .. } => {
                ErrorKind::Base
            }
            Self::Format(error) => match error {
                FormatError::Truncated { .. }
                | FormatError::NoFooter { .. }
                | FormatError::Section { source: CodecError::Truncated { .. }, .. }
                | FormatError::Shared { source: CodecError::Truncated { .. }, .. }
                | FormatError::Block { source: CodecError::Truncated { .. }, .. } => ErrorKind::Truncated,
                FormatError::UnsupportedVersion { .. }
                | FormatError::Unknown { .. }
                | FormatError::Section { source: CodecError::Unsupported { .. }, .. }
                | FormatError::Shared { source: CodecError::Unsupported { .. }, .. }
                | FormatError::Block { source: CodecError::Unsupported { .. }, .. } => ErrorKind::Unsupported,
                _ => ErrorKind::Corrupt,
            },
        }
    }

    /// Whether a base was not found that a tensor needs, so that nothing can be said of the tensor.
    pub fn is_missing_base(&self) -> bool {
        match self {
            Self::MissingBase { .. } | Self::MissingModel { .. } => true,
            Self::Tensor { source, .. } | Self::Model { source, .. } => source.is_missing_base(),
            _ => false,
        }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::InvalidArgument { what: what.into() }
    }

    /// Says which tensor the failure is about.
    #[must_use]
    pub fn in_tensor(self, name: &str) -> Self {
        match self {
            // Reading and writing fail because of the file, not because of the tensor.
            Self::Io { .. } | Self::Tensor { .. } => self,
            _ => Self::Tensor { name: name.to_owned(), source: Box::new(self) },
        }
    }

    /// Says which file the failure is about: reading failures are about the input, writing failures about the output,
    /// all others about what the input holds.
    #[must_use]
    pub(crate) fn about(self, input: &Path, output: &Path) -> Self {
        match self {
            Self::Io { what, source, .. } if what == CANNOT_READ => Self::cannot_read(input, source),
            Self::Io { what, source, .. } if what == CANNOT_WRITE => Self::cannot_write(output, source),
            error => error,
        }
    }

    /// Reading a file failed.
    pub(crate) fn cannot_read(path: &Path, source: std::io::Error) -> Self {
        Self::io_at(CANNOT_READ, path, source)
    }

    /// Writing a file failed.
    pub(crate) fn cannot_write(path: &Path, source: std::io::Error) -> Self {
        Self::io_at(CANNOT_WRITE, path, source)
    }

    /// Reading a source failed, whose name is not known here.
    pub(crate) fn reading(source: std::io::Error) -> Self {
        Self::io(CANNOT_READ, source)
    }

    /// Writing failed, to something whose name is not known here.
    pub(crate) fn writing(source: std::io::Error) -> Self {
        Self::io(CANNOT_WRITE, source)
    }

    /// The system gave no memory for so many bytes.
    pub(crate) fn allocating(len: usize, source: std::io::Error) -> Self {
        Self::io(format!("cannot take {len} bytes of memory"), source)
    }

    /// The system gave no thread.
    pub(crate) fn starting(source: std::io::Error) -> Self {
        Self::io("cannot start a thread", source)
    }

    /// An I/O failure with what was being done.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), path: None, source }
    }

    /// An I/O failure with what was being done to a file.
    pub fn io_at(what: &str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { what: format!("{what} `{}`", path.display()), path: Some(path.to_owned()), source }
    }
}

fn names(models: &[String]) -> String {
    match models {
        [] => "whose name it does not know".to_owned(),
        models => models.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or "),
    }
}

fn describe_base(expected: &Digest, actual: Option<&Digest>) -> String {
    match actual {
        Some(actual) => format!("base does not match: frame wants `{expected}`, base is `{actual}`"),
        None => format!("frame needs its base, whose digest is `{expected}`"),
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(source) => Self::reading(source),
            ReadError::Format(error) => Self::Format(error),
            error => Self::reading(std::io::Error::other(error)),
        }
    }
}
