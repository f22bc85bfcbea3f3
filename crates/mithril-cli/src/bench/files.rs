//! Whole files: from one file to another through the page cache, beside the codec in memory and plain copying.

use super::measure::Budget;
use crate::clock::{Elapsed, time};
use crate::failure::Failure;
use crate::output::clean_up_on_signal;
use crate::table::Table;
use mithril::container::{Bases, Reader};
use mithril::pack::{PackOptions, pack, unpack};
use mithril::{AtomicFile, Effort, Error, ReadAt};
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// Bytes that plain copying moves at a time.
const COPY_LEN: usize = 512 << 10;

/// What packing and unpacking a whole file came to, by 10^9 raw bytes per second.
#[derive(Debug, Serialize)]
pub(crate) struct WholeFile {
    pub(crate) packed_bytes: u64,
    pub(crate) rounds: u32,
    pub(crate) compress: Rates,
    pub(crate) decompress: Rates,
    /// Reading the file and writing as many bytes as its container has, and the other way round, without coding.
    pub(crate) copy_like_compress: Rates,
    pub(crate) copy_like_decompress: Rates,
}

/// The speed of one direction, by two clocks.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Rates {
    pub(crate) wall_gb_s: f64,
    pub(crate) process_cpu_gb_s: f64,
    /// Time on the wall of the codec in memory, through that of the file.
    pub(crate) x_memory: f64,
}

/// How fast the same codec is in memory, on the wall.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InMemory {
    pub(crate) encode_gb_s: f64,
    pub(crate) decode_gb_s: f64,
}

/// Packs and unpacks a file in turns with copying, until the budget is spent. Outputs are written to `scratch`, are
/// not synced to disk, and are gone afterwards.
pub(crate) fn measure(
    path: &Path,
    scratch: &Path,
    effort: Effort,
    threads: usize,
    budget: Budget,
    memory: InMemory,
) -> Result<WholeFile, Failure> {
    clean_up_on_signal();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let options = PackOptions::default().with_effort(effort).with_threads(threads);
    let source = File::open(path).map_err(|error| Failure::read(path.display(), &error))?;
    let raw_len = source.size().map_err(|error| Failure::read(path.display(), &error))?;
    let packed_path = scratch.join(format!("{name}.bench.mckp"));
    let restored_path = scratch.join(format!("{name}.bench"));
    let create =
        |path: &Path| AtomicFile::create(path, true).map_err(|error| Failure::write(path.display(), &error));
    let [mut compress, mut decompress, mut copy_in, mut copy_out] = [Elapsed::FOREVER; 4];
    let (mut packed_len, mut n_rounds, mut spent) = (0, 0, 0.0);
    let is_done = |n_rounds: u32, spent: f64| match budget {
        Budget::Seconds(seconds) => n_rounds > 0 && spent >= seconds,
        Budget::Rounds(rounds) => n_rounds >= rounds,
    };
    while !is_done(n_rounds, spent) {
        let target = create(&packed_path)?;
        let (result, elapsed) = time(|| pack(&source, target, &options, &|_| ()));
        let (packed, summary) = result.map_err(|error| Failure::model(path.display(), &error))?;
        packed_len = summary.packed_len;
        compress = compress.min(elapsed);
        spent += elapsed.wall;

        let packed_file = File::open(packed.temporary());
        let packed_file = packed_file.map_err(|error| Failure::read(packed.temporary().display(), &error))?;
        let target = create(&restored_path)?;
        let (result, elapsed) = time(|| {
            let reader = Reader::open(&packed_file)?;
            unpack(&reader, target, &Bases::none(), threads, &|_| ())
        });
        let (restored, _) = result.map_err(|error: Error| Failure::model(path.display(), &error))?;
        decompress = decompress.min(elapsed);
        spent += elapsed.wall;
        let is_equal = equal(path, restored.temporary());
        if !is_equal.map_err(|error| Failure::read(restored.temporary().display(), &error))? {
            return Err(Failure::input(format!("`{}` did not come back byte for byte", path.display())));
        }
        drop(restored);

        let copy = |from: &Path, len: u64| -> Result<Elapsed, Failure> {
            let mut target = create(&restored_path)?;
            let (result, elapsed) = time(|| copy(from, len, &mut target));
            result.map_err(|error| Failure::read(from.display(), &error))?;
            Ok(elapsed)
        };
        copy_in = copy_in.min(copy(path, packed_len)?);
        copy_out = copy_out.min(copy(packed.temporary(), raw_len)?);
        n_rounds += 1;
    }
    let rates = |elapsed: Elapsed, memory_gb_s: f64| {
        let gb = raw_len as f64 / 1e9;
        Rates {
            wall_gb_s: gb / elapsed.wall,
            process_cpu_gb_s: gb / elapsed.process_cpu,
            x_memory: gb / elapsed.wall / memory_gb_s,
        }
    };
    Ok(WholeFile {
        packed_bytes: packed_len,
        rounds: n_rounds,
        compress: rates(compress, memory.encode_gb_s),
        decompress: rates(decompress, memory.decode_gb_s),
        copy_like_compress: rates(copy_in, memory.encode_gb_s),
        copy_like_decompress: rates(copy_out, memory.decode_gb_s),
    })
}

/// Reads all of a file, and writes so many bytes, in pieces.
fn copy(from: &Path, len: u64, out: &mut impl Write) -> std::io::Result<()> {
    let mut file = File::open(from)?;
    let mut piece = vec![0; COPY_LEN];
    let mut left = len;
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 && left == 0 {
            return Ok(());
        }
        // Behind the end of the file the last piece is written again.
        let n = if read == 0 { COPY_LEN } else { read };
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(n);
        out.write_all(&piece[..n])?;
        left -= n as u64;
    }
}

fn equal(a: &Path, b: &Path) -> std::io::Result<bool> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    if a.size()? != b.size()? {
        return Ok(false);
    }
    let (mut piece_a, mut piece_b) = (vec![0; COPY_LEN], vec![0; COPY_LEN]);
    loop {
        let n = a.read(&mut piece_a)?;
        b.read_exact(&mut piece_b[..n])?;
        if piece_a[..n] != piece_b[..n] {
            return Ok(false);
        }
        if n == 0 {
            return Ok(true);
        }
    }
}

impl WholeFile {
    /// A table for people.
    pub(crate) fn render(&self) -> String {
        let headings = ["file to file", "compress", "x memory", "cpu", "decompress", "x memory", "cpu"];
        let mut table = Table::new(1, headings);
        let cells = |name: &str, compress: Rates, decompress: Rates| {
            let number = |value: f64| format!("{value:.2}");
            [
                name.to_owned(),
                number(compress.wall_gb_s),
                number(compress.x_memory),
                number(compress.process_cpu_gb_s),
                number(decompress.wall_gb_s),
                number(decompress.x_memory),
                number(decompress.process_cpu_gb_s),
            ]
        };
        table.push(cells("mithril", self.compress, self.decompress));
        table.push(cells("read and write only", self.copy_like_compress, self.copy_like_decompress));
        table.render()
    }
}
