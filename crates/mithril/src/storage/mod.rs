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
