//! Objects as files below a directory, each safe on disk before it is acknowledged.

use super::memory::{no_key, too_large};
use super::{
    MARK_AGE, ObjectInfo, ObjectWriter, StorageBackend, StorageError, exchange_in_two_steps, is_key,
};
use crate::AtomicFile;
use crate::atomic_file::remove_abandoned;
use crate::attributes::Attributes;
use crate::files::{Disk, Files, Listed};
use mithril_format::ReadAt;
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A directory.
#[derive(Debug, Clone)]
pub struct LocalStorage {
    root: PathBuf,
    location: String,
    files: Arc<dyn Files>,
    /// Directories that are known to be safe on disk in the one above them.
    safe: Arc<Mutex<HashSet<PathBuf>>>,
}

impl LocalStorage {
    /// Objects below this directory, which is made when the first one is written.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(Disk), root.into())
    }

    /// The same in another file system.
    pub(crate) fn on(files: Arc<dyn Files>, root: PathBuf) -> Self {
        let location = format!("local://{}", root.display());
        Self { root, location, files, safe: Arc::default() }
    }

    fn path(&self, operation: &'static str, key: &str) -> Result<PathBuf, StorageError> {
        if !is_key(key) {
            return Err(no_key(operation, key, &self.location));
        }
        Ok(self.root.join(key))
    }

    fn failed<'a>(
        &'a self,
        operation: &'static str,
        key: &'a str,
    ) -> impl Fn(io::Error) -> StorageError + use<'a> {
        move |error| StorageError::io(operation, key, &self.location, error)
    }

    /// Makes the directories of a path, each safe on disk in the one above it.
    fn create_parents(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
            return Ok(());
        };
        let exists = self.files.exists(parent);
        if exists && self.safe.lock().unwrap_or_else(PoisonError::into_inner).contains(parent) {
            return Ok(());
        }
        let above = parent.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if exists {
            // Whoever made it may have been killed before it was safe; the ones above it were safe before it was made.
            match self.files.sync_directory(above) {
                // A directory that may not be opened is above the store, and was not made by us.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                result => result?,
            }
        } else {
            self.create_parents(parent)?;
            match self.files.create_directory(parent) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => result?,
            }
            self.files.sync_directory(above)?;
        }
        self.safe.lock().unwrap_or_else(PoisonError::into_inner).insert(parent.to_owned());
        Ok(())
    }

    fn start(&self, key: &str, replace: bool) -> Result<LocalWriter, StorageError> {
        let failed = self.failed("create", key);
        let path = self.path("create", key)?;
        self.create_parents(&path).map_err(&failed)?;
        let file = AtomicFile::create_in(self.files.clone(), path, replace, Attributes::default());
        let file = file.map_err(&failed)?;
        Ok(LocalWriter { file, key: key.to_owned(), location: self.location.clone() })
    }

    fn put(&self, key: &str, bytes: &[u8], replace: bool) -> Result<(), StorageError> {
        let mut writer = self.start(key, replace)?;
        writer.file.write_all(bytes).map_err(self.failed("write", key))?;
        Box::new(writer).finish()
    }

    /// All directories from one downwards, itself first. None if it does not exist.
    fn directories(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = vec![directory.to_owned()];
        let mut next = 0;
        while next < found.len() {
            let listed = match self.files.list(&found[next]) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                listed => listed?,
            };
            let below = listed.into_iter().filter(|listed| listed.is_directory);
            let below: Vec<_> = below.map(|listed| found[next].join(listed.name)).collect();
            found.extend(below);
            next += 1;
        }
        Ok(found)
    }
}

impl StorageBackend for LocalStorage {
    fn location(&self) -> &str {
        &self.location
    }

    fn create(&self, key: &str) -> Result<Box<dyn ObjectWriter>, StorageError> {
        Ok(Box::new(self.start(key, false)?))
    }

    fn put_new(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.put(key, bytes, false)
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.put(key, bytes, true)
    }

    /// Every change of an object that is there is made under a lock of its directory. One that is made anew needs none: it
    /// must not be there.
    fn exchange(&self, key: &str, before: &[u8], after: Option<&[u8]>) -> Result<(), StorageError> {
        let path = self.path("change", key)?;
        let _lock = self.files.lock_directory(path.parent().unwrap_or(&self.root));
        exchange_in_two_steps(self, key, before, after)
    }

