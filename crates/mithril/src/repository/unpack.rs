//! Restores a packed directory.

use super::journal::{self, Journal};
use super::{MANIFEST, RepositorySummary, is_framed_repository, manifest, tree};
use crate::container::{Bases, Model, PackedFile, Reader, SUFFIX};
use crate::pack::{Progress, Source, framed_len, is_framed, unpack_file};
use crate::{AtomicFile, Attributes, DecodeOptions, Decoder, Error, room};
use mithril_format::FormatError;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes of all files of a packed directory of either kind once they are restored, as it says. What a file would be
/// longer than that is refused when it is restored.
///
/// # Errors
/// When the directory is not a complete packed one, or cannot be read.
pub fn unpacked_len(input: &Path) -> Result<u64, Error> {
    let mut len = 0u64;
    if !is_framed_repository(input) {
        let files = manifest::read(input)?.0;
        return Ok(files.iter().fold(0, |len, file| len.saturating_add(file.len)));
    }
    for file in tree::files(input)?.iter().filter(|file| file.link.is_none()) {
        let path = tree::path_below(input, &file.path)?;
        let is_framed = File::open(&path).is_ok_and(|file| is_framed(&file));
        len = len.saturating_add(if is_framed { framed_len(&path)? } else { file.len });
    }
    Ok(len)
}

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
    tree::make_parents(output, input, "")?;
    // Every place is looked at before anything is written.
    let directories: HashSet<&str> = tree::directories(files.iter().map(|file| file.path.as_str())).collect();
    for file in &files {
        if file.path == journal::NAME {
            let what = format!("the directory has a file `{}`, which unpacking needs", file.path);
            return Err(Error::invalid(what));
        }
        tree::path_below(output, &file.path)?;
        if let Some(packed_as) = &file.packed_as {
            tree::path_below(input, packed_as)?;
        }
        let leads_out = |link: &&String| !tree::stays_inside(&file.path, link, |at| directories.contains(at));
        if let Some(link) = file.link.as_ref().filter(leads_out) {
            let what =
                format!("`{}` is a link to `{}`, outside the directory", file.path, link.escape_debug());
            return Err(Error::invalid(what));
        }
    }
    let replace = journal::may_replace(output, replace, files.iter().map(|file| file.path.as_str()))?;
    let mut journal = Journal::open(output, "unpack")?;
    let bases = siblings(input, &files, bases)?;
    let mut summary = RepositorySummary::default();
    let mut small = small.as_slice();
    let place = input.join(MANIFEST);
    let metadata = fs::metadata(&place).map_err(|error| Error::cannot_read(&place, error))?;
    let manifest_attributes = Attributes::no_wider_than(&metadata);
    for file in files.iter().filter(|file| file.link.is_none()) {
        let target = tree::path_below(output, &file.path)?;
        tree::make_parents(output, input, &file.path)?;
        tree::clear_link(&target, replace)?;
        let Some(packed_as) = &file.packed_as else {
            let len = usize::try_from(file.len).ok().filter(|&len| len <= small.len());
            let (bytes, rest) = small.split_at(len.unwrap_or(small.len()));
            small = rest;
            // A small file that is there and right was written before an interruption.
            if fs::read(&target).ok().as_deref() != Some(bytes) {
                journal.begin();
                write_small(&target, bytes, &manifest_attributes, replace)?;
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
                check_len(&source, file.len)?;
                unpack_file(&source, &target, &bases, threads, replace, progress)?;
            } else {
                unpack_frame(&source, &target, file.len, replace, progress)?;
            }
            set_mode(&target, file.mode)?;
            journal.note(&file.path, &source, &target)?;
        }
        let packed_len = fs::metadata(&source).map_err(|error| Error::cannot_write(&source, error))?.len();
        summary.add(file.path.clone(), file.len, Some(packed_len), resumed);
    }
    let links = files.iter().filter_map(|file| Some((file.path.as_str(), file.link.as_deref()?)));
    finish(input, output, links, replace, journal, summary)
}

