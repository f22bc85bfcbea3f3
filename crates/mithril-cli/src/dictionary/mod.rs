//! `mithril dictionary`: zstd dictionaries for small records.

mod arguments;
mod compress;
mod describe;
mod grouped;
mod records;
mod train;

pub(crate) use arguments::DictionaryCommand;

use crate::failure::Failure;
use mithril::dictionary::{Dictionary, DictionaryError, GroupedDictionary, RecordCodec};
use std::path::Path;

/// Runs `mithril dictionary`.
pub(crate) fn run(command: &DictionaryCommand) -> Result<(), Failure> {
    match command {
        DictionaryCommand::Train(arguments) if arguments.group_by.is_some() || arguments.groups.is_some() => {
            grouped::train(arguments)
        }
        DictionaryCommand::Train(arguments) => train::train(arguments),
        DictionaryCommand::Update(arguments) => train::update(arguments),
        DictionaryCommand::Inspect(arguments) => describe::inspect(arguments),
        DictionaryCommand::Evaluate(arguments) => describe::evaluate(arguments),
        DictionaryCommand::Explain(arguments) => describe::explain(arguments),
        DictionaryCommand::Compress(arguments) => compress::compress(arguments),
        DictionaryCommand::Decompress(arguments) => compress::decompress(arguments),
    }
}

/// A file that records are compressed with.
enum Loaded {
    One(Dictionary),
    Grouped(GroupedDictionary),
}

impl Loaded {
    /// Reads and prepares one dictionary, or a file of grouped ones.
    fn open(path: &Path, level: i32) -> Result<Self, Failure> {
        let bytes = std::fs::read(path).map_err(|error| Failure::read(path.display(), &error))?;
        if bytes.is_empty() {
            return Err(Failure::input(format!("`{}` is empty, and no dictionary", path.display())));
        }
        let loaded = if GroupedDictionary::is_grouped(&bytes) {
            GroupedDictionary::new(bytes, level).map(Self::Grouped)
        } else {
            Dictionary::new(bytes, level).map(Self::One)
        };
        loaded.map_err(|error| refused(path.display(), &error))
    }

    fn codec(&self) -> &dyn RecordCodec {
        match self {
            Self::One(dictionary) => dictionary,
            Self::Grouped(grouped) => grouped,
        }
    }
}

/// Reads and prepares a dictionary; what has groups is refused.
fn load(path: &Path, level: i32) -> Result<Dictionary, Failure> {
    match Loaded::open(path, level)? {
        Loaded::One(dictionary) => Ok(dictionary),
        Loaded::Grouped(_) => {
            let failure =
                Failure::input(format!("`{}` holds a dictionary for each of its groups", path.display()));
            Err(failure.with_hint("take one of them: `mithril dictionary inspect FILE --extract DIR`"))
        }
    }
}

/// The library refused samples, records or a dictionary.
fn refused(name: impl std::fmt::Display, error: &DictionaryError) -> Failure {
    let message = format!("`{name}`: {error}");
    let failure = match error {
        DictionaryError::InvalidArgument { .. } => Failure::command(error.to_string()),
        _ => Failure::input(message),
    };
    match error {
        DictionaryError::Record { source, .. } => with_hint(failure, source.hint()),
        _ => with_hint(failure, error.hint()),
    }
}

fn with_hint(failure: Failure, hint: Option<&str>) -> Failure {
    match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// A number of bytes, with K or M behind it.
fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let size = digits.parse::<usize>().ok().and_then(|size| size.checked_mul(unit));
    size.ok_or_else(|| "expected a number of bytes, with K or M behind it if you like".to_owned())
}

/// How many times smaller.
fn ratio(raw_len: u64, coded_len: u64) -> f64 {
    raw_len as f64 / coded_len.max(1) as f64
}
