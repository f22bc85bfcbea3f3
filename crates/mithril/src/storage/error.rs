//! What a storage backend could not do, to which object, and why.

use std::fmt;
use std::io;

/// A failed operation on a storage backend.
#[derive(Debug)]
pub struct StorageError {
    kind: StorageErrorKind,
    operation: &'static str,
    key: String,
    location: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageErrorKind {
    /// There is no such object.
    NotFound,
    /// There is an object of this key already.
    AlreadyExists,
    /// The object is not what the caller has read any more.
    Changed,
    /// The object is longer than the caller allows.
    TooLarge,
    /// Credentials or permissions are missing.
    PermissionDenied,
    /// There is no room left.
    NoSpace,
    /// The backend cannot do this: it is read-only, or the URL is of a kind that this build does not know.
    Unsupported,
    /// The key or the URL breaks a rule.
    InvalidArgument,
    /// The system or the network failed, after all retries.
    Failed,
}

impl StorageError {
    /// An operation failed: what was done, to which key, where, and why.
    pub fn new(
        kind: StorageErrorKind,
        operation: &'static str,
        key: impl Into<String>,
        location: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, operation, key: key.into(), location: location.into(), source: source.into() }
    }

    /// An operation that the system refused.
    pub fn io(operation: &'static str, key: &str, location: &str, error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => StorageErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => StorageErrorKind::AlreadyExists,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StorageErrorKind::PermissionDenied
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StorageErrorKind::NoSpace,
            _ => StorageErrorKind::Failed,
        };
        Self::new(kind, operation, key, location, error)
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> StorageErrorKind {
        self.kind
    }

    /// What was being done: `create`, `write`, `read`, `list`, `delete` and so on.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The object's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The storage error inside of an I/O error, if there is one.
    pub fn in_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// As an I/O error, for interfaces that know no other.
    pub fn into_io(self) -> io::Error {
        let kind = match self.kind {
            StorageErrorKind::NotFound => io::ErrorKind::NotFound,
            StorageErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            StorageErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            StorageErrorKind::NoSpace => io::ErrorKind::StorageFull,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => write!(f, "cannot {} `{}`: {}", self.operation, self.location, self.source)?,
            key => write!(f, "cannot {} `{key}` in `{}`: {}", self.operation, self.location, self.source)?,
        }
        // The last cause is often the one that helps.
        let mut cause = self.source.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for StorageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
