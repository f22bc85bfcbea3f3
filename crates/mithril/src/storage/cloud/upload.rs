//! An object that is uploaded in parts while it is being written.

use super::super::{ObjectWriter, StorageError};
use super::client::Client;
use super::runtime;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::Receiver;

/// Bytes of a part. Stores take 10,000 parts at most, so parts grow with the object.
const PART_LEN: usize = 8 << 20;

/// Parts after which their length doubles.
const PARTS_PER_LEN: usize = 1000;

/// Parts that may be on their way.
const MAX_IN_FLIGHT: usize = 3;

type PartResult = Result<(), object_store::Error>;

/// An upload. Small objects are sent at once, larger ones in parts that appear together at the end.
pub(super) struct Upload {
    client: Client,
    key: String,
    path: Path,
    part: Vec<u8>,
    n_parts: usize,
    parts: Option<Box<dyn MultipartUpload>>,
    in_flight: VecDeque<Receiver<PartResult>>,
}

impl Upload {
    pub(super) fn new(client: Client, key: &str, path: Path) -> Self {
        let (part, in_flight) = (Vec::new(), VecDeque::new());
        Self { client, key: key.to_owned(), path, part, n_parts: 0, parts: None, in_flight }
    }

    fn part_len(&self) -> usize {
        PART_LEN << (self.n_parts / PARTS_PER_LEN).min(6)
    }

    fn send_part(&mut self) -> Result<(), StorageError> {
        while self.in_flight.len() >= MAX_IN_FLIGHT {
            self.wait_for_one()?;
        }
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let path = self.path.clone();
                let start =
                    move |store: super::client::Store| async move { store.put_multipart(&path).await };
                self.parts.insert(self.client.run("create", &self.key, start)?)
            }
        };
        let bytes = std::mem::take(&mut self.part);
        self.in_flight.push_back(runtime::start(parts.put_part(PutPayload::from(bytes))));
        self.n_parts += 1;
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<(), StorageError> {
        let Some(part) = self.in_flight.pop_front() else { return Ok(()) };
        let result = part.recv().map_err(|_| self.client.stopped("write", &self.key))?;
        result.map_err(|error| self.client.failed("write", &self.key, error))
    }

    fn complete(&mut self) -> Result<(), StorageError> {
        if self.parts.is_none() {
            let (path, payload) = (self.path.clone(), PutPayload::from(std::mem::take(&mut self.part)));
            let options = PutOptions::from(PutMode::Create);
            let put = move |store: super::client::Store| async move {
                store.put_opts(&path, payload, options).await
            };
            return self.client.run("create", &self.key, put).map(|_| ());
        }
        if !self.part.is_empty() {
            self.send_part()?;
        }
        while !self.in_flight.is_empty() {
            self.wait_for_one()?;
        }
        let Some(mut parts) = self.parts.take() else { return Ok(()) };
        let complete = runtime::start(async move {
            let completed = parts.complete().await.map(|_| ());
            if completed.is_err() {
                // What was uploaded is of no use any more; if the answer alone was lost, this does nothing.
                let _ = parts.abort().await;
            }
            completed
        });
        let result = complete.recv().map_err(|_| self.client.stopped("commit", &self.key))?;
        result.map_err(|error| self.client.failed("commit", &self.key, error))
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
        // Parts that arrive after the abort would stay, so they come first.
        for part in self.in_flight.drain(..) {
            let _ = part.recv();
        }
        let _ = runtime::start(async move { parts.abort().await }).recv();
    }
}
