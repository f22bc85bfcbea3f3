//! Objects in S3, Google Cloud Storage, Azure, or behind a web server.
//!
//! The clients are those of `object_store`, which retry what can be retried. They need a runtime, which lives beside
//! the callers' threads: a call hands its work over and waits.

mod client;
mod read_ahead;
mod record;
mod runtime;
mod secrets;
mod upload;

use super::memory::{no_key, too_large};
use super::{
    ObjectInfo, ObjectWriter, StorageBackend, StorageError, StorageErrorKind, StorageOptions, changed, is_key,
};
use bytes::Bytes;
use client::Client;
use futures_util::TryStreamExt;
use mithril_format::ReadAt;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use read_ahead::ReadAhead;
use std::io;
use std::time::Duration;
use upload::Upload;

/// The object that tells whether the server makes objects only on the condition that they do not exist.
const PROBE: &str = "conditional";

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
}

fn put(
    client: &Client,
    operation: &'static str,
    key: &str,
    payload: PutPayload,
    mode: PutMode,
) -> Result<(), StorageError> {
    let path = client.path(key);
    let put = move |store: client::Store| async move {
        store.put_opts(&path, payload, PutOptions::from(mode)).await
    };
    client.run(operation, key, put).map(|_| ())
}

/// Makes an object, unless there is one of this key.
fn put_new(client: &Client, key: &str, bytes: Bytes) -> Result<(), StorageError> {
    match put(client, "create", key, PutPayload::from(bytes.clone()), PutMode::Create) {
        // A first attempt may have succeeded although its answer was lost.
        Err(error) if error.kind() == StorageErrorKind::AlreadyExists && get_is(client, key, &bytes) => {
            Ok(())
        }
        result => result,
    }
}

fn get(client: &Client, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
    let path = client.path(key);
    let get = move |store: client::Store| async move {
        let found = store.get(&path).await?;
        let len = found.meta.size;
        // More than is allowed is not fetched.
        let bytes = if len <= max_len { collect(found, len).await? } else { None };
        Ok((len, bytes))
    };
    match client.run("read", key, get)? {
        (_, Some(bytes)) => Ok(bytes),
        (len, None) => Err(too_large(key, client.location(), len, max_len)),
    }
}

/// Whether an object has these bytes.
fn get_is(client: &Client, key: &str, bytes: &[u8]) -> bool {
    get(client, key, bytes.len() as u64).is_ok_and(|there| there == bytes)
}

/// The bytes of an answer; nothing if there are more than were announced or asked for. Those are not kept in memory.
async fn collect(found: GetResult, max_len: u64) -> object_store::Result<Option<Vec<u8>>> {
    let mut pieces = found.into_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.try_next().await? {
        if (bytes.len() + piece.len()) as u64 > max_len {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

fn delete(client: &Client, key: &str) -> Result<(), StorageError> {
    let path = client.path(key);
    match client.run("delete", key, move |store| async move { store.delete(&path).await }) {
        Err(error) if error.kind() == StorageErrorKind::NotFound => Ok(()),
        result => result,
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
        self.path("create", key)?;
        put_new(&self.client, key, Bytes::copy_from_slice(bytes))
    }

    /// Makes an object twice: the second time must be refused. From the second save of a store on it is there, and this is
    /// one request.
    fn check_put_new(&self) -> Result<(), StorageError> {
        for _ in 0..2 {
            match put(&self.client, "create", PROBE, PutPayload::from_static(b"made once\n"), PutMode::Create)
            {
                Err(error) if error.kind() == StorageErrorKind::AlreadyExists => return Ok(()),
                made => made?,
            }
        }
        let _ = delete(&self.client, PROBE);
        let (kind, location) = (StorageErrorKind::Unsupported, self.client.location());
        let reason =
            "the server ignores the header If-None-Match: of two writers of a key, one would be lost";
        Err(StorageError::new(kind, "save safely", "", location, reason))
    }

    fn lists_may_lag(&self) -> bool {
        true
    }

    /// A removal is not conditional: the clients know no condition for it.
    fn exchange(&self, key: &str, before: &[u8], after: Option<&[u8]>) -> Result<(), StorageError> {
        let path = self.path("change", key)?;
        let max_len = before.len() as u64;
        let get = move |store: client::Store| async move {
            let found = store.get(&path).await?;
            let version =
                UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok((collect(found, max_len).await?, version))
        };
        let changed = || changed(key, self.location());
        let version = match self.client.run("read", key, get) {
            Ok((Some(there), version)) if there == before => version,
            Err(error) if error.kind() != StorageErrorKind::NotFound => return Err(error),
            _ => return Err(changed()),
        };
        let Some(after) = after else { return delete(&self.client, key) };
        let payload = || PutPayload::from(after.to_vec());
        match put(&self.client, "replace", key, payload(), PutMode::Update(version)) {
            // A first attempt may have succeeded although its answer was lost.
            Err(error) if error.kind() == StorageErrorKind::AlreadyExists => {
                let is_ours = get_is(&self.client, key, after);
                if is_ours { Ok(()) } else { Err(changed()) }
            }
            // This server knows no condition for it either.
            Err(error) if error.kind() == StorageErrorKind::Unsupported => {
                put(&self.client, "replace", key, payload(), PutMode::Overwrite)
            }
            replaced => replaced,
        }
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.path("replace", key)?;
        put(&self.client, "replace", key, PutPayload::from(bytes.to_vec()), PutMode::Overwrite)
    }

    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        self.path("read", key)?;
        get(&self.client, key, max_len)
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        let path = self.path("open", key)?;
        let head = path.clone();
        let found = self.client.run("open", key, move |store| async move { store.head(&head).await })?;
        let object = RemoteObject { client: self.client.clone(), key: key.to_owned(), path, len: found.size };
        Ok(Box::new(ReadAhead::new(object, found.size)))
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        let path = match directory {
            "" => self.client.root(),
            directory => self.path("list", directory)?,
        };
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
        self.path("delete", key)?;
        delete(&self.client, key)
    }

    /// Ends uploads whose writers are gone. Their bytes are not known here, and not counted.
    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError> {
        for record in self.list(record::DIRECTORY)?.iter().filter(|note| record::is_note(&note.key)) {
            let is_live = self.client.live_uploads().contains(&record.key);
            if !is_live && record.age().unwrap_or_default() >= min_age {
                record::abort(&self.client, &record.key, directories)?;
            }
        }
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
        let (path, len) = (self.path.clone(), out.len() as u64);
        let get = move |store: client::Store| async move {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            collect(store.get_opts(&path, options).await?, len).await
        };
        let bytes = self.client.run("read", &self.key, get).map_err(StorageError::into_io)?;
        let bytes = bytes.ok_or_else(|| {
            let (kind, location) = (StorageErrorKind::Failed, self.client.location());
            let reason = "the server sent more than was asked for";
            StorageError::new(kind, "read", &self.key, location, reason).into_io()
        })?;
        if bytes.len() != out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    #[test]
    fn an_answer_that_is_longer_than_it_may_be_is_not_kept() {
        let collected = |max_len| {
            let collecting = runtime::start(async move {
                let store = InMemory::new();
                store.put(&Path::from("a"), PutPayload::from_static(b"twelve bytes")).await?;
                collect(store.get(&Path::from("a")).await?, max_len).await
            });
            collecting.recv().unwrap().unwrap()
        };
        assert_eq!(collected(12).unwrap(), b"twelve bytes");
        assert_eq!(collected(20).unwrap(), b"twelve bytes");
        assert_eq!(collected(11), None);
    }
}
