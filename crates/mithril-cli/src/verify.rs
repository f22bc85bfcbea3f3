//! `mithril verify`: every sum of every file, and nothing written.

use crate::arguments::VerifyArguments;
use crate::failure::{CHANGED, Failure, Fault, NAME_THE_BASE, print, print_json, tell};
use crate::open;
use crate::progress::Meter;
use crate::source::Source;
use mithril::container::{Bases, Depth};
use mithril::convert::ecq::{self, EcqFile};
use mithril::storage::without_secrets_of_urls;
use mithril::{DecodeOptions, Decoder};
use serde_json::{Value, json};
use std::io::{self, Read};
use std::path::Path;

/// What was found in a file.
struct Finding {
    /// What was checked, in words.
    checked: String,
    problems: Vec<String>,
    /// The base that was not found, without which not everything can be checked.
    missing_base: Option<String>,
    facts: Value,
}

/// Runs `mithril verify`.
pub(crate) fn run(arguments: &VerifyArguments) -> Result<(), Failure> {
    let mut reports = Vec::new();
    let mut worst: Option<Fault> = None;
    for path in &arguments.files {
        let name = without_secrets_of_urls(&path.display().to_string());
        let finding = match check(path, arguments) {
            Ok(finding) => finding,
            // A file that cannot be opened at all is one more problem, and the others are checked still.
            Err(Failure::Told { fault, message, hint }) if arguments.files.len() > 1 || arguments.json => {
                worst = worst.max(Some(fault));
                if !arguments.json {
                    Failure::Told { fault, message, hint }.tell();
                    continue;
                }
                Finding {
                    checked: String::new(),
                    problems: vec![message],
                    missing_base: None,
                    facts: json!({}),
                }
            }
            Err(failure) => return Err(failure),
        };
        let is_intact = finding.problems.is_empty() && finding.missing_base.is_none();
        if !is_intact {
            worst = worst.max(Some(Fault::Input));
        }
        if arguments.json {
            // Neither true nor false when nothing is known to be damaged, and not everything was checked.
            let known = if finding.problems.is_empty() && !is_intact { None } else { Some(is_intact) };
            let mut report = json!({
                "file": name,
                "intact": known,
                "problems": finding.problems,
                "missing_base": finding.missing_base,
            });
            if let (Some(report), Some(facts)) = (report.as_object_mut(), finding.facts.as_object()) {
                report.extend(facts.clone());
            }
            reports.push(report);
        } else if is_intact {
            print(format!("{name}: intact, {}\n", finding.checked))?;
        } else if let (Some(missing), true) = (&finding.missing_base, finding.problems.is_empty()) {
            print(format!("{name}: {missing}\n"))?;
            tell(&format!("\nhint: {NAME_THE_BASE}"));
        } else {
            let n = finding.problems.len();
            let lines: String = finding.problems.iter().map(|problem| format!("  {problem}\n")).collect();
            print(format!("{name}: damaged, {n} {}\n{lines}", if n == 1 { "problem" } else { "problems" }))?;
        }
    }
    if arguments.json {
        print_json(&json!({"files": reports, "intact": worst.is_none()}))?;
    }
    worst.map_or(Ok(()), |fault| Err(Failure::Reported(fault)))
}

fn check(path: &Path, arguments: &VerifyArguments) -> Result<Finding, Failure> {
    let source = Source::open(path)?;
    if source.is_container() {
        return check_container(path, &source, arguments);
    }
    if source.is_framed() {
        return check_framed(path, arguments);
    }
    if source.is_model() {
        let model = open::model_alone(path)?;
        let n = model.tensors().len();
        if model.kind() == "safetensors"
            && let Some(coded) =
                EcqFile::open(path).map_err(|error| Failure::model(path.display(), &error))?
        {
            return check_coded(path, &coded);
        }
        return Ok(Finding {
            checked: format!("the structure of {n} tensors; {} files carry no checksums", model.kind()),
            problems: Vec::new(),
            missing_base: None,
            facts: json!({"kind": model.kind(), "n_tensors": n, "checksums": false}),
        });
    }
    check_frame(source, arguments)
}

