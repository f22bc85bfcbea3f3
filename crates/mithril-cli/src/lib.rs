//! The `mithril` command: parse, call the library, print. A library, because two programs have it: the binary of this
//! crate, and the command that the Python package installs.

mod arguments;
mod bench;
mod clock;
mod compare;
mod completions;
mod convert;
mod demo;
mod diagnose;
mod dictionary;
mod estimate;
mod extract;
mod failure;
#[cfg(feature = "gpu")]
mod gpu;
mod input;
mod inspect;
mod open;
mod output;
mod pack;
mod progress;
mod quantize;
mod repair;
mod report;
mod rows;
mod source;
mod store;
mod table;
mod verify;

use arguments::{Arguments, Command};
use clap::Parser;
use std::ffi::OsString;

/// Runs the command with these arguments, the name of the program first; returns its exit code: 0 done, 1 the input is
/// at fault, 2 the command line or the environment is, 141 the reader of its output has gone.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = arguments.into_iter().collect();
    let arguments = match Arguments::try_parse_from(&words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = arguments::report(&error);
            if let Some(order) = store::right_order(&words).filter(|_| code != 0) {
                failure::tell(&format!("hint: the store comes first: `{order}`"));
            }
            return code;
        }
    };
    let result = match arguments.command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Quantize(arguments) => quantize::run(&arguments),
        Command::Merge(arguments) => convert::merge(&arguments),
        Command::Diagnose(arguments) => diagnose::run(&arguments),
        Command::Dictionary { command } => dictionary::run(&command),
        #[cfg(feature = "gpu")]
        Command::Gpu { command } => gpu::run(&command),
        Command::Compress(arguments) => pack::compress(&arguments),
        Command::Decompress(arguments) => pack::decompress(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Estimate(arguments) => estimate::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Extract(arguments) => extract::run(&arguments),
        Command::Compare(arguments) => compare::run_compare(&arguments),
        Command::Diff(arguments) => compare::run_diff(&arguments),
        Command::Repair(arguments) => repair::run(&arguments),
        Command::Store(arguments) => store::run(&arguments),
        Command::Completions { shell } => completions::print_completions(shell),
        Command::Man => completions::print_manual(),
    };
    match result {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    }
}
