//! A file system in memory that knows what was synced: it fails at a step, stops at a step, and shows what a power cut
//! at that moment could leave.

use crate::attributes::Attributes;
use crate::files::{Files, Listed, NewFile};
use mithril_format::ReadAt;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// The file system. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    /// Temporary files of a process that uses it.
    live: Arc<Mutex<Vec<PathBuf>>>,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<Content>,
    /// What a process sees.
    names: BTreeMap<PathBuf, Node>,
    /// What is safe.
    durable_names: BTreeMap<PathBuf, Node>,
    /// Temporary files that a live process holds.
    /// Numbers of the files that a process has open for writing, or as a mark.
    locked: Vec<usize>,
    /// Locks of directories that are held. Nothing comes between while there are.
    n_directory_locks: usize,
    n_steps: u64,
    fault: Option<Fault>,
    /// Calls so far, those that only read included.
    n_calls: u64,
    interruption: Option<Interruption>,
    /// A disk whose directories cannot be synced, to prove that somebody relies on it.
    ignores_directory_syncs: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    File(usize),
    Directory,
}

#[derive(Debug, Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    durable_len: usize,
}

/// What goes wrong, and when.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// The process is killed before this step: it and all later ones do not happen.
    KilledAt(u64),
    /// This step fails with this error of the system.
    FailsAt(u64, i32),
    /// This step and all later ones that change something fail with this error.
    FailsFrom(u64, i32),
}

impl Fault {
    /// The step from which on something is wrong.
    pub(super) fn step(self) -> u64 {
        match self {
            Self::KilledAt(at) | Self::FailsAt(at, _) | Self::FailsFrom(at, _) => at,
        }
    }
}

/// What another process does in the middle of an operation.
struct Interruption {
    at_call: u64,
    work: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at call {}", self.at_call)
    }
}

/// A small source of numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    /// A number below a length.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }
}

impl SimulatedDisk {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn ignoring_directory_syncs() -> Self {
        let disk = Self::default();
        disk.lock().ignores_directory_syncs = true;
        disk
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The same disk, as another process has it.
    pub(super) fn for_process(&self) -> Self {
        Self { state: Arc::clone(&self.state), ..Self::default() }
    }

    /// The state for one call of the file system. Before it, another process may get its turn.
    fn call(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.n_calls += 1;
        let n_calls = state.n_calls;
        let is_free = state.n_directory_locks == 0;
        if let Some(due) = state.interruption.take_if(|due| is_free && n_calls > due.at_call) {
            drop(state);
            (due.work)();
            state = self.lock();
        }
        state
    }

    /// Lets another process work before the call after the next `n_calls`.
    pub(super) fn interrupt_after(&self, n_calls: u64, work: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        let at_call = state.n_calls + n_calls;
        state.interruption = Some(Interruption { at_call, work: Box::new(work) });
    }

    /// Takes back an interruption. Returns whether it was still to come.
    pub(super) fn no_interruption(&self) -> bool {
        self.lock().interruption.take().is_some()
    }

    /// Steps that changed something so far.
    pub(super) fn n_steps(&self) -> u64 {
        self.lock().n_steps
    }

    pub(super) fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// The disk as another process finds it: nothing is lost, but nobody holds anything.
    pub(super) fn after_kill(&self) -> Self {
        let state = self.lock();
        let new = State {
            files: state.files.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            ignores_directory_syncs: state.ignores_directory_syncs,
            ..State::default()
        };
        Self { state: Arc::new(Mutex::new(new)), ..Self::default() }
    }

    /// The disk as it may be after a power cut: names that were not synced are there or not, each for itself; of bytes that
    /// were not synced some are there, some are zero, some are anything.
    pub(super) fn after_power_cut(&self, random: &mut Random) -> Self {
        let state = self.lock();
        let mut names = state.durable_names.clone();
        for (path, node) in &state.names {
            if names.get(path) != Some(node) && random.below(2) == 0 {
                names.insert(path.clone(), *node);
            }
        }
        for path in state.durable_names.keys() {
            if !state.names.contains_key(path) && random.below(2) == 0 {
                names.remove(path);
            }
        }
        // What lies in a directory that is gone is gone.
        let reachable: Vec<PathBuf> = names
            .keys()
            .filter(|path| path.ancestors().skip(1).all(|above| is_root(above) || names.contains_key(above)))
            .cloned()
            .collect();
        names.retain(|path, _| reachable.contains(path));
        let files = state.files.iter().map(|content| {
            let unsynced = content.bytes.len() - content.durable_len;
            let kept = random.index(unsynced + 1);
            let mut bytes = content.bytes[..content.durable_len + kept].to_vec();
            match random.below(4) {
                // Blocks may be written in any order: a later one with an earlier one missing.
                0 => bytes[content.durable_len..].iter_mut().for_each(|byte| *byte = 0),
                1 if kept > 0 => {
                    let at = content.durable_len + random.index(kept);
                    bytes[at] ^= 0x55;
                }
                2 => bytes.resize(content.bytes.len(), 0),
                _ => {}
            }
            Content { durable_len: bytes.len(), bytes }
        });
        let files = files.collect();
        let new = State { files, durable_names: names.clone(), names, ..State::default() };
        Self { state: Arc::new(Mutex::new(new)), ..Self::default() }
    }

