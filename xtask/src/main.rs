//! Tasks of this repository that need Rust.
//!
//! * `cargo xtask golden` mints the golden files that are missing.
//! * `cargo xtask check-crates` checks which crates depend on which, and where `unsafe` stands.
//! * `cargo xtask digest` prints what the library writes for fixed inputs, to compare builds.
//! * `cargo xtask notices` writes the licenses of dependencies to THIRD-PARTY-NOTICES.txt, `check-notices` compares.

mod containers;
mod crates;
#[path = "../../crates/mithril-format/tests/it/delta_inputs.rs"]
mod delta_inputs;
mod deltas;
mod digest;
mod ecq;
#[path = "../../crates/mithril/tests/it/ecq/models.rs"]
mod ecq_models;
#[path = "../../crates/mithril-format/tests/it/forge.rs"]
mod forge;
mod golden;
#[path = "../../crates/mithril-format/tests/it/inputs.rs"]
mod inputs;
mod notices;
mod predicted_deltas;
mod rejected;
mod rejected_containers;
#[path = "../../crates/mithril-format/tests/it/sha256.rs"]
mod sha256;

use std::path::PathBuf;
use std::process::ExitCode;

/// Any failure, as a message for the person who ran the task.
type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let task: fn() -> Outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["golden"] => golden::mint,
        ["check-crates"] => crates::check,
        ["digest"] => digest::print,
        ["notices"] => notices::write,
        ["check-notices"] => notices::check,
        _ => {
            eprintln!("usage: cargo xtask golden | check-crates | digest | notices | check-notices");
            return ExitCode::from(2);
        }
    };
    match task() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A path from the root of the repository.
fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
