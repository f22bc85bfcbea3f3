//! Directories that appear whole or not at all, and the safetensors files in them.

use super::repository::cannot;
use crate::Error;
use crate::temporary;
use crate::unchanged::check_unchanged_at;
use mithril_format::safetensors_layout::Layout;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, Metadata, Permissions};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a directory is removed in which files appear meanwhile.
const MAX_TRIES: usize = 100;

/// A directory that is being filled under a temporary name beside its own. Dropped without
/// [`OutputDirectory::commit`], it leaves nothing behind; a process that is killed leaves the temporary directory, which
/// the next writer of the same name removes.
#[derive(Debug)]
pub struct OutputDirectory {
    path: PathBuf,
    temporary: PathBuf,
    /// Whether files of an existing directory may be replaced.
    replace: bool,
    /// The mode of the directory once it is complete, as the umask leaves it.
    mode: u32,
    /// What others may do with its files at most.
    widest: u32,
    /// The files that it is made of, as they were.
    sources: Vec<(PathBuf, Metadata)>,
    /// Whether there is nothing left to do for it.
    is_settled: bool,
    /// Set by whoever gave up on it.
    stop: Arc<AtomicBool>,
    /// Held as long as it is being filled, so that others can tell it from what a killed process left.
    #[expect(dead_code, reason = "holds a lock")]
    lock: Option<File>,
}

