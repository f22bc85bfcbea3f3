//! The exceptions of the package, and which failure becomes which.

use mithril::storage::StorageErrorKind;
use mithril::{Error, ErrorKind, storage};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};
use pyo3::prelude::*;
use std::io;

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
        Error::Io { source, .. } => system(source, message),
        error => of_kind(error.kind(), message),
    }
}

/// The exception for a kind of failure.
pub(crate) fn of_kind(kind: ErrorKind, message: String) -> PyErr {
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
                Some(number) => PyOSError::new_err((number, message)),
                None => StorageError::new_err(message),
            }
        }
    }
}

/// `OSError` of the right subclass, which has the number of the error and says what was being done.
fn system(source: io::Error, message: String) -> PyErr {
    if let Some(error) = storage::StorageError::in_io(&source) {
        return of_storage(error, message);
    }
    match source.raw_os_error() {
        Some(number) => PyOSError::new_err((number, message)),
        None if source.kind() == io::ErrorKind::UnexpectedEof => TruncatedError::new_err(message),
        None => PyErr::from(io::Error::new(source.kind(), message)),
    }
}
