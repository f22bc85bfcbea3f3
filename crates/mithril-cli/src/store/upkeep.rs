//! Keeping a store in order: `verify`, `gc`, `rebase`, `delete`.

use super::arguments::{GcArguments, KeyArguments, VerifyArguments};
use super::report::meta_json;
use super::{counted, failed, resolve};
use crate::failure::{Failure, print, print_json};
use crate::progress::Meter;
use mithril::ErrorKind;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{GcOptions, VerifyOptions};
use serde_json::json;
use std::time::Duration;

/// Checks checkpoints.
pub(super) fn verify(store: &CheckpointCompressor, arguments: &VerifyArguments) -> Result<(), Failure> {
    let key = arguments.key.as_deref().map(|key| resolve(store, key)).transpose()?;
    let options = if arguments.deep { VerifyOptions::deep() } else { VerifyOptions::default() };
    let meter = Meter::new(None);
    let report = store.verify(key.as_deref(), &options, &|len| meter.add(len));
    meter.wipe();
    let report = report.map_err(|error| failed(&error))?;
    if arguments.json {
        let damaged: Vec<_> = report
            .damaged
            .iter()
            .map(|(key, problems)| {
                let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
                json!({ "key": key, "problems": problems })
            })
            .collect();
        print_json(&json!({
            "intact": report.intact, "damaged": damaged, "n_decoded": report.n_decoded, "deep": arguments.deep,
        }))?;
    } else {
        let mut text = String::new();
        for (key, problems) in &report.damaged {
            for problem in problems {
                text += &format!("{key}: {problem}\n");
            }
        }
        let (n_intact, n_damaged) = (report.intact.len(), report.damaged.len());
        text += &format!(
            "{} intact, {n_damaged} damaged; {} decoded\n",
            counted(n_intact, "checkpoint"),
            counted(report.n_decoded, "tensor")
        );
        print(text)?;
    }
    let problems = report.damaged.iter().flat_map(|(_, problems)| problems);
    let worst = problems.map(|problem| failed(problem).fault()).max();
    worst.map_or(Ok(()), |fault| Err(Failure::Reported(fault)))
}

/// Removes what no checkpoint needs.
pub(super) fn gc(store: &CheckpointCompressor, arguments: &GcArguments) -> Result<(), Failure> {
    let options = GcOptions::default()
        .with_min_age(Duration::from_secs(arguments.min_age))
        .with_dry_run(arguments.dry_run);
    let report = store.gc(&options).map_err(|error| match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Truncated | ErrorKind::Unsupported => Failure::input(format!(
            "{error}: nothing is removed while it is not known what a checkpoint needs"
        ))
        .with_hint("`store verify` names it; `store delete` removes it, if it is lost"),
        _ => failed(&error),
    })?;
    if arguments.json {
        return print_json(&json!({
            "dry_run": arguments.dry_run,
            "removed": report.removed,
            "removed_len": report.removed_len,
            "too_young": report.too_young,
            "leftover_len": report.leftover_len,
        }));
    }
    let verb = if arguments.dry_run { "would remove" } else { "removed" };
    let n_removed = counted(report.removed.len(), "object");
    let mut text = format!("{verb} {n_removed}, {} bytes\n", report.removed_len);
    if report.leftover_len > 0 {
        text += &format!("removed {} bytes of temporary files\n", report.leftover_len);
    }
    if !report.too_young.is_empty() {
        text += &format!(
            "{} of no checkpoint left, younger than {} s: `--min-age` says otherwise\n",
            counted(report.too_young.len(), "object"),
            arguments.min_age
        );
    }
    print(text)
}

/// Makes a checkpoint independent.
pub(super) fn rebase(store: &CheckpointCompressor, arguments: &KeyArguments) -> Result<(), Failure> {
    let key = resolve(store, &arguments.key)?;
    let meta = store.rebase(&key).map_err(|error| failed(&error))?;
    if arguments.json {
        return print_json(&meta_json(&meta));
    }
    print(format!("{}: {} bytes, needs no other checkpoint\n", meta.key, meta.compressed_size))
}

/// Deletes a checkpoint.
pub(super) fn delete(store: &CheckpointCompressor, arguments: &KeyArguments) -> Result<(), Failure> {
    store.delete(&arguments.key).map_err(|error| failed(&error))?;
    if arguments.json {
        return print_json(&json!({ "deleted": arguments.key }));
    }
    print(format!("deleted {}\n", arguments.key))
}
