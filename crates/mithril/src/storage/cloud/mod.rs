//! Objects in S3, Google Cloud Storage, Azure, or behind a web server.
//!
//! The clients are those of `object_store`, which retry what can be retried. They need a runtime, which lives beside
//! the callers' threads: a call hands its work over and waits.

mod client;
mod runtime;
mod upload;

use super::memory::{no_key, too_large};
use super::{
    ObjectInfo, ObjectWriter, StorageBackend, StorageError, StorageErrorKind, StorageOptions, is_key,
};
use client::Client;
use futures_util::TryStreamExt;
use mithril_format::ReadAt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::io;
use upload::Upload;

/// A prefix in an object store.
#[derive(Debug)]
pub(super) struct CloudStorage {
    client: Client,
}

impl CloudStorage {
    /// The prefix that a URL names.
    ///
    /// # Errors
    /// When the URL or a setting is wrong, or credentials are missing.
    pub(super) fn open(url: &str, options: &StorageOptions) -> Result<Self, StorageError> {
        Ok(Self { client: Client::new(url, options)? })
    }

    fn path(&self, operation: &'static str, key: &str) -> Result<Path, StorageError> {
        if !is_key(key) {
            return Err(no_key(operation, key, self.client.location()));
        }
        Ok(self.client.path(key))
    }

    fn put(
        &self,
        operation: &'static str,
        key: &str,
        bytes: &[u8],
        mode: PutMode,
    ) -> Result<(), StorageError> {
        let path = self.path(operation, key)?;
        let payload = PutPayload::from(bytes.to_vec());
        let put = move |store: client::Store| async move {
            store.put_opts(&path, payload, PutOptions::from(mode)).await
        };
        self.client.run(operation, key, put).map(|_| ())
    }
}

impl StorageBackend for CloudStorage {
    fn location(&self) -> &str {
        self.client.location()
    }

    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError> {
        let path = self.path("create", key)?;
        Ok(Box::new(Upload::new(self.client.clone(), key, path)))
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        match self.put("create", key, bytes, PutMode::Create) {
            // A first attempt may have succeeded although its answer was lost.
            Err(error)
                if error.kind() == StorageErrorKind::AlreadyExists
                    && self.get(key, bytes.len() as u64).is_ok_and(|there| there == bytes) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.put("replace", key, bytes, PutMode::Overwrite)
    }

    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        let path = self.path("read", key)?;
        let get = move |store: client::Store| async move {
            let found = store.get(&path).await?;
            let len = found.meta.size;
            // More than is allowed is not fetched.
            let bytes = if len <= max_len { Some(found.bytes().await?) } else { None };
            Ok((len, bytes))
        };
        match self.client.run("read", key, get)? {
            (_, Some(bytes)) => Ok(bytes.into()),
            (len, None) => Err(too_large(key, self.location(), len, max_len)),
        }
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        let path = self.path("open", key)?;
        let head = path.clone();
        let found = self.client.run("open", key, move |store| async move { store.head(&head).await })?;
        Ok(Box::new(RemoteObject { client: self.client.clone(), key: key.to_owned(), path, len: found.size }))
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        let path = self.path("list", directory)?;
        let list =
            move |store: client::Store| async move { store.list(Some(&path)).try_collect::<Vec<_>>().await };
        let found = self.client.run("list", directory, list)?;
        let objects = found.into_iter().filter_map(|object| {
            let key = self.client.key(&object.location)?;
            Some(ObjectInfo::new(key, object.size, Some(object.last_modified.into())))
        });
        let mut objects: Vec<_> = objects.collect();
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    fn delete(&self, key: &str) -> Result<(), StorageError> {
        let path = self.path("delete", key)?;
        match self.client.run("delete", key, move |store| async move { store.delete(&path).await }) {
            Err(error) if error.kind() == StorageErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Uploads that were never completed are not listed by this interface: a rule of the bucket removes them.
    fn remove_leftovers(&self) -> Result<u64, StorageError> {
        Ok(0)
    }
}

/// An object of which ranges are read.
#[derive(Debug)]
struct RemoteObject {
    client: Client,
    key: String,
    path: Path,
    len: u64,
}

impl ReadAt for RemoteObject {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= self.len);
        let range = offset..end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let path = self.path.clone();
        let get = move |store: client::Store| async move {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            store.get_opts(&path, options).await?.bytes().await
        };
        let bytes = self.client.run("read", &self.key, get).map_err(StorageError::into_io)?;
        if bytes.len() != out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }
}