fn check_container(path: &Path, source: &Source, arguments: &VerifyArguments) -> Result<Finding, Failure> {
    let failed = |error: &mithril::Error| Failure::model(path.display(), error);
    let model = match arguments.deep {
        true => open::model(path, &arguments.base)?,
        false => open::model_alone(path)?,
    };
    let none = Bases::none();
    let bases = model.bases().unwrap_or(&none);
    let reader = model.container().ok_or_else(|| Failure::input(CHANGED))?;
    let depth = if arguments.deep { Depth::WithBases } else { Depth::Alone };
    let total_len = reader.entries().iter().map(|entry| entry.raw_len()).fold(0, u64::saturating_add);
    let meter = Meter::new(Some(total_len));
    let found = reader
        .verify(bases, depth, arguments.threads, &|len| meter.add(len))
        .map_err(|error| failed(&error))?;
    drop(meter);
    let mut checked = format!(
        "{} tensors decoded, {} bytes stored, digest {}",
        found.n_decoded,
        source.len.unwrap_or(0),
        reader.directory().digest()
    );
    if found.n_without_base > 0 {
        checked += &format!("; {} need a base and were only summed up (`--deep`)", found.n_without_base);
    }
    Ok(Finding {
        checked,
        problems: found.problems.iter().map(ToString::to_string).collect(),
        missing_base: found.missing_base.as_ref().map(ToString::to_string),
        facts: json!({
            "kind": "container",
            "n_decoded": found.n_decoded,
            "n_without_base": found.n_without_base,
            "decoded_bytes": found.decoded_len,
            "digest": reader.directory().digest().to_string(),
        }),
    })
}

/// A safetensors file whose tensors are frames: each of them is decoded.
fn check_framed(path: &Path, arguments: &VerifyArguments) -> Result<Finding, Failure> {
    let model = open::model_alone(path)?;
    let meter = Meter::new(Some(model.tensors().iter().map(|tensor| tensor.raw_len).sum()));
    let mut problems = Vec::new();
    for (idx, tensor) in model.tensors().iter().enumerate() {
        let decoded =
            model.open_tensor(idx).and_then(|opened| opened.for_each_piece(arguments.threads, |_| Ok(())));
        match decoded.map_err(|error| error.in_tensor(&tensor.name)) {
            Err(error @ mithril::Error::Io { .. }) => return Err(Failure::model(path.display(), &error)),
            Err(error) => problems.push(error.to_string()),
            Ok(()) => {}
        }
        meter.add(tensor.raw_len);
    }
    let n = model.tensors().len();
    Ok(Finding {
        checked: format!("{n} tensors decoded"),
        facts: json!({"kind": "safetensors with frames", "n_decoded": n - problems.len()}),
        problems,
        missing_base: None,
    })
}

/// A file of entropy-coded quantised weights: each matrix is decoded.
fn check_coded(path: &Path, file: &EcqFile) -> Result<Finding, Failure> {
    let meter = Meter::new(None);
    let found =
        ecq::verify(file, &|len| meter.add(len)).map_err(|error| Failure::model(path.display(), &error))?;
    drop(meter);
    let n = found.n_matrices;
    let source =
        if found.is_source_equal { ", and the file that they were made of has its digest" } else { "" };
    Ok(Finding {
        checked: format!("{n} coded matrices decoded{source}"),
        problems: found.problems.iter().map(ToString::to_string).collect(),
        missing_base: None,
        facts: json!({
            "kind": "entropy-coded safetensors",
            "n_matrices": n,
            "source_restored": found.is_source_equal,
            "checksums": true,
        }),
    })
}

fn check_frame(mut source: Source, arguments: &VerifyArguments) -> Result<Finding, Failure> {
    let name = source.name.clone();
    let total_len = source.len;
    let options = DecodeOptions::default().with_threads(arguments.threads);
    let reader = crate::progress::Metered::new(source.reader(), total_len);
    let mut decoder =
        Decoder::with_options(reader, &options).map_err(|error| crate::pack::refused_frame(&name, &error))?;
    let has_sums = decoder.header().checksums;
    match io::copy(&mut decoder.by_ref(), &mut io::sink()) {
        Ok(len) => Ok(Finding {
            checked: format!(
                "{len} bytes decoded{}",
                if has_sums { "" } else { "; blocks carry no checksums" }
            ),
            problems: Vec::new(),
            missing_base: None,
            facts: json!({"kind": "frame", "decoded_bytes": len, "checksums": has_sums}),
        }),
        // Damage is a finding; that the file cannot be read is not.
        Err(error) if error.get_ref().is_some() => Ok(Finding {
            checked: String::new(),
            problems: vec![error.to_string()],
            missing_base: None,
            facts: json!({"kind": "frame"}),
        }),
        Err(error) => Err(Failure::read(&name, &error)),
    }
}
