//! What is done so far, so that interrupted work can go on.

use super::tree;
use crate::Error;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Name of the journal in the directory that is being written. Removed when all is done.
pub(super) const NAME: &str = ".mithril-journal";

/// Whether files at these places in an output directory may be replaced: if the caller wants that, or if an interrupted run
/// left them. Otherwise a file that exists is an error, and nothing is changed.
pub(super) fn may_replace<'a>(
    output: &Path,
    replace: bool,
    mut places: impl Iterator<Item = &'a str>,
) -> Result<bool, Error> {
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
    if replace || is_file(&output.join(NAME)) {
        return Ok(true);
    }
    places.try_for_each(|place| {
        let path = tree::path_below(output, place)?;
        match fs::symlink_metadata(&path) {
            Ok(_) => Err(Error::cannot_write(&path, std::io::ErrorKind::AlreadyExists.into())),
            Err(_) => Ok(()),
        }
    })?;
    Ok(false)
}

/// A list of files that are done, kept beside them. Dropped before anything was done, it leaves the directory as it was.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    done: HashMap<String, String>,
    file: File,
    /// Whether the directory may hold results of work that has not ended.
    is_begun: bool,
}

/// Refuses a directory in which work has begun and not ended: beside new files it may hold those of an earlier run.
pub(super) fn check_complete(directory: &Path) -> Result<(), Error> {
    if !directory.join(NAME).exists() {
        return Ok(());
    }
    let what = format!(
        "`{}` is not complete: the run that writes it has not ended, or was interrupted and is to be repeated",
        directory.display()
    );
    Err(Error::invalid(what))
}

impl Journal {
    /// Opens the journal of an output directory. Work with other settings counts for nothing.
    pub(super) fn open(directory: &Path, settings: &str) -> Result<Self, Error> {
        let path = directory.join(NAME);
        tree::clear_link(&path, true)?;
        let failed = |error| Error::cannot_write(&path, error);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        let same = lines.next().is_some_and(|line| line == settings);
        let done = match same {
            true => lines
                .filter_map(|line| line.split_once('\t'))
                .map(|(state, place)| (place.to_owned(), state.to_owned())),
            false => {
                fs::write(&path, format!("{settings}\n")).map_err(failed)?;
                return Self::append_to(path, HashMap::new());
            }
        };
        let done = done.collect();
        Self::append_to(path, done)
    }

    fn append_to(path: PathBuf, done: HashMap<String, String>) -> Result<Self, Error> {
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(|error| Error::cannot_write(&path, error))?;
        let is_begun = !done.is_empty();
        Ok(Self { path, done, file, is_begun })
    }

    /// Whether this input was made into this output before, and both are as they were then.
    pub(super) fn is_done(&self, place: &str, input: &Path, output: &Path) -> bool {
        match (state(input, output), self.done.get(place)) {
            (Some(now), Some(then)) => now == *then,
            _ => false,
        }
    }

    /// Says that something in the directory is another from now on.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
    }

    /// Notes that an output is complete.
    pub(super) fn note(&mut self, place: &str, input: &Path, output: &Path) -> Result<(), Error> {
        self.begin();
        let Some(state) = state(input, output) else { return Ok(()) };
        writeln!(self.file, "{state}\t{place}").map_err(|error| Error::cannot_write(&self.path, error))
    }

    /// Ends the work: nothing is left to go on with.
    pub(super) fn finish(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(|error| Error::io_at("cannot remove", &self.path, error))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if !self.is_begun {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Length and time of both files; nothing when one of them is gone.
fn state(input: &Path, output: &Path) -> Option<String> {
    let of = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} {}", metadata.len(), modified.as_nanos()))
    };
    Some(format!("{} {}", of(input)?, of(output)?))
}