impl OutputDirectory {
    /// Starts a directory. One that exists and is not empty is refused unless `replace`.
    ///
    /// # Errors
    /// When the directory exists, or the system refuses.
    pub fn create(path: &Path, replace: bool) -> Result<Self, Error> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| Error::invalid(format!("`{}` names no directory", path.display())))?;
        let is_used = match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(_) => path.exists(),
        };
        if is_used && !(replace && path.is_dir()) {
            return Err(Error::invalid(format!("`{}` exists already", path.display())));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            fs::create_dir_all(parent).map_err(|error| cannot("make", parent, error))?;
        }
        remove_abandoned(parent.unwrap_or(Path::new(".")), &name);
        let temporary = temporary::name_for(&name).map(|name| path.with_file_name(name));
        let temporary = temporary.map_err(|error| cannot("make", path, error))?;
        let mut live = live_directories();
        let mode = make_private(&temporary).map_err(|error| cannot("make", &temporary, error))?;
        let lock = lock(&temporary);
        live.push(temporary.clone());
        let stop = Arc::default();
        let path = path.to_owned();
        let (widest, sources) = (0o777, Vec::new());
        Ok(Self { path, temporary, replace, mode, widest, sources, is_settled: false, stop, lock })
    }

    /// Says what it is made of: a file, or the files of a directory, but for hidden ones. What is written will be readable by
    /// those only who may read all of them, and [`OutputDirectory::commit`] refuses when one of them has changed since.
    ///
    /// # Errors
    /// When the input cannot be looked at.
    pub fn made_of(mut self, input: &Path) -> Result<Self, Error> {
        let mut open = vec![input.to_owned()];
        while let Some(path) = open.pop() {
            let failed = |error| cannot("read", &path, error);
            let metadata = fs::metadata(&path).map_err(failed)?;
            if metadata.is_file() || path == input {
                self.widest &= metadata.mode();
            }
            if metadata.is_dir() {
                for entry in fs::read_dir(&path).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
                    // Links to directories may lead in a circle, and those to nothing hold nothing.
                    let is_dead_end =
                        entry.file_type().map_err(failed)?.is_symlink() && !entry.path().is_file();
                    if !is_hidden && !is_dead_end {
                        open.push(entry.path());
                    }
                }
            } else if metadata.is_file() {
                self.sources.push((path, metadata));
            }
        }
        Ok(self)
    }

    /// Lets another thread end the work: once `stop` is set, the next step fails, and nothing is left behind.
    #[must_use]
    pub fn stopped_by(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// Fails once whoever wanted it has given up on it.
    pub(super) fn check_wanted(&self) -> Result<(), Error> {
        check_stopped(&self.stop)
    }

    /// Where it will be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its files are until it is committed; to be removed when the program is stopped.
    #[must_use]
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// A directory inside this one, which appears with it.
    pub(super) fn inner(&self, name: &str) -> Result<Self, Error> {
        let temporary = self.temporary.join(name);
        fs::create_dir(&temporary).map_err(|error| cannot("make", &temporary, error))?;
        Ok(Self {
            path: self.path.join(name),
            temporary,
            replace: self.replace,
            mode: self.mode,
            widest: self.widest,
            sources: Vec::new(),
            is_settled: true,
            stop: self.stop.clone(),
            lock: None,
        })
    }

    /// Writes a small file.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.place(Path::new(name))?;
        fs::write(&path, bytes).map_err(|error| cannot("write", &path, error))
    }

    /// Copies a file to the same place in this directory; returns its bytes.
    pub(crate) fn copy(&self, root: &Path, relative: &Path) -> Result<u64, Error> {
        let to = self.place(relative)?;
        let from = root.join(relative);
        fs::copy(&from, &to).map_err(|error| cannot("copy", &from, error))
    }

    /// Starts a safetensors file of this layout: its header is written, its tensors have their places.
    pub(super) fn safetensors(&self, name: &str, layout: &Layout) -> Result<SafetensorsFile, Error> {
        let path = self.place(Path::new(name))?;
        let failed = |error| cannot("write", &path, error);
        let file = File::create_new(&path).map_err(failed)?;
        file.set_len(layout.file_len()).map_err(failed)?;
        file.write_all_at(&layout.header, 0).map_err(failed)?;
        let places =
            layout.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.bytes.clone())).collect();
        Ok(SafetensorsFile { path, places, stop: self.stop.clone() })
    }

    fn place(&self, relative: &Path) -> Result<PathBuf, Error> {
        let path = self.temporary.join(relative);
        // Not while the directory is given up.
        let _live = live_directories();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| cannot("make", parent, error))?;
        }
        Ok(path)
    }

    /// Makes everything visible under its own name, and safe on disk.
    ///
    /// # Errors
    /// When the system refuses, a file of weights that would stay is in the way, or a file that it is made of has changed.
    pub fn commit(mut self) -> Result<(), Error> {
        if self.is_settled {
            return Ok(());
        }
        check_stopped(&self.stop)?;
        let mut files = BTreeSet::new();
        collect(&self.temporary, Path::new(""), &mut files)?;
        for relative in &files {
            let path = self.temporary.join(relative);
            let synced = File::open(&path).and_then(|file| {
                let mode = file.metadata()?.mode() & 0o777;
                let narrow = mode & (self.widest | 0o700);
                if narrow != mode {
                    file.set_permissions(Permissions::from_mode(narrow))?;
                }
                file.sync_all()
            });
            synced.map_err(|error| cannot("write", &path, error))?;
        }
        for (path, before) in &self.sources {
            check_unchanged_at(before, path).map_err(|error| cannot("read", path, error))?;
        }
        // Held until it has its name: it is given up as a whole, or not at all.
        let mut live = live_directories();
        if self.path.is_dir() {
            self.move_into(&files)?;
        } else {
            // Who may read the files may look for them.
            let widest = self.widest | (self.widest & 0o444) >> 2 | 0o700;
            fs::set_permissions(&self.temporary, Permissions::from_mode(self.mode & widest))
                .map_err(|error| cannot("write", &self.temporary, error))?;
            fs::rename(&self.temporary, &self.path).map_err(|error| cannot("write", &self.path, error))?;
        }
        self.is_settled = true;
        live.retain(|path| *path != self.temporary);
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        for directory in [parent.unwrap_or(Path::new(".")), &self.path] {
            // Names are safe only once their directory is; some file systems refuse, and have no need of it.
            let _ = File::open(directory).and_then(|directory| directory.sync_all());
        }
        Ok(())
    }

    fn move_into(&self, files: &BTreeSet<PathBuf>) -> Result<(), Error> {
        let mut existing = BTreeSet::new();
        collect(&self.path, Path::new(""), &mut existing)?;
        let is_weights =
            |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
        // Readers take every safetensors file of a directory, so that one that is left would be part of the model.
        if let Some(stale) = existing.difference(files).find(is_weights) {
            let what = format!("`{}` would stay among the new files", self.path.join(stale).display());
            return Err(Error::invalid(what));
        }
        if !self.replace
            && let Some(taken) = existing.intersection(files).next()
        {
            return Err(Error::invalid(format!("`{}` exists already", self.path.join(taken).display())));
        }
        for relative in files {
            let to = self.path.join(relative);
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(|error| cannot("make", parent, error))?;
            }
            fs::rename(self.temporary.join(relative), &to).map_err(|error| cannot("write", &to, error))?;
        }
        fs::remove_dir_all(&self.temporary).map_err(|error| cannot("remove", &self.temporary, error))
    }
}

impl OutputDirectory {
    /// Removes the directories that this process is filling. Writers that are at work can neither finish nor start another
    /// file from then on: they wait until the process ends. For the handler of a signal that ends it.
    pub fn abandon_all() {
        let mut live = live_directories();
        for temporary in live.drain(..) {
            // A file may appear whose place was asked for before.
            for _ in 0..MAX_TRIES {
                match fs::remove_dir_all(&temporary) {
                    Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                    _ => break,
                }
            }
        }
        std::mem::forget(live);
    }
}

