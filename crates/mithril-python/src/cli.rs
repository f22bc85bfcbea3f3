//! The `mithril` command, for the program that the package installs.

use pyo3::prelude::*;
use std::ffi::OsString;
use std::io::Write;

/// Runs the command with these arguments, the name of the program first; returns its exit code.
#[pyfunction]
#[pyo3(signature = (arguments, /))]
pub(crate) fn run_cli(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| {
        let code = mithril_cli::run(arguments);
        // The interpreter ends without Rust's own clean-up. Nobody may be reading.
        let _ = std::io::stdout().flush();
        code
    })
}