    /// The file is locked until its maker is gone.
    fn put_mark(&self, key: &str, bytes: &[u8]) -> Result<Option<Box<dyn Send>>, StorageError> {
        let mut writer = self.start(key, false)?;
        writer.file.write_all(bytes).map_err(self.failed("write", key))?;
        writer.file.publish().map_err(self.failed("commit", key))?;
        Ok(Some(Box::new(writer.file)))
    }

    /// Where there are no locks, age tells.
    fn remove_dead_mark(&self, mark: &ObjectInfo) -> Result<bool, StorageError> {
        let is_old = mark.age().is_some_and(|age| age >= MARK_AGE);
        let is_removed = self.files.remove_abandoned(&self.path("clean up", &mark.key)?);
        if is_old && !is_removed {
            self.delete(&mark.key)?;
        }
        Ok(is_old || is_removed)
    }

    fn get(&self, key: &str, max_len: u64) -> Result<Vec<u8>, StorageError> {
        let failed = self.failed("read", key);
        let file = self.files.open(&self.path("read", key)?).map_err(&failed)?;
        let len = file.size().map_err(&failed)?;
        if len > max_len {
            return Err(too_large(key, &self.location, len, max_len));
        }
        file.read_range(0..len).map_err(failed)
    }

    fn open(&self, key: &str) -> Result<Box<dyn ReadAt>, StorageError> {
        self.files.open(&self.path("open", key)?).map_err(self.failed("open", key))
    }

    fn list(&self, directory: &str) -> Result<Vec<ObjectInfo>, StorageError> {
        let failed = self.failed("list", directory);
        let top = match directory {
            "" => self.root.clone(),
            directory => self.path("list", directory)?,
        };
        let mut objects = Vec::new();
        for path in self.directories(&top).map_err(&failed)? {
            let listed = match self.files.list(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                listed => listed.map_err(&failed)?,
            };
            for file in listed {
                let path = path.join(&file.name);
                let key = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
                // Files that can be no object, such as temporary ones or pipes, are not ours to show.
                if let Some(key) = key.filter(|key| file.is_file && is_key(key)) {
                    objects.push(ObjectInfo::new(key, file.len, file.modified));
                }
            }
        }
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    fn delete(&self, key: &str) -> Result<(), StorageError> {
        let path = self.path("delete", key)?;
        match self.files.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result.map_err(self.failed("delete", key))?,
        }
        // What is deleted after this one must not be gone before it.
        self.files.sync_directory(path.parent().unwrap_or(&self.root)).map_err(self.failed("delete", key))
    }

    fn sync(&self, directory: &str) -> Result<(), StorageError> {
        match self.files.sync_directory(&self.path("sync", directory)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced.map_err(self.failed("sync", directory)),
        }
    }

    /// A lock that is held tells that a file is at work. One that is free tells less: there are file systems whose locks
    /// other machines do not see. So age counts as well.
    fn remove_leftovers(&self, directories: &[&str], min_age: Duration) -> Result<u64, StorageError> {
        let is_old = |file: &Listed| min_age.is_zero() || file.age().is_some_and(|age| age >= min_age);
        let mut removed = 0;
        for directory in directories {
            let path = match *directory {
                "" => self.root.clone(),
                directory => self.path("clean up", directory)?,
            };
            removed += remove_abandoned(&*self.files, &path, None, &is_old);
        }
        Ok(removed)
    }
}

impl LocalStorage {
    /// Bytes of temporary files, whoever holds them.
    #[cfg(test)]
    pub(crate) fn temporary_len(&self) -> u64 {
        let directories = self.directories(&self.root).unwrap();
        let listed = directories.iter().flat_map(|directory| self.files.list(directory).unwrap_or_default());
        listed.filter(|file| crate::temporary::is_name(&file.name, None)).map(|file| file.len).sum()
    }
}

struct LocalWriter {
    file: AtomicFile,
    key: String,
    location: String,
}

impl Write for LocalWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let failed = |error| StorageError::io("write", &self.key, &self.location, error).into_io();
        self.file.write(bytes).map_err(failed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl ObjectWriter for LocalWriter {
    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        let Self { file, key, location } = *self;
        file.commit().map_err(|error| StorageError::io("commit", &key, &location, error))
    }
}
