//! Where checkpoint stores keep their objects: a directory, memory, or an object store behind a URL.
//!
//! A backend keeps objects under keys. It writes them whole or not at all, never changes one that is there, and
//! acknowledges only what is safe: on a local disk, what was synced with its directory. [`open`] makes one from a URL:
//!
//! | URL | backend |
//! |---|---|
//! | `local:///path`, `file:///path`, or a plain path | a directory |
//! | `memory://` | memory of this process, gone with it |
//! | `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` | an object store; credentials come from the environment |
//! | `http://host/prefix`, `https://host/prefix` | a web server, read-only |
//!
//! ```
//! use mithril::storage;
//! let backend = storage::open("memory://")?;
//! backend.put_new("greeting", b"hello")?;
//! assert_eq!(backend.get("greeting", 100)?, b"hello");
//! # Ok::<(), storage::StorageError>(())
//! ```

#[cfg(feature = "cloud")]
mod cloud;
mod error;
mod local;
mod memory;
mod redact;
mod url;

pub use error::{StorageError, StorageErrorKind};
pub use local::LocalStorage;
pub use memory::MemoryStorage;
pub use redact::without_secrets_of_urls;
pub use url::{StorageOptions, open, open_with};

use mithril_format::ReadAt;
use std::fmt;
use std::io::Write;
use std::time::{Duration, SystemTime};

/// Objects under keys.
///
/// A key is one or more names with `/` between them, each of letters, digits, `.`, `_`, `-` and `~`, and not starting
/// with a dot; it has at most 1024 bytes, as object stores have it. Calls block; they may come from several threads.
pub trait StorageBackend: fmt::Debug + Send + Sync {
    /// How messages call it: its URL, without secrets.
    fn location(&self) -> &str;

    /// Starts a new object, which appears when its writer finishes.
    ///
    /// # Errors
    /// When the system refuses.
    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError>;

    /// Makes a small object, unless there is one of this key. Of several callers at the same time, one succeeds.
    ///
    /// # Errors
    /// `AlreadyExists`, or the system's reason.
    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError>;

    /// Makes sure that [`StorageBackend::put_new`] keeps its promise: there are servers that ignore the condition.
    ///
    /// # Errors
    /// `Unsupported` when the promise does not hold, or the system's reason.
    fn check_put_new(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Whether a list may lack what was written a moment ago, as those of some servers do.
    fn lists_may_lag(&self) -> bool {
        false
    }

    /// Makes or replaces a small object. Readers see the old or the new one.
    ///
    /// # Errors
    /// When the system refuses.
    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError>;

    /// Puts a small object in the place of one that still has these bytes, or removes that one: of several callers that
    /// read the same, one succeeds. A storage that cannot compare and write in one step does it in two.
    ///
    /// # Errors
    /// `Changed` when the object has other bytes by now, or is gone: it stays as it is. Or the system's reason.
    fn exchange(&self, key: &str, before: &[u8], after: Option<&[u8]>) -> Result<(), StorageError> {
        exchange_in_two_steps(self, key, before, after)
    }

    /// Makes a small object that says what its maker is doing, as long as the maker lives. What is returned keeps it alive,
    /// where the storage can tell.
    ///
    /// # Errors
    /// As [`StorageBackend::put_new`].
    fn put_mark(&self, key: &str, bytes: &[u8]) -> Result<Option<Box<dyn Send>>, StorageError> {
        self.put_new(key, bytes).map(|()| None)
    }

    /// Removes a mark whose maker is gone: where the storage cannot tell, one that is older than [`MARK_AGE`]. Returns whether
    /// it is removed.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove_dead_mark(&self, mark: &ObjectInfo) -> Result<bool, StorageError> {
        let is_old = mark.age().is_some_and(|age| age >= MARK_AGE);
        if is_old {
            self.delete(&mark.key)?;
        }
        Ok(is_old)
    }

    /// A small object: at most `max_len` bytes.
    ///
    /// # Errors
    /// `NotFound`, `TooLarge`, or the system's reason.
    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError>;

    /// Opens an object, of which any range is then read.
    ///
    /// # Errors
    /// `NotFound`, or the system's reason.
    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError>;

    /// The objects whose keys start with `directory` and a `/`, in the order of their keys; all for an empty one.
    ///
    /// # Errors
    /// When the system refuses. A directory that does not exist is empty.
    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError>;

    /// Removes an object; one that is not there is removed already.
    ///
    /// # Errors
    /// When the system refuses.
    fn delete(&self, key: &str) -> Result<(), StorageError>;

    /// Makes sure that what a list of a directory shows stays so after a power cut.
    ///
    /// # Errors
    /// When the system refuses.
    fn sync(&self, _directory: &str) -> Result<(), StorageError> {
        Ok(())
    }

    /// Removes what writers that were killed left in some directories, not below them, and [`StorageBackend::list`] does not
    /// show: only what is older than `min_age`, as a writer at work may be one of another machine. Returns its bytes, as far
    /// as they are known.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError>;
}

/// An object that is being written. Dropped before it is finished, it leaves nothing.
pub trait ObjectWriter: Write + Send {
    /// Makes the object visible, and safe.
    ///
    /// # Errors
    /// `AlreadyExists` when another of this key came first, or the system's reason. There is no object then.
    fn finish(self: Box<Self>) -> Result<(), StorageError>;
}

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub len: u64,
    /// When it was written, by the clock of the storage.
    pub modified: Option<SystemTime>,
}

impl ObjectInfo {
    /// An object of this key and length.
    pub fn new(key: impl Into<String>, len: u64, modified: Option<SystemTime>) -> Self {
        Self { key: key.into(), len, modified }
    }

    /// How long ago it was written; nothing if the clock says later than now.
    pub fn age(&self) -> Option<Duration> {
        self.modified.and_then(|modified| SystemTime::now().duration_since(modified).ok())
    }
}

/// How long a mark counts whose maker cannot be asked.
pub const MARK_AGE: Duration = Duration::from_secs(3600);

/// Compares, then writes. Another writer must be kept away in between.
fn exchange_in_two_steps<S: StorageBackend + ?Sized>(
    storage: &S,
    key: &str,
    before: &[u8],
    after: Option<&[u8]>,
) -> Result<(), StorageError> {
    match storage.get(key, before.len() as u64) {
        Ok(there) if there == before => {}
        Err(error) if !matches!(error.kind(), StorageErrorKind::NotFound | StorageErrorKind::TooLarge) => {
            return Err(error);
        }
        _ => return Err(changed(key, storage.location())),
    }
    match after {
        Some(after) => storage.replace(key, after),
        None => storage.delete(key),
    }
}

/// Another writer was faster.
fn changed(key: &str, location: &str) -> StorageError {
    let reason = "another writer changed it at the same time";
    StorageError::new(StorageErrorKind::Changed, "change", key, location, reason)
}

/// Bytes of a key at most.
const MAX_KEY_LEN: usize = 1024;

/// Whether a text can be a key.
pub fn is_key(key: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-~".contains(&byte);
    let is_name = |name: &str| {
        !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && name.bytes().all(is_plain)
    };
    key.len() <= MAX_KEY_LEN && key.split('/').all(is_name)
}
