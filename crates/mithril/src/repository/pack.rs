//! Packs a directory.

use super::journal::{self, Journal};
use super::tree::{self, TreeFile};
use super::{MANIFEST, RepositorySummary, SMALL_LEN, manifest};
use crate::container::{Bases, Model, PackedFile, SUFFIX, is_model};
use crate::pack::{PackOptions, Progress, Source, pack_file};
use crate::{AtomicFile, Encoder, Error, FrameOptions};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::iter;
use std::path::Path;

/// Suffix of frames.
const FRAME_SUFFIX: &str = "mthf";

/// Packs the files below a directory into another. Work that was interrupted goes on where it stopped; files that are
/// there are replaced only if `replace`.
///
/// # Errors
/// As [`pack_file`]; when there is a file that would be replaced, or the output lies inside the input.
pub fn pack_repository(
    input: &Path,
    output: &Path,
    options: &PackOptions,
    replace: bool,
    progress: Progress<'_>,
) -> Result<RepositorySummary, Error> {
    let files = tree::files(input)?;
    tree::make_parents(output, input, "")?;
    refuse_inside(input, output)?;
    if output.join(MANIFEST).exists() && !replace {
        return Err(Error::cannot_write(&output.join(MANIFEST), io::ErrorKind::AlreadyExists.into()));
    }
    let files = planned(input, files)?;
    let written = files.iter().filter_map(|(_, packing)| Some(packing.as_ref()?.place.as_str()));
    let replace = journal::may_replace(output, replace, written)?;
    let settings = format!(
        "pack {} {:?} {}",
        options.coding.effort.name(),
        options.coding.level,
        options.alignment_log2
    );
    let mut packer = Packer {
        input,
        output,
        options,
        replace,
        progress,
        journal: Journal::open(output, &settings)?,
        siblings: Bases::none(),
        summary: RepositorySummary::default(),
        small: Vec::new(),
    };
    let mut packed = Vec::with_capacity(files.len());
    for (file, packing) in files {
        packed.push(packer.pack(file, packing)?);
    }
    let len = manifest::write(output, packed, &packer.small, options.coding.effort, replace)?;
    packer.summary.packed_len += len;
    packer.journal.finish()?;
    Ok(packer.summary)
}

/// What becomes of a file that does not lie in the manifest.
struct Packing {
    /// Its place below the output.
    place: String,
    is_model: bool,
}

/// What becomes of each file: links and small files lie in the manifest.
fn planned(input: &Path, files: Vec<TreeFile>) -> Result<Vec<(TreeFile, Option<Packing>)>, Error> {
    let places = files.iter().map(|file| file.path.as_str());
    let mut taken: HashSet<String> = tree::directories(places.clone()).map(str::to_owned).collect();
    let is_there = |name: &&str| places.clone().any(|place| place == *name) || taken.contains(*name);
    if let Some(name) = [MANIFEST, journal::NAME].into_iter().find(is_there) {
        let what = format!("the directory has a file `{name}`, which packed directories need");
        return Err(Error::invalid(what));
    }
    taken.extend([MANIFEST, journal::NAME].map(str::to_owned));
    let plan = |file: TreeFile| {
        let source = tree::path_below(input, &file.path)?;
        let is_model = file.link.is_none() && is_plain_model(&source);
        let packing = (is_model || file.len > SMALL_LEN).then(|| {
            let suffix = if is_model { SUFFIX } else { FRAME_SUFFIX };
            // `files` would become the manifest, and `a` what must be a directory where there is an `a.mckp/b`.
            let named = (1u64..).map(|n| format!("{}.{n}.{suffix}", file.path));
            let mut places = iter::once(format!("{}.{suffix}", file.path)).chain(named);
            let place = places.find(|place| taken.insert(place.clone())).expect("numbers do not end");
            Packing { place, is_model }
        });
        Ok((file, packing))
    };
    files.into_iter().map(plan).collect()
}

/// Refuses an output that lies inside the input, or is it.
pub(super) fn refuse_inside(input: &Path, output: &Path) -> Result<(), Error> {
    match (fs::canonicalize(output), fs::canonicalize(input)) {
        (Ok(inner), Ok(outer)) if inner.starts_with(&outer) => {
            let what = format!("`{}` lies inside the directory that is packed", output.display());
            Err(Error::invalid(what))
        }
        _ => Ok(()),
    }
}

