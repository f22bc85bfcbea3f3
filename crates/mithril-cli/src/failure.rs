//! Why a command stopped: what the user reads, and the exit code.

use mithril::storage::without_secrets_of_urls as shown;
use mithril::{Error, ErrorKind, FormatError};
use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind as IoKind, StdoutLock, Write};
use std::path::Path;

/// The exit code of a program that the signal of a closed pipe ends, as shells show it.
const CLOSED_PIPE: u8 = 128 + 13;

/// What to do about a base that was not found.
pub(crate) const NAME_THE_BASE: &str = "`--base PATH` names the model that it was made against";

/// What was a container when its first bytes were read is none any more.
pub(crate) const CHANGED: &str = "the file changed while it was read";

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Whoever read our output has read enough: nothing to be told, but not all was written.
    ClosedPipe,
    /// The user knows already: only the exit code is left.
    Reported(Fault),
    /// Anything that the user is told.
    Told {
        /// Who is at fault.
        fault: Fault,
        /// One line, lower case, no full stop, without secrets of URLs: one may be typed where a file is wanted.
        message: String,
        /// The cure, when it is known.
        hint: Option<String>,
    },
}

/// Who is at fault, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The input: damaged, different, missing. Exit code 1.
    Input,
    /// The command line or the environment. Exit code 2.
    Command,
}

impl Failure {
    /// The input is at fault.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Told { fault: Fault::Input, message: shown(&message.into()), hint: None }
    }

    /// The command line or the environment is at fault.
    pub(crate) fn command(message: impl Into<String>) -> Self {
        Self::Told { fault: Fault::Command, message: shown(&message.into()), hint: None }
    }

    /// Adds the cure.
    pub(crate) fn with_hint(mut self, cure: impl Into<String>) -> Self {
        if let Self::Told { hint, .. } = &mut self {
            *hint = Some(shown(&cure.into()));
        }
        self
    }

    /// Reading an input failed.
    pub(crate) fn read(name: impl Display, error: &io::Error) -> Self {
        let message = format!("cannot read `{name}`: {}", reason(error));
        match error.kind() {
            IoKind::OutOfMemory => Self::command(message),
            _ => Self::input(message),
        }
    }

    /// Writing an output failed.
    pub(crate) fn write(name: impl Display, error: &io::Error) -> Self {
        let name = name.to_string();
        match error.kind() {
            IoKind::NotFound => {
                let parent = Path::new(&name).parent().filter(|parent| !parent.as_os_str().is_empty());
                let reason = match parent.filter(|parent| !parent.exists()) {
                    Some(missing) => format!("there is no directory `{}`", missing.display()),
                    None => reason(error),
                };
                Self::command(format!("cannot write `{name}`: {reason}"))
            }
            IoKind::BrokenPipe => Self::ClosedPipe,
            IoKind::AlreadyExists => Self::command(format!("`{name}` exists already"))
                .with_hint("`--force` replaces it, `-o` names another"),
            _ => Self::command(format!("cannot write `{name}`: {}", reason(error))),
        }
    }

    /// The library refused a frame or a file.
    pub(crate) fn library(name: impl Display, error: &Error) -> Self {
        if is_of_the_system(error) {
            return Self::command(error.to_string());
        }
        let message = about(name, error);
        match error.kind() {
            ErrorKind::Corrupt => Self::input(message),
            ErrorKind::Truncated => Self::input(message).with_hint("the file is incomplete; fetch it again"),
            ErrorKind::Unsupported => {
                Self::input(message).with_hint("a later version of mithril may read it")
            }
            ErrorKind::TooLarge | ErrorKind::Io => Self::input(message),
            _ => Self::command(message),
        }
    }

    /// The library refused a model file: whatever is wrong, it is that file, or writing the output.
    pub(crate) fn model(name: impl Display, error: &Error) -> Self {
        if is_of_the_system(error) {
            return Self::command(error.to_string());
        }
        if let Error::Io { what, source, .. } = error {
            // Where the library knows the file, its message names it.
            let file = what.split('`').nth(1);
            let is_output =
                ["cannot write", "cannot make", "cannot remove"].iter().any(|verb| what.starts_with(verb));
            // Whatever was being done: these come from writing only.
            let is_full = matches!(
                source.kind(),
                IoKind::StorageFull
                    | IoKind::QuotaExceeded
                    | IoKind::FileTooLarge
                    | IoKind::ReadOnlyFilesystem
            );
            return match is_output || is_full {
                true => Self::write(file.unwrap_or("output"), source),
                false => match file {
                    Some(file) => Self::read(file, source),
                    None => Self::read(name, source),
                },
            };
        }
        if let Error::Model { name, source } = error {
            return Self::model(name, source);
        }
        let hint = match error.kind() {
            ErrorKind::Truncated => {
                "the file is incomplete: fetch it again, or `mithril repair` saves what is left"
            }
            ErrorKind::Corrupt => "`mithril verify` lists what is damaged, `mithril repair` saves the rest",
            ErrorKind::Unsupported => "a later version of mithril may read it",
            ErrorKind::Base => NAME_THE_BASE,
            ErrorKind::NotFound => "`mithril inspect` lists the tensors",
            _ => return Self::input(about(name, error)),
        };
        let is_container = matches!(error, Error::Tensor { .. })
            || !matches!(error, Error::Format(FormatError::Foreign { .. } | FormatError::NotAFrame { .. }));
        let failure = Self::input(about(name, error));
        if is_container { failure.with_hint(hint) } else { failure }
    }

    /// Who is at fault. A reader that has gone is nothing that was read or written.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::ClosedPipe => Fault::Command,
            Self::Reported(fault) | Self::Told { fault, .. } => *fault,
        }
    }

    /// Tells the user, and gives the fault; nothing when there is none.
    pub(crate) fn tell(&self) -> Option<Fault> {
        let (fault, message, hint) = match self {
            Self::ClosedPipe => return None,
            Self::Reported(fault) => return Some(*fault),
            Self::Told { fault, message, hint } => (fault, message, hint),
        };
        // Nobody may be reading: that does not change the exit code.
        let mut stderr = io::stderr().lock();
        let _ = writeln!(stderr, "error: {message}");
        if let Some(hint) = hint {
            let _ = writeln!(stderr, "\nhint: {hint}");
        }
        Some(*fault)
    }

    /// Tells the user, and gives the exit code.
    pub(crate) fn report(&self) -> u8 {
        match self.tell() {
            None => CLOSED_PIPE,
            Some(Fault::Input) => 1,
            Some(Fault::Command) => 2,
        }
    }
}

