//! Where output goes: stdout, a device or pipe, or a file that appears whole or not at all.

use crate::failure::Failure;
use mithril::AtomicFile;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Where output goes.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// Standard output.
    Stdout,
    /// A file of this name.
    File(PathBuf),
    /// Nowhere: everything is done but the writing.
    Nowhere,
}

impl Target {
    /// The target of this name: `-` is stdout.
    pub(crate) fn named(path: &Path) -> Self {
        if path.as_os_str() == "-" { Self::Stdout } else { Self::File(path.to_owned()) }
    }

    /// How messages call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Stdout => "stdout".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::Nowhere => "nowhere".to_owned(),
        }
    }

    /// The path, if it names a file that can appear at once, or one that is there already; not a device or a pipe.
    pub(crate) fn regular_file(&self) -> Option<&Path> {
        match self {
            Self::File(path) if fs::metadata(path).map_or(true, |metadata| metadata.is_file()) => Some(path),
            _ => None,
        }
    }
}

/// An output that is being written. Dropped without [`Output::commit`], it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Output {
    sink: Sink,
    name: String,
    len: u64,
}

#[derive(Debug)]
enum Sink {
    Stdout,
    /// A device or a pipe: bytes go there at once, and it stays what it is.
    Special(File),
    Atomic(AtomicFile),
    Nowhere,
}

impl Output {
    /// Opens an output. An existing file is refused unless `replace`.
    pub(crate) fn create(target: &Target, replace: bool) -> Result<Self, Failure> {
        let sink = match target {
            Target::Stdout => Sink::Stdout,
            Target::Nowhere => Sink::Nowhere,
            Target::File(path) => match fs::metadata(path) {
                Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                    let file = OpenOptions::new().write(true).open(path);
                    Sink::Special(file.map_err(|error| failed(path, &error))?)
                }
                _ => {
                    clean_up_on_signal();
                    Sink::Atomic(AtomicFile::create(path, replace).map_err(|error| failed(path, &error))?)
                }
            },
        };
        Ok(Self { sink, name: target.name(), len: 0 })
    }

    /// How messages call it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Makes the output visible under its name and safe on disk; returns how many bytes it has.
    pub(crate) fn commit(mut self) -> Result<u64, Failure> {
        let committed = self.flush().and_then(|()| match self.sink {
            Sink::Atomic(file) => file.commit(),
            _ => Ok(()),
        });
        committed.map_err(|error| failed(Path::new(&self.name), &error))?;
        Ok(self.len)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = match &mut self.sink {
            // Locked for each write: containers are written by another thread than the one that opened them.
            Sink::Stdout => io::stdout().lock().write(bytes)?,
            Sink::Special(file) => file.write(bytes)?,
            Sink::Atomic(file) => file.write(bytes)?,
            Sink::Nowhere => bytes.len(),
        };
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Stdout => io::stdout().lock().flush(),
            Sink::Special(file) => file.flush(),
            Sink::Atomic(file) => file.flush(),
            Sink::Nowhere => Ok(()),
        }
    }
}

/// From now on, a signal that ends the program removes this directory first.
pub(crate) fn remove_directory_on_signal(path: &Path) {
    clean_up_on_signal();
    *temporary_directory() = Some(path.to_owned());
}

/// The directory that is being filled. The program fills one at a time.
fn temporary_directory() -> MutexGuard<'static, Option<PathBuf>> {
    static DIRECTORY: Mutex<Option<PathBuf>> = Mutex::new(None);
    DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, a signal that ends the program removes temporary files first.
pub(crate) fn clean_up_on_signal() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the handler everything works but the cleaning up.
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else { return };
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                AtomicFile::abandon_all();
                if let Some(directory) = temporary_directory().take() {
                    let _ = fs::remove_dir_all(directory);
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
    });
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::write(path.display(), error)
}
