//! Objects in the memory of this process.

use super::{ObjectInfo, ObjectWriter, StorageBackend, StorageError, StorageErrorKind, changed, is_key};
use bytes::Bytes;
use mithril_format::ReadAt;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Objects in memory. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MemoryStorage {
    objects: Arc<Mutex<Objects>>,
}

type Objects = BTreeMap<String, (Bytes, SystemTime)>;

const LOCATION: &str = "memory://";

impl MemoryStorage {
    /// An empty storage.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(
        &self,
        operation: &'static str,
        key: &str,
        bytes: Bytes,
        replace: bool,
    ) -> Result<(), StorageError> {
        check_key(operation, key)?;
        let mut objects = self.lock();
        if !replace && objects.contains_key(key) {
            return Err(error(operation, key, io::ErrorKind::AlreadyExists.into()));
        }
        objects.insert(key.to_owned(), (bytes, SystemTime::now()));
        Ok(())
    }

    fn bytes(&self, key: &str) -> Result<Bytes, StorageError> {
        let found = self.lock().get(key).map(|(bytes, _)| bytes.clone());
        found.ok_or_else(|| error("read", key, io::ErrorKind::NotFound.into()))
    }
}

impl StorageBackend for MemoryStorage {
    fn location(&self) -> &str {
        LOCATION
    }

    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError> {
        check_key("create", key)?;
        Ok(Box::new(MemoryWriter { storage: self.clone(), key: key.to_owned(), bytes: Vec::new() }))
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.insert("create", key, Bytes::copy_from_slice(bytes), false)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.insert("replace", key, Bytes::copy_from_slice(bytes), true)
    }

    fn exchange(&self, key: &str, before: &[u8], after: Option<&[u8]>) -> Result<(), StorageError> {
        check_key("change", key)?;
        let mut objects = self.lock();
        if objects.get(key).is_none_or(|(there, _)| there != before) {
            return Err(changed(key, LOCATION));
        }
        match after {
            Some(after) => {
                drop(objects.insert(key.to_owned(), (Bytes::copy_from_slice(after), SystemTime::now())))
            }
            None => drop(objects.remove(key)),
        }
        Ok(())
    }

    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        let bytes = self.bytes(key)?;
        if bytes.len() as u64 > max_len {
            return Err(too_large(key, LOCATION, bytes.len() as u64, max_len));
        }
        Ok(bytes.to_vec())
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        Ok(Box::new(SharedBytes(self.bytes(key)?)))
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let objects = self.lock();
        let listed = objects.iter().filter(|(key, _)| key.starts_with(&prefix));
        Ok(listed
            .map(|(key, (bytes, modified))| ObjectInfo::new(key, bytes.len() as u64, Some(*modified)))
            .collect())
    }

    fn delete(&self, key: &str) -> Result<(), StorageError> {
        self.lock().remove(key);
        Ok(())
    }

    fn remove_leftovers(&self, _: &[&str], _: Duration) -> Result<u64, StorageError> {
        Ok(0)
    }
}

struct MemoryWriter {
    storage: MemoryStorage,
    key: String,
    bytes: Vec<u8>,
}

impl Write for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectWriter for MemoryWriter {
    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        self.storage.insert("create", &self.key, self.bytes.into(), false)
    }
}

/// An object that stays readable when it is removed.
#[derive(Debug)]
struct SharedBytes(Bytes);

impl ReadAt for SharedBytes {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.as_ref().read_exact_at(offset, out)
    }

    fn slice(&self, range: std::ops::Range<u64>) -> Option<&[u8]> {
        self.0.as_ref().slice(range)
    }
}

fn check_key(operation: &'static str, key: &str) -> Result<(), StorageError> {
    if is_key(key) { Ok(()) } else { Err(no_key(operation, key, LOCATION)) }
}

fn error(operation: &'static str, key: &str, error: io::Error) -> StorageError {
    StorageError::io(operation, key, LOCATION, error)
}

/// A text that can be no key.
pub(super) fn no_key(operation: &'static str, key: &str, location: &str) -> StorageError {
    let key = key.escape_debug().to_string();
    StorageError::new(StorageErrorKind::InvalidArgument, operation, key, location, "it is no possible key")
}

/// An object that is longer than it may be.
pub(super) fn too_large(key: &str, location: &str, len: u64, max_len: u64) -> StorageError {
    let reason = format!("it has {len} bytes, {max_len} are allowed");
    StorageError::new(StorageErrorKind::TooLarge, "read", key, location, reason)
}
