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
    // The library around zstd panics where zstd gets no memory.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(|text| text.starts_with("zstd returned null pointer")) {
            eprintln!("error: zstd: the system refused memory");
            std::process::exit(2);
        }
        report(panic);
    }));
}
