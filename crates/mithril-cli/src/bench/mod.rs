//! `mithril bench`: size and speed on the user's files, beside memcpy and other compressors.

mod codec;
mod files;
mod measure;
mod report;
mod rival;

pub(crate) use measure::{Budget, Contestant, measure};
pub(crate) use report::{Basis, Clock, Speed};
pub(crate) use rival::Rival;

use crate::arguments::BenchArguments;
use crate::failure::{Failure, print, print_json};
use crate::input::{self, Input};
use report::{FileReport, Report};
use std::path::Path;

/// Runs `mithril bench`.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    let threads = match arguments.threads {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        threads => threads,
    };
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        effort: arguments.effort.get().name(),
        threads,
        clock: if threads == 1 { Clock::ThreadCpu } else { Clock::Wall },
        files: Vec::new(),
    };
    for path in &arguments.files {
        let input = input::read(path, arguments.dtype)?;
        let file = bench_file(path, &input, arguments, threads, report.clock)?;
        if arguments.json {
            report.files.push(file);
        } else {
            print(format!("{}\n", file.render(&report)))?;
        }
    }
    if arguments.json { print_json(&report) } else { Ok(()) }
}

fn bench_file(
    path: &Path,
    input: &Input,
    arguments: &BenchArguments,
    threads: usize,
    clock: Clock,
) -> Result<FileReport, Failure> {
    let name = path.display().to_string();
    let mut contestants =
        contestants(input, arguments, threads).map_err(|error| Failure::command(error.to_string()))?;
    let budget = arguments.repeat.map_or(Budget::Seconds(arguments.seconds), Budget::Rounds);
    let memcpy = measure(input, &mut contestants, budget)
        .map_err(|what| Failure::input(format!("`{name}` did not come back bit for bit: {what}")))?;
    let basis = Basis::new(input, clock, memcpy);
    let whole_file = match arguments.file {
        false => None,
        true => {
            let [encode, decode] = [contestants[0].encode, contestants[0].decode].map(|elapsed| {
                let threads = contestants[0].threads;
                basis.speed(elapsed, threads).wall_gb_s
            });
            let memory = files::InMemory { encode_gb_s: encode, decode_gb_s: decode };
            let scratch = arguments.scratch.clone().unwrap_or_else(std::env::temp_dir);
            Some(files::measure(path, &scratch, arguments.effort.get(), threads, budget, memory)?)
        }
    };
    Ok(FileReport {
        file: name,
        n_tensors: input.pieces.len(),
        dtypes: input.dtypes().iter().map(|(dtype, _)| dtype.name()).collect(),
        raw_bytes: basis.raw_len,
        n_elements: basis.n_elements,
        memcpy: basis.speed(memcpy, 1),
        rows: contestants.iter().map(|contestant| basis.row(contestant)).collect(),
        whole_file,
    })
}

/// Everything to measure on a file.
fn contestants(
    input: &Input,
    arguments: &BenchArguments,
    threads: usize,
) -> std::io::Result<Vec<Contestant>> {
    let checksums: &[bool] = if arguments.no_checksum { &[false] } else { &[true, false] };
    let frames = |&on: &bool| Contestant::frames(&input.pieces, arguments.effort.get(), threads, on);
    let mut contestants: Vec<Contestant> = checksums.iter().map(frames).collect();
    for rival in &arguments.against {
        contestants.extend(rival.contestants()?);
    }
    Ok(contestants)
}