/// Whether the system gave no thread or no memory, which is the fault of no file.
fn is_of_the_system(error: &Error) -> bool {
    matches!(error, Error::Io { what, .. } if what.starts_with("cannot start") || what.starts_with("cannot take"))
}

/// What is wrong with a file, which is named once.
fn about(name: impl Display, error: &Error) -> String {
    let (name, error) = (format!("`{name}`"), error.to_string());
    if error.contains(&name) { error } else { format!("{name}: {error}") }
}

/// The system's reason in our style: no capital, no number.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        IoKind::NotFound => "no such file".to_owned(),
        IoKind::PermissionDenied => "permission denied".to_owned(),
        IoKind::IsADirectory => "it is a directory".to_owned(),
        _ => error.to_string(),
    }
}

/// Writes a report to stdout.
pub(crate) fn print(text: impl Display) -> Result<(), Failure> {
    print_with(|stdout| write!(stdout, "{text}"))
}

/// Writes a value as JSON to stdout.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print_with(|stdout| {
        serde_json::to_writer_pretty(&mut *stdout, value)?;
        writeln!(stdout)
    })
}

/// Writes to stdout, in large pieces.
fn print_with(write: impl FnOnce(&mut BufWriter<StdoutLock<'_>>) -> io::Result<()>) -> Result<(), Failure> {
    let mut stdout = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    write(&mut stdout).and_then(|()| stdout.flush()).map_err(|error| Failure::write("stdout", &error))
}

/// Tells the user something that is not an error. Nobody may be reading stderr: that stops nothing.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_blamed_for_threads_and_memory_that_the_system_refuses() {
        for what in ["cannot start a thread", "cannot take 9 bytes of memory"] {
            let error = Error::io(what, IoKind::WouldBlock.into());
            for failure in [Failure::model("model", &error), Failure::library("model", &error)] {
                let Failure::Told { fault, message, .. } = failure else { panic!("{what}") };
                assert!(message.starts_with(what) && !message.contains("model"), "{message}");
                assert_eq!(fault, Fault::Command);
            }
        }
        let refused = Failure::read("model", &IoKind::OutOfMemory.into());
        assert!(matches!(refused, Failure::Told { fault: Fault::Command, .. }));
    }
}
