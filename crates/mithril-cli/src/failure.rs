//! Why a command stopped: what the user reads, and the exit code.

use mithril::{Error, ErrorKind};
use std::fmt::Display;
use std::io::{self, ErrorKind as IoKind, Write};
use std::process::ExitCode;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Whoever read our output has read enough: no error.
    ClosedPipe,
    /// Anything that the user is told.
    Told {
        /// Who is at fault.
        fault: Fault,
        /// One line, lower case, no full stop.
        message: String,
        /// The cure, when it is known.
        hint: Option<String>,
    },
}

/// Who is at fault, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The input: damaged, different, missing. Exit code 1.
    Input,
    /// The command line or the environment. Exit code 2.
    Command,
}

impl Failure {
    /// The input is at fault.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Told { fault: Fault::Input, message: message.into(), hint: None }
    }

    /// The command line or the environment is at fault.
    pub(crate) fn command(message: impl Into<String>) -> Self {
        Self::Told { fault: Fault::Command, message: message.into(), hint: None }
    }

    /// Adds the cure.
    pub(crate) fn with_hint(mut self, cure: impl Into<String>) -> Self {
        if let Self::Told { hint, .. } = &mut self {
            *hint = Some(cure.into());
        }
        self
    }

    /// Reading an input failed.
    pub(crate) fn read(name: impl Display, error: &io::Error) -> Self {
        Self::input(format!("cannot read `{name}`: {}", reason(error)))
    }

    /// Writing an output failed.
    pub(crate) fn write(name: impl Display, error: &io::Error) -> Self {
        match error.kind() {
            IoKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::command(format!("cannot write `{name}`: {}", reason(error))),
        }
    }

    /// The library refused a frame or a file.
    pub(crate) fn library(name: impl Display, error: &Error) -> Self {
        let message = format!("`{name}`: {error}");
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

    /// Tells the user, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let Self::Told { fault, message, hint } = self else { return ExitCode::SUCCESS };
        // Nobody may be reading: that does not change the exit code.
        let mut stderr = io::stderr().lock();
        let _ = writeln!(stderr, "error: {message}");
        if let Some(hint) = hint {
            let _ = writeln!(stderr, "\nhint: {hint}");
        }
        ExitCode::from(match fault {
            Fault::Input => 1,
            Fault::Command => 2,
        })
    }
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
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::write("stdout", &error))
}

/// Writes a value as JSON to stdout.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::command(format!("cannot write JSON: {error}")))?;
    print(&(text + "\n"))
}

/// Tells the user something that is not an error. Nobody may be reading stderr: that stops nothing.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
