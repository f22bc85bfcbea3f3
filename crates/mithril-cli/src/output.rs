//! Output files that appear whole or not at all: a temporary sibling, fsync, rename.

use crate::failure::Failure;
use std::fs::{self, File, OpenOptions};
use std::io::{self, StdoutLock, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Where output goes.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// Standard output.
    Stdout,
    /// A file of this name.
    File(PathBuf),
}

impl Target {
    /// The target of this name: `-` is stdout.
    pub(crate) fn named(path: &Path) -> Self {
        if path.as_os_str() == "-" { Self::Stdout } else { Self::File(path.to_owned()) }
    }
}

/// An output that is being written. Dropped without [`Output::commit`], it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Output {
    sink: Sink,
    len: u64,
}

#[derive(Debug)]
enum Sink {
    Stdout(StdoutLock<'static>),
    /// A device or a pipe: bytes go there at once, and it stays what it is.
    Special {
        file: File,
        path: PathBuf,
    },
    Sibling {
        file: File,
        temporary: PathBuf,
        path: PathBuf,
        replace: bool,
    },
}

impl Output {
    /// Opens an output. An existing file is refused unless `replace`.
    pub(crate) fn create(target: Target, replace: bool) -> Result<Self, Failure> {
        let sink = match target {
            Target::Stdout => Sink::Stdout(io::stdout().lock()),
            Target::File(path) => match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    return Err(Failure::command(format!(
                        "cannot write `{}`: it is a directory",
                        path.display()
                    )));
                }
                Ok(metadata) if !metadata.is_file() => {
                    let file =
                        OpenOptions::new().write(true).open(&path).map_err(|error| failed(&path, &error))?;
                    Sink::Special { file, path }
                }
                Ok(_) if !replace => return Err(exists(&path)),
                // A link stays one: what it points to is replaced.
                Ok(_) => Self::sibling(fs::canonicalize(&path).unwrap_or(path), replace)?,
                Err(_) => Self::sibling(path, replace)?,
            },
        };
        Ok(Self { sink, len: 0 })
    }

    fn sibling(path: PathBuf, replace: bool) -> Result<Sink, Failure> {
        let name = path
            .file_name()
            .ok_or_else(|| Failure::command(format!("`{}` names no file", path.display())))?;
        let temporary = path.with_file_name(format!(".{}.{}.tmp", name.display(), std::process::id()));
        remove_on_signal();
        let mut guard = current_temporary();
        let file = File::create_new(&temporary).map_err(|error| failed(&path, &error))?;
        *guard = Some(temporary.clone());
        Ok(Sink::Sibling { file, temporary, path, replace })
    }

    /// How messages call it.
    pub(crate) fn name(&self) -> String {
        match &self.sink {
            Sink::Stdout(_) => "stdout".to_owned(),
            Sink::Special { path, .. } | Sink::Sibling { path, .. } => path.display().to_string(),
        }
    }

    /// Makes the output visible under its name and safe on disk; returns how many bytes it has.
    pub(crate) fn commit(mut self) -> Result<u64, Failure> {
        let name = self.name();
        self.persist().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(Path::new(&name)),
            _ => Failure::write(&name, &error),
        })?;
        Ok(self.len)
    }

    fn persist(&mut self) -> io::Result<()> {
        self.flush()?;
        let Sink::Sibling { file, temporary, path, replace } = &self.sink else { return Ok(()) };
        file.sync_all()?;
        if !replace && path.exists() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::rename(temporary, path)?;
        *current_temporary() = None;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The name is safe only once its directory is; some file systems refuse, and have no need of it.
        let _ = File::open(parent).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = match &mut self.sink {
            Sink::Stdout(stdout) => stdout.write(bytes)?,
            Sink::Special { file, .. } | Sink::Sibling { file, .. } => file.write(bytes)?,
        };
        self.len += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Stdout(stdout) => stdout.flush(),
            Sink::Special { file, .. } | Sink::Sibling { file, .. } => file.flush(),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(temporary) = current_temporary().take() {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// The temporary file that exists now. The program writes one output at a time.
fn current_temporary() -> MutexGuard<'static, Option<PathBuf>> {
    static TEMPORARY: Mutex<Option<PathBuf>> = Mutex::new(None);
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, a signal that ends the program removes the temporary file first.
fn remove_on_signal() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the handler everything works but the cleaning up.
        let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else { return };
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Kept locked until the end, so that no file is made or renamed any more.
                let mut temporary = current_temporary();
                if let Some(path) = temporary.take() {
                    let _ = fs::remove_file(path);
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
    });
}

fn exists(path: &Path) -> Failure {
    Failure::command(format!("`{}` exists already", path.display()))
        .with_hint("`--force` replaces it, `-o` names another")
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::write(path.display(), error)
}
