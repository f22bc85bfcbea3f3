//! `mithril dictionary train` and `update`.

use super::arguments::{Size, TrainArguments, UpdateArguments};
use super::{load, ratio, records, refused};
use crate::clock::seconds;
use crate::failure::{Failure, print_json, tell};
use crate::output::{Output, Target};
use crate::progress::Meter;
use mithril::Attributes;
use mithril::dictionary::{
    Dictionary, Evaluation, Progress, Samples, TrainOptions, Trained, choose_size, train_watched,
    update as update_dictionary,
};
use rustix::time::ClockId;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Runs `mithril dictionary train`.
pub(crate) fn train(arguments: &TrainArguments) -> Result<(), Failure> {
    let set = records::read(&arguments.samples, arguments.records.split, arguments.records.memory)?;
    let (n_seen, seen_len) = (set.n_seen(), set.seen_len());
    let (learn, test) = set.set_apart(arguments.test_fraction);
    let started = seconds(ClockId::Monotonic);
    let mut options = TrainOptions::default()
        .with_level(arguments.level)
        .with_search(!arguments.no_search)
        .with_raw_content(arguments.raw_content)
        .with_threads(arguments.threads);
    (options.k, options.d, options.id) = (arguments.k, arguments.d, arguments.id);
    let name = arguments.samples[0].display();
    let samples = learn.samples();
    let curve = match arguments.size {
        Size::Bytes(size) => {
            options.size = size;
            Vec::new()
        }
        Size::Auto => {
            let (size, curve) = choose_size(&samples, &options).map_err(|error| refused(&name, &error))?;
            options.size = size;
            curve
        }
    };
    let meter = Meter::new(Some(samples.total_len() as u64));
    let watch = |progress: Progress| {
        // Threads may report out of order; the bar only rises.
        let len = samples.total_len() as u64 * progress.n_done as u64 / progress.n_steps.max(1) as u64;
        meter.add(len.saturating_sub(meter.len()));
    };
    let trained = train_watched(&samples, &options, &watch).map_err(|error| refused(&name, &error))?;
    drop(meter);
    let elapsed_seconds = seconds(ClockId::Monotonic) - started;
    write(&arguments.output, arguments.force, &trained.dictionary)?;
    let test = evaluate(&trained.dictionary, &test.samples(), arguments.level, arguments.threads)?;
    let dictionary = Dictionary::new(trained.dictionary.clone(), arguments.level)
        .map_err(|error| refused(&name, &error))?;
    if arguments.json {
        let points: Vec<Value> =
            curve.iter().map(|(size, len)| json!({"size": size, "held_out_bytes": len})).collect();
        return print_json(&json!({
            "dictionary": arguments.output.display().to_string(),
            "id": dictionary.id(),
            "bytes": trained.dictionary.len(),
            "samples": {"n": n_seen, "bytes": seen_len, "kept": samples.n_samples(), "kept_bytes": samples.total_len()},
            "k": trained.parameters.k,
            "d": trained.parameters.d,
            "seconds": elapsed_seconds,
            "size_curve": points,
            "search": search_json(&trained),
            "test": test.map(evaluation_json),
        }));
    }
    let rate = samples.total_len() as f64 / 1e6 / elapsed_seconds.max(1e-9);
    tell(&format!(
        "{}: {} bytes from {} samples ({:.1} MB), {elapsed_seconds:.1} s, {rate:.1} MB/s, k {}, d {}",
        arguments.output.display(),
        trained.dictionary.len(),
        samples.n_samples(),
        samples.total_len() as f64 / 1e6,
        trained.parameters.k,
        trained.parameters.d,
    ));
    if let Some(search) = &trained.search {
        tell(&format!(
            "held-out samples: {:.3} times smaller with the dictionary, {:.3} without",
            ratio(search.raw_len, search.coded_len),
            ratio(search.raw_len, search.plain_len)
        ));
    }
    if let Some(test) = test {
        tell(&format!(
            "test samples: {:.3} times smaller with the dictionary, {:.3} without",
            ratio(test.raw_len, test.coded_len),
            ratio(test.raw_len, test.plain_len)
        ));
    }
    Ok(())
}

