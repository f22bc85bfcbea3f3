//! Golden containers restore to what they were made of, and rejected ones are refused for the right reason.

use crate::sha256::sha256;
use mithril::container::{Bases, EntryKind, Model, Reader};
use mithril::pack::unpack;
use mithril::{Error, ErrorKind};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(path)
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(golden(path)).unwrap_or_else(|error| panic!("golden/{path}: {error}"))
}

fn index() -> Value {
    serde_json::from_slice(&read("index.json")).unwrap()
}

/// The containers in a directory.
fn files(directory: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(golden(directory)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".mckp")).collect()
}

/// The original file, or all tensors one behind the other.
fn restore(container: &[u8], bases: &Bases) -> Result<Vec<u8>, Error> {
    let reader = Reader::open(container)?;
    if reader.header()?.original.is_some() {
        return Ok(unpack(&reader, Vec::new(), bases, 1, &|_| ())?.0);
    }
    let mut restored = Vec::new();
    for entry_idx in 0..reader.entries().len() {
        restored.extend(reader.read(entry_idx, bases)?);
    }
    Ok(restored)
}

fn bases_of(expected: &Value) -> Bases {
    let names = expected["bases"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Bases::new(names.map(|name| Model::open(name, Box::new(read(name)), Bases::none()).unwrap()))
}

#[test]
fn golden_containers_restore_to_their_inputs() {
    let index = index();
    let mut kinds = BTreeSet::new();
    let containers = index["containers"].as_object().unwrap();
    assert_eq!(files(""), containers.keys().cloned().collect());
    for (file, expected) in containers {
        let container = read(file);
        let restored =
            restore(&container, &bases_of(expected)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(expected["raw_len"].as_u64(), Some(restored.len() as u64), "{file}");
        assert_eq!(expected["sha256"].as_str(), Some(&*sha256(&restored)), "{file}");
        let reader = Reader::open(container).unwrap();
        kinds.extend(reader.entries().iter().map(|entry| entry.kind()));
    }
    for kind in EntryKind::ALL {
        assert!(kinds.contains(&kind), "no golden container has {}", kind.name());
    }
}

#[test]
fn rejected_containers_are_refused_for_the_right_reason() {
    let index = index();
    let rejected = index["rejected_containers"].as_object().unwrap();
    assert_eq!(files("rejected"), rejected.keys().cloned().collect());
    for (file, expected) in rejected {
        let container = read(&format!("rejected/{file}"));
        let error = restore(&container, &Bases::none()).expect_err(file);
        let kind = match error.kind() {
            ErrorKind::Truncated => "truncated",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Corrupt => "corrupt",
            _ => "another",
        };
        assert_eq!(expected["kind"].as_str(), Some(kind), "{file}: {error}");
        assert_eq!(expected["error"].as_str(), Some(&*error_name(&error)), "{file}: {error}");
    }
}

/// The variant of the format's error, as the index names it.
fn error_name(error: &Error) -> String {
    let variant =
        |debug: String| debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    match error {
        Error::Tensor { source, .. } => error_name(source),
        Error::Format(mithril::FormatError::Section { source, .. }) => {
            format!("Section.{}", variant(format!("{source:?}")))
        }
        Error::Format(error) => variant(format!("{error:?}")),
        error => format!("{error:?}"),
    }
}

#[test]
fn golden_containers_cut_short_are_refused() {
    for file in files("") {
        let container = read(&file);
        for len in (0..container.len()).step_by((container.len() / 50).max(1)) {
            assert!(restore(&container[..len], &Bases::none()).is_err(), "{file} cut to {len}");
        }
    }
}
