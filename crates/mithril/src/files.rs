//! What is asked of a file system where nothing may be lost: every step that a power cut can come between.
//!
//! [`Disk`] is the real one. Tests put another in its place that fails at a step, or that forgets what was not synced.

use crate::attributes::Attributes;
use mithril_format::ReadAt;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// The steps that durable files are made of.
pub(crate) trait Files: fmt::Debug + Send + Sync {
    /// Makes a file that must not exist, which nobody may read who may not read it with these attributes, and locks it
    /// for as long as it is open, where there are locks. `Interrupted` when somebody who cleans up came in between: then
    /// it is gone.
    fn create_new(&self, path: &Path, attributes: &Attributes) -> io::Result<Box<dyn NewFile>>;
    /// Opens a file for reading. What is open stays readable when its name is removed.
    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadAt>>;
    /// Gives a file a second name, which must not exist.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file another name, in place of what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file another name, which must not exist: for file systems without hard links.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes one directory.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory safe on disk.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// Whether there is something of this name.
    fn exists(&self, path: &Path) -> bool;
    /// What a directory holds.
    fn list(&self, directory: &Path) -> io::Result<Vec<Listed>>;
    /// Removes a temporary file whose writer is gone: nobody holds its lock, and nobody can take it in between. Returns
    /// whether it is removed.
    fn remove_abandoned(&self, path: &Path) -> bool;
    /// Keeps other processes from changing what is in a directory, as long as the lock is kept and where there are locks.
    fn lock_directory(&self, directory: &Path) -> Option<Box<dyn Send>>;
    /// The temporary files of this process that are neither committed nor dropped.
    fn live_temporaries(&self) -> MutexGuard<'_, Vec<PathBuf>>;
}

/// A file that is being written.
pub(crate) trait NewFile: Write + fmt::Debug + Send {
    /// Makes the bytes safe on disk. Once it has failed, nothing is known about them.
    fn sync(&mut self) -> io::Result<()>;
    /// Gives the file its mode and time, now that it is complete.
    fn set_attributes(&mut self, attributes: &Attributes);
}

/// A name in a directory.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) is_directory: bool,
    /// Whether it can be read like a file: a plain one, or a link to one.
    pub(crate) is_file: bool,
    pub(crate) len: u64,
    pub(crate) modified: Option<SystemTime>,
}

impl Listed {
    /// How long ago it was written; nothing if the clock says later than now.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.modified.and_then(|modified| SystemTime::now().duration_since(modified).ok())
    }
}

/// The file system of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk;

impl Files for Disk {
    fn create_new(&self, path: &Path, attributes: &Attributes) -> io::Result<Box<dyn NewFile>> {
        let file = create_new(path, attributes)?;
        match file.try_lock() {
            // Another process took it for a leftover before it was locked, and removes it.
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::Interrupted.into()),
            // Some file systems have no locks; their leftovers stay.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        if !has_name(&file, path) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadAt>> {
        // Before it is opened: opening a pipe would wait for a writer.
        let metadata = fs::metadata(path)?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
        }
        Ok(Box::new(File::open(path)?))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match File::open(path).and_then(|directory| directory.sync_all()) {
            // Some file systems refuse, and have no need of it.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Removed since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            // A name that is no text is none of ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let is_link_to_file =
                || metadata.is_symlink() && fs::metadata(entry.path()).is_ok_and(|target| target.is_file());
            listed.push(Listed {
                name,
                is_directory: metadata.is_dir(),
                is_file: metadata.is_file() || is_link_to_file(),
                len: metadata.len(),
                modified: metadata.modified().ok(),
            });
        }
        Ok(listed)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            use rustix::io::Errno;
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                // Not every file system can do this.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
                renamed => return Ok(renamed?),
            }
        }
        // Of several writers one makes the name, and then gives it to its file.
        File::create_new(to)?;
        fs::rename(from, to)
    }

    fn remove_abandoned(&self, path: &Path) -> bool {
        // The lock is held until the name is gone: a writer that has just made this file finds it taken, or its file
        // without a name, and makes another.
        // Opening a pipe of that name would wait for a writer.
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
            && File::open(path).is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(path).is_ok())
    }

    fn lock_directory(&self, directory: &Path) -> Option<Box<dyn Send>> {
        let opened = File::open(directory).ok()?;
        opened.lock().ok()?;
        Some(Box::new(opened))
    }

    fn live_temporaries(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
        LIVE.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn create_new(path: &Path, attributes: &Attributes) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, attributes.creation_mode());
    options.open(path)
}

/// Whether an open file still has a name.
#[cfg(unix)]
fn has_name(file: &File, _: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

#[cfg(not(unix))]
fn has_name(_: &File, path: &Path) -> bool {
    path.exists()
}

impl NewFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }

    fn set_attributes(&mut self, attributes: &Attributes) {
        attributes.apply(self);
    }
}
