//! Restores a packed directory.

use super::journal::Journal;
use super::{RepositorySummary, manifest, tree};
use crate::container::{Bases, Model, PackedFile, SUFFIX};
use crate::pack::{Progress, unpack_file};
use crate::{AtomicFile, Decoder, Error};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Restores a packed directory into another, with names, modes and links. Work that was interrupted goes on where it
/// stopped; files that are there are replaced only if `replace`.
///
/// # Errors
/// When the directory is not a complete packed one, a file is damaged or would lie outside, a base is not at hand, or
/// writing fails.
pub fn unpack_repository(
    input: &Path,
    output: &Path,
    bases: &Bases,
    threads: usize,
    replace: bool,
    progress: Progress<'_>,
) -> Result<RepositorySummary, Error> {
    let (files, small) = manifest::read(input)?;
    fs::create_dir_all(output).map_err(|error| Error::cannot_write(output, error))?;
    // Every place is looked at before anything is written.
    for file in &files {
        tree::path_below(output, &file.path)?;
        if let Some(packed_as) = &file.packed_as {
            tree::path_below(input, packed_as)?;
        }
        if let Some(link) = file.link.as_ref().filter(|link| !tree::stays_inside(&file.path, link)) {
            let what =
                format!("`{}` is a link to `{}`, outside the directory", file.path, link.escape_debug());
            return Err(Error::invalid(what));
        }
    }
    let mut journal = Journal::open(output, "unpack")?;
    let bases = siblings(input, &files, bases)?;
    let mut summary = RepositorySummary::default();
    let mut small = small.as_slice();
    for file in files.iter().filter(|file| file.link.is_none()) {
        let target = tree::path_below(output, &file.path)?;
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|error| Error::cannot_write(parent, error))?;
        }
        let Some(packed_as) = &file.packed_as else {
            let len = usize::try_from(file.len).ok().filter(|&len| len <= small.len());
            let (bytes, rest) = small.split_at(len.unwrap_or(small.len()));
            small = rest;
            // A small file that is there and right was written before an interruption.
            if fs::read(&target).ok().as_deref() != Some(bytes) {
                write_small(&target, bytes, replace)?;
            }
            set_mode(&target, file.mode)?;
            progress(file.len);
            summary.add(file.path.clone(), file.len, None, false);
            continue;
        };
        let source = tree::path_below(input, packed_as)?;
        let resumed = journal.is_done(&file.path, &source, &target);
        if resumed {
            progress(file.len);
        } else {
            if packed_as.ends_with(&format!(".{SUFFIX}")) {
                unpack_file(&source, &target, &bases, threads, replace, progress)?;
            } else {
                unpack_frame(&source, &target, replace, progress)?;
            }
            set_mode(&target, file.mode)?;
            journal.note(&file.path, &source, &target)?;
        }
        let packed_len = fs::metadata(&source).map_err(|error| Error::cannot_write(&source, error))?.len();
        summary.add(file.path.clone(), file.len, Some(packed_len), resumed);
    }
    let links = files.iter().filter_map(|file| Some((file.path.as_str(), file.link.as_deref()?)));
    finish(output, links, replace, journal, summary)
}

/// Makes the links of a directory whose files are all there, and with that it is complete.
///
/// Links come last, so that nothing is ever written through one.
pub(super) fn finish<'a>(
    output: &Path,
    links: impl Iterator<Item = (&'a str, &'a str)>,
    replace: bool,
    journal: Journal,
    mut summary: RepositorySummary,
) -> Result<RepositorySummary, Error> {
    for (path, link) in links {
        make_link(&tree::path_below(output, path)?, link, replace)?;
        summary.add(path.to_owned(), 0, None, false);
    }
    summary.files.sort_by(|a, b| a.path.cmp(&b.path));
    journal.finish()?;
    Ok(summary)
}

/// The bases, and the packed models of the directory itself, which share tensors.
fn siblings(input: &Path, files: &[PackedFile], bases: &Bases) -> Result<Bases, Error> {
    let packed = files.iter().filter_map(|file| file.packed_as.as_ref());
    let mut models = Vec::new();
    for place in packed.filter(|place| place.ends_with(&format!(".{SUFFIX}"))) {
        models.push(Model::open_path(&tree::path_below(input, place)?)?);
    }
    Ok(bases.and(&Bases::new(models)))
}

fn write_small(target: &Path, bytes: &[u8], replace: bool) -> Result<(), Error> {
    let failed = |error| Error::cannot_write(target, error);
    let mut file = AtomicFile::create(target, replace).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.commit().map_err(failed)
}

fn unpack_frame(source: &Path, target: &Path, replace: bool, progress: Progress<'_>) -> Result<(), Error> {
    let file = File::open(source);
    let file = file.map_err(|error| Error::cannot_read(source, error))?;
    let mut decoder = Decoder::new(io::BufReader::with_capacity(1 << 20, file))?;
    let mut output =
        AtomicFile::create(target, replace).map_err(|error| Error::cannot_write(target, error))?;
    let what = format!("cannot restore `{}`", target.display());
    let len = io::copy(&mut decoder, &mut output).map_err(|error| Error::io(what, error))?;
    output.commit().map_err(|error| Error::cannot_write(target, error))?;
    progress(len);
    Ok(())
}

#[cfg(unix)]
pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o777))
        .map_err(|error| Error::cannot_write(path, error))
}

#[cfg(not(unix))]
pub(super) fn set_mode(_: &Path, _: u32) -> Result<(), Error> {
    Ok(())
}

#[cfg(unix)]
fn make_link(path: &Path, target: &str, replace: bool) -> Result<(), Error> {
    let failed = |error| Error::cannot_write(path, error);
    if fs::read_link(path).is_ok_and(|there| there == Path::new(target)) {
        return Ok(());
    }
    if replace && path.is_symlink() {
        fs::remove_file(path).map_err(failed)?;
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    std::os::unix::fs::symlink(target, path).map_err(failed)
}

#[cfg(not(unix))]
fn make_link(path: &Path, _: &str, _: bool) -> Result<(), Error> {
    Err(Error::invalid(format!("`{}` is a link, which this system does not have", path.display())))
}
