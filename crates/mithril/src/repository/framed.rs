//! Directories whose safetensors files hold frames: every file keeps its name, so that other programs find all of them.

use super::journal::{self, Journal};
use super::unpack::{finish, set_mode};
use super::{MANIFEST, RepositorySummary, pack, tree};
use crate::pack::{PackOptions, Progress, Source, is_framed, pack_framed, unpack_framed};
use crate::{AtomicFile, Error, ErrorKind};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Packs the safetensors files below a directory to ones with frames, of the same names in another directory, and
/// copies everything else. Work that was interrupted goes on where it stopped; files that are there are replaced only
/// if `replace`.
///
/// # Errors
/// As [`pack_framed`]; when the output lies inside the input.
pub fn pack_framed_repository(
    input: &Path,
    output: &Path,
    options: &PackOptions,
    replace: bool,
    progress: Progress<'_>,
) -> Result<RepositorySummary, Error> {
    let settings = format!("frames {} {:?}", options.coding.effort.name(), options.coding.level);
    each_file(input, output, &settings, replace, progress, |source, target, replace| {
        match pack_framed(source, target, options, replace, progress) {
            // What cannot hold frames, such as a file with holes, stays as it is.
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                copy(source, target, replace, progress)
            }
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    })
}

/// Restores what [`pack_framed_repository`] was given.
///
/// # Errors
/// When a file is damaged, or reading or writing fails.
pub fn unpack_framed_repository(
    input: &Path,
    output: &Path,
    threads: usize,
    replace: bool,
    progress: Progress<'_>,
) -> Result<RepositorySummary, Error> {
    let mut summary =
        each_file(input, output, "frames back", replace, progress, |source, target, replace| {
            let file = File::open(source).map_err(|error| Error::cannot_read(source, error))?;
            if is_framed(&file) {
                return unpack_framed(source, target, threads, replace, progress).map(|_| ());
            }
            copy(source, target, replace, progress)
        })?;
    // What was read is what is packed.
    summary.swap();
    Ok(summary)
}

/// Whether a directory has safetensors files with frames, and is no packed directory of the other kind.
pub fn is_framed_repository(directory: &Path) -> bool {
    let is_framed = |path: &Path| File::open(path).is_ok_and(|file| is_framed(&file));
    !directory.join(MANIFEST).exists()
        && tree::files(directory).is_ok_and(|files| {
            let mut weights = files.iter().filter(|file| is_safetensors(&file.path) && file.link.is_none());
            weights.any(|file| is_framed(&directory.join(&file.path)))
        })
}

fn is_safetensors(place: &str) -> bool {
    Path::new(place).extension().is_some_and(|extension| extension == "safetensors")
}

/// Makes every file below a directory anew at the same place below another: safetensors files by `make`, which gets
/// source, target and whether to replace it, others as copies.
fn each_file(
    input: &Path,
    output: &Path,
    settings: &str,
    replace: bool,
    progress: Progress<'_>,
    make: impl Fn(&Path, &Path, bool) -> Result<(), Error>,
) -> Result<RepositorySummary, Error> {
    journal::check_complete(input)?;
    let files = tree::files(input)?;
    tree::make_parents(output, input, "")?;
    pack::refuse_inside(input, output)?;
    let replace = journal::may_replace(output, replace, files.iter().map(|file| file.path.as_str()))?;
    let mut journal = Journal::open(output, settings)?;
    let mut summary = RepositorySummary::default();
    for file in files.iter().filter(|file| file.link.is_none()) {
        let source = tree::path_below(input, &file.path)?;
        let target = tree::path_below(output, &file.path)?;
        tree::make_parents(output, input, &file.path)?;
        tree::clear_link(&target, replace)?;
        let resumed = journal.is_done(&file.path, &source, &target);
        if resumed {
            progress(file.len);
        } else {
            match is_safetensors(&file.path) {
                true => make(&source, &target, replace)?,
                false => copy(&source, &target, replace, progress)?,
            }
            set_mode(&target, file.mode)?;
            journal.note(&file.path, &source, &target)?;
        }
        let len = fs::metadata(&target).map_err(|error| Error::cannot_read(&target, error))?.len();
        summary.add(file.path.clone(), file.len, Some(len), resumed);
    }
    let links = files.iter().filter_map(|file| Some((file.path.as_str(), file.link.as_deref()?)));
    finish(input, output, links, replace, journal, summary)
}

fn copy(source: &Path, target: &Path, replace: bool, progress: Progress<'_>) -> Result<(), Error> {
    let input = Source::open(source)?;
    let failed = |error| Error::cannot_write(target, error);
    let mut file = AtomicFile::create_with(target, replace, input.attributes()).map_err(failed)?;
    let len = io::copy(&mut input.reader(), &mut file).map_err(failed)?;
    input.check_unchanged(source)?;
    file.commit().map_err(failed)?;
    progress(len);
    Ok(())
}
