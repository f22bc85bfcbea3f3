//! What went wrong with a checkpoint.

use crate::storage::{StorageError, StorageErrorKind};
use crate::{Dtype, Error, ErrorKind};
use mithril_format::Digest;

/// Any failure of a checkpoint store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A manifest or a data object is not what the format says.
    #[error("invalid checkpoint format: {what}")]
    InvalidFormat {
        /// Which object, and which rule it breaks.
        what: String,
    },
    /// An object was written by a later version.
    #[error("manifest of `{key}` has version {found}, this build reads version {supported}")]
    UnsupportedVersion {
        /// Key of the checkpoint.
        key: String,
        /// Version that was found.
        found: u64,
        /// Version that can be read.
        supported: u64,
    },
    /// Bytes are not those that were written.
    #[error("checksum mismatch in `{object}`: expected {expected}, found {actual}")]
    ChecksumMismatch {
        /// The object.
        object: String,
        /// Digest that was recorded.
        expected: Digest,
        /// Digest of what is there.
        actual: Digest,
    },
    /// The checkpoint that a new one was to be stored against does not exist.
    #[error("there is no checkpoint `{key}` to store `{needed_by}` against")]
    MissingPrevious {
        /// The missing one.
        key: String,
        /// The one that was to be saved.
        needed_by: String,
    },
    /// A data object that a checkpoint is stored against is gone.
    #[error(
        "checkpoint `{needed_by}` needs `{object}` of checkpoint `{base_key}` (digest {digest}), which is missing"
    )]
    MissingBase {
        /// The checkpoint that cannot be restored.
        needed_by: String,
        /// Key under which the missing one was saved.
        base_key: String,
        /// The missing object.
        object: String,
        /// Digest of the container that is missing.
        digest: Digest,
    },
    /// A data object is another one than the checkpoint was stored against.
    #[error("`{object}` is not what `{needed_by}` was stored against: expected {expected}, found {actual}")]
    BaseMismatch {
        /// The checkpoint.
        needed_by: String,
        /// The object that was found.
        object: String,
        /// Digest of the container that is wanted.
        expected: Digest,
        /// Digest of the container that is there.
        actual: Digest,
    },
    /// A checkpoint has no such tensor, or the store no such checkpoint.
    #[error("{what}")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// There is no store at a place: nothing was ever saved there.
    #[error("there is no store at `{location}`: it has neither a manifest nor `latest.json`")]
    NoStore {
        /// The place.
        location: String,
    },
    /// Another writer committed this key first, or it exists already.
    #[error("checkpoint `{key}` exists already: nothing was changed")]
    Conflict {
        /// The key.
        key: String,
    },
    /// Another writer replaced or deleted a checkpoint while it was rebased or deleted.
    #[error("checkpoint `{key}` was changed by another process at the same time: nothing was done")]
    Changed {
        /// The key.
        key: String,
    },
    /// What the checkpoint is stored against was removed while it was saved.
    #[error("checkpoint `{key}` was not saved: `{object}`, which it needs, was removed at the same time")]
    Collected {
        /// The key.
        key: String,
        /// The object that went away.
        object: String,
    },
    /// A key or a name of a tensor that cannot be one.
    #[error("`{name}` is no safe name: {reason}")]
    UnsafeName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// A dtype that checkpoints cannot hold.
    #[error("tensor `{name}`: unsupported dtype {}", dtype.name())]
    UnsupportedDtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: Dtype,
    },
    /// A shape that does not describe the bytes, or not those of the caller's buffer.
    #[error("tensor `{name}`: shape mismatch: expected {expected:?}, found {actual:?}")]
    ShapeMismatch {
        /// The tensor.
        name: String,
        /// Shape that was expected.
        expected: Vec<u64>,
        /// Shape that was found.
        actual: Vec<u64>,
    },
    /// The save was given up before it was committed: its deadline passed.
    #[error("checkpoint `{key}` was not saved: it was given up before it was committed")]
    Abandoned {
        /// The key.
        key: String,
    },
    /// Compressing or decompressing failed.
    #[error("checkpoint `{key}`: {source}")]
    Compression {
        /// The checkpoint.
        key: String,
        /// What failed, and in which tensor.
        source: Error,
    },
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The thread that did the work panicked.
    #[error("checkpoint `{key}`: the worker panicked: {message}")]
    Panicked {
        /// The checkpoint.
        key: String,
        /// What it said.
        message: String,
    },
}

impl CheckpointError {
    /// Who is at fault.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidFormat { .. } | Self::ChecksumMismatch { .. } => ErrorKind::Corrupt,
            Self::UnsupportedVersion { .. } => ErrorKind::Unsupported,
            Self::MissingPrevious { .. } | Self::NotFound { .. } | Self::NoStore { .. } => {
                ErrorKind::NotFound
            }
            Self::MissingBase { .. } | Self::BaseMismatch { .. } => ErrorKind::Base,
            Self::Conflict { .. } | Self::Changed { .. } | Self::Collected { .. } => ErrorKind::Conflict,
            Self::UnsafeName { .. } | Self::UnsupportedDtype { .. } | Self::ShapeMismatch { .. } => {
                ErrorKind::InvalidArgument
            }
            Self::Abandoned { .. } | Self::Panicked { .. } => ErrorKind::Io,
            Self::Compression { source, .. } => source.kind(),
            Self::Storage(error) => match error.kind() {
                StorageErrorKind::NotFound => ErrorKind::NotFound,
                StorageErrorKind::AlreadyExists | StorageErrorKind::Changed => ErrorKind::Conflict,
                StorageErrorKind::InvalidArgument => ErrorKind::InvalidArgument,
                StorageErrorKind::Unsupported => ErrorKind::Unsupported,
                StorageErrorKind::TooLarge => ErrorKind::TooLarge,
                _ => ErrorKind::Io,
            },
        }
    }

    /// The object that was not there: what a reader sees when another process deletes a checkpoint.
    pub(super) fn missing_object(&self) -> Option<String> {
        let missing = |error: &StorageError| {
            (error.kind() == StorageErrorKind::NotFound).then(|| error.key().to_owned())
        };
        match self {
            Self::MissingBase { object, .. } => Some(object.clone()),
            Self::Storage(error) => missing(error),
            Self::Compression { source, .. } => storage_error(source).and_then(missing),
            _ => None,
        }
    }

    pub(super) fn no_checkpoint(key: &str) -> Self {
        Self::NotFound { what: format!("there is no checkpoint `{}`", key.escape_debug()) }
    }
}

fn storage_error(error: &Error) -> Option<&StorageError> {
    match error {
        Error::Io { source, .. } => StorageError::in_io(source),
        Error::Tensor { source, .. } => storage_error(source),
        _ => None,
    }
}

/// Says which checkpoint an error of the codec is about; errors of the storage say it themselves.
pub(super) fn about(key: &str) -> impl Fn(Error) -> CheckpointError {
    move |source| match source {
        Error::Io { source: error, .. }
            if error.get_ref().is_some_and(|inner| inner.is::<StorageError>()) =>
        {
            let inner = error.into_inner().and_then(|inner| inner.downcast::<StorageError>().ok());
            CheckpointError::Storage(*inner.expect("looked at above"))
        }
        source => CheckpointError::Compression { key: key.to_owned(), source },
    }
}
