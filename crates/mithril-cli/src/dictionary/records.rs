//! Where records come from: files, and how they are split.

use crate::failure::Failure;
use mithril::dictionary::SampleSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// How a file is split into records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    /// A file is a record.
    Files,
    /// A line is a record, with its line feed.
    Lines,
    /// A line is a record, without its line feed; empty lines are none.
    Jsonl,
    /// A length of 4 bytes, little-endian, stands before each record.
    LengthPrefixed,
    /// Every so many bytes are a record.
    Fixed(usize),
}

/// Longest record, and longest file that is one record.
const MAX_RECORD_LEN: usize = 64 << 20;

impl Split {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let fixed =
            || text.strip_prefix("fixed:")?.parse().ok().filter(|len| (1..=MAX_RECORD_LEN).contains(len));
        match text {
            "files" => Ok(Self::Files),
            "lines" => Ok(Self::Lines),
            "jsonl" => Ok(Self::Jsonl),
            "length-prefixed" => Ok(Self::LengthPrefixed),
            _ => fixed()
                .map(Self::Fixed)
                .ok_or_else(|| "expected files, lines, jsonl, length-prefixed or fixed:N".to_owned()),
        }
    }
}

/// The records of files and of all files below directories, in the order of their names.
pub(crate) fn read(paths: &[PathBuf], split: Split, max_len: usize) -> Result<SampleSet, Failure> {
    let mut set = SampleSet::with_max_len(max_len);
    for path in files(paths)? {
        read_file(&path, split, &mut set).map_err(|error| Failure::read(path.display(), &error))?;
    }
    Ok(set)
}

/// As [`read`]; refuses to go on with nothing.
pub(crate) fn read_some(paths: &[PathBuf], split: Split, max_len: usize) -> Result<SampleSet, Failure> {
    let set = read(paths, split, max_len)?;
    match set.samples().n_samples() {
        0 => Err(Failure::input(format!("`{}` holds no record that is not empty", paths[0].display()))),
        _ => Ok(set),
    }
}

/// Files, and all files below directories, in the order of their names.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for path in paths {
        collect(path, &mut found).map_err(|error| Failure::read(path.display(), &error))?;
    }
    Ok(found)
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    if !fs::metadata(path)?.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // What a killed run left of its output is no record.
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") && name.as_encoded_bytes().ends_with(b".tmp") {
            continue;
        }
        // Links are not followed below a directory, so that a ring of them ends.
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), found)?;
        } else if entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn read_file(path: &Path, split: Split, set: &mut SampleSet) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut record = Vec::new();
    match split {
        Split::Files => {
            take(&mut reader, MAX_RECORD_LEN + 1, &mut record)?;
            if record.len() > MAX_RECORD_LEN {
                return Err(io::Error::other(
                    "it is larger than a record may be; `--split` says how to cut it",
                ));
            }
            set.push(&record);
        }
        Split::Lines | Split::Jsonl => loop {
            record.clear();
            (&mut reader).take(MAX_RECORD_LEN as u64).read_until(b'\n', &mut record)?;
            if record.is_empty() {
                break;
            }
            if split == Split::Jsonl {
                let end = record.trim_ascii_end().len();
                record.truncate(end);
            }
            if split == Split::Lines || !record.is_empty() {
                set.push(&record);
            }
        },
        Split::Fixed(len) => {
            while take(&mut reader, len, &mut record)? > 0 {
                set.push(&record);
            }
        }
        Split::LengthPrefixed => {
            while take(&mut reader, 4, &mut record)? > 0 {
                let damaged = || io::Error::other("a record's length is cut off, or larger than its file");
                let len = u32::from_le_bytes(record[..].try_into().map_err(|_| damaged())?);
                let len =
                    usize::try_from(len).ok().filter(|&len| len <= MAX_RECORD_LEN).ok_or_else(damaged)?;
                if take(&mut reader, len, &mut record)? < len {
                    return Err(damaged());
                }
                set.push(&record);
            }
        }
    }
    Ok(())
}

/// Reads at most so many bytes, into a buffer that grows with them; returns how many came.
fn take(reader: &mut impl Read, len: usize, record: &mut Vec<u8>) -> io::Result<usize> {
    record.clear();
    reader.take(len as u64).read_to_end(record)
}
