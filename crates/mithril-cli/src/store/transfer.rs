//! Into and out of a store: `save`, `load`, `extract`, `export`.

use super::arguments::{ExportArguments, ExportTo, ExtractArguments, LoadArguments, SaveArguments};
use super::report::meta_json;
use super::{failed, open_with, resolve};
use crate::extract::npy_header;
use crate::failure::{Failure, print, print_json, tell};
use crate::output::{Output, Target, fill_directory};
use crate::progress::Meter;
use mithril::Attributes;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{CheckpointError, CompressorConfig, Retention, SaveCheck, SaveOptions};
use mithril::pack::Source;
use mithril::{Error, ReadAt};
use std::io::Write;
use std::path::Path;

/// Saves files as a checkpoint.
pub(super) fn save(url: &str, arguments: &SaveArguments) -> Result<(), Failure> {
    let mut config = CompressorConfig::default()
        .with_coding(arguments.coding.coding())
        .with_from_moments(arguments.from_moments)
        .with_chain(arguments.max_depth, arguments.max_restore_cost);
    if let Some(n) = arguments.keep_last {
        let mut retention =
            arguments.keep.iter().fold(Retention::last(n), |retention, key| retention.and_key(key));
        retention.keep_every = arguments.keep_every;
        config = config.with_retention(retention);
    }
    if arguments.verify {
        config = config.with_verify(SaveCheck::Full);
    }
    let store = open_with(url, config)?;
    let previous = arguments.previous.as_deref().map(|key| resolve(&store, key)).transpose()?;
    let mut files = Vec::new();
    let mut total_len = 0;
    for path in &arguments.files {
        let file = Source::open(path).map_err(|error| Failure::model(path.display(), &error))?;
        total_len += file.size().map_err(|error| Failure::read(path.display(), &error))?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| Failure::command(format!("`{}` has no name", path.display())))?;
        if files.iter().any(|(known, _)| *known == name) {
            let message = format!("two files have the name `{name}`, and are restored to one directory");
            return Err(Failure::command(message));
        }
        files.push((name, file));
    }
    let sources: Vec<(&str, &dyn ReadAt)> =
        files.iter().map(|(name, file)| (*name, file as &dyn ReadAt)).collect();
    let meter = Meter::new(Some(total_len));
    let add = |len| meter.add(len);
    let options = SaveOptions::default().with_previous(previous.as_deref()).with_progress(&add);
    let saved = store.save_files(&sources, &arguments.key, arguments.step, &options);
    meter.wipe();
    let meta = saved.map_err(|error| failed(&error))?;
    if arguments.json {
        let mut report = meta_json(&meta);
        let is_full = store.config().verify == SaveCheck::Full;
        report["verified"] = if is_full { "full" } else { "chain" }.into();
        return print_json(&report);
    }
    print(format!(
        "{}: {} to {} bytes, {:.2}x, {:.2} s{}\n",
        meta.key,
        meta.original_size,
        meta.compressed_size,
        meta.ratio,
        meta.seconds,
        meta.base.map_or_else(String::new, |base| format!(", against {base}")),
    ))
}

