//! `mithril dictionary inspect`, `evaluate` and `explain`.

use super::arguments::{EvaluateArguments, ExplainArguments, InspectArguments};
use super::train::evaluation_json;
use super::{Loaded, load, ratio, records, refused};
use crate::failure::{Failure, print, print_json};
use crate::table::Table;
use mithril::dictionary::{SampleSet, TrainOptions, explain as explain_dictionary, train};
use serde_json::{Value, json};

/// Retraining is worth it when newer records shrink by this share.
const DRIFT: f64 = 0.03;

/// Bytes of a segment that are shown.
const PREVIEW_LEN: usize = 48;

/// Runs `mithril dictionary inspect`.
pub(crate) fn inspect(arguments: &InspectArguments) -> Result<(), Failure> {
    let name = arguments.dictionary.display().to_string();
    let dictionary = match Loaded::open(&arguments.dictionary, 3)? {
        Loaded::One(dictionary) => dictionary,
        Loaded::Grouped(grouped) => return super::grouped::inspect(arguments, &grouped),
    };
    if arguments.extract.is_some() {
        return Err(Failure::input(format!("`{name}` has no groups that could be extracted")));
    }
    let header = dictionary.header();
    if arguments.json {
        return print_json(&json!({
            "file": name,
            "bytes": dictionary.as_bytes().len(),
            "kind": if header.header_len == 0 { "raw content" } else { "zstd dictionary" },
            "id": header.id,
            "header_bytes": header.header_len,
            "content_bytes": header.content_len,
            "repeat_offsets": header.repeat_offsets,
        }));
    }
    let mut table = Table::new(2, [name.as_str(), ""]);
    let mut line = |key: &str, value: String| table.push([format!("  {key}"), value]);
    line("kind", if header.header_len == 0 { "raw content" } else { "zstd dictionary" }.to_owned());
    line("id", header.id.map_or("none".to_owned(), |id| id.to_string()));
    line("size", format!("{} bytes", dictionary.as_bytes().len()));
    line(
        "header",
        match header.header_len {
            0 => "none".to_owned(),
            len => format!("{len} bytes: id, entropy tables, repeat offsets"),
        },
    );
    line("content", format!("{} bytes", header.content_len));
    if let Some(offsets) = header.repeat_offsets {
        line("repeat offsets", format!("{offsets:?}"));
    }
    print(table.render())
}

/// Runs `mithril dictionary evaluate`.
pub(crate) fn evaluate(arguments: &EvaluateArguments) -> Result<(), Failure> {
    let loaded = Loaded::open(&arguments.dictionary, arguments.level)?;
    let set = records::read_some(&arguments.samples, arguments.records.split, arguments.records.memory)?;
    let result = match &loaded {
        Loaded::One(dictionary) => dictionary.evaluate(&set.samples(), arguments.level, arguments.threads),
        Loaded::Grouped(grouped) => grouped.evaluate(&set.samples(), arguments.level, arguments.threads),
    }
    .map_err(|error| refused(arguments.dictionary.display(), &error))?;
    if arguments.json {
        return print_json(&evaluation_json(result));
    }
    let mut table = Table::new(1, ["", "bytes", "times smaller", "bytes/record"]);
    let mut line = |name: &str, len: u64| {
        let each = len as f64 / result.n_records.max(1) as f64;
        table.push([
            name.to_owned(),
            len.to_string(),
            format!("{:.3}", ratio(result.raw_len, len)),
            format!("{each:.1}"),
        ]);
    };
    line("records", result.raw_len);
    line("without dictionary", result.plain_len);
    line("with dictionary", result.coded_len);
    print(format!("{} records, level {}\n{}", result.n_records, arguments.level, table.render()))
}

