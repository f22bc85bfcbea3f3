//! `mithril store`: checkpoints in a directory or an object store.

mod arguments;
pub(crate) mod page;
mod report;
mod transfer;
mod upkeep;

pub(crate) use arguments::StoreArguments;

use crate::failure::Failure;
use arguments::StoreCommand;
use mithril::ErrorKind;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{CheckpointError, CompressorConfig};

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
    let storage = mithril::storage::open(url).map_err(|error| Failure::command(error.to_string()))?;
    Ok(CheckpointCompressor::new(config, storage))
}

/// The key that an argument means: itself, or that of the newest checkpoint.
fn resolve(store: &CheckpointCompressor, key: &str) -> Result<String, Failure> {
    if key != LATEST {
        return Ok(key.to_owned());
    }
    let latest = store.latest().map_err(|error| failed(&error))?;
    let missing = || Failure::input(format!("there is no checkpoint in `{}`", store.storage().location()));
    Ok(latest.ok_or_else(missing)?.key)
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
            return Failure::input(message).with_hint("`store delete` removes it, or choose another key");
        }
        CheckpointError::Collected { .. } => return Failure::input(message).with_hint("save it again"),
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
        ErrorKind::Unsupported => Failure::input(message).with_hint("a later version of mithril may read it"),
        _ => Failure::input(message),
    }
}