/// Restores the files of a checkpoint.
pub(super) fn load(url: &str, arguments: &LoadArguments) -> Result<(), Failure> {
    let store = open_with(url, CompressorConfig::default().with_threads(arguments.threads))?;
    let key = resolve(&store, &arguments.key)?;
    let manifest = store.manifest(&key).map_err(|error| failed(&error))?;
    let out = &arguments.output;
    let names: Vec<Option<String>> = manifest.own().iter().map(|object| object.file.clone()).collect();
    let to_directory = names.len() > 1 || out.is_dir() || out.as_os_str().to_string_lossy().ends_with('/');
    let lens = store.file_lens(&key).map_err(|error| failed(&error))?;
    let raw_len = lens.into_iter().fold(0, u64::saturating_add);
    let place = if to_directory { Target::File(out.join(".")) } else { Target::named(out) };
    place.check_room(raw_len, arguments.max_output)?;
    let meter = Meter::new(Some(raw_len));
    let write = |part: usize, target: &Target| {
        let output = Output::create(target, arguments.force, Attributes::default())?;
        let name = output.name().to_owned();
        let written = store.export(&key, part, output, &|len| meter.add(len));
        written.map_err(|error| written_to(&name, &error))
    };
    match to_directory {
        false => drop(write(0, &Target::named(out))?.commit()?),
        true => {
            let targets = names.iter().map(|name| {
                let name = name.as_deref().unwrap_or("checkpoint.safetensors");
                // A name, not a path: it was checked when it was saved, but perhaps by somebody else.
                match Path::new(name).file_name().is_some_and(|plain| plain == name) {
                    true => Ok(Target::File(out.join(name))),
                    false => Err(Failure::input(format!("`{}` is no safe file name", name.escape_debug()))),
                }
            });
            let targets = targets.collect::<Result<Vec<Target>, Failure>>()?;
            fill_directory(out, || {
                targets.iter().enumerate().map(|(part, target)| write(part, target)).collect()
            })?;
        }
    }
    meter.wipe();
    tell(&format!("restored `{key}` to `{}`", out.display()));
    Ok(())
}

/// Why a file was not restored. The store does not know the name of the output, so it is added here.
fn written_to(output: &str, error: &CheckpointError) -> Failure {
    match error {
        CheckpointError::Compression { source: Error::Io { what, source, .. }, .. }
            if what.starts_with("cannot write") =>
        {
            Failure::write(output, source)
        }
        error => failed(error),
    }
}

/// Writes one tensor.
pub(super) fn extract(store: &CheckpointCompressor, arguments: &ExtractArguments) -> Result<(), Failure> {
    let key = resolve(store, &arguments.key)?;
    let manifest = store.manifest(&key).map_err(|error| failed(&error))?;
    let listed = manifest.tensors.iter().find(|tensor| tensor.name == arguments.tensor).ok_or_else(|| {
        Failure::input(format!("checkpoint `{key}` has no tensor `{}`", arguments.tensor.escape_debug()))
            .with_hint(format!("`store show {key}` lists its tensors"))
    })?;
    let target = Target::named(&arguments.output);
    target.check_room(listed.raw_len, arguments.max_output)?;
    let tensor = store.load_tensor(&key, &arguments.tensor).map_err(|error| failed(&error))?;
    let mut output = Output::create(&target, arguments.force, Attributes::default())?;
    let name = output.name().to_owned();
    let write = |output: &mut Output, bytes: &[u8]| {
        output.write_all(bytes).map_err(|error| Failure::write(&name, &error))
    };
    if !arguments.raw {
        let (header, note) = npy_header(tensor.dtype, &tensor.shape, tensor.data.len() as u64);
        if let Some(note) = note {
            tell(&format!("note: {note}"));
        }
        write(&mut output, &header)?;
    }
    write(&mut output, &tensor.data)?;
    output.commit()?;
    if arguments.output.as_os_str() != "-" {
        tell(&format!("wrote `{name}`"));
    }
    Ok(())
}

/// Writes all tensors as one file.
pub(super) fn export(store: &CheckpointCompressor, arguments: &ExportArguments) -> Result<(), Failure> {
    let key = resolve(store, &arguments.key)?;
    let ExportTo::Safetensors = arguments.to;
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => format!("{}.safetensors", key.replace('/', "_")).into(),
    };
    let manifest = store.manifest(&key).map_err(|error| failed(&error))?;
    let raw_len = manifest.tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.raw_len));
    let target = Target::named(&path);
    target.check_room(raw_len, arguments.max_output)?;
    let output = Output::create(&target, arguments.force, Attributes::default())?;
    let name = output.name().to_owned();
    let meter = Meter::new(Some(raw_len));
    let exported = store.export_safetensors(&key, output, &|len| meter.add(len));
    meter.wipe();
    exported.map_err(|error| written_to(&name, &error))?.commit()?;
    tell(&format!("wrote `{}`", path.display()));
    Ok(())
}