/// Runs `mithril dictionary update`.
pub(crate) fn update(arguments: &UpdateArguments) -> Result<(), Failure> {
    let old = load(&arguments.dictionary, arguments.level)?;
    let set = records::read(&arguments.samples, arguments.records.split, arguments.records.memory)?;
    let name = arguments.samples[0].display();
    let options = TrainOptions::default()
        .with_size(arguments.size.unwrap_or(old.as_bytes().len()))
        .with_level(arguments.level)
        .with_raw_content(old.header().header_len == 0)
        .with_threads(arguments.threads);
    let samples = set.samples();
    let new =
        update_dictionary(old.as_bytes(), &samples, &options).map_err(|error| refused(&name, &error))?;
    write(&arguments.output, arguments.force, &new)?;
    let before = evaluate(old.as_bytes(), &samples, arguments.level, arguments.threads)?;
    let after = evaluate(&new, &samples, arguments.level, arguments.threads)?;
    let id = Dictionary::new(new.clone(), arguments.level).map_err(|error| refused(&name, &error))?.id();
    if arguments.json {
        return print_json(&json!({
            "dictionary": arguments.output.display().to_string(),
            "id": id,
            "bytes": new.len(),
            "old": before.map(evaluation_json),
            "new": after.map(evaluation_json),
        }));
    }
    let times = |evaluation: Option<Evaluation>| evaluation.map_or(0.0, |e| ratio(e.raw_len, e.coded_len));
    tell(&format!(
        "{}: {} bytes; the newer samples: {:.3} times smaller with the old dictionary, {:.3} with the new one, which \
         has seen them",
        arguments.output.display(),
        new.len(),
        times(before),
        times(after)
    ));
    Ok(())
}

/// Writes a file that appears whole or not at all.
pub(super) fn write(path: &Path, replace: bool, bytes: &[u8]) -> Result<(), Failure> {
    let mut output = Output::create(&Target::named(path), replace, Attributes::default())?;
    output.write_all(bytes).map_err(|error| Failure::write(path.display(), &error))?;
    output.commit()?;
    Ok(())
}

/// What some records take; nothing when there are none.
pub(super) fn evaluate(
    dictionary: &[u8],
    records: &Samples<'_>,
    level: i32,
    threads: usize,
) -> Result<Option<Evaluation>, Failure> {
    if records.n_samples() == 0 {
        return Ok(None);
    }
    let failed = |error| refused("dictionary", &error);
    let dictionary = Dictionary::new(dictionary, level).map_err(failed)?;
    dictionary.evaluate(records, level, threads).map(Some).map_err(failed)
}

/// An evaluation for machines.
pub(super) fn evaluation_json(evaluation: Evaluation) -> Value {
    json!({
        "n_records": evaluation.n_records,
        "raw_bytes": evaluation.raw_len,
        "plain_bytes": evaluation.plain_len,
        "coded_bytes": evaluation.coded_len,
        "plain_ratio": ratio(evaluation.raw_len, evaluation.plain_len),
        "ratio": ratio(evaluation.raw_len, evaluation.coded_len),
    })
}

fn search_json(trained: &Trained) -> Option<Value> {
    let search = trained.search.as_ref()?;
    let tried = search.candidates.iter().map(|candidate| {
        json!({
            "k": candidate.parameters.k,
            "d": candidate.parameters.d,
            "min_match": candidate.parameters.min_match,
            "pool_ratio": candidate.parameters.pool_ratio,
            "filled_percent": candidate.parameters.filled_percent,
            "held_out_bytes": candidate.held_out_len,
        })
    });
    Some(json!({
        "raw_bytes": search.raw_len,
        "plain_bytes": search.plain_len,
        "coded_bytes": search.coded_len,
        "tried": tried.collect::<Vec<_>>(),
    }))
}
