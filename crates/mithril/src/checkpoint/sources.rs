//! Objects that are open while they are read: only so many at a time, however many a checkpoint needs.

use crate::storage::{StorageBackend, StorageError};
use mithril_format::ReadAt;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Objects of a checkpoint that stay open: as many as it usually needs.
const N_KEPT_OPEN: usize = 32;

/// Others that stay open because they were read last. Shells may allow 256 files in all, for several loads.
const N_LATELY: usize = 8;

/// The objects of a checkpoint.
pub(super) struct Sources {
    storage: Arc<dyn StorageBackend>,
    /// Those that were read last, the last one first.
    lately: Mutex<VecDeque<(String, Arc<dyn ReadAt>)>>,
}

/// An object that is opened when it is read.
struct Reopened {
    sources: Arc<Sources>,
    object: String,
}

impl Sources {
    pub(super) fn new(storage: &Arc<dyn StorageBackend>) -> Arc<Self> {
        Arc::new(Self { storage: Arc::clone(storage), lately: Mutex::default() })
    }

    /// Opens the object of this number among those of a checkpoint.
    pub(super) fn open(
        self: &Arc<Self>,
        number: usize,
        object: &str,
    ) -> Result<Box<dyn ReadAt>, StorageError> {
        if number < N_KEPT_OPEN {
            return self.storage.open(object);
        }
        self.keep(object, self.storage.open(object)?.into());
        Ok(Box::new(Reopened { sources: Arc::clone(self), object: object.to_owned() }))
    }

    fn keep(&self, object: &str, source: Arc<dyn ReadAt>) {
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        lately.retain(|(known, _)| known != object);
        lately.push_front((object.to_owned(), source));
        lately.truncate(N_LATELY);
    }

    /// An object that may have been closed since.
    fn get(&self, object: &str) -> io::Result<Arc<dyn ReadAt>> {
        {
            let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = lately.iter().position(|(known, _)| known == object)
                && let Some(found) = lately.remove(at)
            {
                let source = Arc::clone(&found.1);
                lately.push_front(found);
                return Ok(source);
            }
        }
        let source: Arc<dyn ReadAt> = self.storage.open(object).map_err(StorageError::into_io)?.into();
        self.keep(object, Arc::clone(&source));
        Ok(source)
    }
}

impl ReadAt for Reopened {
    fn size(&self) -> io::Result<u64> {
        self.sources.get(&self.object)?.size()
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.sources.get(&self.object)?.read_exact_at(offset, out)
    }

    fn read_range(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.sources.get(&self.object)?.read_range(range)
    }
}
