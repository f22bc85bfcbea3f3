//! The exceptions of the package, and which failure becomes which.

use mithril::storage::{StorageErrorKind, without_secrets_of_urls};
use mithril::{Error, ErrorKind, storage};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

create_exception!(
    mithril,
    MithrilError,
    PyException,
    "Any failure that is not an argument's or the system's."
);
create_exception!(mithril, CorruptError, MithrilError, "The bytes are damaged: fetch them again.");
create_exception!(mithril, TruncatedError, MithrilError, "The bytes end early: fetch the rest.");
create_exception!(
    mithril,
    UnsupportedError,
    MithrilError,
    "Written by a later version, of an unknown kind, or larger than the limits allow."
);
create_exception!(
    mithril,
    BaseMismatchError,
    MithrilError,
    "The base is missing, or is another one than the data was stored against."
);
create_exception!(mithril, NotFoundError, MithrilError, "There is no such tensor, checkpoint or file.");
create_exception!(mithril, ConflictError, MithrilError, "Another writer was there first.");
create_exception!(mithril, StorageError, MithrilError, "The storage refused or cannot be reached.");

/// Adds the exceptions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("MithrilError", py.get_type::<MithrilError>())?;
    module.add("CorruptError", py.get_type::<CorruptError>())?;
    module.add("TruncatedError", py.get_type::<TruncatedError>())?;
    module.add("UnsupportedError", py.get_type::<UnsupportedError>())?;
    module.add("BaseMismatchError", py.get_type::<BaseMismatchError>())?;
    module.add("NotFoundError", py.get_type::<NotFoundError>())?;
    module.add("ConflictError", py.get_type::<ConflictError>())?;
    module.add("StorageError", py.get_type::<StorageError>())
}

/// The exception for a failure of the library.
pub(crate) fn to_python(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Io { what, path, source } => system(&what, path, source),
        error => of_kind(error.kind(), message),
    }
}

/// The exception for a kind of failure.
pub(crate) fn of_kind(kind: ErrorKind, message: String) -> PyErr {
    // Where a name of a file is wanted, a URL may be given.
    let message = without_secrets_of_urls(&message);
    match kind {
        ErrorKind::Corrupt => CorruptError::new_err(message),
        ErrorKind::Truncated => TruncatedError::new_err(message),
        ErrorKind::Unsupported | ErrorKind::TooLarge => UnsupportedError::new_err(message),
        ErrorKind::Base => BaseMismatchError::new_err(message),
        ErrorKind::NotFound => NotFoundError::new_err(message),
        ErrorKind::InvalidArgument => PyValueError::new_err(message),
        _ => MithrilError::new_err(message),
    }
}

/// As [`to_python`] for a file that is opened: what is of no known kind is the file's fault, not an argument's.
pub(crate) fn of_file(error: Error) -> PyErr {
    match error.kind() {
        ErrorKind::InvalidArgument => UnsupportedError::new_err(error.to_string()),
        _ => to_python(error),
    }
}

/// The exception for a failure of a storage; `message` may say more than the failure itself.
pub(crate) fn of_storage(error: &storage::StorageError, message: String) -> PyErr {
    match error.kind() {
        StorageErrorKind::NotFound => NotFoundError::new_err(message),
        StorageErrorKind::AlreadyExists => ConflictError::new_err(message),
        StorageErrorKind::TooLarge | StorageErrorKind::Unsupported => UnsupportedError::new_err(message),
        StorageErrorKind::InvalidArgument => PyValueError::new_err(message),
        _ => {
            let reason =
                std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
            match reason.and_then(io::Error::raw_os_error) {
                Some(number) => PyOSError::new_err((number, without_number(&message, number))),
                None => StorageError::new_err(message),
            }
        }
    }
}

/// The exception that Python has for memory or a thread that the system refuses.
pub(crate) fn of_refusal(source: &io::Error, message: &str) -> Option<PyErr> {
    match source.kind() {
        io::ErrorKind::OutOfMemory => Some(PyMemoryError::new_err(message.to_owned())),
        // Of reading and writing, only what does not wait reports it, and nothing here does that.
        io::ErrorKind::WouldBlock => Some(PyRuntimeError::new_err(message.to_owned())),
        _ => None,
    }
}

/// `OSError` of the right subclass, as Python makes it: number, reason, and the file if it is known.
fn system(what: &str, path: Option<PathBuf>, source: io::Error) -> PyErr {
    let what = &without_secrets_of_urls(what);
    if let Some(error) = of_refusal(&source, &format!("{what}: {source}")) {
        return error;
    }
    if let Some(error) = storage::StorageError::in_io(&source) {
        return of_storage(error, format!("{what}: {error}"));
    }
    let Some(number) = errno(&source) else {
        let message = format!("{what}: {source}");
        return match source.kind() {
            io::ErrorKind::UnexpectedEof => TruncatedError::new_err(message),
            kind => PyErr::from(io::Error::new(kind, message)),
        };
    };
    match path {
        Some(path) => PyOSError::new_err((number, reason(&source), shown(path))),
        None => PyOSError::new_err((number, format!("{what}: {}", reason(&source)))),
    }
}

/// The name of a file as it is, or of what is meant for a URL without its secrets.
fn shown(path: PathBuf) -> OsString {
    match path.to_str() {
        Some(text) if text.contains("://") => without_secrets_of_urls(text).into(),
        _ => path.into_os_string(),
    }
}

/// The number that Python knows a failure by. Those of kinds are the same on all systems.
fn errno(error: &io::Error) -> Option<i32> {
    Some(match error.kind() {
        io::ErrorKind::NotFound => 2,
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => 13,
        io::ErrorKind::AlreadyExists => 17,
        io::ErrorKind::NotADirectory => 20,
        io::ErrorKind::IsADirectory => 21,
        _ => return error.raw_os_error(),
    })
}

/// What the system says.
fn reason(error: &io::Error) -> String {
    let text = match error.kind() {
        io::ErrorKind::IsADirectory => "Is a directory".to_owned(),
        _ => error.to_string(),
    };
    error.raw_os_error().map_or(text.clone(), |number| without_number(&text, number))
}

/// Rust says the number of a failure after its text, Python before it.
fn without_number(text: &str, number: i32) -> String {
    text.replace(&format!(" (os error {number})"), "")
}