/// Runs `mithril dictionary explain`.
pub(crate) fn explain(arguments: &ExplainArguments) -> Result<(), Failure> {
    let name = arguments.dictionary.display();
    let dictionary = load(&arguments.dictionary, arguments.level)?;
    let split = arguments.records.split;
    let set = records::read_some(&arguments.samples, split, arguments.records.memory)?;
    let explained = explain_dictionary(&dictionary, &set.samples(), arguments.level)
        .map_err(|error| refused(&name, &error))?;
    let mut segments = explained.segments.clone();
    segments.sort_by_key(|segment| (std::cmp::Reverse(segment.saved_bits), segment.start));
    segments.truncate(arguments.top);
    let share = |bits: u64| bits as f64 / explained.saved_bits.max(1) as f64;
    let drift = match arguments.newer.is_empty() {
        true => None,
        false => {
            let newer = records::read(&arguments.newer, split, arguments.records.memory)?;
            Some(drift(arguments, dictionary.as_bytes(), newer)?)
        }
    };
    let unused = explained.unused_len as f64 / dictionary.content().len().max(1) as f64;
    if arguments.json {
        let segments = segments.iter().map(|segment| {
            json!({
                "start": segment.start,
                "bytes": segment.len,
                "sample": segment.sample_idx,
                "n_matches": segment.n_matches,
                "saved_bits": segment.saved_bits,
                "share": share(segment.saved_bits),
            })
        });
        return print_json(&json!({
            "dictionary": name.to_string(),
            "n_samples": explained.n_samples,
            "n_segments": explained.segments.len(),
            "unused_share": unused,
            "segments": segments.collect::<Vec<_>>(),
            "drift": drift,
        }));
    }
    let mut table = Table::new(1, ["text", "at", "bytes", "sample", "matches", "share of savings"]);
    for segment in &segments {
        let bytes = &dictionary.content()[segment.start..segment.start + segment.len.min(PREVIEW_LEN)];
        table.push([
            bytes.escape_ascii().to_string(),
            segment.start.to_string(),
            segment.len.to_string(),
            segment.sample_idx.map_or("-".to_owned(), |idx| idx.to_string()),
            segment.n_matches.to_string(),
            format!("{:.2} %", share(segment.saved_bits) * 100.0),
        ]);
    }
    let mut text = format!(
        "{} segments, {} samples parsed at level {}; {:.1} % of the content was not used\n\n{}",
        explained.segments.len(),
        explained.n_samples,
        arguments.level,
        unused * 100.0,
        table.render()
    );
    if let Some(drift) = drift {
        text += &format!(
            "\nnewer samples: {:.3} times smaller with this dictionary, {:.3} with a new one: {}\n",
            drift["ratio"].as_f64().unwrap_or(0.0),
            drift["retrained_ratio"].as_f64().unwrap_or(0.0),
            if drift["retrain"] == true { "retrain" } else { "keep it" }
        );
    }
    print(text)
}

/// What newer samples take with the dictionary, and with one trained on half of them; measured on the other half.
fn drift(arguments: &ExplainArguments, old: &[u8], newer: SampleSet) -> Result<Value, Failure> {
    let (learn, judge) = newer.set_apart(0.5);
    let options = TrainOptions::default().with_size(old.len()).with_level(arguments.level).with_search(false);
    let trained =
        train(&learn.samples(), &options).map_err(|error| refused(arguments.newer[0].display(), &error))?;
    let measure = |bytes: &[u8]| {
        let result = super::train::evaluate(bytes, &judge.samples(), arguments.level, 0)?;
        result.ok_or_else(|| Failure::input("there are too few newer samples"))
    };
    let (now, then) = (measure(old)?, measure(&trained.dictionary)?);
    let gain = now.coded_len as f64 / then.coded_len.max(1) as f64 - 1.0;
    Ok(json!({
        "ratio": ratio(now.raw_len, now.coded_len),
        "retrained_ratio": ratio(then.raw_len, then.coded_len),
        "gain": gain,
        "retrain": gain >= DRIFT,
    }))
}
