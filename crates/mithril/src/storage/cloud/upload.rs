//! An object that is uploaded in parts while it is being written.

use super::super::{ObjectWriter, StorageError};
use super::client::{Client, PartStore};
use super::record::{self, Record};
use super::{put_new, runtime};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::Receiver;

/// Bytes of a part. Stores take 10,000 parts at most, so parts grow with the object.
const PART_LEN: usize = 8 << 20;

/// Parts after which their length doubles.
const PARTS_PER_LEN: usize = 1000;

/// Parts that may be on their way.
const MAX_IN_FLIGHT: usize = 3;

/// An upload. Small objects are sent at once, larger ones in parts that appear together at the end.
pub(super) struct Upload {
    client: Client,
    key: String,
    path: Path,
    part: Vec<u8>,
    parts: Option<Parts>,
}

/// The parts that were sent.
struct Parts {
    store: PartStore,
    upload: String,
    record: Record,
    n_sent: usize,
    len: u64,
    in_flight: VecDeque<Receiver<Result<PartId, object_store::Error>>>,
    done: Vec<PartId>,
}

impl Upload {
    pub(super) fn new(client: Client, key: &str, path: Path) -> Self {
        Self { client, key: key.to_owned(), path, part: Vec::new(), parts: None }
    }

    fn part_len(&self) -> usize {
        let n_sent = self.parts.as_ref().map_or(0, |parts| parts.n_sent);
        PART_LEN << (n_sent / PARTS_PER_LEN).min(6)
    }

    fn start(&self) -> Result<Parts, StorageError> {
        let (store, path) = (self.client.parts("create", &self.key)?, self.path.clone());
        let parts = store.clone();
        let start = runtime::start(async move { parts.create_multipart(&path).await });
        let upload = self.client.wait("create", &self.key, &start)?;
        let record = match Record::new(&self.client, &self.key, &upload) {
            Ok(record) => record,
            Err(error) => {
                let _ = record::end(&self.client, &self.key, upload);
                return Err(error);
            }
        };
        let (in_flight, done) = (VecDeque::new(), Vec::new());
        Ok(Parts { store, upload, record, n_sent: 0, len: 0, in_flight, done })
    }

    fn send_part(&mut self) -> Result<(), StorageError> {
        let mut parts = match self.parts.take() {
            Some(parts) => parts,
            None => self.start()?,
        };
        let sent = self.send(&mut parts);
        self.parts = Some(parts);
        sent
    }

    fn send(&mut self, parts: &mut Parts) -> Result<(), StorageError> {
        while parts.in_flight.len() >= MAX_IN_FLIGHT {
            self.wait_for_one(parts)?;
        }
        parts.record.renew(&self.client)?;
        let bytes = std::mem::take(&mut self.part);
        parts.len += bytes.len() as u64;
        let (store, path) = (parts.store.clone(), self.path.clone());
        let (upload, number) = (parts.upload.clone(), parts.n_sent);
        parts.in_flight.push_back(runtime::start(async move {
            store.put_part(&path, &upload, number, PutPayload::from(bytes)).await
        }));
        parts.n_sent += 1;
        Ok(())
    }

    fn wait_for_one(&self, parts: &mut Parts) -> Result<(), StorageError> {
        let Some(part) = parts.in_flight.pop_front() else { return Ok(()) };
        parts.done.push(self.client.wait("write", &self.key, &part)?);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), StorageError> {
        if self.parts.is_none() {
            return put_new(&self.client, &self.key, std::mem::take(&mut self.part).into());
        }
        if !self.part.is_empty() {
            self.send_part()?;
        }
        let Some(mut parts) = self.parts.take() else { return Ok(()) };
        while !parts.in_flight.is_empty() {
            if let Err(error) = self.wait_for_one(&mut parts) {
                self.parts = Some(parts);
                return Err(error);
            }
        }
        let (store, path, upload) = (parts.store.clone(), self.path.clone(), parts.upload.clone());
        let done = std::mem::take(&mut parts.done);
        let complete =
            runtime::start(async move { store.complete_multipart(&path, &upload, done).await.map(|_| ()) });
        match self.client.wait("commit", &self.key, &complete) {
            // The answer alone may be lost: then another attempt finds no upload, but all of the object is there.
            Err(error) if self.len() != Some(parts.len) => {
                self.parts = Some(parts);
                Err(error)
            }
            _ => {
                parts.record.remove(&self.client);
                Ok(())
            }
        }
    }

    /// Bytes of the object, if it is there.
    fn len(&self) -> Option<u64> {
        let path = self.path.clone();
        let head =
            self.client.run("look for", &self.key, move |store| async move { store.head(&path).await });
        head.ok().map(|found| found.size)
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.part_len() - self.part.len();
        let len = bytes.len().min(room);
        if self.part.capacity() == 0 && bytes.len() >= 1 << 16 {
            self.part.reserve_exact(self.part_len());
        }
        self.part.extend_from_slice(&bytes[..len]);
        if self.part.len() == self.part_len() {
            self.send_part().map_err(StorageError::into_io)?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectWriter for Upload {
    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        self.complete()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        // Parts that arrive after the end would stay, so they come first.
        for part in parts.in_flight.drain(..) {
            let _ = part.recv();
        }
        match record::end(&self.client, &self.key, parts.upload) {
            Ok(()) => parts.record.remove(&self.client),
            Err(_) => parts.record.leave(&self.client),
        }
    }
}
