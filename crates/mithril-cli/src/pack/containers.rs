//! Model files to containers, and back.

use super::{Done, Facts};
use crate::arguments::{CompressArguments, DecompressArguments, PackTo};
use crate::failure::{CHANGED, Failure};
use crate::output::{Output, Target, clean_up_on_signal};
use crate::progress::Meter;
use crate::source::Source;
use mithril::container::{Bases, Model};
use mithril::pack::{PackOptions, PackSummary, UnpackSummary};
use mithril::repository::{
    RepositorySummary, is_framed_repository, measure_repository, pack_framed_repository, pack_repository,
    unpack_framed_repository, unpack_repository, unpacked_len,
};
use mithril::{Error, FormatError, pack};
use std::collections::BTreeMap;
use std::path::Path;

/// How the user wants files to be packed.
fn pack_options(arguments: &CompressArguments, bases: &Bases) -> PackOptions {
    let mut options = PackOptions::default()
        .with_coding(arguments.coding.coding())
        .with_digests(arguments.digests)
        .with_bases(bases.clone());
    options.alignment_log2 = arguments.alignment.log2();
    options
}

/// Packs a model file.
pub(super) fn compress(
    source: Source,
    target: &Target,
    arguments: &CompressArguments,
    bases: &Bases,
) -> Result<Done, Failure> {
    let options = pack_options(arguments, bases).with_name(source.file_name());
    let refused = |error: &Error| {
        let failure = Failure::model(&source.name, error);
        match error {
            Error::Format(FormatError::Foreign { .. }) => {
                failure.with_hint("`--dtype bytes` compresses it as bytes, whatever it holds")
            }
            _ => failure,
        }
    };
    let meter = Meter::new(source.len);
    let progress = |len| meter.add(len);
    let summary = if arguments.to == PackTo::Safetensors {
        let (Some(input), Some(output)) = (&source.path, target.regular_file()) else {
            return Err(Failure::command("`--to safetensors` reads a file and writes a file"));
        };
        clean_up_on_signal();
        let packed = pack::pack_framed(input, output, &options, arguments.force, &progress);
        packed.map_err(|error| refused(&error))?
    } else {
        let file = source.random_access()?;
        let output = Output::create(target, arguments.force, source.attributes())?;
        let name = output.name().to_owned();
        let packed = pack::pack(&file, output, &options, &progress);
        let (output, summary) = packed.map_err(|error| match error {
            Error::Io { .. } => written_to(&name, &source.name, &error),
            _ => refused(&error),
        })?;
        source.check_unchanged()?;
        output.commit()?;
        summary
    };
    Ok(Done {
        source: source.name.clone(),
        output: target.name(),
        raw_len: summary.raw_len,
        stored_len: summary.packed_len,
        seconds: meter.elapsed_seconds(),
        detail: detail(&summary),
        facts: Facts::Packed(summary),
    })
}

/// Restores the file that a container was made of.
pub(super) fn decompress(
    source: Source,
    target: &Target,
    arguments: &DecompressArguments,
    bases: &Bases,
) -> Result<Done, Failure> {
    let refused = |error: &Error| Failure::model(&source.name, error);
    let model = match &source.path {
        // Where no base is named, they are looked for where the header says.
        Some(path) if bases.is_empty() => Model::open_path(path),
        _ => Model::open(source.file_name(), Box::new(source.random_access()?), bases.clone()),
    }
    .map_err(|error| refused(&error))?;
    let (Some(reader), Some(bases)) = (model.container(), model.bases()) else {
        return Err(Failure::input(CHANGED));
    };
    let raw_len = reader.header().map_err(|error| refused(&error))?.original.map(|original| original.len);
    let meter = Meter::new(raw_len);
    let progress = |len| meter.add(len);
    // Header, index and bases are checked before the output is made.
    let original = pack::check(reader, bases).map_err(|error| refused(&error))?;
    target.check_room(original.len, arguments.max_output)?;
    let output = Output::create(target, arguments.force, source.attributes())?;
    let name = output.name().to_owned();
    let unpacked = pack::unpack(reader, output, bases, arguments.threads, &progress);
    let (output, summary) = unpacked.map_err(|error| written_to(&name, &source.name, &error))?;
    source.check_unchanged()?;
    output.commit()?;
    Ok(restored(&source, target, summary, &meter))
}