impl Drop for OutputDirectory {
    fn drop(&mut self) {
        if !self.is_settled {
            let mut live = live_directories();
            let _ = fs::remove_dir_all(&self.temporary);
            live.retain(|path| *path != self.temporary);
        }
    }
}

/// The temporary directories of this process that are neither committed nor dropped.
fn live_directories() -> MutexGuard<'static, Vec<PathBuf>> {
    static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_stopped(stop: &AtomicBool) -> Result<(), Error> {
    if stop.load(Ordering::Relaxed) {
        return Err(Error::io("stopped", std::io::ErrorKind::Interrupted.into()));
    }
    Ok(())
}

/// Makes a directory that only its owner can look into; returns the mode that the umask would leave it.
fn make_private(path: &Path) -> std::io::Result<u32> {
    fs::create_dir(path)?;
    let mode = fs::metadata(path)?.mode() & 0o777;
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    Ok(mode)
}

/// Locks a directory that is being filled. Some file systems have no locks; their leftovers stay.
fn lock(directory: &Path) -> Option<File> {
    let file = File::open(directory).ok()?;
    file.try_lock().is_ok().then_some(file)
}

/// Removes what killed writers of this name left: temporary directories that nobody holds a lock on.
fn remove_abandoned(parent: &Path, name: &str) {
    let Ok(siblings) = fs::read_dir(parent) else { return };
    for sibling in siblings.flatten() {
        let sibling_name = sibling.file_name();
        if sibling_name.to_str().is_some_and(|sibling| temporary::is_name(sibling, Some(name)))
            && sibling.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(lock) = lock(&sibling.path())
        {
            let _ = fs::remove_dir_all(sibling.path());
            drop(lock);
        }
    }
}

/// All files below a directory, by their path from it on.
fn collect(root: &Path, relative: &Path, files: &mut BTreeSet<PathBuf>) -> Result<(), Error> {
    let directory = root.join(relative);
    for entry in fs::read_dir(&directory).map_err(|error| cannot("read", &directory, error))? {
        let entry = entry.map_err(|error| cannot("read", &directory, error))?;
        let relative = relative.join(entry.file_name());
        if entry.path().is_dir() {
            collect(root, &relative, files)?;
        } else {
            files.insert(relative);
        }
    }
    Ok(())
}

/// A safetensors file whose tensors are written in any order, by several threads.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    path: PathBuf,
    places: HashMap<String, Range<u64>>,
    stop: Arc<AtomicBool>,
}

impl SafetensorsFile {
    /// Writes bytes of a tensor, from an offset in it on.
    pub(super) fn write(&self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let place = &self.places[tensor];
        assert!(offset + bytes.len() as u64 <= place.end - place.start, "bytes behind the end of a tensor");
        check_stopped(&self.stop)?;
        // Opened each time: a repository may have more files than a process may hold open.
        let file = File::options().write(true).open(&self.path);
        let written = file.and_then(|file| file.write_all_at(bytes, place.start + offset));
        written.map_err(|error| cannot("write", &self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_writers_are_removed_and_live_ones_stay() {
        let name = || temporary::name_for("model").unwrap();
        let folder = std::env::temp_dir().join(name());
        fs::create_dir_all(folder.join(name()).join("inner")).unwrap();
        fs::create_dir_all(folder.join(".model.notes.tmp")).unwrap();
        let live = folder.join(name());
        fs::create_dir_all(&live).unwrap();
        let held = lock(&live).expect("a lock");
        let made = OutputDirectory::create(&folder.join("model"), false).unwrap();
        assert_eq!(fs::metadata(made.temporary()).unwrap().mode() & 0o777, 0o700);
        drop(made);
        let names: BTreeSet<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let expected = [live.file_name().unwrap().to_owned(), ".model.notes.tmp".into()];
        assert_eq!(names, BTreeSet::from(expected));
        drop(held);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_made_of_private_files_is_private() {
        let folder = std::env::temp_dir().join(temporary::name_for("private").unwrap());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("weights"), b"secret").unwrap();
        for (input, mode, expected) in
            [("weights", 0o600, 0o600), ("weights", 0o640, 0o640), (".", 0o600, 0o600)]
        {
            fs::set_permissions(folder.join("weights"), Permissions::from_mode(mode)).unwrap();
            let path = folder.join(format!("made-{mode:o}-{}", input.len()));
            let output = OutputDirectory::create(&path, false).unwrap();
            let output = output.made_of(&folder.join(input)).unwrap();
            output.write("file", b"secret").unwrap();
            output.commit().unwrap();
            let of = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!(of(&path.join("file")) & !expected, 0, "{input} {mode:o}");
            assert_eq!(of(&path) & 0o007, 0, "{input} {mode:o}");
            fs::remove_dir_all(&path).unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