/// Does all the work of [`pack_repository`], and writes nothing.
///
/// # Errors
/// As [`pack_repository`], as far as reading is concerned.
pub fn measure_repository(
    input: &Path,
    options: &PackOptions,
    progress: Progress<'_>,
) -> Result<RepositorySummary, Error> {
    let mut summary = RepositorySummary::default();
    let mut siblings = Bases::none();
    let (mut packed, mut small) = (Vec::new(), Vec::new());
    for (file, packing) in planned(input, tree::files(input)?)? {
        let mut entry = PackedFile::new(&file.path, file.mode, file.len);
        let source = tree::path_below(input, &file.path)?;
        let failed = |error| Error::cannot_read(&source, error);
        match packing {
            _ if file.link.is_some() => {
                entry.link = file.link;
                summary.add(file.path, 0, None, false);
            }
            None => {
                small.extend(fs::read(&source).map_err(failed)?);
                progress(file.len);
                summary.add(file.path, file.len, None, false);
            }
            Some(Packing { place, is_model: true }) => {
                let mut options = options.clone();
                options.bases = options.bases.and(&siblings);
                options.name = source.file_name().map_or_else(String::new, |name| name.display().to_string());
                let opened = File::open(&source).map_err(failed)?;
                let (_, done) = crate::pack::pack(&opened, io::sink(), &options, progress)
                    .map_err(|error| error.about(&source, &source))?;
                siblings = siblings.and(&Bases::new([Model::open_path(&source)?]));
                entry.packed_as = Some(place);
                summary.add(file.path, file.len, Some(done.packed_len), false);
            }
            Some(Packing { place, is_model: false }) => {
                let mut reader = File::open(&source).map_err(failed)?;
                let mut encoder = Encoder::new(Counted(0), &frame_options(options))?;
                io::copy(&mut reader, &mut encoder).map_err(failed)?;
                entry.packed_as = Some(place);
                progress(file.len);
                summary.add(file.path, file.len, Some(encoder.finish()?.0), false);
            }
        }
        packed.push(entry);
    }
    let written = manifest::write_to(io::sink(), packed, &small, options.coding.effort)?;
    summary.packed_len += written.map_err(Error::writing)?.1;
    Ok(summary)
}

/// Counts what is written to it.
struct Counted(u64);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a file is a model that is not packed yet.
fn is_plain_model(path: &Path) -> bool {
    is_model(path) && Model::open_path(path).is_ok_and(|model| model.container().is_none())
}

/// How files that are no models are compressed.
fn frame_options(options: &PackOptions) -> FrameOptions {
    FrameOptions::default().with_coding(options.coding)
}

struct Packer<'a> {
    input: &'a Path,
    output: &'a Path,
    options: &'a PackOptions,
    replace: bool,
    progress: Progress<'a>,
    journal: Journal,
    /// The model files before this one, which may hold some of its tensors.
    siblings: Bases,
    summary: RepositorySummary,
    /// The bytes of small files.
    small: Vec<u8>,
}

impl Packer<'_> {
    fn pack(&mut self, file: TreeFile, packing: Option<Packing>) -> Result<PackedFile, Error> {
        let mut packed = PackedFile::new(&file.path, file.mode, file.len);
        // Also for what lies in the manifest: they say who may look into the directories that are restored.
        tree::make_parents(self.output, self.input, &file.path)?;
        if file.link.is_some() {
            packed.link = file.link;
            self.summary.add(file.path, 0, None, false);
            return Ok(packed);
        }
        let source = tree::path_below(self.input, &file.path)?;
        let Some(Packing { place, is_model }) = packing else {
            let input = Source::open(&source)?;
            let mut bytes = Vec::new();
            let read = input.reader().read_to_end(&mut bytes);
            read.map_err(|error| Error::cannot_read(&source, error))?;
            input.check_unchanged(&source)?;
            packed.len = bytes.len() as u64;
            self.small.extend(bytes);
            (self.progress)(packed.len);
            self.summary.add(file.path, packed.len, None, false);
            return Ok(packed);
        };
        let target = tree::path_below(self.output, &place)?;
        let resumed = self.journal.is_done(&file.path, &source, &target);
        if resumed {
            (self.progress)(file.len);
        } else {
            if is_model {
                self.pack_model(&source, &target)?;
            } else {
                self.pack_bytes(&source, &target)?;
            }
            self.journal.note(&file.path, &source, &target)?;
        }
        if is_model {
            self.siblings = self.siblings.and(&Bases::new([Model::open_path(&source)?]));
        }
        let packed_len = fs::metadata(&target).map_err(|error| Error::cannot_write(&target, error))?.len();
        self.summary.add(file.path, file.len, Some(packed_len), resumed);
        packed.packed_as = Some(place);
        Ok(packed)
    }

    fn pack_model(&self, source: &Path, target: &Path) -> Result<(), Error> {
        let mut options = self.options.clone();
        options.bases = options.bases.and(&self.siblings);
        let result = pack_file(source, target, &options, self.replace, self.progress);
        result.map(|_| ())
    }

    fn pack_bytes(&self, source: &Path, target: &Path) -> Result<(), Error> {
        let input = Source::open(source)?;
        let file = AtomicFile::create_with(target, self.replace, input.attributes());
        let file = file.map_err(|error| Error::cannot_write(target, error))?;
        let mut encoder = Encoder::new(file, &frame_options(self.options))?;
        let len = io::copy(&mut input.reader(), &mut encoder);
        let len = len.map_err(|error| match error.downcast::<Error>() {
            Ok(error) => error.about(source, target),
            Err(error) => Error::cannot_read(source, error),
        })?;
        let file = encoder.finish_whole(input.len()).map_err(|error| error.about(source, target))?;
        input.check_unchanged(source)?;
        file.commit().map_err(|error| Error::cannot_write(target, error))?;
        (self.progress)(len);
        Ok(())
    }
}
