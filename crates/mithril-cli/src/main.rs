//! The `mithril` program.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn main() -> ExitCode {
    exit_without_memory();
    ExitCode::from(mithril_cli::run(std::env::args_os()))
}

/// From now on, memory that the system refuses ends the program with the exit code of an environment that is at fault. The
/// standard library says on stderr what was refused and aborts, and Rust without nightly features has no other place to
/// step in. The handler allocates nothing, so that it cannot remove temporary files: the next run does.
fn exit_without_memory() {
    // Without the handler everything works but the exit code.
    let _ = signal_hook::flag::register_conditional_shutdown(
        signal_hook::consts::SIGABRT,
        2,
        Arc::new(AtomicBool::new(true)),
    );
}