    /// Bytes of all files that have a name.
    pub(super) fn len(&self) -> u64 {
        let state = self.lock();
        let len = |node: &Node| match node {
            Node::File(file) => state.files[*file].bytes.len() as u64,
            Node::Directory => 0,
        };
        state.names.values().map(len).sum()
    }
}

fn is_root(path: &Path) -> bool {
    path == Path::new("/") || path.as_os_str().is_empty()
}

impl State {
    /// Counts a step that changes something; fails if it is to fail.
    fn step(&mut self) -> io::Result<()> {
        let step = self.n_steps;
        self.n_steps += 1;
        match self.fault {
            Some(Fault::KilledAt(at)) if step >= at => Err(io::Error::other("killed")),
            Some(Fault::FailsAt(at, code)) if step == at => Err(io::Error::from_raw_os_error(code)),
            Some(Fault::FailsFrom(at, code)) if step >= at => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }

    /// A process that was killed reads nothing either.
    fn alive(&self) -> io::Result<()> {
        match self.fault {
            Some(Fault::KilledAt(at)) if self.n_steps > at => Err(io::Error::other("killed")),
            _ => Ok(()),
        }
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Node::File(file)) => Ok(*file),
            Some(Node::Directory) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let there = is_root(parent) || self.names.get(parent) == Some(&Node::Directory);
        if there { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

impl Files for SimulatedDisk {
    fn create_new(&self, path: &Path, _: &Attributes) -> io::Result<Box<dyn NewFile>> {
        let mut state = self.call();
        state.step()?;
        state.check_parent(path)?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = state.files.len();
        state.files.push(Content::default());
        state.names.insert(path.to_owned(), Node::File(file));
        state.locked.push(file);
        Ok(Box::new(SimulatedFile { disk: self.clone(), file }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadAt>> {
        let state = self.call();
        state.alive()?;
        let file = state.file(path)?;
        Ok(Box::new(state.files[file].bytes.clone()))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.call();
        state.step()?;
        let file = state.file(from)?;
        if state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.names.insert(to.to_owned(), Node::File(file));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.call();
        state.step()?;
        let file = state.file(from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), Node::File(file));
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.lock().names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.call();
        state.step()?;
        state.file(path)?;
        state.names.remove(path);
        Ok(())
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.call();
        state.step()?;
        state.check_parent(path)?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.names.insert(path.to_owned(), Node::Directory);
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.call();
        state.step()?;
        if state.ignores_directory_syncs {
            return Ok(());
        }
        state.durable_names.retain(|name, _| name.parent() != Some(path));
        let now: Vec<_> = state.names.iter().filter(|(name, _)| name.parent() == Some(path)).collect();
        let now: Vec<_> = now.into_iter().map(|(name, node)| (name.clone(), *node)).collect();
        state.durable_names.extend(now);
        Ok(())
    }

    fn exists(&self, path: &Path) -> bool {
        is_root(path) || self.call().names.contains_key(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<Listed>> {
        let state = self.call();
        state.alive()?;
        if !is_root(directory) && state.names.get(directory) != Some(&Node::Directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let children = state.names.iter().filter(|(name, _)| name.parent() == Some(directory));
        let listed = children.map(|(name, node)| Listed {
            name: name.file_name().unwrap().to_str().unwrap().to_owned(),
            is_directory: *node == Node::Directory,
            is_file: *node != Node::Directory,
            len: if let Node::File(file) = node { state.files[*file].bytes.len() as u64 } else { 0 },
            modified: None,
        });
        Ok(listed.collect())
    }

    fn remove_abandoned(&self, path: &Path) -> bool {
        let state = self.call();
        let is_locked = state.file(path).is_ok_and(|file| state.locked.contains(&file));
        drop(state);
        !is_locked && self.remove(path).is_ok()
    }

    fn lock_directory(&self, _: &Path) -> Option<Box<dyn Send>> {
        self.call().n_directory_locks += 1;
        Some(Box::new(DirectoryLock(self.clone())))
    }

    fn live_temporaries(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.live.lock().unwrap()
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
}

struct DirectoryLock(SimulatedDisk);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        self.0.lock().n_directory_locks -= 1;
    }
}

impl Write for SimulatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.call();
        state.step()?;
        state.files[self.file].bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NewFile for SimulatedFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.call();
        state.step()?;
        let content = &mut state.files[self.file];
        content.durable_len = content.bytes.len();
        Ok(())
    }

    fn set_attributes(&mut self, _: &Attributes) {}
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut state = self.disk.lock();
        state.locked.retain(|locked| *locked != self.file);
    }
}
