//! What was measured, as a table for people and as JSON for programs.

use super::files::WholeFile;
use super::measure::Contestant;
use crate::clock::Elapsed;
use crate::input::Input;
use crate::table::Table;
use serde::Serialize;

/// Everything that one run of `bench` measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) effort: &'static str,
    pub(crate) threads: usize,
    /// The clock behind `x_memcpy`, and the main one of the tables.
    pub(crate) clock: Clock,
    pub(crate) files: Vec<FileReport>,
}

/// The clock that means something: CPU time of the thread when there is one, else time on the wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Clock {
    ThreadCpu,
    Wall,
}

/// One file.
#[derive(Debug, Serialize)]
pub(crate) struct FileReport {
    pub(crate) file: String,
    pub(crate) n_tensors: usize,
    /// Names of its dtypes, the one with most bytes first.
    pub(crate) dtypes: Vec<&'static str>,
    pub(crate) raw_bytes: usize,
    pub(crate) n_elements: u64,
    /// One thread copying the same pieces.
    pub(crate) memcpy: Speed,
    pub(crate) rows: Vec<Row>,
    /// From file to file, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) whole_file: Option<WholeFile>,
}

/// One codec on one file.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) codec: String,
    /// Whether blocks carry checksums; `null` for other codecs.
    pub(crate) checksums: Option<bool>,
    pub(crate) threads: usize,
    pub(crate) compressed_bytes: usize,
    /// Compressed through raw bytes.
    pub(crate) ratio: f64,
    pub(crate) bits_per_element: f64,
    pub(crate) encode: Speed,
    pub(crate) decode: Speed,
    pub(crate) rounds: u32,
    /// Always true: a codec that is not exact stops the run.
    pub(crate) exact: bool,
}

/// 10^9 raw bytes per second, by three clocks.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Speed {
    /// Missing with several threads: the calling one only waits.
    pub(crate) thread_cpu_gb_s: Option<f64>,
    pub(crate) process_cpu_gb_s: f64,
    pub(crate) wall_gb_s: f64,
    pub(crate) x_memcpy: f64,
}

/// What the rows of a report have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Basis {
    pub(crate) clock: Clock,
    pub(crate) raw_len: usize,
    pub(crate) n_elements: u64,
    pub(crate) memcpy: Elapsed,
}

impl Basis {
    /// What the pieces of an input have in common.
    pub(crate) fn new(input: &Input, clock: Clock, memcpy: Elapsed) -> Self {
        Self { clock, raw_len: input.raw_len(), n_elements: input.n_elements(), memcpy }
    }

    /// The speed of work that took so long on `threads` threads.
    pub(crate) fn speed(&self, elapsed: Elapsed, threads: usize) -> Speed {
        let gb = self.raw_len as f64 / 1e9;
        let x_memcpy = match self.clock {
            Clock::ThreadCpu => self.memcpy.thread_cpu / elapsed.thread_cpu,
            Clock::Wall => self.memcpy.wall / elapsed.wall,
        };
        Speed {
            thread_cpu_gb_s: (threads == 1).then_some(gb / elapsed.thread_cpu),
            process_cpu_gb_s: gb / elapsed.process_cpu,
            wall_gb_s: gb / elapsed.wall,
            x_memcpy,
        }
    }

    /// The row of a codec.
    pub(crate) fn row(&self, result: &Contestant) -> Row {
        Row {
            codec: result.name.clone(),
            checksums: result.checksums,
            threads: result.threads,
            compressed_bytes: result.coded_len,
            ratio: result.coded_len as f64 / self.raw_len as f64,
            bits_per_element: result.coded_len as f64 * 8.0 / self.n_elements.max(1) as f64,
            encode: self.speed(result.encode, result.threads),
            decode: self.speed(result.decode, result.threads),
            rounds: result.n_rounds,
            exact: true,
        }
    }
}

impl Speed {
    /// By the main clock.
    pub(crate) fn main(&self, clock: Clock) -> f64 {
        match clock {
            Clock::ThreadCpu => self.thread_cpu_gb_s.unwrap_or(self.process_cpu_gb_s),
            Clock::Wall => self.wall_gb_s,
        }
    }

    /// By the other clock that a table shows.
    fn other(&self, clock: Clock) -> f64 {
        match clock {
            Clock::ThreadCpu => self.wall_gb_s,
            Clock::Wall => self.process_cpu_gb_s,
        }
    }
}

impl Clock {
    /// Its name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ThreadCpu => "thread CPU time",
            Self::Wall => "time on the wall",
        }
    }
}

impl FileReport {
    /// The table of one file.
    pub(crate) fn render(&self, report: &Report) -> String {
        let clock = report.clock;
        let plural = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
        let mut text = format!(
            "{}: {} of {}, {} elements, {} bytes\nmithril {}, effort {}, {}; GB/s by {}, best round, every bit compared\n",
            self.file,
            plural(self.n_tensors, "tensor"),
            self.dtypes.join(", "),
            self.n_elements,
            self.raw_bytes,
            report.version,
            report.effort,
            plural(report.threads, "thread"),
            clock.name(),
        );
        let other = match clock {
            Clock::ThreadCpu => ["encode wall", "decode wall"],
            Clock::Wall => ["encode cpu", "decode cpu"],
        };
        let headings =
            ["codec", "checksums", "ratio", "bits/element", "encode", "x memcpy", "decode", "x memcpy"];
        let [a, b, c, d, e, f, g, h] = headings;
        let mut table = Table::new(2, [a, b, c, d, e, f, g, h, other[0], other[1]]);
        let cells =
            |name: &str, checksums: Option<bool>, ratio: f64, bits: f64, encode: Speed, decode: Speed| {
                let checksums = checksums.map_or("-", |on| if on { "on" } else { "off" });
                [
                    name.to_owned(),
                    checksums.to_owned(),
                    format!("{ratio:.4}"),
                    format!("{bits:.3}"),
                    format!("{:.2}", encode.main(clock)),
                    format!("{:.3}", encode.x_memcpy),
                    format!("{:.2}", decode.main(clock)),
                    format!("{:.3}", decode.x_memcpy),
                    format!("{:.2}", encode.other(clock)),
                    format!("{:.2}", decode.other(clock)),
                ]
            };
        let raw_bits = self.raw_bytes as f64 * 8.0 / self.n_elements.max(1) as f64;
        for row in &self.rows {
            table.push(cells(
                &row.codec,
                row.checksums,
                row.ratio,
                row.bits_per_element,
                row.encode,
                row.decode,
            ));
        }
        table.push(cells("memcpy", None, 1.0, raw_bits, self.memcpy, self.memcpy));
        text += &table.render();
        if let Some(whole_file) = &self.whole_file {
            text += "\n";
            text += &whole_file.render();
        }
        text
    }
}