/// Restores the original of a safetensors file whose tensors are frames.
pub(super) fn decompress_framed(
    source: Source,
    target: &Target,
    arguments: &DecompressArguments,
) -> Result<Done, Failure> {
    let (Some(input), Some(output)) = (&source.path, target.regular_file()) else {
        return Err(Failure::command("a safetensors file with frames is restored from a file to a file"));
    };
    let raw_len = pack::framed_len(input).map_err(|error| Failure::model(&source.name, &error))?;
    target.check_room(raw_len, arguments.max_output)?;
    clean_up_on_signal();
    let meter = Meter::new(Some(raw_len));
    let unpacked =
        pack::unpack_framed(input, output, arguments.threads, arguments.force, &|len| meter.add(len));
    let summary = unpacked.map_err(|error| Failure::model(&source.name, &error))?;
    Ok(restored(&source, target, summary, &meter))
}

fn restored(source: &Source, target: &Target, summary: UnpackSummary, meter: &Meter) -> Done {
    Done {
        source: source.name.clone(),
        output: target.name(),
        raw_len: summary.raw_len,
        stored_len: summary.packed_len,
        seconds: meter.elapsed_seconds(),
        detail: String::new(),
        facts: Facts::Restored { format: summary.format, original_name: summary.name },
    }
}

/// Packs the files below a directory into another.
pub(super) fn compress_directory(
    input: &Path,
    output: &Path,
    arguments: &CompressArguments,
    bases: &Bases,
) -> Result<Done, Failure> {
    let options = pack_options(arguments, bases);
    clean_up_on_signal();
    let meter = Meter::new(None);
    let (force, progress) = (arguments.force, |len| meter.add(len));
    let packed = match arguments.to {
        PackTo::Container => pack_repository(input, output, &options, force, &progress),
        PackTo::Safetensors => pack_framed_repository(input, output, &options, force, &progress),
    };
    let summary = packed.map_err(|error| Failure::model(input.display(), &error))?;
    let output = output.display().to_string();
    Ok(directory_done(input, output, summary, meter.elapsed_seconds()))
}

/// Says what packing a directory would come to.
pub(super) fn measure_directory(
    input: &Path,
    arguments: &CompressArguments,
    bases: &Bases,
) -> Result<Done, Failure> {
    if arguments.to == PackTo::Safetensors {
        return Err(Failure::command("`--to safetensors` reads files and writes files"));
    }
    let meter = Meter::new(None);
    let measured = measure_repository(input, &pack_options(arguments, bases), &|len| meter.add(len));
    let summary = measured.map_err(|error| Failure::model(input.display(), &error))?;
    Ok(directory_done(input, Target::Nowhere.name(), summary, meter.elapsed_seconds()))
}

/// Restores the files of a packed directory into another.
pub(super) fn decompress_directory(
    input: &Path,
    output: &Path,
    arguments: &DecompressArguments,
    bases: &Bases,
) -> Result<Done, Failure> {
    let raw_len = unpacked_len(input).map_err(|error| Failure::model(input.display(), &error))?;
    Target::File(output.join(".")).check_room(raw_len, arguments.max_output)?;
    clean_up_on_signal();
    let meter = Meter::new(Some(raw_len));
    let (threads, force) = (arguments.threads, arguments.force);
    let progress = |len| meter.add(len);
    let unpacked = match is_framed_repository(input) {
        false => unpack_repository(input, output, bases, threads, force, &progress),
        true => unpack_framed_repository(input, output, threads, force, &progress),
    };
    let summary = unpacked.map_err(|error| Failure::model(input.display(), &error))?;
    let output = output.display().to_string();
    Ok(directory_done(input, output, summary, meter.elapsed_seconds()))
}

fn directory_done(input: &Path, output: String, summary: RepositorySummary, seconds: f64) -> Done {
    let n_resumed = summary.files.iter().filter(|file| file.resumed).count();
    let resumed = if n_resumed > 0 { format!(", {n_resumed} done before") } else { String::new() };
    Done {
        source: input.display().to_string(),
        output,
        raw_len: summary.raw_len,
        stored_len: summary.packed_len,
        seconds,
        detail: format!("{} files{resumed}", summary.files.len()),
        facts: Facts::Directory(summary),
    }
}

/// A failure of work that had an output which the library knows no name of.
fn written_to(output: &str, source: &str, error: &Error) -> Failure {
    match error {
        Error::Io { what, source, .. } if what.starts_with("cannot write") => Failure::write(output, source),
        _ => Failure::model(source, error),
    }
}

/// How many tensors there are of each kind.
fn detail(summary: &PackSummary) -> String {
    let mut n_of_kind = BTreeMap::new();
    for tensor in &summary.tensors {
        *n_of_kind.entry(tensor.kind).or_insert(0u64) += 1;
    }
    let kinds: Vec<String> = n_of_kind.iter().map(|(kind, n)| format!("{n} {}", kind.name())).collect();
    match kinds.len() {
        0 | 1 => format!("{} tensors", summary.tensors.len()),
        _ => format!("{} tensors: {}", summary.tensors.len(), kinds.join(", ")),
    }
}
