//! Files that appear whole or not at all: a temporary sibling, fsync, rename, fsync of the directory.

use crate::attributes::Attributes;
use crate::files::{Disk, Files, Listed, NewFile};
use crate::temporary;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

/// Names that are tried for a temporary file when others clean up at the same moment.
const MAX_TRIES: usize = 100;

/// A file that is being written under a temporary name. Dropped without [`AtomicFile::commit`], it leaves nothing
/// behind; a process that is killed leaves the temporary file, which the next writer of the same name removes.
#[derive(Debug)]
pub struct AtomicFile {
    /// Locked, so that others can tell it from what a killed process left.
    file: Box<dyn NewFile>,
    files: Arc<dyn Files>,
    temporary: PathBuf,
    path: PathBuf,
    replace: bool,
    attributes: Attributes,
    committed: bool,
}

impl AtomicFile {
    /// Starts a file that will appear at `path`. One that is there is an error unless `replace`; a link stays a link,
    /// and what it points to is replaced.
    ///
    /// # Errors
    /// `AlreadyExists`, or the system's reason.
    pub fn create(path: &Path, replace: bool) -> io::Result<Self> {
        Self::create_with(path, replace, Attributes::default())
    }

    /// As [`AtomicFile::create`], with mode and time.
    ///
    /// # Errors
    /// As [`AtomicFile::create`].
    pub fn create_with(path: &Path, replace: bool, attributes: Attributes) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(_) if !replace => return Err(io::ErrorKind::AlreadyExists.into()),
            Ok(metadata) if metadata.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(_) => fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            Err(_) => path.to_owned(),
        };
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
        remove_abandoned(&Disk, parent(&path), Some(&name), &|_| true);
        Self::create_in(Arc::new(Disk), path, replace, attributes)
    }

    /// As [`AtomicFile::create`] in a file system, without a look at what is there.
    pub(crate) fn create_in(
        files: Arc<dyn Files>,
        path: PathBuf,
        replace: bool,
        attributes: Attributes,
    ) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
        let mut live = files.live_temporaries();
        let mut n_tries = 0;
        let (temporary, file) = loop {
            let temporary = path.with_file_name(temporary::name_for(&name)?);
            match files.create_new(&temporary, &attributes) {
                // Somebody who cleaned up was quicker than the lock.
                Err(error) if error.kind() == io::ErrorKind::Interrupted && n_tries < MAX_TRIES => {
                    n_tries += 1;
                }
                created => break (temporary, created?),
            }
        };
        live.push(temporary.clone());
        drop(live);
        Ok(Self { file, files, temporary, path, replace, attributes, committed: false })
    }

    /// Where the bytes are until they are committed.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Where the file will appear.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file visible under its name, and safe on disk.
    ///
    /// # Errors
    /// `AlreadyExists` when another file came first, or the system's reason. The old file is untouched then.
    pub fn commit(mut self) -> io::Result<()> {
        self.publish()
    }

    /// As [`AtomicFile::commit`], and keeps the file locked.
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        self.file.set_attributes(&self.attributes);
        self.file.sync()?;
        // Held until the file has its name, so that nobody removes it in between.
        let live = self.files.live_temporaries();
        if self.replace {
            self.files.rename(&self.temporary, &self.path)?;
        } else {
            // A link fails when the name exists, which a rename does not.
            match self.files.hard_link(&self.temporary, &self.path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) if self.files.exists(&self.path) => return Err(io::ErrorKind::AlreadyExists.into()),
                // A file system without links.
                Err(_) => self.files.rename_new(&self.temporary, &self.path)?,
                // The file has its name: a second one that stays is a leftover, not a failure.
                Ok(()) => drop(self.files.remove(&self.temporary)),
            }
        }
        self.committed = true;
        forget(live, &self.temporary);
        self.files.sync_directory(parent(&self.path))
    }

    /// Removes the temporary files of this process. Writers that are at work can neither finish nor start another file
    /// from then on: they wait until the process ends. For the handler of a signal that ends it.
    pub fn abandon_all() {
        let mut live = Disk.live_temporaries();
        for temporary in live.drain(..) {
            let _ = fs::remove_file(temporary);
        }
        std::mem::forget(live);
    }
}

