//! The `mithril` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(mithril_cli::run(std::env::args_os()))
}
