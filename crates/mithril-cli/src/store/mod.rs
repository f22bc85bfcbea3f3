//! `mithril store`: checkpoints in a directory or an object store.

mod arguments;
pub(crate) mod page;
mod report;
mod transfer;
mod upkeep;

pub(crate) use arguments::StoreArguments;

use crate::failure::Failure;
use arguments::StoreCommand;
use clap::Subcommand;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{CheckpointError, CompressorConfig};
use mithril::{Error, ErrorKind, storage};
use std::ffi::OsString;

/// The word that stands for the key of the newest checkpoint.
const LATEST: &str = "latest";

/// Runs `mithril store`.
pub(crate) fn run(arguments: &StoreArguments) -> Result<(), Failure> {
    crate::output::clean_up_on_signal();
    let url = &arguments.url;
    match &arguments.command {
        StoreCommand::List(arguments) => report::list(&open(url)?, arguments),
        StoreCommand::Log(arguments) => report::log(&open(url)?, arguments),
        StoreCommand::Show(arguments) => report::show(&open(url)?, arguments),
        StoreCommand::Diff(arguments) => report::diff(&open(url)?, arguments),
        StoreCommand::Stats(arguments) => report::stats(&open(url)?, arguments),
        StoreCommand::Save(arguments) => transfer::save(url, arguments),
        StoreCommand::Load(arguments) => transfer::load(url, arguments),
        StoreCommand::Extract(arguments) => transfer::extract(&open(url)?, arguments),
        StoreCommand::Export(arguments) => transfer::export(&open(url)?, arguments),
        StoreCommand::Verify(arguments) => upkeep::verify(&open(url)?, arguments),
        StoreCommand::Gc(arguments) => upkeep::gc(&open(url)?, arguments),
        StoreCommand::Rebase(arguments) => upkeep::rebase(&open(url)?, arguments),
        StoreCommand::Delete(arguments) => upkeep::delete(&open(url)?, arguments),
    }
}

fn open(url: &str) -> Result<CheckpointCompressor, Failure> {
    open_with(url, CompressorConfig::default())
}

fn open_with(url: &str, config: CompressorConfig) -> Result<CheckpointCompressor, Failure> {
    let storage = storage::open(url).map_err(|error| Failure::command(error.to_string()))?;
    Ok(CheckpointCompressor::new(config, storage))
}

/// The key that an argument means: itself, or that of the newest checkpoint.
fn resolve(store: &CheckpointCompressor, key: &str) -> Result<String, Failure> {
    if key != LATEST {
        return Ok(key.to_owned());
    }
    check_exists(store)?;
    let latest = store.latest().map_err(|error| failed(&error))?;
    let missing = || Failure::input(format!("there is no checkpoint in `{}`", store.storage().location()));
    Ok(latest.ok_or_else(missing)?.key)
}

/// Refuses a place that is no store: one that is mistyped must not look like one that is empty.
fn check_exists(store: &CheckpointCompressor) -> Result<(), Failure> {
    match store.exists() {
        Ok(true) => Ok(()),
        Ok(false) => {
            let location = store.storage().location().to_owned();
            Err(failed(&CheckpointError::NoStore { location }))
        }
        Err(error) => Err(failed(&error)),
    }
}

/// The command line with the store in front, where somebody has typed `store list run7`.
pub(crate) fn right_order(words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let [program, "store", command, url, rest @ ..] = words.as_slice() else { return None };
    let is_swapped =
        StoreCommand::has_subcommand(command) && !StoreCommand::has_subcommand(url) && !url.starts_with('-');
    let program = program.rsplit('/').next()?;
    is_swapped.then(|| [&[program, "store", url, command], rest].concat().join(" "))
}

/// So many things, by their name for one.
fn counted(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// What the library refused.
fn failed(error: &CheckpointError) -> Failure {
    let message = error.to_string();
    match error {
        CheckpointError::Conflict { .. } => {
            return Failure::command(message).with_hint("`store delete` removes it, or choose another key");
        }
        CheckpointError::Collected { .. } => return Failure::command(message).with_hint("save it again"),
        CheckpointError::NoStore { .. } => {
            return Failure::input(message)
                .with_hint("is it spelled right? The first `store save` makes a store");
        }
        // A file that is saved is the input, whatever is wrong with it.
        CheckpointError::Compression { source, .. } if source.kind() == ErrorKind::InvalidArgument => {
            return Failure::input(message);
        }
        CheckpointError::Compression { source: Error::Io { what, .. }, .. }
            if what.starts_with("cannot read") =>
        {
            return Failure::input(message);
        }
        CheckpointError::MissingPrevious { .. } | CheckpointError::NotFound { .. } => {
            return Failure::input(message).with_hint("`store list` shows the keys");
        }
        _ => {}
    }
    match error.kind() {
        ErrorKind::InvalidArgument => Failure::command(message),
        ErrorKind::Base => Failure::input(message)
            .with_hint("`store verify` lists what can be restored, `store list` the keys"),
        ErrorKind::Corrupt | ErrorKind::Truncated => {
            Failure::input(message).with_hint("`store verify --deep` lists what is damaged")
        }
        // The storage cannot do it, which no later version changes.
        ErrorKind::Unsupported if matches!(error, CheckpointError::Storage(_)) => Failure::command(message),
        ErrorKind::Unsupported => Failure::input(message).with_hint("a later version of mithril may read it"),
        // No room, no permission, no network.
        ErrorKind::Io | ErrorKind::Conflict => Failure::command(message),
        _ => Failure::input(message),
    }
}