fn forget(mut live: MutexGuard<'_, Vec<PathBuf>>, temporary: &Path) {
    live.retain(|path| path != temporary);
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes what killed writers left in a directory, of one name or of any: temporary files whose lock is free, as far as
/// `may_go` says so. Returns their bytes.
pub(crate) fn remove_abandoned(
    files: &dyn Files,
    directory: &Path,
    name: Option<&str>,
    may_go: &dyn Fn(&Listed) -> bool,
) -> u64 {
    // A file that another thread makes at this moment is there before it is locked: wait until it is both.
    let _live = files.live_temporaries();
    let Ok(listed) = files.list(directory) else { return 0 };
    let mut removed = 0;
    for sibling in listed
        .iter()
        .filter(|sibling| sibling.is_file && temporary::is_name(&sibling.name, name) && may_go(sibling))
    {
        let path = directory.join(&sibling.name);
        if files.remove_abandoned(&path) {
            removed += sibling.len;
        }
    }
    removed
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            let live = self.files.live_temporaries();
            let _ = self.files.remove(&self.temporary);
            forget(live, &self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of its own for a test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mithril-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<_> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn file_appears_only_when_it_is_committed() {
        let folder = Folder::new("commit");
        let path = folder.0.join("model");
        let mut file = AtomicFile::create(&path, false).unwrap();
        file.write_all(b"weights").unwrap();
        assert!(!path.exists());
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"weights");
        assert_eq!(folder.names(), ["model"]);
    }

    #[test]
    fn dropped_file_leaves_the_old_one_and_nothing_else() {
        let folder = Folder::new("drop");
        let path = folder.0.join("model");
        fs::write(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path, true).unwrap();
        file.write_all(b"new").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.names(), ["model"]);
    }

    #[test]
    fn existing_file_is_kept_unless_it_may_be_replaced() {
        let folder = Folder::new("replace");
        let path = folder.0.join("model");
        let mut late = AtomicFile::create(&path, false).unwrap();
        late.write_all(b"late").unwrap();
        fs::write(&path, b"first").unwrap();
        assert_eq!(late.commit().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(AtomicFile::create(&path, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        let mut file = AtomicFile::create(&path, true).unwrap();
        file.write_all(b"second").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(folder.names(), ["model"]);
    }

    #[test]
    fn leftovers_of_killed_writers_are_removed_and_live_ones_stay() {
        let folder = Folder::new("leftovers");
        let path = folder.0.join("model");
        fs::write(folder.0.join(temporary::name_for("model").unwrap()), b"left").unwrap();
        fs::write(folder.0.join(".model.notes.tmp"), b"a user's own").unwrap();
        let first = AtomicFile::create(&path, false).unwrap();
        let second = AtomicFile::create(&path, false).unwrap();
        assert!(first.temporary().exists() && second.temporary().exists());
        drop((first, second));
        assert_eq!(folder.names(), [".model.notes.tmp"]);
    }

    #[test]
    fn others_who_clean_up_never_take_a_file_that_is_being_written() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let folder = Folder::new("cleaners");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                // As another process: without the list of what this one has at work.
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        for listed in Disk.list(&folder.0).unwrap() {
                            if temporary::is_name(&listed.name, None) {
                                Disk.remove_abandoned(&folder.0.join(listed.name));
                            }
                        }
                    }
                });
            }
            for number in 0..1500 {
                let path = folder.0.join(format!("model{}", number % 7));
                let mut file =
                    AtomicFile::create_in(Arc::new(Disk), path.clone(), true, Attributes::default()).unwrap();
                file.write_all(&[7; 100]).unwrap();
                assert!(file.temporary().exists(), "taken away in round {number}");
                // Without the syncs of a commit, which would leave little time for the others.
                let live = Disk.live_temporaries();
                fs::rename(&file.temporary, &path).unwrap();
                file.committed = true;
                forget(live, &file.temporary);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(folder.names().len(), 7);
    }
}