/// Makes the links of a directory whose files are all there, and with that it is complete.
///
/// Links come last, so that nothing is ever written through one.
pub(super) fn finish<'a>(
    input: &Path,
    output: &Path,
    links: impl Iterator<Item = (&'a str, &'a str)>,
    replace: bool,
    journal: Journal,
    mut summary: RepositorySummary,
) -> Result<RepositorySummary, Error> {
    for (path, link) in links {
        let target = tree::path_below(output, path)?;
        tree::make_parents(output, input, path)?;
        make_link(&target, link, replace)?;
        summary.add(path.to_owned(), 0, None, false);
    }
    summary.files.sort_by(|a, b| a.path.cmp(&b.path));
    journal.finish()?;
    Ok(summary)
}

/// The bases, and the packed models of the directory itself, which share tensors: each is stored against the bases and the
/// models before it. What its header calls its bases is not looked for, as those may have the names of the directory's own.
fn siblings(input: &Path, files: &[PackedFile], bases: &Bases) -> Result<Bases, Error> {
    let packed = files.iter().filter_map(|file| file.packed_as.as_ref());
    let mut bases = bases.clone();
    for place in packed.filter(|place| place.ends_with(&format!(".{SUFFIX}"))) {
        let path = tree::path_below(input, place)?;
        let file = File::open(&path).map_err(|error| Error::cannot_read(&path, error))?;
        let model = Model::open(place.as_str(), Box::new(file), bases.clone())?;
        bases = bases.and(&Bases::new([model]));
    }
    Ok(bases)
}

fn write_small(target: &Path, bytes: &[u8], attributes: &Attributes, replace: bool) -> Result<(), Error> {
    let failed = |error| Error::cannot_write(target, error);
    // Its own mode is set when it is there: until then it is as narrow as the manifest that held it.
    let mut file = AtomicFile::create_with(target, replace, attributes.clone()).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.commit().map_err(failed)
}

/// What the manifest says of a file, and what it was checked by, is what its container says.
fn check_len(source: &Path, len: u64) -> Result<(), Error> {
    let file = File::open(source).map_err(|error| Error::cannot_read(source, error))?;
    let original = Reader::open(file)?.header()?.original;
    if original.is_some_and(|original| original.len != len) { Err(other_len()) } else { Ok(()) }
}

fn other_len() -> Error {
    FormatError::Corrupt { what: "a file of another length than the manifest says", offset: 0 }.into()
}

fn unpack_frame(
    source: &Path,
    target: &Path,
    len: u64,
    replace: bool,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let input = Source::open(source)?;
    let options = DecodeOptions::default().with_max_output_len(len);
    let reader = io::BufReader::with_capacity(1 << 20, input.reader());
    let mut decoder = Decoder::with_options(reader, &options)?;
    let failed = |error| Error::cannot_write(target, error);
    room::check(target, len).map_err(failed)?;
    let mut output = AtomicFile::create_with(target, replace, input.attributes()).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    let mut restored_len = 0;
    loop {
        let n = decoder.read(&mut buffer).map_err(|error| match error.downcast::<Error>() {
            Ok(error) => error.about(source, target),
            Err(error) => Error::cannot_read(source, error),
        })?;
        if n == 0 {
            break;
        }
        output.write_all(&buffer[..n]).map_err(failed)?;
        restored_len += n as u64;
    }
    if restored_len != len {
        return Err(other_len());
    }
    input.check_unchanged(source)?;
    output.commit().map_err(failed)?;
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
    std::os::unix::fs::symlink(target, path).map_err(failed)
}

#[cfg(not(unix))]
fn make_link(path: &Path, _: &str, _: bool) -> Result<(), Error> {
    Err(Error::invalid(format!("`{}` is a link, which this system does not have", path.display())))
}
