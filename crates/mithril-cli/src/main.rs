//! The `mithril` command: parse, call the library, print.

mod arguments;
mod bench;
mod clock;
mod demo;
mod failure;
mod input;
mod inspect;
mod output;
mod pack;
mod progress;
mod table;

use arguments::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return arguments::report(&error),
    };
    let result = match arguments.command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Compress(arguments) => pack::compress(&arguments),
        Command::Decompress(arguments) => pack::decompress(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
