//! `mithril dictionary train --group-by` and `--groups`, and what a file of grouped dictionaries holds.

use super::arguments::{GroupBy, InspectArguments, Size, TrainArguments};
use super::train::{evaluation_json, write};
use super::{ratio, records, refused};
use crate::clock::seconds;
use crate::failure::{Failure, print, print_json, tell};
use crate::output::{Output, Target, fill_directory};
use crate::table::Table;
use mithril::Attributes;
use mithril::dictionary::{
    GroupedDictionary, GroupedOptions, SampleSet, TrainOptions, choose_size, find_groups, train_grouped,
};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// Samples of each group, by its name.
type Groups = BTreeMap<String, SampleSet>;

/// Runs `mithril dictionary train` for groups.
pub(crate) fn train(arguments: &TrainArguments) -> Result<(), Failure> {
    let name = arguments.samples[0].display();
    let failed = |error| refused(&name, &error);
    let groups = match arguments.group_by {
        Some(group_by) => given_groups(arguments, group_by)?,
        None => found_groups(arguments)?,
    };
    let (learn, test) = set_apart(groups, arguments.test_fraction);
    let started = seconds(ClockId::Monotonic);
    let mut base = TrainOptions::default()
        .with_level(arguments.level)
        .with_search(!arguments.no_search)
        .with_threads(arguments.threads);
    (base.k, base.d, base.id) = (arguments.k, arguments.d, arguments.id);
    base.size = match arguments.size {
        Size::Bytes(size) => size,
        Size::Auto => {
            let all: SampleSet = learn.values().flat_map(|set| set.samples().iter()).collect();
            choose_size(&all.samples(), &base).map_err(failed)?.0
        }
    };
    let samples: Vec<_> = learn.iter().map(|(name, set)| (name.clone(), set.samples())).collect();
    let options = GroupedOptions::new(base, arguments.group_size);
    let trained = train_grouped(&samples, &options).map_err(failed)?;
    let elapsed_seconds = seconds(ClockId::Monotonic) - started;
    write(&arguments.output, arguments.force, &trained.bytes)?;
    let grouped = GroupedDictionary::new(trained.bytes, arguments.level).map_err(failed)?;
    let test = match test.samples().n_samples() {
        0 => None,
        _ => Some(grouped.evaluate(&test.samples(), arguments.level, arguments.threads).map_err(failed)?),
    };
    if arguments.json {
        return print_json(&json!({
            "dictionary": arguments.output.display().to_string(),
            "bytes": grouped.as_bytes().len(),
            "seconds": elapsed_seconds,
            "members": members_json(&grouped),
            "test": test.map(evaluation_json),
        }));
    }
    tell(&format!(
        "{}: {} bytes, a base and {} groups from {} samples, {elapsed_seconds:.1} s",
        arguments.output.display(),
        grouped.as_bytes().len(),
        samples.len(),
        samples.iter().map(|(_, samples)| samples.n_samples()).sum::<usize>(),
    ));
    if let Some(test) = test {
        tell(&format!(
            "test samples: {:.3} times smaller with the dictionaries, {:.3} without",
            ratio(test.raw_len, test.coded_len),
            ratio(test.raw_len, test.plain_len)
        ));
    }
    Ok(())
}

/// The samples of every argument, or of every directory below them.
fn given_groups(arguments: &TrainArguments, group_by: GroupBy) -> Result<Groups, Failure> {
    let mut files: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for argument in &arguments.samples {
        for file in records::files(std::slice::from_ref(argument))? {
            let group = match group_by {
                GroupBy::Argument => argument.display().to_string(),
                GroupBy::Directory => {
                    file.parent().map(|parent| parent.display().to_string()).unwrap_or_default()
                }
            };
            let group = if group.is_empty() { ".".to_owned() } else { group };
            files.entry(group).or_default().push(file);
        }
    }
    // All groups together keep to the memory that was given.
    let memory = arguments.records.memory / files.len().max(1);
    let mut groups = Groups::new();
    for (name, files) in files {
        groups.insert(name, records::read(&files, arguments.records.split, memory)?);
    }
    Ok(groups)
}

/// Groups of samples that are alike, by number.
fn found_groups(arguments: &TrainArguments) -> Result<Groups, Failure> {
    let set = records::read(&arguments.samples, arguments.records.split, arguments.records.memory)?;
    let n_groups = arguments.groups.unwrap_or(1);
    let found = find_groups(&set.samples(), n_groups, arguments.threads)
        .map_err(|error| refused(arguments.samples[0].display(), &error))?;
    let mut groups = Groups::new();
    for (sample, group) in set.samples().iter().zip(found) {
        groups.entry(format!("group {group:04}")).or_default().push(sample);
    }
    Ok(groups)
}

/// Samples to learn from, by group, and samples to test with: the same share of each.
fn set_apart(groups: Groups, share: f64) -> (Groups, SampleSet) {
    let mut test = SampleSet::new();
    let mut learn = Groups::new();
    for (name, set) in groups {
        let (learn_part, test_part) = set.set_apart(share);
        for sample in test_part.samples().iter() {
            test.push(sample);
        }
        learn.insert(name, learn_part);
    }
    (learn, test)
}

/// Runs `mithril dictionary inspect` on a file of grouped dictionaries.
pub(crate) fn inspect(arguments: &InspectArguments, grouped: &GroupedDictionary) -> Result<(), Failure> {
    if let Some(directory) = &arguments.extract {
        fill_directory(directory, || {
            let members = grouped.members().iter().map(|member| {
                // By id and not by name: names are text from a file, not paths.
                let path = directory.join(format!("{}.dict", member.dictionary().id().unwrap_or(0)));
                let mut output = Output::create(&Target::File(path), arguments.force, Attributes::default())?;
                let written = output.write_all(member.dictionary().as_bytes());
                written.map_err(|error| Failure::write(output.name(), &error))?;
                Ok(output)
            });
            members.collect()
        })?;
    }
    let file = arguments.dictionary.display().to_string();
    if arguments.json {
        return print_json(&json!({
            "file": file,
            "kind": "grouped dictionaries",
            "bytes": grouped.as_bytes().len(),
            "members": members_json(grouped),
        }));
    }
    let mut table = Table::new(1, ["member", "id", "own bytes", "whole bytes"]);
    for member in grouped.members() {
        let name = if member.name().is_empty() {
            "(base)".to_owned()
        } else {
            member.name().escape_debug().to_string()
        };
        table.push([
            name,
            member.dictionary().id().unwrap_or(0).to_string(),
            member.own_len().to_string(),
            member.dictionary().as_bytes().len().to_string(),
        ]);
    }
    print(format!("{file}: grouped dictionaries, {} bytes\n{}", grouped.as_bytes().len(), table.render()))
}

fn members_json(grouped: &GroupedDictionary) -> Vec<Value> {
    let members = grouped.members().iter().map(|member| {
        json!({
            "name": member.name(),
            "id": member.dictionary().id(),
            "own_bytes": member.own_len(),
            "bytes": member.dictionary().as_bytes().len(),
        })
    });
    members.collect()
}
