//! `mithril repair`: saves every intact tensor of a damaged container.

use crate::arguments::{RepairArguments, RepairTo};
use crate::failure::{Failure, Fault, print_json, tell};
use crate::output::{Output, Target};
use crate::pack::open_bases;
use crate::progress::Meter;
use crate::source::{Source, temporary_file};
use mithril::Error;
use mithril::container::{Damage, Lost, Model, Salvage};
use serde_json::json;
use std::fs::File;
use std::io;

/// Runs `mithril repair`.
pub(crate) fn run(arguments: &RepairArguments) -> Result<(), Failure> {
    let source = Source::open(&arguments.file)?;
    if source.is_frame() {
        return Err(Failure::input(format!("`{}` is a frame, not a container", source.name))
            .with_hint("a frame holds one buffer: `mithril verify` tells which of its blocks are damaged"));
    }
    let file = source.random_access()?;
    let target = Target::named(&arguments.output);
    if matches!(target, Target::Stdout) {
        return Err(Failure::command("`repair` writes to a file, not to stdout"));
    }
    let meter = Meter::new(source.len);
    let salvage = Salvage::examine(&file, arguments.threads, &|len| meter.add(len));
    let salvage = salvage.map_err(|error| Failure::model(&source.name, &error))?;
    drop(meter);
    let n_saved = salvage.saved().count();
    if n_saved == 0 {
        let message = format!("nothing is left to be saved in `{}`", source.name);
        return Err(Failure::input(message).with_hint("is it a container at all? `mithril inspect` tells"));
    }
    let len = match arguments.to {
        RepairTo::Container => write_container(&salvage, &file, &source, &target, arguments)?,
        RepairTo::Safetensors => write_safetensors(&salvage, &file, &source, &target, arguments)?,
    };
    if arguments.json {
        print_json(&json!({
            "file": source.name,
            "output": target.name(),
            "output_bytes": len,
            "index_lost": salvage.index() == Damage::Lost,
            "header_lost": salvage.header() == Damage::Lost,
            "restores_the_original": salvage.is_whole(),
            "saved": salvage.saved().map(|entry| &entry.name).collect::<Vec<_>>(),
            "lost": salvage.lost().iter().map(|lost| json!({
                "name": lost.name,
                "entry": lost.entry_idx,
                "reason": lost.reason,
            })).collect::<Vec<_>>(),
        }))?;
    } else {
        for lost in salvage.lost() {
            tell(&format!("lost: {}: {}", name_of(lost), lost.reason));
        }
        let whole = match (salvage.is_whole(), arguments.to) {
            (true, RepairTo::Container) => "; it restores the original file",
            _ => "",
        };
        let (output, n_lost) = (target.name(), salvage.lost().len());
        tell(&format!(
            "{} -> {output}: {n_saved} tensors saved, {n_lost} lost, {len} bytes{whole}",
            source.name
        ));
    }
    let nothing_lost = salvage.lost().is_empty() && salvage.header() == Damage::None;
    if nothing_lost { Ok(()) } else { Err(Failure::Reported(Fault::Input)) }
}

fn name_of(lost: &Lost) -> String {
    match (&lost.name, lost.entry_idx) {
        (Some(name), _) => format!("`{}`", name.escape_debug()),
        (None, Some(entry_idx)) => format!("entry {entry_idx}"),
        (None, None) => "something".to_owned(),
    }
}

fn write_container(
    salvage: &Salvage,
    file: &File,
    source: &Source,
    target: &Target,
    arguments: &RepairArguments,
) -> Result<u64, Failure> {
    let output = Output::create(target, arguments.force, source.narrow_attributes())?;
    let (output, _) =
        salvage.write(file, output, &|_| ()).map_err(|error| failed(target, arguments, &error))?;
    output.commit()
}

/// The intact tensors are packed aside, and read from there like those of any model.
fn write_safetensors(
    salvage: &Salvage,
    file: &File,
    source: &Source,
    target: &Target,
    arguments: &RepairArguments,
) -> Result<u64, Failure> {
    let bases = open_bases(&arguments.base)?;
    let aside = temporary_file().map_err(|error| Failure::write("a temporary file", &error))?;
    let written = salvage.write(file, io::BufWriter::new(&aside), &|_| ());
    let written = written.and_then(|(writer, _)| {
        writer.into_inner().map_err(|error| Error::io("cannot write", error.into_error()))
    });
    written.map_err(|error| failed(&Target::named("a temporary file".as_ref()), arguments, &error))?;
    let refused = |error: &Error| failed(target, arguments, error);
    let model = Model::open(arguments.file.display().to_string(), Box::new(aside), bases);
    let model = model.map_err(|error| refused(&error))?;
    let output = Output::create(target, arguments.force, source.narrow_attributes())?;
    let output = model.write_safetensors(output, arguments.threads).map_err(|error| refused(&error))?;
    output.commit()
}

fn failed(target: &Target, arguments: &RepairArguments, error: &Error) -> Failure {
    match error {
        Error::Io { what, source, .. } if what.starts_with("cannot write") => {
            Failure::write(target.name(), source)
        }
        _ => Failure::model(arguments.file.display(), error),
    }
}
