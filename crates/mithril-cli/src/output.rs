//! Where output goes: stdout, a device or pipe, or a file that appears whole or not at all.

use crate::failure::Failure;
use mithril::convert::OutputDirectory;
use mithril::{AtomicFile, Attributes, room};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Once;

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
            Self::File(path) if !is_special(path) => Some(path),
            _ => None,
        }
    }

    /// Refuses what is larger than the user allows, or than the file system of the target has room for.
    pub(crate) fn check_room(&self, raw_len: u64, max_len: Option<u64>) -> Result<(), Failure> {
        room::check_limit(raw_len, max_len).map_err(|error| too_large(&error))?;
        match self {
            Self::File(path) if !is_special(path) => {
                room::check(path, raw_len).map_err(|error| failed(path, &error))
            }
            _ => Ok(()),
        }
    }
}

/// The content is larger than `--max-output` allows.
pub(crate) fn too_large(error: &mithril::Error) -> Failure {
    Failure::input(error.to_string()).with_hint("`--max-output` allows more")
}

/// Whether something of this name is neither a file nor a directory, but a device or a pipe.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
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
    /// Stdout, a device or a pipe: bytes go there at once, and it stays what it is.
    Special(File),
    Atomic(Box<AtomicFile>),
    Nowhere,
}

impl Output {
    /// Opens an output. An existing file is refused unless `replace`; a new one gets these attributes.
    pub(crate) fn create(target: &Target, replace: bool, attributes: Attributes) -> Result<Self, Failure> {
        let sink = match target {
            // Not through the buffer of the standard library, which takes a closed stdout for one that takes everything.
            Target::Stdout => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                Sink::Special(stdout.map_err(|error| failed(Path::new("stdout"), &error))?.into())
            }
            Target::Nowhere => Sink::Nowhere,
            Target::File(path) if is_special(path) => {
                let file = OpenOptions::new().write(true).open(path);
                Sink::Special(file.map_err(|error| failed(path, &error))?)
            }
            Target::File(path) => {
                clean_up_on_signal();
                let file = AtomicFile::create_with(path, replace, attributes);
                Sink::Atomic(Box::new(file.map_err(|error| failed(path, &error))?))
            }
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
            Sink::Special(file) => file.write(bytes)?,
            Sink::Atomic(file) => file.write(bytes)?,
            Sink::Nowhere => bytes.len(),
        };
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Special(file) => file.flush(),
            Sink::Atomic(file) => file.flush(),
            Sink::Nowhere => Ok(()),
        }
    }
}

/// Writes several files of a directory, which get their names together, once all of them are whole. A failure before that
/// leaves no file, nor a directory that was not there.
pub(crate) fn fill_directory(
    path: &Path,
    write: impl FnOnce() -> Result<Vec<Output>, Failure>,
) -> Result<(), Failure> {
    let is_new = !path.exists();
    fs::create_dir_all(path).map_err(|error| failed(path, &error))?;
    let filled =
        write().and_then(|outputs| outputs.into_iter().try_for_each(|output| output.commit().map(|_| ())));
    if filled.is_err() && is_new {
        // Only what is empty is removed by this.
        let _ = fs::remove_dir(path);
    }
    filled
}

/// From now on, a signal that ends the program removes temporary files first.
pub(crate) fn clean_up_on_signal() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the handler everything works but the cleaning up.
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else { return };
        let clean_up = move || {
            if let Some(signal) = signals.forever().next() {
                AtomicFile::abandon_all();
                OutputDirectory::abandon_all();
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        };
        // Nor does it need the thread: the next run cleans up.
        let _ = std::thread::Builder::new().spawn(clean_up);
    });
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::write(path.display(), error)
}
