//! Notes of uploads in parts that are at work, so that those of killed writers can be ended: their parts are in no list,
//! and cost as much as any object.

use super::super::{StorageError, StorageErrorKind};
use super::client::Client;
use super::{delete, get, put, runtime};
use object_store::{PutMode, PutPayload};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Where the notes are.
pub(super) const DIRECTORY: &str = "uploads";

/// A note that is older belongs to a writer that is gone, unless somebody cleans up more eagerly.
const RENEWED_AFTER: Duration = Duration::from_secs(600);

/// Bytes of a note at most.
const MAX_LEN: u64 = 1 << 16;

#[derive(Serialize, Deserialize)]
struct Note {
    object: String,
    upload: String,
}

/// The note of an upload of this process.
pub(super) struct Record {
    key: String,
    note: Vec<u8>,
    written: Instant,
}

impl Record {
    /// Writes it down, before the first part is sent.
    pub(super) fn new(client: &Client, object: &str, upload: &str) -> Result<Self, StorageError> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| {
            let (kind, location) = (StorageErrorKind::Failed, client.location());
            StorageError::new(kind, "name an upload", object, location, error.to_string())
        })?;
        let key = format!("{DIRECTORY}/{:016x}.json", u64::from_le_bytes(random));
        let note = Note { object: object.to_owned(), upload: upload.to_owned() };
        let note = serde_json::to_vec(&note).expect("two texts");
        client.live_uploads().insert(key.clone());
        let mut record = Self { key, note, written: Instant::now() };
        if let Err(error) = record.write(client) {
            client.live_uploads().remove(&record.key);
            return Err(error);
        }
        Ok(record)
    }

    fn write(&mut self, client: &Client) -> Result<(), StorageError> {
        let payload = PutPayload::from(self.note.clone());
        put(client, "note an upload", &self.key, payload, PutMode::Overwrite)?;
        self.written = Instant::now();
        Ok(())
    }

    /// Says that the upload is still at work, now and then.
    pub(super) fn renew(&mut self, client: &Client) -> Result<(), StorageError> {
        if self.written.elapsed() > RENEWED_AFTER { self.write(client) } else { Ok(()) }
    }

    /// The upload is complete or gone. A note that stays is removed by the next who cleans up.
    pub(super) fn remove(self, client: &Client) {
        let _ = delete(client, &self.key);
        client.live_uploads().remove(&self.key);
    }

    /// The upload may still be there: the note stays for whoever cleans up.
    pub(super) fn leave(self, client: &Client) {
        client.live_uploads().remove(&self.key);
    }
}

/// Whether an object has a name that a note can have.
pub(super) fn is_note(key: &str) -> bool {
    let name = key.strip_prefix(DIRECTORY).and_then(|name| name.strip_prefix('/')?.strip_suffix(".json"));
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.is_some_and(|name| name.len() == 16 && name.bytes().all(is_hex))
}

/// Ends the upload that a note is about, if it is one of these directories, and removes the note.
pub(super) fn abort(client: &Client, key: &str, directories: &[&str]) -> Result<(), StorageError> {
    let note = match get(client, key, MAX_LEN) {
        // Somebody else was quicker.
        Err(error) if error.kind() == StorageErrorKind::NotFound => return Ok(()),
        note => note?,
    };
    // Something else of that name is not ours.
    let Ok(Note { object, upload }) = serde_json::from_slice(&note) else { return Ok(()) };
    let directory = object.rsplit_once('/').map_or("", |(directory, _)| directory);
    if !super::is_key(&object) || !directories.contains(&directory) {
        return Ok(());
    }
    end(client, &object, upload)?;
    delete(client, key)
}

/// Ends an upload; one that was completed or ended before is ended.
pub(super) fn end(client: &Client, object: &str, upload: String) -> Result<(), StorageError> {
    let (store, path) = (client.parts("abort", object)?, client.path(object));
    let ending = runtime::start(async move { store.abort_multipart(&path, &upload).await });
    match client.wait("abort", object, &ending) {
        Err(error) if error.kind() == StorageErrorKind::NotFound => Ok(()),
        result => result,
    }
}
